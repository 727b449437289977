//! What became of a consumer's messages, in numbers.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use crate::Error;

/// What became of one delivery: the `outcome` of `refrain_messages_total{consumer,outcome}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Count {
    /// Handled, its outcome stored, acknowledged.
    Completed,
    /// Skipped: it was handled before.
    Duplicate,
    /// Skipped: it was handled before, so long ago that only its key is remembered.
    Expired,
    /// Given back: it is being handled elsewhere, or what became of it cannot be learnt yet.
    InFlight,
    /// The handler failed, and it is tried again.
    Retried,
    /// The handler panicked, and it is tried again once its lease has lapsed.
    Panicked,
    /// Handled, but somebody took over meanwhile: what they made of it counts.
    Overtaken,
    /// Handled, but its outcome could not be stored yet: it is delivered again.
    Unsettled,
    /// Given back untouched: the store did not answer.
    Unavailable,
    /// Given back: its predecessor in the sequence has not been handled.
    Held,
    /// Handled although its predecessor in the sequence has not been, since the policy passes gaps.
    GapPassed,
    /// Published to the dead-letter destination and acknowledged.
    DeadLettered,
    /// To be dead-lettered, but there is no destination, or it did not take the message: given back.
    Undeliverable,
    /// Done with, but the broker could not be told: it delivers again, and that one is skipped.
    Unacknowledged,
    /// Given back before it started, since the consumer stops.
    GivenBack,
    /// Still running when the time to drain was over: left, and not acknowledged.
    Left,
}

impl Count {
    /// All of them.
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

    /// The value of the label `outcome`.
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

/// What became of a consumer's messages so far.
#[derive(Debug, Default)]
pub struct Tally {
    counts: [AtomicU64; Count::ALL.len()],
    /// What the last pull had to say, if it was no good.
    trouble: Mutex<Option<String>>,
}

impl Tally {
    /// How often this happened.
    #[must_use]
    pub fn get(&self, count: Count) -> u64 {
        self.counts[count as usize].load(Ordering::Relaxed)
    }

    /// Why the consumer does not get all of its messages, as of its last pull: the broker cannot be reached, or cannot hand
    /// some of them out. `None` where it gets them, or has not pulled yet. For readiness.
    #[must_use]
    pub fn broker_trouble(&self) -> Option<String> {
        let trouble = self.trouble.lock();
        trouble.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Answers whether that is news.
    pub(super) fn set_broker_trouble(&self, error: Option<&Error>) -> bool {
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *trouble, error.map(ToString::to_string));
        before != *trouble
    }

    /// Counts one more.
    pub(super) fn count(&self, count: Count) {
        self.add(count, 1);
    }

    pub(super) fn add(&self, count: Count, more: u64) {
        self.counts[count as usize].fetch_add(more, Ordering::Relaxed);
    }
}
