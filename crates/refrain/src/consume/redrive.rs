//! Dead letters let through again, on purpose.

use std::{sync::Arc, time::Duration};

use super::{
    Broker, Delivery, Message, Publisher,
    dead::{
        DEAD_CONSUMER, DEAD_FINGERPRINT, DEAD_RECORDS, DEAD_SOURCE, REDRIVE, REDRIVES_MAX,
        redrive_of, text_of,
    },
};
use crate::{
    Engine, Result,
    audit::{Entry, Event},
    record::State,
    store::Store,
};

/// How many dead letters are taken at once.
const BATCH: usize = 64;
/// How long the broker may take to begin: a group waits that long for a member that died.
const READY_MAX: Duration = Duration::from_secs(60);

/// Takes dead letters and publishes them to where they came from.
///
/// Each goes out with `Refrain-Redrive`, a number that counts up, and its consumer lets it through although its record is in doubt.
/// One whose effect has happened after all is skipped: its record is completed by now.
/// A crash in between is harmless: what goes out twice has the same id and the same number.
#[derive(Debug)]
pub struct Redrive {
    dead: Arc<dyn Broker>,
    to: Arc<dyn Publisher>,
    engine: Engine,
    destination: Option<String>,
    /// For letters that name no source.
    fallback: Option<String>,
    idle: Duration,
    at_most: u64,
}

/// What came of a redrive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Redriven {
    /// Published again.
    pub sent: u64,
    /// Taken off, since the effect has happened.
    pub skipped: u64,
    /// Left among the dead letters: they name no source, or were let through too often.
    pub left: u64,
}

impl Redrive {
    /// From the queue of dead letters to where they came from. The engine is that of the consumer that gave them up.
    pub fn new(dead: Arc<dyn Broker>, to: Arc<dyn Publisher>, engine: Engine) -> Self {
        Self {
            dead,
            to,
            engine,
            destination: None,
            fallback: None,
            idle: Duration::from_secs(2),
            at_most: u64::MAX,
        }
    }

    /// Publishes to this destination, whatever the letters say.
    #[must_use]
    pub fn with_destination(mut self, destination: impl Into<String>) -> Self {
        self.destination = Some(destination.into());
        self
    }

    /// Publishes letters that name no source to this destination; without one they are left.
    #[must_use]
    pub fn with_fallback(mut self, destination: impl Into<String>) -> Self {
        self.fallback = Some(destination.into());
        self
    }

    /// Ends when no more letters have come for so long; two seconds if nothing is said.
    #[must_use]
    pub fn with_idle(mut self, idle: Duration) -> Self {
        self.idle = idle;
        self
    }

    /// Ends after so many letters.
    #[must_use]
    pub fn with_at_most(mut self, at_most: u64) -> Self {
        self.at_most = at_most;
        self
    }

    /// Lets the letters through.
    ///
    /// # Errors
    /// When broker, publisher or store do not answer, or the broker hands nothing out within a minute: whether there are
    /// letters is not known then. What was not done is given back.
    ///
    /// # Cancellation
    /// May be dropped: a letter may then go out twice, with the same id and number.
    pub async fn run(&self) -> Result<Redriven> {
        let mut done = Redriven::default();
        self.dead.ready(READY_MAX).await?;
        loop {
            let so_far = done.sent + done.skipped + done.left;
            let room = usize::try_from(self.at_most.saturating_sub(so_far)).unwrap_or(BATCH);
            if room == 0 {
                return Ok(done);
            }
            let deliveries = self.dead.pull(room.min(BATCH), self.idle).await?;
            if deliveries.is_empty() {
                return Ok(done);
            }
            for delivery in deliveries {
                self.let_through(delivery, &mut done).await?;
            }
        }
    }

    async fn let_through(&self, delivery: Delivery, done: &mut Redriven) -> Result<()> {
        let letter = &delivery.message;
        let source = self.destination.as_deref();
        let source = source.or_else(|| text_of(letter, DEAD_SOURCE));
        let source = source.or(self.fallback.as_deref());
        let number = redrive_of(letter) + 1;
        let Some(source) = source.filter(|_| number <= REDRIVES_MAX) else {
            tracing::warn!(
                "a dead letter is left: it names no source, or was let through too often"
            );
            done.left += 1;
            return delivery.ticket.nack(LEFT_FOR).await;
        };
        match self.has_happened(letter).await {
            Ok(true) => done.skipped += 1,
            Ok(false) => {
                if let Err(error) = self.write_down(letter, number).await {
                    let _ = delivery.ticket.nack(Duration::ZERO).await;
                    return Err(error);
                }
                let message = again(letter, number);
                if let Err(error) = self.to.publish(source, &message).await {
                    let _ = delivery.ticket.nack(Duration::ZERO).await;
                    return Err(error);
                }
                done.sent += 1;
            }
            Err(error) => {
                let _ = delivery.ticket.nack(Duration::ZERO).await;
                return Err(error);
            }
        }
        delivery.ticket.ack().await
    }

    /// Into the audit log, where the engine has one: a person lets it through, whatever is known of it.
    async fn write_down(&self, letter: &Message, number: u32) -> Result<()> {
        let Some(log) = self.engine.audit() else {
            return Ok(());
        };
        let mut entry = Entry::new(Event::Redriven).with_detail(format!("redrive {number}"));
        let records = text_of(letter, DEAD_RECORDS).unwrap_or_default();
        entry.record = records.rsplit(',').find_map(|text| text.parse().ok());
        entry.operation = text_of(letter, DEAD_CONSUMER).map(Into::into);
        entry.actor = Some("command".into());
        log.write(entry).await
    }

    /// Whether any of the message's records is completed by now.
    async fn has_happened(&self, letter: &Message) -> Result<bool> {
        let fingerprint = text_of(letter, DEAD_FINGERPRINT);
        let records = text_of(letter, DEAD_RECORDS).unwrap_or_default();
        let ids = records.split(',').filter_map(|text| text.parse().ok());
        for id in ids.take(REDRIVES_MAX as usize + 1) {
            let Some(found) = self.engine.store().read(id).await? else {
                continue;
            };
            let is_over = matches!(
                found.record.state,
                State::Completed { .. } | State::Tombstone { .. }
            );
            if is_over && fingerprint == Some(&found.record.fingerprint.to_string()) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// A letter that is left comes again when this redrive is long over.
const LEFT_FOR: Duration = Duration::from_secs(60);

/// The message of a dead letter, to be let through for this number of times.
fn again(letter: &Message, number: u32) -> Message {
    let mut message = letter.clone();
    let id = letter.id.clone().unwrap_or_else(|| {
        let digest = blake3::hash(&letter.payload).to_hex();
        format!("dead-{}", &digest[..32])
    });
    // Under its old id the transport itself would take it for a duplicate.
    message.id = Some(format!("{id}.redrive-{number}"));
    message.position = None;
    message.set_header(REDRIVE, number.to_string());
    message
}
