//! How often and how fast a client tries again.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::Backoff;

/// How often and how fast a call is tried again.
#[derive(Debug, Clone, Copy)]
pub struct Retry {
    /// The most attempts of one [`send`](super::Call::send); those that wait for a run elsewhere do not count.
    pub attempts_max: u32,
    /// The pauses between them, each cut short by chance by up to all of it. `Retry-After` comes on top.
    pub backoff: Backoff,
    /// What all calls of a client together may spend on retries.
    pub budget: Budget,
    /// Whether a 409 that does not say what to do is the operation's own answer.
    /// Otherwise it is taken for a first request that is still running.
    pub conflict_is_final: bool,
}

impl Default for Retry {
    /// Eight attempts, with pauses of up to a quarter of a second to twenty seconds.
    fn default() -> Self {
        Self {
            attempts_max: 8,
            backoff: Backoff::new(Duration::from_millis(250), Duration::from_secs(20)),
            budget: Budget::default(),
            conflict_is_final: false,
        }
    }
}

/// How many retries a client sends, whatever the number of its calls: so many at once, and then so many a second.
/// A retry that finds the budget empty waits for its turn, within its call's deadline.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Budget {
    /// The most retries at once.
    pub burst_max: u32,
    /// How many more a second; at least one an hour.
    pub per_second: f64,
}

impl Default for Budget {
    /// Fifty at once, and five a second.
    fn default() -> Self {
        Self {
            burst_max: 50,
            per_second: 5.0,
        }
    }
}

/// What is left of a budget.
#[derive(Debug, Default)]
pub(super) struct Purse(Mutex<Option<Filled>>);

#[derive(Debug, Clone, Copy)]
struct Filled {
    /// Below zero while somebody waits.
    tokens: f64,
    at: Instant,
}

impl Purse {
    /// Takes the price of one retry; answers how long to wait before it is paid.
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

    /// Gives back what was taken for a retry that is not sent.
    pub(super) fn give_back(&self) {
        let mut purse = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(filled) = &mut *purse {
            filled.tokens += 1.0;
        }
    }
}
