//! One key is one call: a repeated call is answered from the journal, a concurrent one joins the first, and the same
//! key with another request is rejected. Otherwise one key could charge twice.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response, header};
use refrain::{
    Client, ErrorKind,
    client::{
        Ending, HyperTransport, Journal, Limits, Transport, TransportError, journal::Options,
    },
    key::Syntax,
};

use crate::{
    server::{Server, Step, answer, bytes},
    stage::{Stage, body, key, open, post, told},
};

#[tokio::test]
async fn a_finished_call_is_answered_from_the_journal() {
    let (stage, server) = (
        Stage::new(),
        Server::start([answer(201, "x-number: 1\r\n", "one")]).await,
    );
    let request = || post(server.url("/pay"), "20");
    let client = stage.client();
    let first = client.call(key("order-7")).send(request()).await.unwrap();
    let again = client.call(key("order-7")).send(request()).await.unwrap();
    drop(client);
    // Another process, later.
    let client = stage.client();
    let later = client.call(key("order-7")).send(request()).await.unwrap();
    for (ending, is_from_journal) in [(first, false), (again, true), (later, true)] {
        let Ending::Answered(answer) = ending else {
            panic!("{ending:?}")
        };
        assert_eq!(answer.is_from_journal, is_from_journal);
        assert_eq!(answer.attempts, u32::from(!is_from_journal));
        assert_eq!(answer.response.status(), 201);
        assert_eq!(answer.response.headers()["x-number"], "1");
        assert_eq!(answer.response.body(), "one");
    }
    assert_eq!(server.keys(), ["order-7"]);
}

#[tokio::test]
async fn another_request_under_the_same_key_is_refused_and_not_sent() {
    let (stage, server) = (Stage::new(), Server::start([]).await);
    let client = stage.client();
    let json = |text: &str| {
        let mut request = post(server.url("/pay?a=1"), text);
        let json = HeaderValue::from_static("application/json");
        request.headers_mut().insert(header::CONTENT_TYPE, json);
        request
    };
    let first = client.call(key("order-7")).send(json(r#"{"a":1,"b":2}"#));
    assert_eq!(told(&first.await.unwrap()), "answered 200");
    // White space, member order and other headers do not make it a different request.
    let mut same = json(r#"{"b": 2, "a": 1}"#);
    same.headers_mut()
        .insert("x-trace", HeaderValue::from_static("2"));
    let same = client.call(key("order-7")).send(same).await.unwrap();
    assert_eq!(told(&same), "answered 200");
    let others = [
        json(r#"{"a":1,"b":3}"#),
        post(server.url("/pay?a=2"), r#"{"a":1,"b":2}"#),
        post(server.url("/refund?a=1"), r#"{"a":1,"b":2}"#),
        post("http://127.0.0.1:1/pay?a=1", r#"{"a":1,"b":2}"#),
        Request::put(server.url("/pay?a=1"))
            .body(r#"{"a":1,"b":2}"#.into())
            .unwrap(),
    ];
    for other in others {
        let shown = format!("{other:?}");
        let refused = client.call(key("order-7")).send(other).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Mismatch, "{shown}");
    }
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn a_call_in_flight_is_waited_for() {
    let gated = Step::Gated(bytes(201, "", "one"));
    let (stage, server) = (Stage::new(), Server::start([gated]).await);
    let client = stage.client().with_deadline(Duration::from_secs(30));
    let send = |body: &'static str| {
        let (client, request) = (client.clone(), post(server.url("/pay"), body));
        tokio::spawn(async move { client.call(key("order-7")).send(request).await })
    };
    let calls = [send("20"), send("20"), send("20")];
    server.has_seen(1).await;
    let other = send("99").await.unwrap().unwrap_err();
    assert_eq!(other.kind(), ErrorKind::Mismatch);
    let forgotten = client.forget(&key("order-7"), "no").await.unwrap_err();
    assert_eq!(forgotten.kind(), ErrorKind::Invalid);
    server.gate.add_permits(1);
    for call in calls {
        assert_eq!(body(&call.await.unwrap().unwrap()), "one");
    }
    assert_eq!(server.keys(), ["order-7"]);
}

#[tokio::test]
async fn a_caller_that_goes_away_loses_nothing() {
    let gated = Step::Gated(bytes(201, "", "one"));
    let (stage, server) = (Stage::new(), Server::start([gated]).await);
    let client = stage.client();
    let request = || post(server.url("/pay"), "20");
    let sending = client.call(key("order-7")).send(request());
    server.sees(1, sending).await;
    assert_eq!(open(&client).await, 1);
    server.gate.add_permits(1);
    let ending = client.call(key("order-7")).send(request()).await.unwrap();
    assert_eq!(body(&ending), "one");
    assert_eq!(
        server.keys(),
        ["order-7"],
        "sent once for all waiting callers"
    );
}

#[tokio::test]
async fn an_open_call_is_taken_up_again_by_who_sends_it_again() {
    let script = vec![Step::Close; 4]
        .into_iter()
        .chain([answer(201, "", "one")]);
    let (stage, server) = (Stage::new(), Server::start(script).await);
    let client = stage.client();
    let request = || post(server.url("/pay"), "20");
    let first = client.call(key("order-7")).send(request()).await.unwrap();
    assert_eq!(told(&first), "unknown: AttemptsUsedUp");
    let other = client
        .call(key("order-7"))
        .send(post(server.url("/pay"), "99"))
        .await;
    assert_eq!(other.unwrap_err().kind(), ErrorKind::Mismatch);
    let second = client.call(key("order-7")).send(request()).await.unwrap();
    assert_eq!(body(&second), "one");
    assert_eq!(server.keys(), ["order-7"; 5]);
    assert_eq!(open(&client).await, 0);
}

#[tokio::test]
async fn key_of_a_released_call_can_be_sent_again() {
    // Misconfigured at first: if the journal kept the key, it would be unusable for a day.
    let script = [crate::server::problem(400, "key-missing", "new-key", "")];
    let (stage, server) = (Stage::new(), Server::start(script).await);
    let client = stage.client();
    let first = client
        .call(key("order-7"))
        .send(post(server.url("/pay"), "20"));
    assert_eq!(told(&first.await.unwrap()), "new key: NewKeyWanted");
    let second = client
        .call(key("order-7"))
        .send(post(server.url("/pay"), "20"));
    assert_eq!(told(&second.await.unwrap()), "answered 200");
}

#[tokio::test]
async fn a_key_can_be_made_and_is_in_the_journal_before_it_is_sent() {
    let (stage, server) = (Stage::new(), Server::start([Step::Stall]).await);
    let client = stage.client();
    let call = client.call_new();
    let made = call.key().clone();
    let sending = call.send(post(server.url("/pay"), "20"));
    server.sees(1, sending).await;
    assert_eq!(server.keys(), [made.as_str()]);
    assert_eq!(client.open_calls().await.unwrap()[0].key, made);
    assert_ne!(client.call_new().key(), &made);
    // The format of a UUID version 4.
    let text = made.as_str();
    let dashes: Vec<_> = text.match_indices('-').map(|(at, _)| at).collect();
    assert_eq!(
        (text.len(), dashes, &text[14..15]),
        (36, vec![8, 13, 18, 23], "4")
    );
    assert!("89ab".contains(&text[19..20]), "{text}");
}

#[tokio::test]
async fn the_key_goes_where_the_server_looks_for_it() {
    let (stage, server) = (Stage::new(), Server::start([]).await);
    let client = stage.client();
    let paypal = client
        .clone()
        .with_key_header(HeaderName::from_static("paypal-request-id"));
    let strict = client.clone().with_key_syntax(Syntax::Strict);
    let send = async |client: &crate::stage::TestClient, name: &str| {
        let ending = client
            .call(key(name))
            .send(post(server.url("/pay"), "20"))
            .await;
        assert_eq!(told(&ending.unwrap()), "answered 200");
        server.seen().pop().unwrap()
    };
    assert_eq!(
        send(&paypal, "one").await.header("paypal-request-id"),
        Some("one")
    );
    let quoted = send(&strict, r#"a"b\c"#).await;
    assert_eq!(quoted.key(), r#""a\"b\\c""#);
    assert_eq!(
        Syntax::Strict
            .read(quoted.key().as_bytes())
            .unwrap()
            .as_str(),
        r#"a"b\c"#
    );
    // A request with the same key in its header is accepted, one with another key is rejected.
    let with_key = |value: &'static str| {
        let mut request = post(server.url("/pay"), "20");
        let value = HeaderValue::from_static(value);
        request.headers_mut().insert("idempotency-key", value);
        request
    };
    let same = client.call(key("two")).send(with_key("two")).await.unwrap();
    assert_eq!(told(&same), "answered 200");
    let other = client
        .call(key("three"))
        .send(with_key("four"))
        .await
        .unwrap_err();
    assert_eq!(other.kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn oversized_calls_are_rejected_before_they_are_sent() {
    let script = vec![Step::Close; 8];
    let (stage, server) = (Stage::new(), Server::start(script).await);
    let options = Options {
        open_calls_max: 2,
        request_bytes_max: 10,
        ..Options::default()
    };
    let client = stage.client_with(options);
    for name in ["one", "two"] {
        let ending = client
            .call(key(name))
            .send(post(server.url("/pay"), "0123456789"));
        assert_eq!(told(&ending.await.unwrap()), "unknown: AttemptsUsedUp");
    }
    let sent = server.seen().len();
    let cases = [
        (
            post(server.url("/pay"), "20"),
            ErrorKind::Full,
            "open_calls_max",
        ),
        (
            post(server.url("/pay"), "0123456789+"),
            ErrorKind::Invalid,
            "request_bytes_max",
        ),
        (post("/pay", "20"), ErrorKind::Invalid, "absolute URL"),
        (
            post("ftp://host/pay", "20"),
            ErrorKind::Invalid,
            "absolute URL",
        ),
        (
            post("http://user:word@host/pay", "20"),
            ErrorKind::Invalid,
            "contains a user",
        ),
    ];
    for (request, kind, text) in cases {
        let error = client.call(key("three")).send(request).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(text), "{error}");
    }
    assert_eq!(server.seen().len(), sent);
    // A call that is already open does not count as a new one.
    let again = client
        .call(key("two"))
        .send(post(server.url("/pay"), "0123456789"));
    assert_eq!(told(&again.await.unwrap()), "answered 200");
    let freed = client
        .call(key("three"))
        .send(post(server.url("/pay"), "20"));
    assert_eq!(told(&freed.await.unwrap()), "answered 200");
}

#[tokio::test]
async fn an_answer_too_long_to_keep_leaves_the_call_open() {
    let long = "x".repeat(2_000);
    let script = vec![answer(200, "", &long); 3];
    let (stage, server) = (Stage::new(), Server::start(script).await);
    let options = Options {
        answer_bytes_max: 1_000,
        ..Options::default()
    };
    let request = || post(server.url("/pay"), "20");
    // Over the limit of the journal, and over that of the transport.
    let client = stage.client_with(options);
    let ending = client.call(key("order-7")).send(request()).await.unwrap();
    assert_eq!(told(&ending), "unknown: AnswerTooLong");
    drop(client);
    let limits = Limits {
        answer_bytes_max: 1_000,
        ..crate::stage::limits()
    };
    let journal = Journal::open(&stage.path).unwrap();
    let client = Client::new(HyperTransport::new(limits), journal);
    let ending = client.call(key("order-7")).send(request()).await.unwrap();
    assert_eq!(told(&ending), "unknown: AnswerTooLong");
    drop(client);
    let client = stage.client();
    let ending = client.call(key("order-7")).send(request()).await.unwrap();
    assert_eq!(body(&ending), long);
    assert_eq!(
        server.seen().len(),
        3,
        "it must not be retried because of that"
    );
}

#[test]
fn a_runtime_that_ends_leaves_the_call_open() {
    let stage = Stage::new();
    let outside = tokio::runtime::Runtime::new().unwrap();
    let server = outside.block_on(Server::start([Step::Stall, answer(201, "", "one")]));
    let life = tokio::runtime::Runtime::new().unwrap();
    life.block_on(async {
        let client = stage.client();
        let sending = client
            .call(key("order-7"))
            .send(post(server.url("/pay"), "20"));
        server.sees(1, sending).await;
    });
    drop(life);
    outside.block_on(async {
        let client = stage.client();
        let resumed = client.resume().await.unwrap().all().await.remove(0);
        assert_eq!(body(&resumed.ending.unwrap()), "one");
    });
    assert_eq!(server.keys(), ["order-7"; 2]);
}

/// Panics on its first call.
#[derive(Debug, Default)]
struct Panicking(std::sync::atomic::AtomicBool);

impl Transport for Panicking {
    async fn send(&self, _: Request<Bytes>) -> Result<Response<Bytes>, TransportError> {
        let is_first = !self.0.swap(true, std::sync::atomic::Ordering::SeqCst);
        assert!(!is_first, "a transport that panics");
        Ok(Response::new("fine".into()))
    }
}

#[tokio::test]
async fn a_transport_that_panics_leaves_the_call_open_and_nobody_waiting() {
    let stage = Stage::new();
    let journal = Journal::open(&stage.path).unwrap();
    let client = Client::new(Panicking::default(), journal);
    let send = async || {
        let request = post("http://desk/pay", "20");
        client.call(key("order-7")).send(request).await
    };
    let error = send().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(client.open_calls().await.unwrap().len(), 1);
    assert_eq!(body(&send().await.unwrap()), "fine");
}
