//! A consumer stops: running handlers may finish, messages without a handler are given back, and hanging handlers are
//! abandoned without an acknowledgement. Otherwise a deployment loses messages.

use std::time::Duration;

use refrain::{
    Guarantee,
    consume::{Count, Memory, Message},
    store::StateName::{Completed, InFlight, Indeterminate},
};
use tokio::time::{Instant, sleep, timeout};

use crate::{
    scripted::states,
    stage::{Act, Stage},
};

#[tokio::test(start_paused = true)]
async fn drain_lets_running_messages_finish() {
    let stage = Stage::new();
    stage.handler.script(&[Act::Slow(Duration::from_secs(4))]);
    stage.publish_text("m").await;
    let handler = stage.handler.clone();
    let tally = stage
        .run(stage.consumer(), move |_| handler.calls() > 0)
        .await;
    assert_eq!(tally.get(Count::Completed), 1);
    assert_eq!(tally.get(Count::Left), 0);
    assert_eq!(stage.backlog(), 0);
}

#[tokio::test(start_paused = true)]
async fn hung_message_is_left_open_and_redelivered() {
    for (guarantee, left) in [
        (Guarantee::AtLeastOnce, InFlight),
        (Guarantee::AtMostOnce, Indeterminate),
    ] {
        let stage = Stage::new();
        stage.handler.script(&[Act::Hang]);
        stage.publish_text("m").await;
        let handler = stage.handler.clone();
        let consumer = stage.consumer_of(guarantee);
        let began = Instant::now();
        let tally = stage.run(consumer, move |_| handler.calls() > 0).await;
        assert!(began.elapsed() < Duration::from_secs(10));
        assert_eq!(tally.get(Count::Left), 1);
        assert_eq!(stage.backlog(), 1);
        sleep(Duration::from_millis(10)).await;
        assert_eq!(states(&stage.store).await, [left]);

        stage.run_out(stage.consumer_of(guarantee)).await;
        let wanted = match guarantee {
            Guarantee::AtLeastOnce => Completed,
            _ => Indeterminate,
        };
        assert_eq!(states(&stage.store).await, [wanted]);
    }
}

#[tokio::test(start_paused = true)]
async fn drain_returns_messages_that_have_not_started() {
    let stage = Stage::on(Memory::new().with_order());
    stage.handler.script(&[Act::Hang]);
    for text in ["a", "b", "c"] {
        let message = Message::new(text).with_id(text).with_group("g");
        stage.publish(message).await;
    }
    let handler = stage.handler.clone();
    let tally = stage
        .run(stage.consumer(), move |_| handler.calls() > 0)
        .await;
    assert_eq!(tally.get(Count::GivenBack), 2);
    assert_eq!(tally.get(Count::Left), 1);
    assert_eq!(stage.handler.calls(), 1);
    assert_eq!(stage.backlog(), 3);
}

#[tokio::test(start_paused = true)]
async fn message_in_backoff_does_not_delay_the_drain() {
    let stage = Stage::on(Memory::new().with_order());
    let delay = Duration::from_secs(600);
    stage.handler.script(&[Act::RetryAfter(delay)]);
    stage
        .publish(Message::new("a").with_id("a").with_group("g"))
        .await;
    let began = Instant::now();
    let is_so = |tally: &refrain::consume::Tally| tally.get(Count::Retried) > 0;
    let tally = stage.run(stage.consumer(), is_so).await;
    assert!(
        began.elapsed() < Duration::from_secs(4),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(tally.get(Count::GivenBack), 1);
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_is_dropped_loses_nothing() {
    let stage = Stage::new();
    stage.handler.script(&[Act::Hang, Act::Hang]);
    for text in ["a", "b"] {
        stage.publish_text(text).await;
    }
    let running = stage
        .consumer()
        .run(stage.handler.handle(), std::future::pending());
    assert!(timeout(Duration::from_secs(1), running).await.is_err());
    assert_eq!(stage.handler.calls(), 2);
    let tally = stage.run_out(stage.consumer()).await;
    assert_eq!(tally.get(Count::Completed), 2);
    assert_eq!(stage.handler.calls(), 4);
}
