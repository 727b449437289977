//! The clock of the measurements, read in this one file.

use std::time::Instant;

/// This moment.
#[expect(
    clippy::disallowed_methods,
    reason = "a benchmark measures the machine's own time"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}
