//! Counters of what the access log and the traces wrote and lost.

use prometheus_client::{metrics::counter::Counter, registry::Registry};

/// The counters, in a registry. They exist also if there is neither an access log nor a tracer.
#[derive(Debug, Clone)]
#[cfg_attr(
    not(feature = "otel"),
    expect(dead_code, reason = "only traces count spans")
)]
pub(crate) struct TelemetryCounts {
    /// Lines of the access log that were dropped.
    pub(crate) access_log_dropped: Counter,
    /// Spans that the collector accepted.
    pub(crate) spans_exported: Counter,
    /// Spans that were dropped.
    pub(crate) spans_dropped: Counter,
}

impl TelemetryCounts {
    pub(crate) fn registered(registry: &mut Registry) -> Self {
        let mut counter = |name: &str, help: &str| {
            let counter = Counter::default();
            registry.register(name, help, counter.clone());
            counter
        };
        Self {
            access_log_dropped: counter(
                "access_log_dropped",
                "Lines of the access log that were dropped, because they could not be written in time",
            ),
            spans_exported: counter(
                "spans_exported",
                "Spans that the collector of traces accepted",
            ),
            spans_dropped: counter(
                "spans_dropped",
                "Spans that were dropped, because the collector did not accept them in time",
            ),
        }
    }
}
