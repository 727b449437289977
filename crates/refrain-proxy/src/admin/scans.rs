//! One search of the records at a time: each may visit every record of the store.

use std::time::Duration;

use http::StatusCode;
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::timeout,
};

use super::refusal::Refusal;

/// Longest time that a search waits for its turn.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// The turns of searches in this process.
#[derive(Debug)]
pub(crate) struct ScanTurns(Semaphore);

impl Default for ScanTurns {
    fn default() -> Self {
        Self(Semaphore::new(1))
    }
}

impl ScanTurns {
    /// Waits for the turn of a search, which ends when the permit is dropped.
    pub(crate) async fn wait(&self) -> Result<SemaphorePermit<'_>, Refusal> {
        let turn = timeout(WAIT_MAX, self.0.acquire()).await;
        turn.ok().and_then(Result::ok).ok_or_else(busy)
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
        let turns = ScanTurns::default();
        let first = turns.wait().await.unwrap();
        let refused = turns.wait().await.unwrap_err();
        assert!(refused.error.contains("another search"));
        let (second, ()) = tokio::join!(turns.wait(), async { drop(first) });
        assert!(second.is_ok());
    }
}
