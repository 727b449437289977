//! Faults: workers that die, connections that break, a server that is killed.

use std::{sync::Arc, time::Duration};

use refrain::consume::{Job, Message, Publisher};
use tokio::time::{Instant, sleep, timeout};

use super::{
    Fixture, Ran,
    consumers::logging,
    stage::{Broken, Checked, Effects, Stage, WORKER, broken, done, expect, numbered},
};

/// Time allowed for both restarts of a server together: some servers start slowly on a busy machine.
const COMING_BACK: Duration = Duration::from_secs(120);

pub(super) async fn a_worker_that_dies_loses_nothing<F: Fixture>(
    stage: &Stage<'_, F>,
) -> Checked<Ran> {
    let broker = stage.connect(WORKER).await?;
    let (messages, texts) = numbered(20);
    for message in &messages {
        stage.publish(&*broker, message).await?;
    }
    let starts = Effects::default();
    let hanging = {
        let starts = starts.clone();
        move |job: Job| {
            starts.add(&job);
            std::future::pending()
        }
    };
    let dying = stage.consumer(&broker, WORKER).with_in_flight_max(5);
    let dying = dying.run(hanging, std::future::pending());
    // Dropped in the middle, as if the process were killed: the messages are not acknowledged, their outcomes unknown.
    tokio::select! {
        ended = dying => broken(format!("the consumer stopped unexpectedly: {ended:?}"))?,
        started = stage.wait(Duration::ZERO, || starts.len() >= 5) => started?,
    }
    broker.close().await?;
    drop(broker);
    let other = stage.connect(WORKER).await?;
    let effects = Effects::default();
    let away = stage.redelivery_time(other.guarantees()) * 2 + Duration::from_secs(5);
    let consumer = stage.consumer(&other, WORKER);
    let is_done = || effects.len() >= texts.len();
    stage
        .run(vec![consumer], logging(&effects), away, is_done)
        .await?;
    effects.expect_each_once(&texts)?;
    Ok(Ran::Held)
}

pub(super) async fn a_lost_connection_loses_nothing<F: Fixture>(
    stage: &Stage<'_, F>,
) -> Checked<Ran> {
    let disturb = async || stage.fixture.disconnect().await;
    disturbed(stage, disturb).await
}

pub(super) async fn a_server_that_is_killed_in_mid_load_loses_nothing<F: Fixture>(
    stage: &Stage<'_, F>,
) -> Checked<Ran> {
    let disturb = async || stage.fixture.restart().await;
    disturbed(stage, disturb).await
}

/// Disturbs working producers and consumers twice; each message must take effect once.
async fn disturbed<F: Fixture>(
    stage: &Stage<'_, F>,
    disturb: impl AsyncFn() -> refrain::Result<bool>,
) -> Checked<Ran> {
    let broker = stage.connect(WORKER).await?;
    if !disturb().await? {
        return Ok(Ran::LeftOut);
    }
    let (messages, texts) = numbered(300);
    let effects = Effects::default();
    let handler = {
        let effects = effects.clone();
        move |job: Job| {
            let effects = effects.clone();
            async move {
                sleep(Duration::from_millis(20)).await;
                effects.add(&job);
                done()
            }
        }
    };
    let producer = stage
        .connect("producer")
        .await
        .map(|it| it as Arc<dyn Publisher>)?;
    let producing = async {
        for message in &messages {
            publish_surely(stage, &*producer, message).await?;
            sleep(Duration::from_millis(5)).await;
        }
        Ok::<_, Broken>(())
    };
    let disturbing = async {
        for _ in 0..2 {
            sleep(Duration::from_millis(400)).await;
            expect("disturbed", disturb().await?, true)?;
        }
        Ok::<_, Broken>(())
    };
    let consumer = stage.consumer(&broker, WORKER);
    let away = stage.redelivery_time(broker.guarantees()) * 3 + COMING_BACK;
    let is_done = || effects.len() >= texts.len();
    let consuming = stage.run(vec![consumer], handler, away, is_done);
    let (consumed, produced, disturbed) = tokio::join!(consuming, producing, disturbing);
    disturbed?;
    produced?;
    consumed?;
    effects.expect_each_once(&texts)?;
    Ok(Ran::Held)
}

/// Publishes the message under the same id until the broker confirms it.
async fn publish_surely<F: Fixture>(
    stage: &Stage<'_, F>,
    publisher: &dyn Publisher,
    message: &Message,
) -> Checked {
    let deadline = stage.deadline(Duration::from_secs(30));
    loop {
        let publishing = publisher.publish(&stage.queue, message);
        let failed = match timeout(Duration::from_secs(5), publishing).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no response in time".into(),
        };
        if Instant::now() > deadline {
            return broken(format!("publishing still fails: {failed}"));
        }
        sleep(Duration::from_millis(50)).await;
    }
}
