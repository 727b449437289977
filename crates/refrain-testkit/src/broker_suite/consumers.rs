//! Consumers on the broker: each message takes effect once.

use std::{sync::Arc, time::Duration};

use refrain::consume::{Broker, Failure, Job, Message};
use tokio::time::sleep;

use super::{
    Fixture, Ran,
    stage::{Checked, Effects, Stage, WORKER, done, expect, numbered},
};

const SOON: Duration = Duration::ZERO;

pub(super) async fn duplicate_producers_have_one_effect<F: Fixture>(
    stage: &Stage<'_, F>,
) -> Checked<Ran> {
    let broker = stage.connect(WORKER).await?;
    let (messages, texts) = numbered(10);
    for _ in 0..3 {
        for message in &messages {
            stage.publish(&*broker, message).await?;
        }
    }
    let last = Message::new("last").with_id("last");
    stage.publish(&*broker, &last).await?;
    let effects = Effects::default();
    let consumer = stage.consumer(&broker, WORKER);
    let is_done = || effects.len() > texts.len();
    stage
        .run(vec![consumer], logging(&effects), SOON, is_done)
        .await?;
    let wanted = [texts, vec!["last".into()]].concat();
    effects.expect_each_once(&wanted)?;
    Ok(Ran::Held)
}

/// Returns a handler that records each message as an effect.
pub(super) fn logging(
    effects: &Effects,
) -> impl Fn(Job) -> std::future::Ready<Result<refrain::Outcome, Failure>> + Clone + Send + Sync + 'static
{
    let effects = effects.clone();
    move |job| {
        effects.add(&job);
        std::future::ready(done())
    }
}

pub(super) async fn two_workers_share_the_work<F: Fixture>(stage: &Stage<'_, F>) -> Checked<Ran> {
    let brokers = [stage.connect(WORKER).await?, stage.connect(WORKER).await?];
    let (messages, texts) = numbered(100);
    for message in &messages {
        stage.publish(&*brokers[0], message).await?;
    }
    let effects = Effects::default();
    let consumers = brokers.iter().map(|broker| stage.consumer(broker, WORKER));
    let is_done = || effects.len() >= texts.len();
    stage
        .run(consumers.collect(), logging(&effects), SOON, is_done)
        .await?;
    effects.expect_each_once(&texts)?;
    Ok(Ran::Held)
}

/// Where the transport delivers a message to one consumer only, each consumer gets its own queue with the same message.
pub(super) async fn two_consumers_do_not_shadow_each_other<F: Fixture>(
    stage: &Stage<'_, F>,
) -> Checked<Ran> {
    let queues = match stage.fixture.fans_out() {
        true => [stage.queue.clone(), stage.queue.clone()],
        false => [stage.queue.clone(), format!("{}_2", stage.queue)],
    };
    let mut brokers = Vec::new();
    for (queue, name) in queues.iter().zip(["billing", "shipping"]) {
        brokers.push(stage.connect_to(queue, name).await?);
    }
    let message = Message::new("order").with_id("order-7");
    for queue in &queues[stage.fixture.fans_out().into()..] {
        brokers[0].publish(queue, &message).await?;
    }
    let effects = Effects::default();
    let consumers = brokers.iter().zip(["billing", "shipping"]);
    let consumers = consumers.map(|(broker, name)| stage.consumer(broker, name));
    let is_done = || effects.len() >= 2;
    stage
        .run(consumers.collect(), logging(&effects), SOON, is_done)
        .await?;
    expect("effects of one message", effects.len(), 2)?;
    Ok(Ran::Held)
}

pub(super) async fn a_failed_message_is_tried_again<F: Fixture>(
    stage: &Stage<'_, F>,
) -> Checked<Ran> {
    let broker = stage.connect(WORKER).await?;
    let (messages, texts) = numbered(10);
    for message in &messages {
        stage.publish(&*broker, message).await?;
    }
    let (tries, effects) = (Effects::default(), Effects::default());
    let handler = {
        let (tries, effects) = (tries.clone(), effects.clone());
        move |job: Job| {
            tries.add(&job);
            let is_first = tries.count(&super::stage::text(&job.message)) == 1;
            std::future::ready(match is_first {
                true => Err(Failure::retry("not yet")),
                false => {
                    effects.add(&job);
                    done()
                }
            })
        }
    };
    let consumer = stage.consumer(&broker, WORKER);
    let is_done = || effects.len() >= texts.len();
    let away = stage.redelivery_time(broker.guarantees());
    stage.run(vec![consumer], handler, away, is_done).await?;
    effects.expect_each_once(&texts)?;
    expect("attempts", tries.len(), texts.len() * 2)?;
    Ok(Ran::Held)
}

pub(super) async fn a_slow_handler_runs_once<F: Fixture>(stage: &Stage<'_, F>) -> Checked<Ran> {
    let brokers = [stage.connect(WORKER).await?, stage.connect(WORKER).await?];
    let away = stage.redelivery_time(brokers[0].guarantees());
    stage
        .publish(&*brokers[0], &Message::new("slow").with_id("slow"))
        .await?;
    let (starts, effects) = (Effects::default(), Effects::default());
    let handler = {
        let (starts, effects) = (starts.clone(), effects.clone());
        move |job: Job| {
            let (starts, effects) = (starts.clone(), effects.clone());
            async move {
                starts.add(&job);
                sleep(away * 3).await;
                effects.add(&job);
                done()
            }
        }
    };
    let consumers: Vec<_> = brokers
        .iter()
        .map(|broker: &Arc<dyn Broker>| stage.consumer(broker, WORKER))
        .collect();
    let is_done = || effects.len() > 0;
    stage.run(consumers, handler, away * 3, is_done).await?;
    expect("starts", starts.len(), 1)?;
    expect("effects", effects.len(), 1)?;
    stage
        .expect_no_delivery(&*stage.connect(WORKER).await?, away * 2)
        .await?;
    Ok(Ran::Held)
}
