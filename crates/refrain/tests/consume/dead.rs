//! A dead letter that is lost is a lost message: dead letters carry their history, and none is dropped because it
//! cannot be published.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use refrain::{
    Error, ErrorKind, Guarantee,
    consume::{
        Answer, Consumer, Count, DEAD_ATTEMPTS, DEAD_CONSUMER, DEAD_FIRST_FAILURE, DEAD_ID,
        DEAD_KEY, DEAD_LAST_FAILURE, DEAD_REASON, DEAD_RECORDS, DEAD_SOURCE, Failure, Memory,
        Message, Publisher,
    },
};

use crate::stage::{Act, DEAD, NAME, Stage, TOPIC, header, until};

#[tokio::test(start_paused = true)]
async fn a_dead_letter_tells_its_story() {
    let stage = Stage::new();
    let message = Message::new(&b"\xff\0"[..])
        .with_id("order-7")
        .with_header("X-Tenant", "7")
        .with_header("x-empty", "");
    stage.publish(message).await;
    let said = Arc::new(AtomicUsize::new(0));
    let handler = move |_| {
        let number = said.fetch_add(1, Ordering::SeqCst) + 1;
        std::future::ready(Err(Failure::retry(format!("no {number}\r\nX-Evil: 1"))))
    };
    let shutdown = until(|| stage.backlog() == 0);
    stage.consumer().run(handler, shutdown).await.unwrap();
    let letters = stage.letters().await;
    let letter = &letters[0];
    assert_eq!(&letter.payload[..], b"\xff\0");
    for (name, wanted) in [
        ("X-Tenant", "7"),
        (DEAD_REASON, "attempts-used-up"),
        (DEAD_CONSUMER, NAME),
        (DEAD_ATTEMPTS, "3"),
        (DEAD_SOURCE, TOPIC),
        (DEAD_KEY, "order-7"),
        (DEAD_ID, "order-7"),
        (DEAD_FIRST_FAILURE, "no 1  X-Evil: 1"),
        (DEAD_LAST_FAILURE, "no 3  X-Evil: 1"),
    ] {
        assert_eq!(header(letter, name), wanted, "{name}");
    }
    assert!(letter.header("x-empty").is_some());
    assert_eq!(header(letter, DEAD_RECORDS).len(), 32);
    assert_ne!(letter.id.as_deref(), Some("order-7"));
}

#[tokio::test(start_paused = true)]
async fn long_failures_are_cut() {
    let stage = Stage::new();
    stage.publish_text("m").await;
    let handler = |_| std::future::ready(Err(Failure::reject("ä".repeat(10_000))));
    let shutdown = until(|| stage.backlog() == 0);
    stage.consumer().run(handler, shutdown).await.unwrap();
    let letters = stage.letters().await;
    assert_eq!(header(&letters[0], DEAD_LAST_FAILURE).len(), 500);
}

#[tokio::test(start_paused = true)]
async fn without_a_destination_nothing_is_dropped() {
    let stage = Stage::new();
    stage.handler.script(&[Act::Reject; 100]);
    stage.publish_text("m").await;
    let consumer = stage.plain_consumer(Guarantee::AtMostOnce, NAME);
    let began = tokio::time::Instant::now();
    let is_so = |tally: &refrain::consume::Tally| tally.get(Count::Undeliverable) == 5;
    let tally = stage.run(consumer, is_so).await;
    assert!(
        began.elapsed() >= Duration::from_secs(30),
        "the consumer must back off"
    );
    assert_eq!(stage.handler.calls(), 1);
    assert_eq!(tally.get(Count::DeadLettered), 0);
    assert_eq!(stage.backlog(), 1);
}

/// A publisher that loses confirmations, or accepts nothing.
#[derive(Debug)]
struct Lossy {
    memory: Memory,
    /// Number of publishes that still fail.
    left: AtomicUsize,
    /// Whether a publish that fails is stored anyway.
    holds: bool,
}

impl Publisher for Lossy {
    fn publish<'a>(&'a self, destination: &'a str, message: &'a Message) -> Answer<'a, ()> {
        let left = self.left.load(Ordering::SeqCst);
        self.left.store(left.saturating_sub(1), Ordering::SeqCst);
        Box::pin(async move {
            if left == 0 || self.holds {
                self.memory.publish(destination, message).await?;
            }
            match left {
                0 => Ok(()),
                _ => Err(Error::new(ErrorKind::Unavailable, "scripted")),
            }
        })
    }
}

fn consumer_to(stage: &Stage, left: usize, holds: bool) -> Consumer {
    let lossy = Lossy {
        memory: stage.broker.clone(),
        left: AtomicUsize::new(left),
        holds,
    };
    stage
        .plain_consumer(Guarantee::AtLeastOnce, NAME)
        .with_dead_letter_at(Arc::new(lossy), DEAD)
}

#[tokio::test(start_paused = true)]
async fn a_letter_that_is_published_twice_has_one_id() {
    let stage = Stage::new();
    stage.handler.script(&[Act::Reject; 10]);
    stage.publish_text("m").await;
    // More failures than one delivery retries: the message is delivered again.
    stage.run_out(consumer_to(&stage, 4, true)).await;
    let letters = stage.letters().await;
    assert_eq!(letters.len(), 5);
    assert!(letters.iter().all(|it| it.id == letters[0].id));
}

#[tokio::test(start_paused = true)]
async fn a_destination_that_is_away_is_waited_for() {
    let stage = Stage::new();
    stage.handler.script(&[Act::Reject; 100]);
    stage.publish_text("m").await;
    let tally = stage.run_out(consumer_to(&stage, 10, false)).await;
    assert_eq!(stage.letters().await.len(), 1);
    assert_eq!(tally.get(Count::DeadLettered), 1);
    assert_eq!(tally.get(Count::Undeliverable), 3);
}

#[tokio::test(start_paused = true)]
async fn letters_of_different_stories_have_different_ids() {
    let stage = Stage::new();
    let names = [NAME, "shipping"];
    let consumers = names.map(|name| stage.plain_consumer(Guarantee::AtLeastOnce, name));
    stage.handler.script(&[Act::Reject; 10]);
    for payload in ["one", "two"] {
        stage.publish(Message::new(payload).with_id("m")).await;
    }
    for consumer in consumers {
        let consumer = consumer.with_dead_letter(DEAD);
        stage
            .run(consumer, |it| it.get(Count::DeadLettered) == 2)
            .await;
    }
    let mut ids: Vec<_> = stage.letters().await.into_iter().map(|it| it.id).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 4);
}
