//! Lag: a queue that grows unnoticed is found by customers first.

use std::time::Duration;

use refrain::consume::{Broker, Delivery, Lag};
use tokio::time::{Instant, sleep};

use super::{
    Fixture, Ran,
    stage::{Checked, Stage, WORKER, broken, numbered},
};

/// Longer than an extension is delayed on a busy machine, so that no delivery lapses while it is counted.
const HELD_MIN: Duration = Duration::from_secs(8);
const LOOK_EVERY: Duration = Duration::from_millis(100);
const MESSAGES: u64 = 3;

pub(super) async fn lag_counts_messages_that_are_not_finished<F: Fixture>(
    stage: &Stage<'_, F>,
) -> Checked<Ran> {
    let broker = stage.connect_holding(WORKER, HELD_MIN).await?;
    // A broker that counts says 0 of an empty queue.
    let is_told = |lag: &Lag| lag.waiting.is_none() || is(lag, 0, 0);
    let first = wait_for(stage, &*broker, &[], "empty", is_told).await?;
    if first.waiting.is_none() {
        return Ok(Ran::LeftOut);
    }
    for message in numbered(MESSAGES as usize).0 {
        stage.publish(&*broker, &message).await?;
    }
    wait_for(stage, &*broker, &[], "published", |lag| {
        is(lag, MESSAGES, 0)
    })
    .await?;
    let mut held = Vec::new();
    for _ in 0..MESSAGES {
        held.push(stage.next(&*broker, Duration::ZERO).await?);
    }
    // A broker that does not count held messages apart may count them among the waiting ones.
    wait_for(stage, &*broker, &held, "delivered", |lag| {
        match lag.unacknowledged {
            Some(_) => is(lag, 0, MESSAGES),
            None => lag.waiting.is_some_and(|it| it <= MESSAGES),
        }
    })
    .await?;
    for delivery in held {
        delivery.ticket.ack().await?;
    }
    wait_for(stage, &*broker, &[], "acknowledged", |lag| {
        is(lag, 0, 0) && lag.oldest.is_none()
    })
    .await?;
    Ok(Ran::Held)
}

fn is(lag: &Lag, waiting: u64, unacknowledged: u64) -> bool {
    let is_held = lag.unacknowledged.is_none_or(|it| it == unacknowledged);
    lag.waiting == Some(waiting) && is_held
}

/// Waits until the lag is as expected, and extends the deliveries meanwhile. A broker that is busy is asked again.
async fn wait_for<F: Fixture>(
    stage: &Stage<'_, F>,
    broker: &dyn Broker,
    held: &[Delivery],
    when: &str,
    is_expected: impl Fn(&Lag) -> bool,
) -> Checked<Lag> {
    let deadline = stage.deadline(Duration::ZERO);
    loop {
        for delivery in held {
            delivery.ticket.extend().await?;
        }
        let lag = broker.lag().await;
        match lag {
            Ok(lag) if is_expected(&lag) => return Ok(lag),
            Err(error) if !error.is_retryable() => return Err(error.into()),
            lag if Instant::now() >= deadline => {
                return broken(format!("{MESSAGES} messages, {when}: the lag is {lag:?}"));
            }
            _ => {}
        }
        sleep(LOOK_EVERY).await;
    }
}
