//! For each verdict of the engine and each result of the handler: is the message acknowledged, retried or a dead
//! letter? A wrong acknowledgement loses a message.

use std::time::Duration;

use refrain::{
    Claim, Engine, Guarantee, Intent, Key, Outcome, RecordId, Settled, Settlement, Store, Verdict,
    consume::{Consumer, Count, DEAD_REASON, KeySource, Message},
    engine::Running,
    record::Reason,
    store::StateName::{self, Completed, Indeterminate},
};
use tokio::time::sleep;

use crate::{
    scripted::{Op, states},
    stage::{ATTEMPTS, Act, LEASE, NAME, RETENTION, Stage, header},
};

/// One message, and the expected result.
struct Case {
    guarantee: Guarantee,
    acts: &'static [Act],
    calls: usize,
    counts: &'static [(Count, u64)],
    dead: Option<&'static str>,
    states: &'static [StateName],
}

async fn check(case: Case) {
    let stage = Stage::new();
    stage.handler.script(case.acts);
    stage.publish_text("m").await;
    let tally = stage.run_out(stage.consumer_of(case.guarantee)).await;
    let what = format!("{:?} {:?}", case.guarantee, case.acts);
    assert_eq!(stage.handler.calls(), case.calls, "calls: {what}");
    for count in Count::ALL {
        let wanted = case.counts.iter().find(|(it, _)| *it == count);
        let wanted = wanted.map_or(0, |(_, number)| *number);
        assert_eq!(tally.get(count), wanted, "{}: {what}", count.name());
    }
    let letters = stage.letters().await;
    let reasons: Vec<_> = letters.iter().map(|it| header(it, DEAD_REASON)).collect();
    assert_eq!(reasons, Vec::from_iter(case.dead), "{what}");
    assert_eq!(states(&stage.store).await, case.states, "{what}");
}

#[tokio::test(start_paused = true)]
async fn at_least_once_runs_until_it_succeeds_or_the_attempts_are_used_up() {
    const RETRIED_ONCE: &[(Count, u64)] = &[(Count::Retried, 1), (Count::Completed, 1)];
    const LATER: &[Act] = &[Act::RetryAfter(Duration::from_secs(100))];
    const USED_UP: &[(Count, u64)] = &[(Count::Retried, 2), (Count::DeadLettered, 1)];
    let at_least_once = |acts, calls, counts, dead, states| Case {
        guarantee: Guarantee::AtLeastOnce,
        acts,
        calls,
        counts,
        dead,
        states,
    };
    for case in [
        at_least_once(&[], 1, &[(Count::Completed, 1)], None, &[Completed]),
        at_least_once(&[Act::Retry], 2, RETRIED_ONCE, None, &[Completed]),
        at_least_once(LATER, 2, RETRIED_ONCE, None, &[Completed]),
        at_least_once(
            &[Act::Retry; ATTEMPTS as usize],
            3,
            USED_UP,
            Some("attempts-used-up"),
            &[],
        ),
        at_least_once(
            &[Act::Reject],
            1,
            &[(Count::DeadLettered, 1)],
            Some("rejected"),
            &[],
        ),
        at_least_once(
            &[Act::Panic],
            2,
            &[(Count::Panicked, 1), (Count::Completed, 1)],
            None,
            &[Completed],
        ),
        at_least_once(
            &[Act::Panic; ATTEMPTS as usize],
            3,
            &[(Count::Panicked, 2), (Count::DeadLettered, 1)],
            Some("attempts-used-up"),
            &[Indeterminate],
        ),
    ] {
        check(case).await;
    }
}

#[tokio::test(start_paused = true)]
async fn at_most_once_leaves_doubt_and_never_runs_again() {
    const DEAD: &[(Count, u64)] = &[(Count::DeadLettered, 1)];
    const UNKNOWN: Option<&str> = Some("outcome-unknown");
    let at_most_once = |acts, calls, counts, dead, states| Case {
        guarantee: Guarantee::AtMostOnce,
        acts,
        calls,
        counts,
        dead,
        states,
    };
    for case in [
        at_most_once(&[], 1, &[(Count::Completed, 1)], None, &[Completed]),
        at_most_once(&[Act::Retry], 1, DEAD, UNKNOWN, &[Indeterminate]),
        at_most_once(&[Act::Panic], 1, DEAD, UNKNOWN, &[Indeterminate]),
        at_most_once(&[Act::Reject], 1, DEAD, Some("rejected"), &[Indeterminate]),
        at_most_once(
            &[Act::RetryWithoutEffect],
            2,
            &[(Count::Retried, 1), (Count::Completed, 1)],
            None,
            &[Completed],
        ),
        at_most_once(&[Act::RejectWithoutEffect], 1, DEAD, Some("rejected"), &[]),
    ] {
        check(case).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_is_skipped() {
    let stage = Stage::new();
    for _ in 0..3 {
        stage.publish_text("m").await;
    }
    let tally = stage.run_out(stage.consumer()).await;
    assert_eq!(stage.handler.calls(), 1);
    assert_eq!(tally.get(Count::Completed), 1);
    assert_eq!(tally.get(Count::Duplicate), 2);
}

#[tokio::test(start_paused = true)]
async fn another_payload_under_the_same_key_is_a_dead_letter() {
    let stage = Stage::new();
    for payload in ["one", "two"] {
        stage.publish(Message::new(payload).with_id("m")).await;
        stage.run_out(stage.consumer()).await;
    }
    assert_eq!(stage.handler.done(), ["one"]);
    let letters = stage.letters().await;
    assert_eq!(header(&letters[0], DEAD_REASON), "key-reused");
    assert_eq!(&letters[0].payload[..], b"two");
}

#[tokio::test(start_paused = true)]
async fn json_that_is_written_otherwise_is_the_same_payload() {
    let stage = Stage::new();
    for payload in [r#"{"a":1,"b":2}"#, r#"{ "b": 2, "a": 1 }"#] {
        let message = Message::new(payload).with_id("m");
        stage
            .publish(message.with_content_type("application/json"))
            .await;
    }
    let tally = stage.run_out(stage.consumer()).await;
    assert_eq!(tally.get(Count::Duplicate), 1);
}

#[tokio::test(start_paused = true)]
async fn message_past_retention_is_skipped() {
    let stage = Stage::new();
    stage.publish_text("m").await;
    stage.run_out(stage.consumer()).await;
    sleep(RETENTION).await;
    stage.publish_text("m").await;
    let tally = stage.run_out(stage.consumer()).await;
    assert_eq!(tally.get(Count::Expired), 1);
    assert_eq!(stage.handler.calls(), 1);
}

/// The intent that claims the message "m".
fn intent(stage: &Stage, guarantee: Guarantee) -> Intent {
    let mut intent = Intent::new(Consumer::scope(NAME), Key::new("m").unwrap());
    intent.terms = Stage::terms(guarantee);
    let content = refrain::fingerprint::Content::new(None, b"m");
    let view = refrain::fingerprint::RequestView {
        method: "",
        path: "",
        query: None,
        host: None,
        headers: &[("", &b""[..]); 0],
        content: &content,
    };
    let parts = [refrain::fingerprint::Part::Body];
    intent.fingerprint = refrain::Fingerprint::of(stage.engine.secret(), &parts, &view);
    intent
}

/// Claims the key of the message "m" as another consumer.
async fn claimed(stage: &Stage, engine: &Engine, guarantee: Guarantee) -> Running {
    match engine.claim(&intent(stage, guarantee)).await.unwrap() {
        Verdict::Granted(guard) => guard.start(),
        other => panic!("not granted: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn message_in_flight_elsewhere_is_returned_without_a_busy_loop() {
    let stage = Stage::new();
    let other = Engine::new(stage.store.clone());
    let running = claimed(&stage, &other, Guarantee::AtLeastOnce).await;
    let asked = stage.store.calls(Op::Claim);
    stage.publish_text("m").await;
    let ending = async {
        sleep(Duration::from_secs(300)).await;
        running.complete(Outcome::new(0, "theirs")).await.unwrap()
    };
    let (tally, settled) = tokio::join!(stage.run_out(stage.consumer()), ending);
    assert_eq!(settled, Settled::Applied);
    assert_eq!(stage.handler.calls(), 0);
    assert_eq!(tally.get(Count::Duplicate), 1);
    let given_back = tally.get(Count::InFlight);
    assert!(
        (5..=15).contains(&given_back),
        "given back {given_back} times"
    );
    let asked = stage.store.calls(Op::Claim) - asked;
    assert!(asked < 300, "the store was asked {asked} times in 300 s");
}

#[tokio::test(start_paused = true)]
async fn message_of_a_dead_holder_is_taken_over_or_indeterminate() {
    for (guarantee, calls, reasons) in [
        (Guarantee::AtLeastOnce, 1, vec![]),
        (Guarantee::AtMostOnce, 0, vec!["outcome-unknown"]),
    ] {
        let stage = Stage::new();
        let other = Engine::new(stage.store.clone());
        drop(claimed(&stage, &other, guarantee).await);
        stage.publish_text("m").await;
        stage.run_out(stage.consumer_of(guarantee)).await;
        assert_eq!(stage.handler.calls(), calls, "{guarantee:?}");
        let letters = stage.letters().await;
        let found: Vec<_> = letters.iter().map(|it| header(it, DEAD_REASON)).collect();
        assert_eq!(found, reasons, "{guarantee:?}");
        let attempts = stage.handler.calls.lock().unwrap();
        assert!(attempts.iter().all(|call| call.job.attempt == 2));
    }
}

/// A message that kills its process is taken over until its attempts are used up, by the count in its record.
#[tokio::test(start_paused = true)]
async fn message_that_kills_every_process_is_dead_lettered() {
    let stage = Stage::new();
    let intent = intent(&stage, Guarantee::AtLeastOnce);
    for attempt in 1..=ATTEMPTS {
        // Claimed at the store directly: a killed process neither settles nor renews.
        let claim = Claim {
            guarantee: Guarantee::AtLeastOnce,
            attempts_max: ATTEMPTS,
            lease: LEASE,
            ..Claim::new(
                RecordId::derive(stage.engine.secret(), &intent.scope, &intent.key),
                intent.fingerprint,
            )
        };
        let Verdict::Granted(grant) = stage.store.claim(claim).await.unwrap() else {
            panic!("not granted");
        };
        assert_eq!(grant.attempt, attempt);
        sleep(LEASE * 2).await;
    }
    stage.publish_text("m").await;
    stage.run_out(stage.consumer()).await;
    assert_eq!(stage.handler.calls(), 0);
    let letters = stage.letters().await;
    assert_eq!(header(&letters[0], DEAD_REASON), "outcome-unknown");
}

#[tokio::test(start_paused = true)]
async fn superseded_holder_does_not_acknowledge_with_its_own_outcome() {
    let stage = Stage::new();
    stage.publish_text("m").await;
    let consumer = stage.consumer();
    let tally = consumer.tally();
    let records = stage.store.records.clone();
    let handler = move |job: refrain::consume::Job| {
        let records = records.clone();
        async move {
            // Another claim releases the key meanwhile.
            let settled = records.settle(job.record, job.fence, Settlement::Release);
            assert_eq!(settled.await.unwrap(), Settled::Applied);
            Ok(Outcome::new(0, "mine"))
        }
    };
    let shutdown = crate::stage::until(|| tally.get(Count::Overtaken) >= 2);
    consumer.run(handler, shutdown).await.unwrap();
    assert_eq!(tally.get(Count::Completed), 0);
    assert_eq!(stage.backlog(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_record_in_doubt_is_a_dead_letter_unless_it_may_run_again() {
    let stage = Stage::new();
    let other = Engine::new(stage.store.clone());
    let mut running = claimed(&stage, &other, Guarantee::AtMostOnce).await;
    let _ = running.doubt(Reason::Timeout).await.unwrap();
    stage.publish_text("m").await;
    stage
        .run_out(stage.consumer_of(Guarantee::AtMostOnce))
        .await;
    assert_eq!(stage.handler.calls(), 0);
    let letters = stage.letters().await;
    assert_eq!(header(&letters[0], DEAD_REASON), "outcome-unknown");
}

#[tokio::test(start_paused = true)]
async fn message_without_a_key_is_dead_lettered_and_not_handled() {
    let bodies = [
        ("key-missing", Message::new("{}").with_id("x")),
        (
            "key-invalid",
            Message::new("{}")
                .with_header("k", "a")
                .with_header("K", "b"),
        ),
    ];
    for (reason, message) in bodies {
        let stage = Stage::new();
        stage.publish(message).await;
        let source: KeySource = "header:k".parse().unwrap();
        stage.run_out(stage.consumer().with_key([source])).await;
        assert_eq!(stage.handler.calls(), 0);
        let letters = stage.letters().await;
        assert_eq!(header(&letters[0], DEAD_REASON), reason);
    }
}

#[tokio::test(start_paused = true)]
async fn two_consumers_of_one_store_do_not_shadow_each_other() {
    let stage = Stage::new();
    let names = [NAME, "shipping"];
    let consumers = names.map(|name| stage.plain_consumer(Guarantee::AtLeastOnce, name));
    stage.publish_text("m").await;
    for consumer in consumers {
        let tally = stage
            .run(consumer, |tally| tally.get(Count::Completed) > 0)
            .await;
        assert_eq!(tally.get(Count::Duplicate), 0);
    }
    assert_eq!(stage.handler.calls(), 2);
}
