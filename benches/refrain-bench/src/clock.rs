//! The clock of the measurements, read in this one file.

use std::time::{Duration, Instant};

/// This moment.
#[expect(
    clippy::disallowed_methods,
    reason = "a benchmark measures the machine's own time"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// How long the processors have worked for this process so far.
pub(crate) fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or(0))
}
