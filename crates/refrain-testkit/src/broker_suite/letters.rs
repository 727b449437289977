//! Dead letters and their redrive: a failed message must be found, and handled again only on request.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use refrain::consume::{
    Count, DEAD_ATTEMPTS, DEAD_CONSUMER, DEAD_LAST_FAILURE, DEAD_REASON, DEAD_SOURCE, Failure, Job,
    Message, Redrive, Redriven,
};

use super::{
    Fixture, Ran,
    stage::{ATTEMPTS, Checked, Effects, Stage, WORKER, broken, done, expect},
};

/// Longer than a sync of the server takes, so that no delivery lapses while its dead letter is published.
const HELD_MIN: Duration = Duration::from_secs(8);
/// Name of the consumer that reads dead letters.
const UNDERTAKER: &str = "undertaker";

pub(super) async fn poison_becomes_a_dead_letter_and_is_let_through_again<F: Fixture>(
    stage: &Stage<'_, F>,
) -> Checked<Ran> {
    let broker = stage.connect_holding(WORKER, HELD_MIN).await?;
    let undertaker = stage.connect_to(&stage.dead, UNDERTAKER).await?;
    let poison = Message::new("poison \u{0}\u{1}")
        .with_id("poison-1")
        .with_header("X-Tenant", "7");
    stage.publish(&*broker, &poison).await?;
    let healthy = Message::new("healthy").with_id("healthy-1");
    stage.publish(&*broker, &healthy).await?;

    let is_cured = Arc::new(AtomicBool::new(false));
    let (tries, effects) = (Effects::default(), Effects::default());
    let handler = {
        let (tries, effects, is_cured) = (tries.clone(), effects.clone(), is_cured.clone());
        move |job: Job| {
            tries.add(&job);
            let is_poison = job.message.payload.starts_with(b"poison");
            std::future::ready(match is_poison && !is_cured.load(Ordering::SeqCst) {
                true => Err(Failure::retry("rejected by the test")),
                false => {
                    effects.add(&job);
                    done()
                }
            })
        }
    };
    let away = stage.redelivery_time(undertaker.guarantees());
    let consumer = || {
        stage
            .consumer(&broker, WORKER)
            .with_dead_letter(&stage.dead)
    };
    let first = consumer();
    let tally = first.tally();
    let is_done = || tally.get(Count::DeadLettered) > 0 && effects.len() > 0;
    stage
        .run(vec![first], handler.clone(), away * 3, is_done)
        .await?;
    expect("effects before", effects.all(), vec!["healthy".to_owned()])?;
    let attempts = tries.count("poison \u{0}\u{1}");
    expect("attempts", attempts, usize::from(ATTEMPTS))?;

    let letter = stage.next(&*undertaker, Duration::ZERO).await?;
    expect_letter(&letter.message, &poison, &stage.queue)?;
    letter.ticket.nack(Duration::ZERO).await?;

    is_cured.store(true, Ordering::SeqCst);
    let idle = away + stage.fixture.patience() / 6;
    let redrive = Redrive::new(undertaker.clone(), broker.clone(), stage.engine.clone())
        .with_at_most(1)
        .with_idle(idle);
    let redriven = redrive.run().await?;
    let mut wanted = Redriven::default();
    wanted.sent = 1;
    expect("redriven", redriven, wanted)?;
    stage
        .run(vec![consumer()], handler, away, || effects.len() > 1)
        .await?;
    expect("effects in all", effects.len(), 2)?;
    stage.expect_no_delivery(&*undertaker, away * 2).await?;
    Ok(Ran::Held)
}

fn expect_letter(letter: &Message, poison: &Message, queue: &str) -> Checked {
    expect("payload", &letter.payload, &poison.payload)?;
    expect(
        "header",
        letter.header("X-Tenant"),
        poison.header("X-Tenant"),
    )?;
    let attempts = ATTEMPTS.to_string();
    for (name, wanted) in [
        (DEAD_REASON, "attempts-used-up"),
        (DEAD_CONSUMER, WORKER),
        (DEAD_ATTEMPTS, &attempts),
        (DEAD_LAST_FAILURE, "rejected by the test"),
    ] {
        let value = letter.header(name).map(|value| &value[..]);
        expect(name, value, Some(wanted.as_bytes()))?;
    }
    match letter.header(DEAD_SOURCE) {
        Some(source) if !source.is_empty() => Ok(()),
        _ => broken(format!(
            "the dead letter of {queue} does not name its source"
        )),
    }
}
