//! Stands in for `traces.rs` in a build without the feature `otel`: says how to rebuild.

use std::sync::Arc;

use refrain::{policy::Settings, store::AnyStore};
use refrain_proxy::telemetry::Telemetry;

use super::Failure;

/// The variables of OpenTelemetry are not read: platforms set them for every process.
#[expect(clippy::unnecessary_wraps, reason = "as with the feature")]
pub(super) fn endpoint() -> Result<Option<String>, Failure> {
    Ok(None)
}

/// Rejects settings that ask for traces.
pub(super) fn check(settings: &Settings) -> Result<(), Failure> {
    match settings.traces {
        None => Ok(()),
        Some(_) => Err(Failure::Configuration(
            "refrain: built without traces; rebuild with --features otel, or remove otlp_endpoint of [proxy] and \
             REFRAIN_OTLP_ENDPOINT"
                .into(),
        )),
    }
}

#[expect(clippy::unnecessary_wraps, reason = "as with the feature")]
pub(super) fn start(_: &Settings, _: &Arc<Telemetry>, _: &AnyStore) -> Result<(), Failure> {
    Ok(())
}
