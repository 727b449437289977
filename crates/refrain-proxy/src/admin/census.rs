//! Counts the records of the store, for the metrics, the overview and the dashboard.
//!
//! Some stores read every record for it. So there is one count at a time, and one that took long is reused.

use std::time::Duration;

use refrain::{Result, store::Census};
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
    /// The result of `count`, or the last count, and then `count` is dropped; `None` if the store fails, or does not
    /// respond before `deadline`.
    ///
    /// # Cancellation
    /// The next caller counts again.
    pub(super) async fn get(
        &self,
        count: impl Future<Output = Result<Census>>,
        deadline: Instant,
    ) -> Option<Census> {
        let mut last = timeout_at(deadline, self.0.lock()).await.ok()?;
        let start = Instant::now();
        if let Some(counted) = &*last
            && start < counted.reused_until
        {
            return Some(counted.census);
        }
        let census = match timeout_at(deadline, count).await.ok()? {
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

#[cfg(test)]
mod tests {
    //! A scraper, a dashboard and a terminal must not make a large store count all the time.

    use super::*;

    /// A count that takes this long, and finds as many records.
    async fn count(millis: u64) -> Result<Census> {
        tokio::time::sleep(Duration::from_millis(millis)).await;
        Ok(Census {
            completed: millis,
            ..Census::default()
        })
    }

    async fn found(cache: &CensusCache, millis: u64) -> Option<u64> {
        let deadline = Instant::now() + COUNT_MAX;
        let census = cache.get(count(millis), deadline).await;
        census.map(|census| census.completed)
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_slow_count_is_reused_and_not_for_long() {
        let cache = CensusCache::default();
        assert_eq!(found(&cache, 1).await, Some(1));
        assert_eq!(found(&cache, 1_000).await, Some(1_000));
        assert_eq!(found(&cache, 2).await, Some(1_000));
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(found(&cache, 2).await, Some(2));
    }

    #[tokio::test(start_paused = true)]
    async fn callers_at_the_same_time_share_a_slow_count() {
        let cache = CensusCache::default();
        let both = tokio::join!(found(&cache, 1_000), found(&cache, 7));
        assert_eq!(both, (Some(1_000), Some(1_000)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_count_that_takes_too_long_is_given_up() {
        let cache = CensusCache::default();
        assert_eq!(found(&cache, 60_000).await, None);
        assert_eq!(found(&cache, 3).await, Some(3));
    }
}
