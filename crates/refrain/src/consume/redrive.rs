//! Redrive: publishes dead letters again on an operator's request.

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
    engine::OperatorAction,
    record::State,
    store::Store,
};

/// Maximum number of dead letters per pull.
const BATCH: usize = 64;
/// Maximum time until the broker can deliver. A consumer group waits that long for a dead member.
const READY_MAX: Duration = Duration::from_secs(60);

/// Publishes dead letters to their original queue.
///
/// Each message carries the header `Refrain-Redrive` with an increasing number, and its consumer handles it even if
/// its record is indeterminate. A message whose record is completed by now is skipped.
/// A crash is harmless: a message published twice has the same ID and the same number.
#[derive(Debug)]
pub struct Redrive {
    dead: Arc<dyn Broker>,
    to: Arc<dyn Publisher>,
    engine: Engine,
    destination: Option<String>,
    /// Destination of letters that name no source.
    fallback: Option<String>,
    idle: Duration,
    at_most: u64,
    /// Author and reason, for the audit log.
    ordered: RedriveOrder,
}

/// Author and reason of a redrive.
#[derive(Debug)]
struct RedriveOrder {
    actor: &'static str,
    by: Option<String>,
    reason: Option<String>,
}

/// Counts of a redrive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Redriven {
    /// Published again.
    pub sent: u64,
    /// Removed, because the effect has happened.
    pub skipped: u64,
    /// Left in the dead-letter queue: they name no source, or exceed the maximum number of redrives.
    pub left: u64,
}

impl Redrive {
    /// Redelivery delay of a letter that a redrive leaves, longer than the redrive lasts.
    pub const LEFT_FOR: Duration = Duration::from_secs(60);

    /// Creates a redrive of a dead-letter queue. `engine` must be the engine of the consumer that gave up the messages.
    pub fn new(dead: Arc<dyn Broker>, to: Arc<dyn Publisher>, engine: Engine) -> Self {
        Self {
            dead,
            to,
            engine,
            destination: None,
            fallback: None,
            idle: Duration::from_secs(2),
            at_most: u64::MAX,
            ordered: RedriveOrder {
                actor: "command",
                by: None,
                reason: None,
            },
        }
    }

    /// Publishes all letters to this destination, instead of their original queue.
    #[must_use]
    pub fn with_destination(mut self, destination: impl Into<String>) -> Self {
        self.destination = Some(destination.into());
        self
    }

    /// Publishes letters that name no source to this destination. Without it, they are left.
    #[must_use]
    pub fn with_fallback(mut self, destination: impl Into<String>) -> Self {
        self.fallback = Some(destination.into());
        self
    }

    /// Ends after this time without letters. Default: 2 s.
    #[must_use]
    pub fn with_idle(mut self, idle: Duration) -> Self {
        self.idle = idle;
        self
    }

    /// Ends after this number of letters.
    #[must_use]
    pub fn with_at_most(mut self, at_most: u64) -> Self {
        self.at_most = at_most;
        self
    }

    /// Sets the author and the reason, which are written to the audit log. Default: the actor `command`, without a
    /// reason.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) as for [`OperatorAction::check`].
    pub fn with_action(mut self, action: OperatorAction<'_>) -> Result<Self> {
        action.check()?;
        self.ordered = RedriveOrder {
            actor: action.actor,
            by: action.by.map(Into::into),
            reason: Some(action.reason.into()),
        };
        Ok(self)
    }

    /// Publishes the letters.
    ///
    /// # Errors
    /// If broker, publisher or store is unavailable, or the broker delivers nothing within 60 s, so that it is unknown
    /// whether there are letters. Letters that were not processed are returned.
    ///
    /// # Cancellation
    /// Safe to drop: a letter may be published twice, with the same ID and number.
    pub async fn run(&self) -> Result<Redriven> {
        let mut done = Redriven::default();
        loop {
            let so_far = done.sent + done.skipped + done.left;
            let room = usize::try_from(self.at_most.saturating_sub(so_far)).unwrap_or(BATCH);
            if room == 0 {
                return Ok(done);
            }
            self.dead.ready(READY_MAX).await?;
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
                "a dead letter is not redriven: it names no source, or was redriven too often"
            );
            done.left += 1;
            return delivery.ticket.nack(Self::LEFT_FOR).await;
        };
        match self.has_happened(letter).await {
            Ok(true) => done.skipped += 1,
            Ok(false) => {
                if let Err(error) = self.write_down(letter, number).await {
                    let _ = delivery.ticket.nack(Duration::ZERO).await;
                    return Err(error);
                }
                let message = redriven_message(letter, number);
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

    /// Writes the redrive to the audit log, if the engine has one, because an operator overrides the record.
    async fn write_down(&self, letter: &Message, number: u32) -> Result<()> {
        let Some(log) = self.engine.audit() else {
            return Ok(());
        };
        let mut entry = Entry::new(Event::Redriven).with_detail(format!("redrive {number}"));
        let records = text_of(letter, DEAD_RECORDS).unwrap_or_default();
        entry.record = records.rsplit(',').find_map(|text| text.parse().ok());
        entry.operation = text_of(letter, DEAD_CONSUMER).map(Into::into);
        entry.actor = Some(self.ordered.actor.into());
        entry.by.clone_from(&self.ordered.by);
        entry.reason.clone_from(&self.ordered.reason);
        log.write(entry).await
    }

    /// Whether one of the message's records is completed by now.
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

/// Creates the message of a dead letter for this redrive.
fn redriven_message(letter: &Message, number: u32) -> Message {
    let mut message = letter.clone();
    let id = letter.id.clone().unwrap_or_else(|| {
        let digest = blake3::hash(&letter.payload).to_hex();
        format!("dead-{}", &digest[..32])
    });
    // With its old ID, the transport would drop it as a duplicate.
    message.id = Some(format!("{id}.redrive-{number}"));
    message.position = None;
    message.set_header(REDRIVE, number.to_string());
    message
}
