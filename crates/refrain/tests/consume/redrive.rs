//! An operator redrives dead letters: messages with an unknown outcome are handled again, but a message whose effect
//! happened never is.

use std::{sync::Arc, time::Duration};

use refrain::{
    Guarantee, Outcome, RecordId, Store,
    consume::{
        Broker, Count, DEAD_CONSUMER, DEAD_FINGERPRINT, DEAD_ID, DEAD_RECORDS, Message, Publisher,
        REDRIVE, Redrive, Redriven, Tally,
    },
    engine::{Resolution, Resolved},
    store::{
        Query,
        StateName::{Completed, Indeterminate},
    },
};

use crate::{
    scripted::states,
    stage::{Act, DEAD, NAME, Stage, header},
};

fn redrive(stage: &Stage) -> Redrive {
    let dead: Arc<dyn Broker> = Arc::new(stage.broker.subscribe(DEAD, "undertaker"));
    Redrive::new(dead, Arc::new(stage.broker.clone()), stage.engine.clone())
        .with_idle(Duration::from_millis(100))
}

fn came_to(sent: u64, skipped: u64, left: u64) -> Redriven {
    let mut redriven = Redriven::default();
    redriven.sent = sent;
    redriven.skipped = skipped;
    redriven.left = left;
    redriven
}

#[tokio::test(start_paused = true)]
async fn redrives_an_indeterminate_message() {
    for guarantee in [Guarantee::AtMostOnce, Guarantee::AtLeastOnce] {
        let stage = Stage::new();
        stage.handler.script(&[Act::Panic; 3]);
        stage.publish_text("m").await;
        stage.run_out(stage.consumer_of(guarantee)).await;
        assert_eq!(states(&stage.store).await, [Indeterminate]);
        stage.handler.script(&[]);
        assert_eq!(redrive(&stage).run().await.unwrap(), came_to(1, 0, 0));
        let tally = stage.run_out(stage.consumer_of(guarantee)).await;
        assert_eq!(tally.get(Count::Completed), 1);
        assert_eq!(stage.handler.done(), ["m"]);
        let job = stage
            .handler
            .calls
            .lock()
            .unwrap()
            .last()
            .unwrap()
            .job
            .clone();
        assert_eq!(job.message.id.as_deref(), Some("m"));
        assert_eq!(job.key.as_str(), "m");
        let mut states = states(&stage.store).await;
        states.sort_by_key(|it| *it as u8);
        assert_eq!(states, [Completed, Indeterminate]);
    }
}

#[tokio::test(start_paused = true)]
async fn redrive_skips_a_message_that_took_effect() {
    let stage = Stage::new();
    stage.handler.script(&[Act::Retry]);
    stage.publish_text("m").await;
    stage
        .run_out(stage.consumer_of(Guarantee::AtMostOnce))
        .await;
    let letters = stage.letters().await;
    let id: RecordId = header(&letters[0], DEAD_RECORDS).parse().unwrap();
    let completed = Resolution::Completed {
        outcome: Outcome::new(0, "late truth"),
        retention: Duration::from_secs(3_600),
        remember: Duration::from_secs(3_600),
    };
    let resolved = stage.engine.resolve(id, completed, "seen in the books");
    assert_eq!(resolved.await.unwrap(), Resolved::Applied);
    stage.broker.publish(DEAD, &letters[0]).await.unwrap();
    assert_eq!(redrive(&stage).run().await.unwrap(), came_to(0, 1, 0));
    assert_eq!(stage.backlog(), 0);
}

/// The outcome becomes known between the redrive and the second delivery.
#[tokio::test(start_paused = true)]
async fn message_that_takes_effect_during_redrive_is_not_handled_again() {
    let stage = Stage::new();
    stage.handler.script(&[Act::Retry]);
    stage.publish_text("m").await;
    stage
        .run_out(stage.consumer_of(Guarantee::AtMostOnce))
        .await;
    assert_eq!(redrive(&stage).run().await.unwrap(), came_to(1, 0, 0));
    let queue = stage.broker.subscribe(crate::stage::TOPIC, NAME);
    let pulled = queue.pull(1, Duration::ZERO).await.unwrap().pop().unwrap();
    let id: RecordId = header(&pulled.message, DEAD_RECORDS).parse().unwrap();
    pulled.ticket.nack(Duration::ZERO).await.unwrap();
    let completed = Resolution::Completed {
        outcome: Outcome::new(0, "late truth"),
        retention: Duration::from_secs(3_600),
        remember: Duration::from_secs(3_600),
    };
    let resolved = stage.engine.resolve(id, completed, "seen in the books");
    assert_eq!(resolved.await.unwrap(), Resolved::Applied);
    let tally = stage
        .run_out(stage.consumer_of(Guarantee::AtMostOnce))
        .await;
    assert_eq!(tally.get(Count::Duplicate), 1);
    assert_eq!(stage.handler.calls(), 1);
}

/// A transport that drops the media type must not turn the message into a different one.
#[tokio::test(start_paused = true)]
async fn message_without_its_media_type_is_the_same_message() {
    let stage = Stage::new();
    let payload = r#"{"b": 1, "a": 2}"#;
    let json = Message::new(payload).with_content_type("application/json");
    stage.publish(json.with_id("m")).await;
    stage.run_out(stage.consumer()).await;
    let query = Query::default();
    let record = stage.store.list(&query).await.unwrap().readings.remove(0);
    let fingerprint = record.record.fingerprint.to_string();
    let redriven = Message::new(payload)
        .with_id("dead-1.redrive-1")
        .with_header(REDRIVE, "1")
        .with_header(DEAD_CONSUMER, NAME)
        .with_header(DEAD_ID, "m")
        .with_header(DEAD_FINGERPRINT, fingerprint);
    stage.publish(redriven).await;
    let tally = stage.run_out(stage.consumer()).await;
    assert_eq!(tally.get(Count::Duplicate), 1);
}

#[tokio::test(start_paused = true)]
async fn a_crash_between_publishing_and_acknowledging_is_harmless() {
    let stage = Stage::new();
    stage.handler.script(&[Act::Retry]);
    stage.publish_text("m").await;
    stage
        .run_out(stage.consumer_of(Guarantee::AtMostOnce))
        .await;
    let letters = stage.letters().await;
    for _ in 0..2 {
        stage.broker.publish(DEAD, &letters[0]).await.unwrap();
        assert_eq!(redrive(&stage).run().await.unwrap().sent, 1);
    }
    let queue = stage.broker.subscribe(crate::stage::TOPIC, NAME);
    let pulled = queue.pull(2, Duration::ZERO).await.unwrap();
    assert_eq!(pulled[0].message.id, pulled[1].message.id);
    for delivery in pulled {
        delivery.ticket.nack(Duration::ZERO).await.unwrap();
    }
    let tally = stage
        .run_out(stage.consumer_of(Guarantee::AtMostOnce))
        .await;
    assert_eq!(tally.get(Count::Completed), 1);
    assert_eq!(tally.get(Count::Duplicate), 1);
}

#[tokio::test(start_paused = true)]
async fn each_redrive_increments_the_count() {
    let stage = Stage::new();
    stage.handler.script(&[Act::Retry; 3]);
    stage.publish_text("m").await;
    for number in 1..=3 {
        stage
            .run_out(stage.consumer_of(Guarantee::AtMostOnce))
            .await;
        assert_eq!(redrive(&stage).run().await.unwrap(), came_to(1, 0, 0));
        let queue = stage.broker.subscribe(crate::stage::TOPIC, NAME);
        let pulled = queue.pull(1, Duration::ZERO).await.unwrap().pop().unwrap();
        assert_eq!(header(&pulled.message, REDRIVE), number.to_string());
        pulled.ticket.nack(Duration::ZERO).await.unwrap();
    }
    stage
        .run_out(stage.consumer_of(Guarantee::AtMostOnce))
        .await;
    assert_eq!(stage.handler.calls(), 4);
    assert_eq!(stage.handler.done(), ["m"]);
    assert!(stage.letters().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn another_payload_under_a_used_key_is_let_through_when_somebody_says_so() {
    let stage = Stage::new();
    for payload in ["one", "two"] {
        stage.publish(Message::new(payload).with_id("m")).await;
        stage.run_out(stage.consumer()).await;
    }
    assert_eq!(redrive(&stage).run().await.unwrap(), came_to(1, 0, 0));
    stage.run_out(stage.consumer()).await;
    assert_eq!(stage.handler.done(), ["one", "two"]);
}

#[tokio::test(start_paused = true)]
async fn a_message_let_through_for_one_consumer_is_a_duplicate_to_the_others() {
    let stage = Stage::new();
    let shipping = || stage.plain_consumer(Guarantee::AtLeastOnce, "shipping");
    let first = shipping();
    // One message with an id, and one whose only name is its position.
    stage.publish_text("m").await;
    stage.publish(Message::new("nameless")).await;
    stage.run(first, |it| it.get(Count::Completed) == 2).await;
    stage.handler.script(&[Act::Retry; 2]);
    stage
        .run_out(stage.consumer_of(Guarantee::AtMostOnce))
        .await;
    assert_eq!(redrive(&stage).run().await.unwrap(), came_to(2, 0, 0));
    stage
        .run_out(stage.consumer_of(Guarantee::AtMostOnce))
        .await;
    let is_so = |it: &Tally| it.get(Count::Duplicate) == 2;
    let tally = stage.run(shipping(), is_so).await;
    assert_eq!(tally.get(Count::Completed), 0);
    // Two handled by shipping, two that failed, two that were redriven.
    assert_eq!(stage.handler.calls(), 6);
}

/// A redrive for one consumer does not resolve the unknown outcome at another consumer.
#[tokio::test(start_paused = true)]
async fn a_message_let_through_for_one_consumer_stays_in_doubt_for_the_others() {
    let stage = Stage::new();
    let shipping = || {
        let consumer = stage.plain_consumer(Guarantee::AtMostOnce, "shipping");
        consumer.with_dead_letter("dead-shipping")
    };
    let first = shipping();
    stage.publish_text("m").await;
    stage.handler.script(&[Act::Retry; 2]);
    let is_dead = |it: &Tally| it.get(Count::DeadLettered) == 1;
    stage.run(first, is_dead).await;
    stage
        .run_out(stage.consumer_of(Guarantee::AtMostOnce))
        .await;
    assert_eq!(redrive(&stage).run().await.unwrap(), came_to(1, 0, 0));
    stage.run(shipping(), is_dead).await;
    assert_eq!(stage.handler.calls(), 2);
    stage
        .run_out(stage.consumer_of(Guarantee::AtMostOnce))
        .await;
    assert_eq!(stage.handler.done(), ["m"]);
}

#[tokio::test(start_paused = true)]
async fn a_letter_that_cannot_go_anywhere_is_left() {
    let stage = Stage::new();
    let strange = Message::new("no letter at all");
    let often = Message::new("often")
        .with_header("Refrain-Dead-Source", "orders")
        .with_header(REDRIVE, "100");
    for letter in [&strange, &often] {
        stage.broker.publish(DEAD, letter).await.unwrap();
    }
    assert_eq!(redrive(&stage).run().await.unwrap(), came_to(0, 0, 2));
    assert_eq!(stage.broker.backlog(DEAD, "undertaker"), 2);
    assert_eq!(stage.backlog(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_redrive_goes_where_it_is_sent_and_no_further_than_it_is_told() {
    let stage = Stage::new();
    let other = stage.broker.subscribe("elsewhere", "x");
    stage.handler.script(&[Act::Reject; 3]);
    for text in ["a", "b", "c"] {
        stage.publish_text(text).await;
    }
    stage.run_out(stage.consumer()).await;
    let some = redrive(&stage)
        .with_destination("elsewhere")
        .with_at_most(2);
    assert_eq!(some.run().await.unwrap(), came_to(2, 0, 0));
    assert_eq!(other.pull(5, Duration::ZERO).await.unwrap().len(), 2);
    assert_eq!(stage.broker.backlog(DEAD, "undertaker"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_letter_goes_to_its_own_source_and_one_without_to_the_fallback() {
    let stage = Stage::new();
    let own = stage.broker.subscribe("orders.eu", "x");
    let fallback = stage.broker.subscribe("orders.all", "x");
    let letter = Message::new("named").with_header("Refrain-Dead-Source", "orders.eu");
    for letter in [&letter, &Message::new("nameless")] {
        stage.broker.publish(DEAD, letter).await.unwrap();
    }
    let some = redrive(&stage).with_fallback("orders.all");
    assert_eq!(some.run().await.unwrap(), came_to(2, 0, 0));
    for (queue, text) in [(own, "named"), (fallback, "nameless")] {
        let pulled = queue.pull(5, Duration::ZERO).await.unwrap();
        assert_eq!(pulled.len(), 1);
        assert_eq!(pulled[0].message.payload, text);
    }
}
