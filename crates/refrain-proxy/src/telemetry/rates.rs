//! Rates and latencies of the last hour, from samples of the counters: requests pay nothing for them.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use refrain::clock::{Clock as _, SystemClock, Timestamp};
use serde::Serialize;
use tokio::time::Instant;

use super::RequestOutcome;
use crate::admin::{BucketCounts, quantile};

/// Number of samples kept: one hour.
const SAMPLES_MAX: usize = 720;

/// Counts since the start, by result.
#[derive(Debug, Clone, Default)]
pub(crate) struct Totals {
    /// Indexed by [`RequestOutcome`]. Requests that waited are counted by what they got.
    pub(crate) outcomes: [u64; RequestOutcome::ALL.len()],
    /// Guarded requests that waited for another one with the same key.
    pub(crate) waited: u64,
    /// Durations of executed requests.
    pub(crate) executed: BucketCounts,
    /// Durations of replays.
    pub(crate) replayed: BucketCounts,
}

/// What happened in one interval.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct RateSample {
    /// The end of the interval, in milliseconds since 1970.
    pub at_ms: u64,
    /// Its length in seconds.
    pub seconds: f64,
    /// Requests that executed.
    pub executed: u64,
    /// Requests that got a stored outcome.
    pub replayed: u64,
    /// Requests that got a problem, and executed nothing.
    pub refused: u64,
    /// Requests with an unknown outcome.
    pub unknown: u64,
    /// Unguarded requests.
    pub passed: u64,
    /// Look-ups of keys by clients.
    pub looked_up: u64,
    /// Guarded requests that waited for another one; they are also counted by what they got.
    pub waited: u64,
    /// Median of executed requests in microseconds, between the bounds of its histogram bucket.
    /// 52428801 stands for everything over the last bound, 52.4288 s.
    pub executed_p50_us: Option<u64>,
    /// 99th percentile of executed requests.
    pub executed_p99_us: Option<u64>,
    /// Median of replays.
    pub replayed_p50_us: Option<u64>,
    /// 99th percentile of replays.
    pub replayed_p99_us: Option<u64>,
    /// Durations of the executed requests, to add up with those of other intervals.
    #[serde(skip)]
    pub(crate) executed_durations: BucketCounts,
    /// Durations of the replays.
    #[serde(skip)]
    pub(crate) replayed_durations: BucketCounts,
}

/// Samples of the last hour.
#[derive(Debug, Default)]
pub struct RateHistory(Mutex<Samples>);

#[derive(Debug, Default)]
struct Samples {
    /// The counts at the end of the latest interval.
    last: Option<(Instant, Totals)>,
    samples: VecDeque<RateSample>,
}

impl RateHistory {
    /// Time between samples.
    pub const INTERVAL: Duration = Duration::from_secs(5);

    pub(crate) fn push(&self, totals: Totals) {
        let now = Instant::now();
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((since, last)) = state.last.replace((now, totals.clone())) else {
            return;
        };
        if state.samples.len() >= SAMPLES_MAX {
            state.samples.pop_front();
        }
        let sample = RateSample::between(&last, &totals, now - since);
        state.samples.push_back(sample);
    }

    /// The samples, oldest first.
    #[must_use]
    pub fn samples(&self) -> Vec<RateSample> {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.samples.iter().cloned().collect()
    }
}

impl RateSample {
    fn between(last: &Totals, totals: &Totals, span: Duration) -> Self {
        let Timestamp(at_ms) = SystemClock.wall();
        let count = |outcome: RequestOutcome| {
            let at = outcome as usize;
            totals.outcomes[at].saturating_sub(last.outcomes[at])
        };
        let executed = |q| quantile(&last.executed, &totals.executed, q);
        let replayed = |q| quantile(&last.replayed, &totals.replayed, q);
        Self {
            at_ms,
            seconds: span.as_secs_f64(),
            executed: count(RequestOutcome::Executed),
            replayed: count(RequestOutcome::Replayed) + count(RequestOutcome::Waited),
            refused: count(RequestOutcome::Refused),
            unknown: count(RequestOutcome::Unknown),
            passed: count(RequestOutcome::Passed),
            looked_up: count(RequestOutcome::LookedUp),
            waited: totals.waited.saturating_sub(last.waited),
            executed_p50_us: executed(0.5),
            executed_p99_us: executed(0.99),
            replayed_p50_us: replayed(0.5),
            replayed_p99_us: replayed(0.99),
            executed_durations: between(&last.executed, &totals.executed),
            replayed_durations: between(&last.replayed, &totals.replayed),
        }
    }
}

/// The durations that were counted after `before`.
fn between(before: &BucketCounts, after: &BucketCounts) -> BucketCounts {
    std::array::from_fn(|at| after[at].saturating_sub(before[at]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(executed: u64, waited: u64) -> Totals {
        let mut totals = Totals::default();
        totals.outcomes[RequestOutcome::Executed as usize] = executed;
        totals.waited = waited;
        totals.executed[3] = executed;
        totals
    }

    #[tokio::test(start_paused = true)]
    async fn a_sample_has_what_happened_since_the_one_before() {
        let history = RateHistory::default();
        history.push(totals(10, 1));
        assert!(history.samples().is_empty(), "nothing to compare with");
        tokio::time::advance(Duration::from_secs(5)).await;
        history.push(totals(14, 1));
        tokio::time::advance(Duration::from_secs(10)).await;
        history.push(totals(14, 3));
        let samples = history.samples();
        let figures = samples
            .iter()
            .map(|it| (it.seconds, it.executed, it.waited));
        assert!(figures.eq([(5.0, 4, 0), (10.0, 0, 2)]), "{samples:?}");
        assert_eq!(samples[0].executed_durations[3], 4);
        assert!(samples[0].executed_p99_us.is_some());
        assert_eq!(samples[1].executed_p99_us, None, "nothing executed");
    }

    #[test]
    fn the_samples_of_one_hour_are_kept() {
        let history = RateHistory::default();
        for count in 0..SAMPLES_MAX as u64 + 10 {
            history.push(totals(count * count, 0));
        }
        let samples = history.samples();
        assert_eq!(samples.len(), SAMPLES_MAX);
        let last = SAMPLES_MAX as u64 + 9;
        let grown = last * last - (last - 1) * (last - 1);
        assert_eq!(
            samples.last().map(|it| it.executed),
            Some(grown),
            "the latest"
        );
    }
}
