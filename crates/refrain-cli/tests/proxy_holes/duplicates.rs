//! Bugs of other implementations with concurrent requests of one key.

use std::{collections::HashSet, sync::Arc, time::Duration};

use refrain_testkit::wait;
use rustix::process::{Signal, kill_process};
use tokio::{sync::Notify, task::JoinSet, time::sleep};

use crate::{
    Stand, slow_echo,
    upstream::{Act, echo},
    wire::{Message, ask, post, response},
};

fn bodies(answers: &[Message]) -> HashSet<String> {
    answers.iter().map(Message::text).collect()
}

/// Bug: nothing is claimed, so concurrent duplicates all run.
#[tokio::test]
async fn fifty_duplicates_at_once_have_one_effect_and_one_answer() {
    let stand = Stand::new("", |arrived| slow_echo(arrived, 200)).await;
    let mut asking = JoinSet::new();
    for _ in 0..50 {
        let address = stand.proxy.address;
        asking.spawn(async move { ask(address, &post("/orders", "one", b"{}")).await });
    }
    let answers = asking.join_all().await;
    assert_eq!(stand.upstream.count(), 1);
    assert!(answers.iter().all(|answer| answer.status() == 201));
    assert_eq!(bodies(&answers).len(), 1);
    let replays = answers.iter().filter(|answer| answer.is_replay());
    assert_eq!(replays.count(), 49);
}

/// Bug: lookup and claim are two steps, so a request that finishes in between runs again.
#[tokio::test]
async fn a_duplicate_that_comes_as_the_first_one_finishes_does_not_run() {
    let stand = Stand::new("", |arrived| {
        let number: u64 = arrived.request.key().parse().unwrap();
        slow_echo(arrived, number % 6)
    })
    .await;
    for key in 0..40 {
        let mut asking = JoinSet::new();
        for place in 0..10 {
            let address = stand.proxy.address;
            asking.spawn(async move {
                sleep(Duration::from_micros(place * 900)).await;
                ask(address, &post("/orders", &key.to_string(), b"{}")).await
            });
        }
        let answers = asking.join_all().await;
        assert!(answers.iter().all(|answer| answer.status() == 201));
        assert_eq!(bodies(&answers).len(), 1, "{key}");
    }
    assert_eq!(stand.upstream.count(), 40);
}

/// Bug: a lease without a fence (fencing token), so a slow holder's late response overwrites the new owner's.
#[tokio::test]
async fn the_late_answer_of_an_overtaken_attempt_changes_nothing() {
    // The same timeout applies to the second attempt, which has to respond in time.
    let settings = "[policy]\nguarantee = \"at-least-once\"\ntimeout = \"8s\"\nlease = \"4s\"\n\
                    wait = \"30s\"\nsettle_after = \"2m\"\n";
    let go_on = Arc::new(Notify::new());
    let waiting = go_on.clone();
    let stand = Stand::new(settings, move |arrived| match arrived.number {
        1 => [vec![Act::Wait(waiting.clone())], echo(arrived)].concat(),
        _ => echo(arrived),
    })
    .await;
    assert_eq!(
        stand.post("late", "{}").await.verdict(),
        "504 outcome-unknown"
    );
    let second = stand.post("late", "{}").await;
    assert_eq!(second.text(), "/orders by request 2");
    go_on.notify_one();
    wait::until("the late response is rejected", async || {
        stand.metric("refrain_overtaken_total").await == "1"
    })
    .await;
    let replay = stand.post("late", "{}").await;
    assert!(replay.is_replay());
    assert_eq!(replay.body, second.body);
    let attempts: Vec<_> = stand.upstream.arrived();
    let attempts = attempts
        .iter()
        .map(|it| it.request.header("refrain-attempt").unwrap());
    assert_eq!(attempts.collect::<Vec<_>>(), ["1", "2"]);
}

/// Same bug, other side: without a takeover, the late response is the outcome and is stored.
#[tokio::test]
async fn late_response_of_an_indeterminate_attempt_is_replayed_to_all() {
    let settings = "[policy]\ntimeout = \"300ms\"\nsettle_after = \"2m\"\n";
    let go_on = Arc::new(Notify::new());
    let waiting = go_on.clone();
    let stand = Stand::new(settings, move |arrived| {
        [vec![Act::Wait(waiting.clone())], echo(arrived)].concat()
    })
    .await;
    assert_eq!(
        stand.post("late", "{}").await.verdict(),
        "504 outcome-unknown"
    );
    assert_eq!(
        stand.post("late", "{}").await.verdict(),
        "409 outcome-unknown"
    );
    go_on.notify_one();
    wait::until("the late response is stored", async || {
        stand.post("late", "{}").await.status() == 201
    })
    .await;
    let replay = stand.post("late", "{}").await;
    assert!(replay.is_replay());
    assert_eq!(replay.text(), "/orders by request 1");
    assert_eq!(stand.upstream.count(), 1);
}

/// Bug: a waiter that times out deletes the claim of the running request.
#[tokio::test]
async fn waiters_that_give_up_leave_the_claim_alone() {
    let go_on = Arc::new(Notify::new());
    let waiting = go_on.clone();
    let stand = Stand::new("[policy]\nwait = \"100ms\"\n", move |arrived| {
        [vec![Act::Wait(waiting.clone())], echo(arrived)].concat()
    })
    .await;
    let address = stand.proxy.address;
    let first = tokio::spawn(async move { ask(address, &post("/orders", "w", b"{}")).await });
    stand.upstream.reached(1).await;
    for _ in 0..3 {
        let waiter = stand.post("w", "{}").await;
        assert_eq!(waiter.verdict(), "409 in-flight");
        assert!(waiter.header("retry-after").is_some());
        // Other waiters disconnect before that.
        let mut gone = stand.open().await;
        gone.send(&post("/orders", "w", b"{}")).await.unwrap();
        sleep(Duration::from_millis(30)).await;
        gone.reset();
    }
    go_on.notify_one();
    let first = first.await.unwrap();
    assert_eq!(first.text(), "/orders by request 1");
    let replay = stand.post("w", "{}").await;
    assert!(replay.is_replay());
    assert_eq!(replay.body, first.body);
    assert_eq!(stand.upstream.count(), 1);
}

/// Bug: each duplicate of a rejected request is forwarded, or the key stays locked.
#[tokio::test]
async fn duplicates_that_wait_for_a_refused_request_share_its_answer_and_the_key_is_free() {
    let go_on = Arc::new(Notify::new());
    let waiting = go_on.clone();
    let stand = Stand::new("[policy]\nwait = \"1m\"\n", move |arrived| {
        match arrived.number {
            1 => vec![
                Act::Wait(waiting.clone()),
                Act::Say(response(429, "", "later")),
            ],
            _ => echo(arrived),
        }
    })
    .await;
    let mut asking = JoinSet::new();
    for _ in 0..10 {
        let address = stand.proxy.address;
        asking.spawn(async move { ask(address, &post("/orders", "busy", b"{}")).await });
    }
    // A later duplicate would run, because the key is free by then.
    wait::until("the others wait", async || {
        stand.metric("refrain_waiting_duplicates").await == "9"
    })
    .await;
    go_on.notify_one();
    for answer in asking.join_all().await {
        assert_eq!((answer.status(), answer.is_replay()), (429, false));
    }
    assert_eq!(stand.upstream.count(), 1);
    assert_eq!(stand.post("busy", "{}").await.status(), 201);
}

/// Same bug, with a proxy that is paused past its lease: one response counts, and all clients get it.
#[tokio::test]
async fn a_holder_that_slept_past_its_lease_and_a_duplicate_get_the_same_answer() {
    for (guarantee, dispatches) in [("at-most-once", 1..=1), ("at-least-once", 1..=2)] {
        let settings = format!(
            "[policy]\nguarantee = \"{guarantee}\"\nlease = \"1s\"\nwait = \"30s\"\nsettle_after = \"20s\"\n\
             timeout = \"10s\"\n"
        );
        let stand = Stand::new(&settings, |arrived| slow_echo(arrived, 300)).await;
        let (address, pid) = (stand.proxy.address, stand.proxy.pid());
        let first = tokio::spawn(async move { ask(address, &post("/orders", "s", b"{}")).await });
        stand.upstream.reached(1).await;
        kill_process(pid, Signal::STOP).unwrap();
        let second = tokio::spawn(async move { ask(address, &post("/orders", "s", b"{}")).await });
        sleep(Duration::from_millis(2_000)).await;
        kill_process(pid, Signal::CONT).unwrap();
        let (first, second) = (first.await.unwrap(), second.await.unwrap());
        assert_eq!(first.status(), 201, "{guarantee}: {}", first.text());
        // Under at-most-once the outcome may have been unknown for a moment.
        if second.verdict() != "409 outcome-unknown" || guarantee == "at-least-once" {
            assert_eq!(second.body, first.body, "{guarantee}");
        }
        let replay = stand.post("s", "{}").await;
        assert_eq!((replay.is_replay(), replay.body), (true, first.body));
        assert!(dispatches.contains(&stand.upstream.count()), "{guarantee}");
    }
}
