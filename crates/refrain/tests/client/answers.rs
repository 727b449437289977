//! A client that retries the wrong response charges twice; one that gives up on the wrong response loses the call.
//! For each response: the number of attempts, the ending, and whether the call stays open.

use std::time::{Duration, SystemTime};

use refrain::client::{Advice, Client, HyperTransport, Journal, Limits, Retry};
use tokio::{net::TcpSocket, time::Instant};

use crate::{
    server::{Server, Step, answer, problem},
    stage::{Stage, TestClient, client_on, key, limits, open, post, retry, told},
};

/// Sends one call against the script; checks the ending, the number of attempts and the number of open calls.
#[track_caller]
fn check(script: Vec<Step>, ending: &str, sent: usize, left_open: usize) {
    check_with(retry(), script, ending, sent, left_open);
}

#[track_caller]
fn check_with(retry: Retry, script: Vec<Step>, ending: &str, sent: usize, left_open: usize) {
    let client = |stage: &Stage| stage.client().with_retry(retry);
    check_client(client, script, ending, sent, left_open);
}

#[track_caller]
fn check_client(
    client: impl FnOnce(&Stage) -> TestClient,
    script: Vec<Step>,
    ending: &str,
    sent: usize,
    left_open: usize,
) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let shown = format!("{script:?}");
    let (told, keys, still_open) = runtime.block_on(async {
        let (stage, server) = (Stage::new(), Server::start(script).await);
        let client = client(&stage);
        let sending = client
            .call(key("order-7"))
            .send(post(server.url("/pay"), "20"));
        let ending = sending.await.unwrap();
        (told(&ending), server.keys(), open(&client).await)
    });
    assert_eq!(told, ending, "{shown}");
    assert_eq!(keys, vec!["order-7"; sent], "{shown}");
    assert_eq!(still_open, left_open, "{shown}");
}

#[test]
fn the_operations_own_answers_are_final() {
    for status in [200, 201, 204, 301, 303, 400, 404, 410, 413, 422, 501] {
        let script = vec![answer(status, "", "")];
        check(script, &format!("answered {status}"), 1, 0);
    }
}

#[test]
fn troubles_that_pass_are_tried_again_under_the_same_key() {
    for status in [408, 409, 425, 429, 500, 502, 503, 504] {
        let script = vec![
            answer(status, "", ""),
            answer(status, "", ""),
            answer(201, "", ""),
        ];
        check(script, "answered 201", 3, 0);
    }
    for step in [Step::Close, Step::Reset] {
        check(vec![step, answer(201, "", "")], "answered 201", 2, 0);
    }
    // Longer than the second attempt takes on a busy machine.
    let limits = Limits {
        attempt: Duration::from_secs(8),
        ..limits()
    };
    let client = |stage: &Stage| {
        let journal = Journal::open(&stage.path).unwrap();
        Client::new(HyperTransport::new(limits), journal).with_retry(retry())
    };
    let script = vec![Step::Stall, answer(201, "", "")];
    check_client(client, script, "answered 201", 2, 0);
    let cut = "HTTP/1.1 200 X\r\ncontent-length: 100\r\n\r\nhalf";
    check(vec![Step::Answer(cut.into())], "answered 200", 2, 0);
}

#[test]
fn advice_comes_before_the_status() {
    // One status that would be final, and one that would be retried.
    for status in [400, 503] {
        let told = |advice, headers| problem(status, "some-code", advice, headers);
        check(vec![told("wait", "")], "answered 200", 2, 0);
        check(vec![told("reuse-key", "")], "answered 200", 2, 0);
        check(vec![told("new-key", "")], "new key: NewKeyWanted", 1, 0);
        check(vec![told("ask", "")], "unknown: Asked", 1, 1);
    }
    // A request that may have executed could execute twice under a new key.
    let script = vec![Step::Close, problem(422, "key-reused", "new-key", "")];
    check(script, "unknown: NewKeyWanted", 2, 1);
    // An unknown advice is ignored.
    check(vec![problem(400, "x", "dance", "")], "answered 400", 1, 0);
    // Only a problem document carries advice.
    let script = vec![answer(
        400,
        "content-type: application/json\r\n",
        r#"{"advice":"wait"}"#,
    )];
    check(script, "answered 400", 1, 0);
    check(vec![problem(200, "x", "ask", "")], "answered 200", 1, 0);
}

#[test]
fn waiting_for_what_runs_is_no_attempt() {
    let script = vec![problem(409, "in-flight", "wait", ""); 9];
    check(script, "answered 200", 10, 0);
}

#[test]
fn a_kept_outcome_is_final_whatever_its_status() {
    let replayed = answer(500, "idempotent-replayed: true\r\n", "");
    check(vec![answer(500, "", ""), replayed], "answered 500", 2, 0);
    let replayed = problem(
        503,
        "store-unavailable",
        "reuse-key",
        "idempotent-replayed: true\r\n",
    );
    check(vec![replayed], "answered 503", 1, 0);
}

#[test]
fn used_up_attempts_say_whether_anything_may_have_run() {
    check(
        vec![answer(503, "", ""); 9],
        "unknown: AttemptsUsedUp",
        4,
        1,
    );
    check(vec![Step::Close; 9], "unknown: AttemptsUsedUp", 4, 1);
    check(
        vec![answer(409, "", ""); 9],
        "unknown: AttemptsUsedUp",
        4,
        1,
    );
    check(
        vec![answer(429, "", ""); 9],
        "not run: AttemptsUsedUp",
        4,
        0,
    );
    let unreachable = problem(502, "upstream-unreachable", "reuse-key", "");
    check(vec![unreachable; 9], "not run: AttemptsUsedUp", 4, 0);
    let mut mixed = vec![answer(429, "", ""); 9];
    mixed[1] = Step::Close;
    check(mixed, "unknown: AttemptsUsedUp", 4, 1);
}

#[test]
fn being_refused_does_not_tell_what_became_of_earlier_attempts() {
    for status in [401, 403, 407, 421] {
        let refused = answer(status, "", "");
        check(vec![refused.clone()], &format!("answered {status}"), 1, 0);
        check(
            vec![answer(429, "", ""), refused.clone()],
            &format!("answered {status}"),
            2,
            0,
        );
        check(vec![Step::Close, refused], "unknown: Refused", 2, 1);
    }
}

#[test]
fn a_conflict_can_be_the_operations_own() {
    let own = Retry {
        conflict_is_final: true,
        ..retry()
    };
    check_with(own, vec![answer(409, "", "")], "answered 409", 1, 0);
    // Explicit advice is followed anyway.
    check_with(
        own,
        vec![problem(409, "in-flight", "wait", "")],
        "answered 200",
        2,
        0,
    );
}

#[test]
fn nothing_is_followed_and_nothing_is_sent_by_the_transport_itself() {
    // If the server closes a kept-alive connection, that counts as an attempt; hyper must not retry it unseen.
    let once = Retry {
        attempts_max: 1,
        ..retry()
    };
    check_with(once, vec![Step::Close], "unknown: AttemptsUsedUp", 1, 1);
    check_with(once, vec![Step::Reset], "unknown: AttemptsUsedUp", 1, 1);
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_ran_nothing() {
    // Bound, so that no other process gets the port, but not listening.
    let held = TcpSocket::new_v4().unwrap();
    held.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = held.local_addr().unwrap();
    let stage = Stage::new();
    let client = stage.client();
    let request = post(format!("http://{address}/pay"), "20");
    let ending = client.call(key("order-7")).send(request).await.unwrap();
    assert_eq!(told(&ending), "not run: AttemptsUsedUp");
    let text = ending.into_answer().unwrap_err().to_string();
    assert!(
        text.contains("was not executed") && text.contains("nothing was sent"),
        "{text}"
    );
    assert_eq!(open(&client).await, 0);
}

/// Returns the ending and the time until the second attempt, if the first response has these headers.
async fn waited(headers: &str, deadline: Duration) -> (String, Duration) {
    let (stage, server) = (
        Stage::new(),
        Server::start([answer(503, headers, "")]).await,
    );
    let client = client_on(refrain::client::Journal::open(&stage.path).unwrap());
    let call = client.call(key("order-7")).with_deadline(deadline);
    let start = Instant::now();
    let ending = call.send(post(server.url("/pay"), "20")).await.unwrap();
    (told(&ending), start.elapsed())
}

fn http_date(ahead: u64) -> String {
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000 + ahead);
    httpdate::fmt_http_date(then)
}

#[tokio::test]
async fn a_server_that_wants_to_be_left_alone_is() {
    let minute = Duration::from_secs(60);
    let date = format!(
        "date: {}\r\nretry-after: {}\r\n",
        http_date(0),
        http_date(1)
    );
    for headers in ["retry-after: 1\r\n", date.as_str()] {
        let (told, waited) = waited(headers, minute).await;
        assert_eq!(told, "answered 200", "{headers}");
        assert!(waited >= Duration::from_secs(1), "{headers}: {waited:?}");
    }
    // A date in the past, without and with the server's own clock: the client must not wait until the deadline.
    for headers in [
        "retry-after: Thu, 01 Jan 2015 00:00:00 GMT\r\n",
        "retry-after: soon\r\n",
    ] {
        let (told, _) = waited(headers, minute).await;
        assert_eq!(told, "answered 200", "{headers}");
    }
}

#[tokio::test]
async fn calls_end_at_the_deadline() {
    let headers = "retry-after: 3600\r\n";
    let (told, waited) = waited(headers, Duration::from_secs(30)).await;
    assert_eq!(told, "unknown: DeadlinePassed");
    assert!(
        waited < Duration::from_secs(20),
        "did not end at once: {waited:?}"
    );
    let date = format!(
        "date: {}\r\nretry-after: {}\r\n",
        http_date(0),
        http_date(3_600)
    );
    let (told, _) = self::waited(&date, Duration::from_secs(30)).await;
    assert_eq!(told, "unknown: DeadlinePassed");
}

#[tokio::test]
async fn a_problem_reaches_the_person_who_has_to_look() {
    let script = [problem(409, "outcome-unknown", "ask", "")];
    let (stage, server) = (Stage::new(), Server::start(script).await);
    let client = stage.client();
    let call = client.call(key("order-7"));
    let ending = call.send(post(server.url("/pay"), "20")).await.unwrap();
    let problem = ending.problem().unwrap();
    assert_eq!(problem.advice, Advice::Ask);
    assert_eq!(
        (problem.code.as_str(), problem.detail.as_str()),
        ("outcome-unknown", "so")
    );
    let text = ending.into_answer().unwrap_err().to_string();
    assert!(
        text.contains("open in the journal") && text.contains("409"),
        "{text}"
    );
}
