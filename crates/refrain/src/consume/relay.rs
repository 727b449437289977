//! The relay: takes what waits in an outbox to a broker.
//!
//! At least once: a message is taken off the outbox when the broker has confirmed it, and a relay that dies in between has it
//! published again, under the same [id](super::Message::id), by which the broker or the consumer knows it.
//! In order: of a group, a message is published when the one before it is confirmed, whichever relay did that.

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
use run::Run;

/// What happens to a group whose message the broker refuses for good.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum OnRefusal {
    /// The group waits until a person has decided: nothing is ever published out of order.
    #[default]
    Hold,
    /// The message is set aside, and the group goes on without it.
    Park,
}

/// How a relay works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelayOptions {
    /// How many messages are held at once, at most.
    pub in_flight_max: usize,
    /// How long what a dead relay held is left to it.
    pub lease: Duration,
    /// How often the outbox is looked into while nothing wakes the relay.
    pub poll: Duration,
    /// How long the broker may take to confirm one message.
    pub timeout: Duration,
    /// After how many refusals a message is not tried any more.
    pub attempts: u32,
    /// What happens to its group then.
    pub on_refusal: OnRefusal,
    /// How long the relay takes at the longest to end once it is told to.
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

/// What relays have done. Clones count together.
#[derive(Debug, Clone, Default)]
pub struct RelayCounters(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    published: AtomicU64,
    failed: AtomicU64,
    refused: AtomicU64,
    given_up: AtomicU64,
}

/// What relays have done, at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct RelayCounts {
    /// Messages that the broker has confirmed.
    pub published: u64,
    /// Attempts that ended without an answer of the broker.
    pub failed: u64,
    /// Attempts that the broker refused.
    pub refused: u64,
    /// Messages that were refused too often, and wait for a person.
    pub given_up: u64,
}

impl RelayCounters {
    /// What has been counted until now.
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

/// Takes what waits in an outbox to a broker.
///
/// Several may work on one outbox at once, in one process or in many.
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
    /// From this outbox to this broker.
    pub fn new(outbox: Arc<dyn Outbox>, publisher: Arc<dyn Publisher>) -> Self {
        Self {
            outbox,
            publisher,
            options: RelayOptions::default(),
            counters: RelayCounters::default(),
        }
    }

    /// The same relay with these options.
    #[must_use]
    pub fn with_options(mut self, options: RelayOptions) -> Self {
        self.options = options;
        self
    }

    /// What it has done; keeps counting.
    #[must_use]
    pub fn counters(&self) -> RelayCounters {
        self.counters.clone()
    }

    /// Publishes until `shutdown`; then lets what is under way come to its end, and gives the rest back.
    /// While outbox or broker cannot be reached it waits for them.
    ///
    /// # Cancellation
    /// Dropped, what is under way is published again by the next relay when the lease has lapsed.
    pub async fn run(&self, shutdown: impl Future<Output = ()> + Send) {
        let run = Run::new(self, false);
        // What cannot be had is waited for: there is nothing to tell.
        let _ = run.go(shutdown).await;
    }

    /// Publishes what is there to be taken, and ends; answers what is left, which others hold, rests, or was refused.
    ///
    /// # Errors
    /// When outbox or broker cannot be reached. What was published until then is counted.
    ///
    /// # Cancellation
    /// As [`run`](Self::run).
    pub async fn drain(&self) -> Result<Backlog> {
        self.drain_until(std::future::pending()).await
    }

    /// As [`drain`](Self::drain), or until `shutdown`.
    ///
    /// # Errors
    /// As [`drain`](Self::drain).
    ///
    /// # Cancellation
    /// As [`run`](Self::run).
    pub async fn drain_until(&self, shutdown: impl Future<Output = ()> + Send) -> Result<Backlog> {
        Run::new(self, true).go(shutdown).await?;
        self.outbox.backlog().await
    }
}
