//! Relay: publishes the messages of an outbox to a broker.
//!
//! At least once: a message is removed from the outbox after the broker has confirmed it. If a relay dies before that,
//! the message is published again under the same [ID](super::Message::id), and the broker or the consumer deduplicates
//! it. In order: a message of a group is published after its predecessor is confirmed, by any relay.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::{Backlog, Outbox, Publisher};
use crate::Result;

mod lane;
mod pause;

mod run;
use run::RelayRun;

/// What happens to a group whose message the broker refuses permanently.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "policy-file", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum OnRefusal {
    /// The group waits for an operator, so nothing is published out of order.
    #[default]
    Hold,
    /// The message is set aside, and the group continues without it.
    Park,
}

/// Options of a relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelayOptions {
    /// Maximum number of messages held at a time.
    pub in_flight_max: usize,
    /// Lease of held messages: another relay takes them over after it lapses.
    pub lease: Duration,
    /// Interval between polls of the outbox while no notification arrives.
    pub poll: Duration,
    /// Maximum time for the broker to confirm one message.
    pub timeout: Duration,
    /// Number of refusals by the broker after which a message is given up.
    pub attempts: u32,
    /// What happens to its group then.
    pub on_refusal: OnRefusal,
    /// Maximum time to finish at shutdown.
    pub drain: Duration,
}

impl Default for RelayOptions {
    fn default() -> Self {
        Self {
            in_flight_max: 256,
            lease: Duration::from_secs(30),
            poll: Duration::from_secs(1),
            timeout: Duration::from_secs(10),
            attempts: 5,
            on_refusal: OnRefusal::default(),
            drain: Duration::from_secs(30),
        }
    }
}

/// Counters of relays. Clones share the same counters.
#[derive(Debug, Clone, Default)]
pub struct RelayCounters(Arc<RelayTotals>);

#[derive(Debug, Default)]
struct RelayTotals {
    published: AtomicU64,
    failed: AtomicU64,
    refused: AtomicU64,
    given_up: AtomicU64,
}

/// Snapshot of the counters of relays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct RelayCounts {
    /// Messages confirmed by the broker.
    pub published: u64,
    /// Attempts without an answer from the broker.
    pub failed: u64,
    /// Attempts refused by the broker.
    pub refused: u64,
    /// Messages that were refused too often and wait for an operator.
    pub given_up: u64,
}

impl RelayCounters {
    /// Returns the current counts.
    #[must_use]
    pub fn read(&self) -> RelayCounts {
        RelayCounts {
            published: self.0.published.load(Relaxed),
            failed: self.0.failed.load(Relaxed),
            refused: self.0.refused.load(Relaxed),
            given_up: self.0.given_up.load(Relaxed),
        }
    }
}

/// Publishes the messages of an outbox to a broker.
///
/// Several relays may work on one outbox concurrently, in one process or in many.
#[derive(Clone)]
pub struct Relay {
    outbox: Arc<dyn Outbox>,
    publisher: Arc<dyn Publisher>,
    options: RelayOptions,
    counters: RelayCounters,
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay")
            .field("outbox", &self.outbox)
            .field("publisher", &self.publisher)
            .finish_non_exhaustive()
    }
}

impl Relay {
    /// Creates a relay from an outbox to a broker.
    pub fn new(outbox: Arc<dyn Outbox>, publisher: Arc<dyn Publisher>) -> Self {
        Self {
            outbox,
            publisher,
            options: RelayOptions::default(),
            counters: RelayCounters::default(),
        }
    }

    /// Sets the options.
    #[must_use]
    pub fn with_options(mut self, options: RelayOptions) -> Self {
        self.options = options;
        self
    }

    /// Returns the counters, which stay live.
    #[must_use]
    pub fn counters(&self) -> RelayCounters {
        self.counters.clone()
    }

    /// Publishes until `shutdown`, then finishes messages in progress and returns the rest to the outbox.
    /// Retries while the outbox or the broker is unavailable.
    ///
    /// # Cancellation
    /// If dropped, the next relay publishes messages in progress again after the lease lapses.
    pub async fn run(&self, shutdown: impl Future<Output = ()> + Send) {
        let run = RelayRun::new(self, false);
        // Continuous runs retry instead of failing, so there is no error.
        let _ = run.run_until(shutdown).await;
    }

    /// Publishes the messages that can be taken, and returns the backlog: messages that other relays hold, that rest,
    /// or that were refused.
    ///
    /// # Errors
    /// If outbox or broker is unavailable. Messages published until then are counted.
    ///
    /// # Cancellation
    /// As for [`run`](Self::run).
    pub async fn drain(&self) -> Result<Backlog> {
        self.drain_until(std::future::pending()).await
    }

    /// Like [`drain`](Self::drain), but ends early at `shutdown`.
    ///
    /// # Errors
    /// As for [`drain`](Self::drain).
    ///
    /// # Cancellation
    /// As for [`run`](Self::run).
    pub async fn drain_until(&self, shutdown: impl Future<Output = ()> + Send) -> Result<Backlog> {
        RelayRun::new(self, true).run_until(shutdown).await?;
        self.outbox.backlog().await
    }
}
