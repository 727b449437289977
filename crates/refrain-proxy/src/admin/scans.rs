//! One search of the records at a time: each may visit every record of the store.

use std::time::Duration;

use http::StatusCode;
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::timeout,
};

use super::refusal::Refusal;

/// Longest time that a search waits for another one.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// Limits the searches of this process.
#[derive(Debug)]
pub(crate) struct ScanLimit(Semaphore);

impl Default for ScanLimit {
    fn default() -> Self {
        Self(Semaphore::new(1))
    }
}

impl ScanLimit {
    /// Waits until no other search runs. The search ends when the permit is dropped.
    pub(crate) async fn acquire(&self) -> Result<SemaphorePermit<'_>, Refusal> {
        let permit = timeout(WAIT_MAX, self.0.acquire()).await;
        permit.ok().and_then(Result::ok).ok_or_else(busy)
    }
}

fn busy() -> Refusal {
    let error = "another search of the records is running";
    let fix = "wait until it ends, and repeat the search";
    let mut refusal = Refusal::new(StatusCode::SERVICE_UNAVAILABLE, error, fix);
    refusal.retry_after = Some(WAIT_MAX.as_secs());
    refusal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_second_search_waits_and_is_refused_after_a_while() {
        let limit = ScanLimit::default();
        let first = limit.acquire().await.unwrap();
        let refused = limit.acquire().await.unwrap_err();
        assert!(refused.error.contains("another search"));
        let (second, ()) = tokio::join!(limit.acquire(), async { drop(first) });
        assert!(second.is_ok());
    }
}
