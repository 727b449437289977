//! Events of one aggregate arrive in any order and more than once; each must be handled once, in sequence order.

use std::sync::Arc;

use refrain::{
    Guarantee,
    consume::{Count, DEAD_REASON, Gap, Message, Redrive, Sequence},
};
use tokio::time::sleep;

use crate::stage::{Act, DEAD, RETENTION, Stage, header};

fn sequence(gap: Gap) -> Sequence {
    let sequence = Sequence::new("body:/order", "header:version").unwrap();
    sequence.with_gap(gap)
}

async fn publish(stage: &Stage, order: &str, number: &str) {
    let payload = format!(r#"{{"order":"{order}","number":{number:?}}}"#);
    // Another id each time: the aggregate and the number alone identify an event.
    let id = format!("{:x}", rand_id());
    let message = Message::new(payload).with_id(id);
    stage
        .publish(message.with_header("version", number.to_owned()))
        .await;
}

fn rand_id() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The numbers of one aggregate, in the order in which they were handled.
fn handled(stage: &Stage) -> Vec<String> {
    let number = |text: &String| {
        let at = text.find("\"number\":\"").unwrap() + 10;
        text[at..].trim_end_matches("\"}").to_owned()
    };
    stage.handler.done().iter().map(number).collect()
}

struct Case {
    gap: Gap,
    published: &'static [&'static str],
    handled: &'static [&'static str],
    dead: &'static [&'static str],
    counts: &'static [(Count, u64)],
}

async fn check(case: Case) {
    let stage = Stage::new();
    for number in case.published {
        publish(&stage, "o-1", number).await;
    }
    let consumer = stage.consumer().with_in_flight_max(1);
    let tally = stage
        .run_out(consumer.with_sequence(sequence(case.gap)))
        .await;
    assert_eq!(handled(&stage), case.handled, "{:?}", case.published);
    let letters = stage.letters().await;
    let reasons: Vec<_> = letters.iter().map(|it| header(it, DEAD_REASON)).collect();
    assert_eq!(reasons, case.dead, "{:?}", case.published);
    for (count, number) in case.counts {
        let name = count.name();
        assert_eq!(tally.get(*count), *number, "{name} {:?}", case.published);
    }
}

#[tokio::test(start_paused = true)]
async fn events_are_accepted_once_and_in_order() {
    let case = |gap, published, handled, dead, counts| Case {
        gap,
        published,
        handled,
        dead,
        counts,
    };
    const ALL: &[&str] = &["1", "2", "3"];
    for case in [
        case(Gap::Hold, ALL, ALL, &[], &[(Count::Held, 0)]),
        case(
            Gap::Hold,
            &["1", "1", "2"],
            &["1", "2"],
            &[],
            &[(Count::Duplicate, 1)],
        ),
        case(
            Gap::Hold,
            &["2", "1"],
            &["1", "2"],
            &[],
            &[(Count::Held, 1)],
        ),
        case(Gap::Hold, &["3", "2", "1"], ALL, &[], &[]),
        case(
            Gap::Hold,
            &["1", "2", "3", "1", "2", "3"],
            ALL,
            &[],
            &[(Count::Duplicate, 3)],
        ),
        case(
            Gap::Hold,
            &["1", "3"],
            &["1"],
            &["sequence-gap"],
            &[(Count::Held, 2)],
        ),
        case(
            Gap::Pass,
            &["1", "3"],
            &["1", "3"],
            &[],
            &[(Count::GapPassed, 1), (Count::Completed, 2)],
        ),
        case(Gap::Hold, &["0"], &[], &["sequence-invalid"], &[]),
        case(Gap::Hold, &["-1"], &[], &["sequence-invalid"], &[]),
        case(Gap::Hold, &["x"], &[], &["sequence-invalid"], &[]),
    ] {
        check(case).await;
    }
}

#[tokio::test(start_paused = true)]
async fn aggregates_do_not_wait_for_each_other() {
    let stage = Stage::new();
    publish(&stage, "o-1", "2").await;
    publish(&stage, "o-2", "1").await;
    let consumer = stage.consumer().with_sequence(sequence(Gap::Hold));
    let is_so = |it: &refrain::consume::Tally| it.get(Count::Completed) == 1;
    let tally = stage.run(consumer, is_so).await;
    assert_eq!(tally.get(Count::Held), 1);
    assert_eq!(stage.backlog(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_stream_may_start_elsewhere() {
    let stage = Stage::new();
    publish(&stage, "o-1", "0").await;
    publish(&stage, "o-1", "1").await;
    let consumer = stage.consumer().with_in_flight_max(1);
    stage
        .run_out(consumer.with_sequence(sequence(Gap::Hold).with_first(0)))
        .await;
    assert_eq!(handled(&stage), ["0", "1"]);
}

#[tokio::test(start_paused = true)]
async fn an_event_without_its_aggregate_is_a_dead_letter() {
    let stage = Stage::new();
    stage
        .publish(Message::new("{}").with_header("version", "1"))
        .await;
    stage
        .run_out(stage.consumer().with_sequence(sequence(Gap::Hold)))
        .await;
    let letters = stage.letters().await;
    assert_eq!(header(&letters[0], DEAD_REASON), "sequence-invalid");
}

/// When retention ends, the last remembered number is enough, a forgotten one is a gap, and a duplicate is recognized
/// as long as its own record exists.
#[tokio::test(start_paused = true)]
async fn forgotten_predecessor_is_a_gap() {
    let stage = Stage::new();
    let consumer = || stage.consumer().with_sequence(sequence(Gap::Hold));
    publish(&stage, "o-1", "1").await;
    stage.run_out(consumer()).await;
    sleep(RETENTION * 3 / 2).await;
    publish(&stage, "o-1", "2").await;
    stage.run_out(consumer()).await;
    assert_eq!(handled(&stage), ["1", "2"]);
    // The record of event 1 has expired by now, that of event 2 has not.
    sleep(RETENTION * 3 / 2).await;
    publish(&stage, "o-1", "2").await;
    let tally = stage.run_out(consumer()).await;
    assert_eq!(tally.get(Count::Expired), 1);
    sleep(RETENTION * 3).await;
    publish(&stage, "o-1", "3").await;
    stage.run_out(consumer()).await;
    let letters = stage.letters().await;
    assert_eq!(header(&letters[0], DEAD_REASON), "sequence-gap");
}

#[tokio::test(start_paused = true)]
async fn a_predecessor_that_was_let_through_again_counts() {
    let stage = Stage::new();
    stage.handler.script(&[Act::Retry]);
    publish(&stage, "o-1", "1").await;
    let consumer = || {
        let consumer = stage.consumer_of(Guarantee::AtMostOnce);
        consumer.with_sequence(sequence(Gap::Hold))
    };
    stage.run_out(consumer()).await;
    let dead = Arc::new(stage.broker.subscribe(DEAD, "undertaker"));
    let redrive = Redrive::new(dead, Arc::new(stage.broker.clone()), stage.engine.clone());
    assert_eq!(redrive.run().await.unwrap().sent, 1);
    stage.run_out(consumer()).await;
    publish(&stage, "o-1", "2").await;
    stage.run_out(consumer()).await;
    assert_eq!(handled(&stage), ["1", "2"]);
}

#[test]
fn fields_are_headers_or_members() {
    for (aggregate, number) in [
        ("id", "body:/n"),
        ("body:/a", "natural:{/n}"),
        ("", "body:/n"),
    ] {
        assert!(Sequence::new(aggregate, number).is_err());
    }
}
