//! Counters of a consumer.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

use crate::Error;

/// Result of one delivery: the label `outcome` of `refrain_messages_total{consumer,outcome}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Count {
    /// Handled, outcome stored, acknowledged.
    Completed,
    /// Skipped: it was handled before.
    Duplicate,
    /// Skipped: it was handled before, and its retention has ended.
    Expired,
    /// Returned: it is being handled elsewhere, or its outcome cannot be determined yet.
    InFlight,
    /// The handler failed; it is retried.
    Retried,
    /// The handler panicked; it is retried after its lease lapses.
    Panicked,
    /// Handled, but another holder took over meanwhile, and its outcome counts.
    Overtaken,
    /// Handled, but the outcome is not stored yet: it is redelivered.
    Unsettled,
    /// Returned without being handled: the store is unavailable.
    Unavailable,
    /// Returned: its predecessor in the sequence has not been handled.
    Held,
    /// Handled before its predecessor in the sequence, because the policy lets gaps pass.
    GapPassed,
    /// Published to the dead-letter destination and acknowledged.
    DeadLettered,
    /// Could not be dead-lettered, because there is no destination or publishing failed: returned.
    Undeliverable,
    /// Finished, but the acknowledgement failed: it is redelivered and then skipped.
    Unacknowledged,
    /// Returned before it started, because the consumer stops.
    GivenBack,
    /// Still running at the end of the drain time: abandoned, and not acknowledged.
    Left,
}

impl Count {
    /// All values.
    pub const ALL: [Self; 16] = [
        Self::Completed,
        Self::Duplicate,
        Self::Expired,
        Self::InFlight,
        Self::Retried,
        Self::Panicked,
        Self::Overtaken,
        Self::Unsettled,
        Self::Unavailable,
        Self::Held,
        Self::GapPassed,
        Self::DeadLettered,
        Self::Undeliverable,
        Self::Unacknowledged,
        Self::GivenBack,
        Self::Left,
    ];

    /// Returns the value of the label `outcome`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Duplicate => "duplicate",
            Self::Expired => "expired",
            Self::InFlight => "in-flight",
            Self::Retried => "retried",
            Self::Panicked => "panicked",
            Self::Overtaken => "overtaken",
            Self::Unsettled => "unsettled",
            Self::Unavailable => "store-unavailable",
            Self::Held => "held",
            Self::GapPassed => "gap-passed",
            Self::DeadLettered => "dead-lettered",
            Self::Undeliverable => "undeliverable",
            Self::Unacknowledged => "unacknowledged",
            Self::GivenBack => "given-back",
            Self::Left => "left",
        }
    }
}

/// Counters of a consumer.
#[derive(Debug, Default)]
pub struct Tally {
    counts: [AtomicU64; Count::ALL.len()],
    /// Error of the last pull, if it failed.
    trouble: Mutex<Option<String>>,
    /// Messages that are being handled.
    in_flight: AtomicUsize,
}

/// A message that is being handled, until it is dropped.
pub(super) struct HandledMessage<'a>(&'a AtomicUsize);

impl Drop for HandledMessage<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Tally {
    /// Returns the count of this result.
    #[must_use]
    pub fn get(&self, count: Count) -> u64 {
        self.counts[count as usize].load(Ordering::Relaxed)
    }

    /// Returns the number of messages that are being handled now.
    #[must_use]
    pub fn in_flight_now(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Counts a message as in flight, until the returned value is dropped.
    pub(super) fn handle(&self) -> HandledMessage<'_> {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        HandledMessage(&self.in_flight)
    }

    /// Returns the reason why the last pull did not get all messages: the broker is unreachable, or cannot deliver some
    /// of them. `None` if it got them, or before the first pull. For readiness checks.
    #[must_use]
    pub fn broker_trouble(&self) -> Option<String> {
        let trouble = self.trouble.lock();
        trouble.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the error of the last pull; returns whether it changed.
    pub(super) fn set_broker_trouble(&self, error: Option<&Error>) -> bool {
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *trouble, error.map(ToString::to_string));
        before != *trouble
    }

    /// Increments a counter.
    pub(super) fn count(&self, count: Count) {
        self.add(count, 1);
    }

    pub(super) fn add(&self, count: Count, more: u64) {
        self.counts[count as usize].fetch_add(more, Ordering::Relaxed);
    }
}
