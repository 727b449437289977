//! Single deliveries without a consumer: pull, ack, nack, drop.

use std::time::Duration;

use refrain::consume::Message;
use tokio::time::{Instant, sleep, timeout};

use super::{
    Fixture, Ran,
    stage::{Broken, Checked, Stage, WORKER, broken, expect},
};

const SOON: Duration = Duration::ZERO;
/// Least `ack_wait` of a delivery that must not lapse between two extensions, however slow the machine is.
const HELD_MIN: Duration = Duration::from_secs(8);

pub(super) async fn a_message_comes_as_it_was_published<F: Fixture>(
    stage: &Stage<'_, F>,
) -> Checked<Ran> {
    let broker = stage.connect_holding(WORKER, HELD_MIN).await?;
    let payload: Vec<u8> = (0..=255).collect();
    let message = Message::new(payload)
        .with_id("order-7")
        .with_header("X-Tenant", "7")
        .with_header("x-note", "two words; \"quoted\", = 100%");
    stage.publish(&*broker, &message).await?;
    let delivery = stage.next(&*broker, SOON).await?;
    let came = &delivery.message;
    expect("payload", &came.payload, &message.payload)?;
    expect("id", came.id.as_deref(), Some("order-7"))?;
    for (name, value) in &message.headers {
        expect(name, came.header(name), Some(value))?;
    }
    expect("first attempt", delivery.attempt, 1)?;
    // A redrive publishes to the subject that a message was received on.
    broker
        .publish(&came.subject, &Message::new("back").with_id("back"))
        .await?;
    delivery.ticket.ack().await?;
    let back = stage.next(&*broker, SOON).await?;
    expect("to the subject", &back.message.payload[..], b"back")?;
    back.ticket.ack().await?;
    Ok(Ran::Held)
}

pub(super) async fn an_empty_queue_answers_in_time<F: Fixture>(
    stage: &Stage<'_, F>,
) -> Checked<Ran> {
    let broker = stage.connect(WORKER).await?;
    let wait = Duration::from_millis(300);
    let pulling = timeout(wait + stage.fixture.patience(), broker.pull(5, wait));
    let pulled = pulling
        .await
        .map_err(|_| Broken("a pull on an empty queue does not return".into()))??;
    expect("deliveries", pulled.len(), 0)?;
    Ok(Ran::Held)
}

pub(super) async fn an_acknowledged_message_does_not_come_again<F: Fixture>(
    stage: &Stage<'_, F>,
) -> Checked<Ran> {
    let broker = stage.connect(WORKER).await?;
    stage
        .publish(&*broker, &Message::new("once").with_id("1"))
        .await?;
    let delivery = stage.next(&*broker, SOON).await?;
    delivery.ticket.ack().await?;
    broker.close().await?;
    let other = stage.connect(WORKER).await?;
    let away = stage.redelivery_time(other.guarantees());
    stage.expect_no_delivery(&*other, away * 2).await?;
    Ok(Ran::Held)
}

pub(super) async fn a_dropped_delivery_comes_again<F: Fixture>(
    stage: &Stage<'_, F>,
) -> Checked<Ran> {
    let broker = stage.connect(WORKER).await?;
    let guarantees = broker.guarantees();
    if guarantees.ack_wait.is_none() {
        return Ok(Ran::LeftOut);
    }
    stage
        .publish(&*broker, &Message::new("dropped").with_id("1"))
        .await?;
    drop(stage.next(&*broker, SOON).await?);
    let again = stage
        .next(&*broker, stage.redelivery_time(guarantees))
        .await?;
    expect("payload", &again.message.payload[..], b"dropped")?;
    expect("id", again.message.id.as_deref(), Some("1"))?;
    again.ticket.ack().await?;
    Ok(Ran::Held)
}

pub(super) async fn a_crash_before_the_acknowledgement_delivers_again<F: Fixture>(
    stage: &Stage<'_, F>,
) -> Checked<Ran> {
    let broker = stage.connect(WORKER).await?;
    stage
        .publish(&*broker, &Message::new("crash").with_id("1"))
        .await?;
    let delivery = stage.next(&*broker, SOON).await?;
    broker.close().await?;
    drop((delivery, broker));
    let other = stage.connect(WORKER).await?;
    let again = stage
        .next(&*other, stage.redelivery_time(other.guarantees()))
        .await?;
    expect("payload", &again.message.payload[..], b"crash")?;
    again.ticket.ack().await?;
    Ok(Ran::Held)
}

pub(super) async fn a_message_given_back_waits_for_its_delay<F: Fixture>(
    stage: &Stage<'_, F>,
) -> Checked<Ran> {
    let broker = stage.connect_holding(WORKER, HELD_MIN).await?;
    stage
        .publish(&*broker, &Message::new("later").with_id("1"))
        .await?;
    let delay = Duration::from_secs(2);
    let delivery = stage.next(&*broker, SOON).await?;
    let given_back = Instant::now();
    delivery.ticket.nack(delay).await?;
    let again = stage.next(&*broker, delay).await?;
    let waited = given_back.elapsed();
    // Tolerates 10 %, because servers round delays.
    if waited < delay.mul_f64(0.9) {
        return broken(format!(
            "returned with a delay of {delay:?}, it was delivered after {waited:?}"
        ));
    }
    again.ticket.nack(Duration::ZERO).await?;
    let at_once = stage.next(&*broker, SOON).await?;
    at_once.ticket.ack().await?;
    Ok(Ran::Held)
}

pub(super) async fn a_message_that_is_held_longer_does_not_come_again<F: Fixture>(
    stage: &Stage<'_, F>,
) -> Checked<Ran> {
    let broker = stage.connect_holding(WORKER, HELD_MIN).await?;
    let Some(ack_wait) = broker.guarantees().ack_wait else {
        return Ok(Ran::LeftOut);
    };
    let other = stage.connect_holding(WORKER, HELD_MIN).await?;
    stage
        .publish(&*broker, &Message::new("held").with_id("1"))
        .await?;
    let delivery = stage.next(&*broker, SOON).await?;
    let holding = async {
        for _ in 0..10 {
            sleep(ack_wait / 6).await;
            delivery.ticket.extend().await?;
        }
        Ok::<_, Broken>(())
    };
    let (held, nothing) = tokio::join!(
        holding,
        stage.expect_no_delivery(&*other, ack_wait * 10 / 6)
    );
    held?;
    nothing?;
    delivery.ticket.ack().await?;
    stage
        .expect_no_delivery(&*other, ack_wait + ack_wait / 2)
        .await?;
    Ok(Ran::Held)
}

pub(super) async fn attempts_are_counted<F: Fixture>(stage: &Stage<'_, F>) -> Checked<Ran> {
    let broker = stage.connect_holding(WORKER, HELD_MIN).await?;
    if !broker.guarantees().counts_attempts {
        return Ok(Ran::LeftOut);
    }
    stage
        .publish(&*broker, &Message::new("counted").with_id("1"))
        .await?;
    for attempt in 1..=3 {
        let delivery = stage.next(&*broker, SOON).await?;
        expect("attempt", delivery.attempt, attempt)?;
        delivery.ticket.nack(Duration::ZERO).await?;
    }
    broker.close().await?;
    let other = stage.connect_holding(WORKER, HELD_MIN).await?;
    let last = stage
        .next(&*other, stage.redelivery_time(other.guarantees()))
        .await?;
    expect("attempt on another connection", last.attempt, 4)?;
    last.ticket.ack().await?;
    Ok(Ran::Held)
}

pub(super) async fn a_dropped_pull_loses_nothing<F: Fixture>(stage: &Stage<'_, F>) -> Checked<Ran> {
    let broker = stage.connect(WORKER).await?;
    for number in 0..5 {
        let message = Message::new(format!("p{number}")).with_id(format!("p{number}"));
        let pulling = broker.pull(1, Duration::from_secs(5));
        // Dropped at some moment between request and response.
        let dropped = timeout(Duration::from_millis(2 * number), pulling).await;
        drop(dropped);
        stage.publish(&*broker, &message).await?;
        let away = stage.redelivery_time(broker.guarantees());
        let delivery = stage.next(&*broker, away).await?;
        expect("payload", &delivery.message.payload, &message.payload)?;
        delivery.ticket.ack().await?;
    }
    Ok(Ran::Held)
}
