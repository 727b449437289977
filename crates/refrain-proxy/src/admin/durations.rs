//! Histograms of durations, and quantiles of what they counted.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use prometheus_client::{
    encoding::{EncodeMetric, MetricEncoder, NoLabelSet},
    metrics::{MetricType, TypedMetric},
};

/// Bound of the first bucket: 0.1 ms. Each further bound is twice the previous one, up to 52.4 s.
const FIRST_NANOS: u64 = 100_000;
const BOUNDS: usize = 20;

/// Histogram of durations for the path of every request: without a lock, and without a search for the bucket.
/// Clones share their counts.
#[derive(Debug, Clone, Default)]
pub(super) struct Durations(Arc<AtomicBuckets>);

#[derive(Debug, Default)]
struct AtomicBuckets {
    /// Count of each bucket; the last one is for durations over every bound.
    buckets: [AtomicU64; BOUNDS + 1],
    /// Sum of all durations. It wraps around after 584 years, as a counter may.
    nanos: AtomicU64,
}

impl Durations {
    pub(super) fn observe(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.0.buckets[bucket(nanos)].fetch_add(1, Relaxed);
        self.0.nanos.fetch_add(nanos, Relaxed);
    }

    pub(super) fn add_to(&self, counts: &mut BucketCounts) {
        let buckets = self.0.buckets.iter().zip(counts);
        buckets.for_each(|(count, sum)| *sum += count.load(Relaxed));
    }
}

/// The last bound in microseconds. A longer duration is known only to be longer.
pub(crate) const LAST_BOUND_MICROS: u64 = (FIRST_NANOS << (BOUNDS - 1)) / 1_000;

/// Counts of durations by bucket.
pub(crate) type BucketCounts = [u64; BOUNDS + 1];

/// The duration in microseconds below which this part of the durations between two counts lies, interpolated within its
/// bucket; 1 more than [`LAST_BOUND_MICROS`] if it is over the last bound; `None` if there are no durations.
pub(crate) fn quantile(before: &BucketCounts, after: &BucketCounts, part: f64) -> Option<u64> {
    let counts = after.iter().zip(before);
    let counts: Vec<_> = counts.map(|(it, was)| it.saturating_sub(*was)).collect();
    let wanted = counts.iter().sum::<u64>() as f64 * part;
    let mut below = 0;
    for (at, count) in counts.into_iter().enumerate() {
        let reached = below + count;
        if count > 0 && reached as f64 >= wanted {
            if at == BOUNDS {
                return Some(LAST_BOUND_MICROS + 1);
            }
            let high = (FIRST_NANOS << at) as f64;
            let low = if at == 0 { 0.0 } else { high / 2.0 };
            let inside = (wanted - below as f64) / count as f64;
            return Some(((low + (high - low) * inside) / 1e3) as u64);
        }
        below = reached;
    }
    None
}

/// Index of the first bucket whose bound is not below `nanos`.
fn bucket(nanos: u64) -> usize {
    if nanos <= FIRST_NANOS {
        return 0;
    }
    let doubled = ((nanos - 1) / FIRST_NANOS).ilog2() as usize + 1;
    doubled.min(BOUNDS)
}

/// Bound of a bucket in seconds.
fn bound(bucket: usize) -> f64 {
    match bucket {
        BOUNDS.. => f64::INFINITY,
        _ => (FIRST_NANOS << bucket) as f64 / 1e9,
    }
}

impl EncodeMetric for Durations {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let buckets = self.0.buckets.iter().enumerate();
        let buckets: Vec<_> = buckets
            .map(|(at, count)| (bound(at), count.load(Relaxed)))
            .collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum = Duration::from_nanos(self.0.nanos.load(Relaxed)).as_secs_f64();
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

impl TypedMetric for Durations {
    const TYPE: MetricType = MetricType::Histogram;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_counts_below_the_first_bound_that_it_does_not_exceed() {
        for (nanos, expected) in [
            (0, 0),
            (FIRST_NANOS, 0),
            (FIRST_NANOS + 1, 1),
            (2 * FIRST_NANOS, 1),
            (2 * FIRST_NANOS + 1, 2),
            (FIRST_NANOS << (BOUNDS - 1), BOUNDS - 1),
            ((FIRST_NANOS << (BOUNDS - 1)) + 1, BOUNDS),
            (u64::MAX, BOUNDS),
        ] {
            assert_eq!(bucket(nanos), expected, "{nanos}");
        }
    }

    /// Queries select a bucket by its bound, which must be the same text everywhere.
    #[test]
    fn bounds_are_round() {
        let bounds = (0..BOUNDS).map(|at| bound(at).to_string());
        let expected = "0.0001 0.0002 0.0004 0.0008 0.0016 0.0032 0.0064 0.0128 0.0256 0.0512 \
            0.1024 0.2048 0.4096 0.8192 1.6384 3.2768 6.5536 13.1072 26.2144 52.4288";
        assert!(bounds.eq(expected.split_whitespace()));
    }

    #[test]
    fn counted_durations_are_exported() {
        use prometheus_client::{encoding::text, registry::Registry};
        let (durations, mut registry) = (Durations::default(), Registry::default());
        registry.register("took", "How long it took", durations.clone());
        for micros in [50, 100, 150, 200_000_000] {
            durations.observe(Duration::from_micros(micros));
        }
        let mut text = String::new();
        text::encode(&mut text, &registry).unwrap();
        for line in [
            "# TYPE took histogram",
            "took_sum 200.0003",
            "took_count 4",
            "took_bucket{le=\"0.0001\"} 2",
            "took_bucket{le=\"0.0002\"} 3",
            "took_bucket{le=\"52.4288\"} 3",
            "took_bucket{le=\"+Inf\"} 4",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} in {text}");
        }
    }

    #[test]
    fn quantiles_lie_within_the_bucket_of_new_durations() {
        let (old, durations) = (BucketCounts::default(), Durations::default());
        assert_eq!(quantile(&old, &old, 0.5), None);
        for micros in [150, 150, 150, 5_000] {
            durations.observe(Duration::from_micros(micros));
        }
        let mut new = old;
        durations.add_to(&mut new);
        let median = quantile(&old, &new, 0.5).unwrap();
        assert!((100..=200).contains(&median), "{median}");
        let highest = quantile(&old, &new, 0.99).unwrap();
        assert!((3_200..=6_400).contains(&highest), "{highest}");
        assert_eq!(quantile(&new, &new, 0.5), None);
        for seconds in [52, 53] {
            let durations = Durations::default();
            durations.observe(Duration::from_secs(seconds));
            let mut new = old;
            durations.add_to(&mut new);
            let is_over = quantile(&old, &new, 0.99) > Some(LAST_BOUND_MICROS);
            assert_eq!(is_over, seconds == 53, "{seconds}");
        }
    }
}
