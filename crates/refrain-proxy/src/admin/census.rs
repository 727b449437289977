//! Counts the records of the store, for the metrics, the overview and the dashboard.
//!
//! Some stores read every record for it. So there is one count at a time, and one that took long is reused.

use std::time::Duration;

use refrain::{
    Store as _,
    store::{AnyStore, Census},
};
use tokio::{
    sync::Mutex,
    time::{Instant, timeout_at},
};

/// Longest time for a count; without it the rest is shown.
pub(super) const COUNT_MAX: Duration = Duration::from_secs(5);
/// A faster count is not reused.
const FAST: Duration = Duration::from_millis(100);
/// A slow count is reused this many times as long as it took.
const REUSED_TIMES: u32 = 10;

/// The last count, if it may be reused.
#[derive(Debug, Default)]
pub(super) struct CensusCache(Mutex<Option<Counted>>);

#[derive(Debug)]
struct Counted {
    census: Census,
    reused_until: Instant,
}

impl CensusCache {
    /// Counts the records, or reuses the last count; `None` if the store fails, or does not respond before `deadline`.
    ///
    /// # Cancellation
    /// The next caller counts again.
    pub(super) async fn get(&self, store: &AnyStore, deadline: Instant) -> Option<Census> {
        let mut last = timeout_at(deadline, self.0.lock()).await.ok()?;
        let start = Instant::now();
        if let Some(counted) = &*last
            && start < counted.reused_until
        {
            return Some(counted.census);
        }
        let census = match timeout_at(deadline, store.census()).await.ok()? {
            Ok(census) => census,
            Err(error) => {
                tracing::warn!(%error, "cannot count the records of the store");
                return None;
            }
        };
        let took = start.elapsed();
        *last = (took > FAST).then(|| Counted {
            census,
            reused_until: Instant::now() + took * REUSED_TIMES,
        });
        Some(census)
    }
}
