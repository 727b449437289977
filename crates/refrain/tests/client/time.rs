//! Clocks are set, and machines sleep and restart. No request is sent after its deadline, because its key may be
//! forgotten by then, and no deadline passes early in a running process.

use std::{sync::Arc, time::Duration};

use refrain::client::{Budget, Client, HyperTransport, Journal, Limits, Retry, journal::Options};
use refrain_testkit::{ManualClock, wait};
use tokio::time::Instant;

use crate::{
    server::{Server, Step, answer, bytes},
    stage::{Stage, TestClient, body, key, limits, open, post, retry, told},
};

const HOUR: Duration = Duration::from_secs(3_600);

fn options(clock: &ManualClock) -> Options {
    Options {
        clock: Arc::new(clock.clone()),
        ..Options::default()
    }
}

/// Leaves a call open that may be sent for one hour.
async fn leave_open(client: &TestClient, server: &Server) {
    let call = client.call(key("order-7")).with_deadline(HOUR);
    let ending = call.send(post(server.url("/pay"), "20")).await.unwrap();
    assert_eq!(told(&ending), "unknown: AttemptsUsedUp");
}

/// Leaves a call open, resumes it after `meanwhile`; returns its ending and the number of further attempts.
async fn resumed_after(meanwhile: impl FnOnce(&ManualClock)) -> (String, usize) {
    let (stage, server) = (Stage::new(), Server::start(vec![Step::Close; 4]).await);
    let clock = ManualClock::new();
    let client = stage.client_with(options(&clock));
    leave_open(&client, &server).await;
    drop(client);
    meanwhile(&clock);
    let client = stage.client_with(options(&clock));
    let resumed = client.resume().await.unwrap().all().await.remove(0);
    let told = told(&resumed.ending.unwrap());
    let is_unknown = usize::from(told.starts_with("unknown"));
    assert_eq!(open(&client).await, is_unknown, "{told}");
    assert_eq!(
        client.resume().await.unwrap().all().await.len(),
        is_unknown,
        "the call must stay listed"
    );
    (told, server.seen().len() - 4)
}

#[tokio::test]
async fn a_call_past_its_deadline_is_told_of_and_not_sent() {
    let minute = Duration::from_secs(60);
    let sent = ("answered 200".to_owned(), 1);
    let late = ("unknown: DeadlinePassed".to_owned(), 0);
    assert_eq!(resumed_after(|_| {}).await, sent);
    assert_eq!(
        resumed_after(|clock| clock.advance(HOUR - minute)).await,
        sent
    );
    assert_eq!(resumed_after(|clock| clock.advance(HOUR)).await, late);
    // The wall clock is set back meanwhile: the monotonic clock counts.
    let set_back = |clock: &ManualClock| {
        clock.advance(HOUR);
        clock.jump_back(2 * HOUR);
    };
    assert_eq!(resumed_after(set_back).await, late);
    // The machine restarts meanwhile: the wall clock counts.
    let restarted = |clock: &ManualClock| {
        clock.advance(HOUR);
        clock.reboot();
    };
    assert_eq!(resumed_after(restarted).await, late);
    // The wall clock is set back before a restart: the time left never grows.
    let set_back = |clock: &ManualClock| {
        clock.reboot();
        clock.jump_back(10 * HOUR);
    };
    assert_eq!(resumed_after(set_back).await, sent);
}

#[tokio::test]
async fn a_wall_clock_that_is_set_does_not_move_a_deadline_of_this_process() {
    let gated = [
        Step::Gated(bytes(503, "", "")),
        Step::Gated(bytes(201, "", "one")),
    ];
    let (stage, server) = (Stage::new(), Server::start(gated).await);
    let clock = ManualClock::new();
    let client = stage.client_with(options(&clock));
    let going = {
        let (client, request) = (client.clone(), post(server.url("/pay"), "20"));
        let call = async move {
            client
                .call(key("order-7"))
                .with_deadline(HOUR)
                .send(request)
                .await
        };
        tokio::spawn(call)
    };
    server.has_seen(1).await;
    clock.jump(10 * HOUR);
    server.gate.add_permits(1);
    server.has_seen(2).await;
    clock.jump_back(20 * HOUR);
    server.gate.add_permits(1);
    assert_eq!(body(&going.await.unwrap().unwrap()), "one");
}

#[tokio::test]
async fn time_that_the_machine_slept_counts() {
    let gated = [Step::Gated(bytes(503, "", ""))];
    let (stage, server) = (Stage::new(), Server::start(gated).await);
    let clock = ManualClock::new();
    let client = stage.client_with(options(&clock));
    let going = {
        let (client, request) = (client.clone(), post(server.url("/pay"), "20"));
        let call = async move {
            client
                .call(key("order-7"))
                .with_deadline(HOUR)
                .send(request)
                .await
        };
        tokio::spawn(call)
    };
    server.has_seen(1).await;
    clock.advance(HOUR);
    server.gate.add_permits(1);
    assert_eq!(
        told(&going.await.unwrap().unwrap()),
        "unknown: DeadlinePassed"
    );
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn a_stalled_attempt_ends_at_the_deadline() {
    let (stage, server) = (Stage::new(), Server::start([Step::Stall]).await);
    // One attempt alone would take an hour.
    let limits = Limits {
        attempt: HOUR,
        ..limits()
    };
    let journal = Journal::open(&stage.path).unwrap();
    let client = Client::new(HyperTransport::new(limits), journal).with_retry(retry());
    let call = client
        .call(key("order-7"))
        .with_deadline(Duration::from_secs(6));
    let sending = call.send(post(server.url("/pay"), "20"));
    let ending = tokio::time::timeout(wait::PATIENCE, sending).await;
    assert_eq!(told(&ending.unwrap().unwrap()), "unknown: DeadlinePassed");
    assert_eq!(open(&client).await, 1);
}

#[tokio::test]
async fn answers_are_kept_for_their_retention_and_no_longer() {
    let (stage, server) = (Stage::new(), Server::start([]).await);
    let clock = ManualClock::new();
    let client = stage.client_with(options(&clock));
    let request = || post(server.url("/pay"), "20");
    let send =
        async |client: &TestClient| client.call(key("order-7")).send(request()).await.unwrap();
    assert_eq!(told(&send(&client).await), "answered 200");
    // Setting the wall clock forward does not shorten the deadline.
    clock.jump(100 * HOUR);
    clock.advance(23 * HOUR);
    assert_eq!(told(&send(&client).await), "answered 200");
    assert_eq!(server.seen().len(), 1);
    clock.advance(HOUR);
    assert_eq!(told(&send(&client).await), "answered 200");
    assert_eq!(server.seen().len(), 2, "the deadline has passed");
    clock.advance(24 * HOUR);
    drop(client);
    let client = stage.client_with(options(&clock));
    send(&client).await.into_answer().unwrap();
    assert_eq!(server.seen().len(), 3);
}

#[tokio::test]
async fn retries_of_all_calls_together_keep_within_the_budget() {
    let (stage, server) = (
        Stage::new(),
        Server::start(vec![answer(503, "", ""); 8]).await,
    );
    let retry = Retry {
        attempts_max: 20,
        budget: Budget {
            burst_max: 2,
            per_second: 10.0,
        },
        ..retry()
    };
    let client = stage.client().with_retry(retry);
    let start = Instant::now();
    let calls: Vec<_> = (0..8)
        .map(|number| {
            let (client, request) = (client.clone(), post(server.url("/pay"), "20"));
            let key = key(&format!("order-{number}"));
            tokio::spawn(async move { client.call(key).send(request).await })
        })
        .collect();
    for call in calls {
        assert_eq!(told(&call.await.unwrap().unwrap()), "answered 200");
    }
    // Eight retries: two at once, and six more at ten per second.
    let elapsed = start.elapsed();
    assert!(elapsed >= Duration::from_millis(580), "{elapsed:?}");
    assert_eq!(server.seen().len(), 16);
}
