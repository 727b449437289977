//! `encryption`: what encrypted records cost the proxy on `file:`.
//!
//! The set-up is that of the benchmark `http`. Two systems are the same proxy: their ratio is the noise.

use anyhow::Result;

use crate::{Setup, http::Front, report::Report, telemetry};

const ENCRYPTED_RATE_MIN: f64 = 0.9;

/// Measures all systems in turns.
pub(crate) fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    let encrypted = ("encrypted", Front::FileEncrypted, ENCRYPTED_RATE_MIN);
    telemetry::compare(setup, report, &[encrypted])
}
