//! Number and pace of retries.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::Backoff;

/// Number and pace of a call's retries.
#[derive(Debug, Clone, Copy)]
pub struct Retry {
    /// Maximum number of attempts per [`send`](super::Call::send); waiting for a running request does not count.
    pub attempts_max: u32,
    /// Backoff between attempts, with full jitter. `Retry-After` is added to it.
    pub backoff: Backoff,
    /// Retry budget of all calls of a client together.
    pub budget: Budget,
    /// Whether a 409 without advice is the operation's own response.
    /// If false, it is taken as a sign that the first request is still running.
    pub conflict_is_final: bool,
}

impl Default for Retry {
    /// Eight attempts, with pauses from up to 250 ms to up to 20 s.
    fn default() -> Self {
        Self {
            attempts_max: 8,
            backoff: Backoff::new(Duration::from_millis(250), Duration::from_secs(20)),
            budget: Budget::default(),
            conflict_is_final: false,
        }
    }
}

/// Retry budget of a client, as a token bucket shared by all its calls.
/// A retry that finds the bucket empty waits, within the deadline of its call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Budget {
    /// Capacity of the bucket.
    pub burst_max: u32,
    /// Tokens added per second; at least one per hour.
    pub per_second: f64,
}

impl Default for Budget {
    /// A burst of 50, and 5 per second.
    fn default() -> Self {
        Self {
            burst_max: 50,
            per_second: 5.0,
        }
    }
}

/// Remaining tokens of a budget.
#[derive(Debug, Default)]
pub(super) struct Purse(Mutex<Option<Filled>>);

#[derive(Debug, Clone, Copy)]
struct Filled {
    /// Negative while retries wait.
    tokens: f64,
    at: Instant,
}

impl Purse {
    /// Takes one token; returns how long to wait for it.
    pub(super) fn take(&self, budget: Budget) -> Duration {
        let rate = budget.per_second.max(1.0 / 3_600.0);
        let full = f64::from(budget.burst_max);
        let now = Instant::now();
        let mut purse = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let filled = purse.get_or_insert(Filled {
            tokens: full,
            at: now,
        });
        let passed = now.saturating_duration_since(filled.at).as_secs_f64();
        filled.tokens = (filled.tokens + passed * rate).min(full) - 1.0;
        filled.at = now;
        Duration::try_from_secs_f64(-filled.tokens / rate).unwrap_or_default()
    }

    /// Returns the token of a retry that is not sent.
    pub(super) fn give_back(&self) {
        let mut purse = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(filled) = &mut *purse {
            filled.tokens += 1.0;
        }
    }
}
