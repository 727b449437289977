//! Metrics of every request and every store operation.
//!
//! Labels come only from the policy and from this code, never from a request, so their number is bounded.

use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use prometheus_client::{
    encoding::text,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use refrain::{
    Operation, Policy,
    http::{Code, Decision, Observer},
    store::{Meter, Op},
};

use super::durations::Durations;
use crate::descriptors::Connections;

/// Problem codes of refused heads.
const REFUSALS: [Code; 5] = [
    Code::RequestMalformed,
    Code::RequestTimeout,
    Code::TargetTooLong,
    Code::HeadTooLarge,
    Code::MethodUnsupported,
];

/// A set of labels.
type Labels = Vec<(&'static str, String)>;

/// Requests whose head was refused before the policy saw them, by problem code. Clones share their counters.
pub(crate) type RefusedHeads = Family<[(&'static str, &'static str); 1], Counter>;

/// Metrics of the proxy. Pass them to the layer as its observer, and to the store as its meter.
pub struct Metrics {
    registry: Registry,
    requests: Family<Labels, Counter>,
    request_durations: Family<Labels, Durations>,
    /// Sorted by the operation's name; the series of each are indexed by the decision.
    operations: Vec<(String, Vec<OnceLock<Series>>)>,
    /// Indexed by the store operation.
    ops: Vec<StoreSeries>,
    connections: Connections,
    refused_heads: RefusedHeads,
}

/// Series of one operation and one decision.
#[derive(Debug)]
struct Series {
    count: Counter,
    durations: Durations,
}

#[derive(Debug)]
struct StoreSeries {
    durations: Durations,
    errors: Counter,
}

impl Metrics {
    /// Creates the metrics for the operations of this policy and the store at this address, of which only the scheme is shown.
    #[must_use]
    pub fn new(policy: &Policy, store: &str) -> Arc<Self> {
        let mut registry = Registry::with_prefix("refrain");
        let requests = Family::default();
        let help = "Requests to guarded operations by result";
        registry.register("requests", help, requests.clone());
        let request_durations = Family::default();
        let help = "Time from the request to the start of the response";
        let name = "request_duration_seconds";
        registry.register(name, help, request_durations.clone());
        let ops = store_series(&mut registry, scheme(store));
        let connections = connection_series(&mut registry);
        let refused_heads = RefusedHeads::default();
        let help = "Requests rejected because of their head, before an operation was matched";
        registry.register("refused_heads", help, refused_heads.clone());
        // Exported before the first occurrence, so that alerts can be written.
        for code in REFUSALS {
            drop(refused_heads.get_or_create(&[("code", code.code())]));
        }
        let decisions = || Decision::ALL.iter().map(|_| OnceLock::new()).collect();
        let operations = policy.operations();
        let operations = operations.map(|operation| (operation.name.clone(), decisions()));
        let mut operations: Vec<_> = operations.collect();
        operations.sort_by(|(one, _), (other, _)| one.cmp(other));
        Arc::new(Self {
            operations,
            registry,
            requests,
            request_durations,
            ops,
            connections,
            refused_heads,
        })
    }

    /// Metrics of client connections, which the proxy updates.
    pub(crate) fn connections(&self) -> &Connections {
        &self.connections
    }

    /// Counters of refused heads, which the proxy increments.
    pub(crate) fn refused_heads(&self) -> &RefusedHeads {
        &self.refused_heads
    }

    /// Appends the metrics as text, without an end marker.
    pub(super) fn encode(&self, out: &mut String) -> fmt::Result {
        text::encode_registry(out, &self.registry)
    }

    fn series(&self, operation: &str, decision: Decision) -> Option<&Series> {
        let found = |(name, _): &(String, _)| name.as_str().cmp(operation);
        let at = self.operations.binary_search_by(found).ok()?;
        let series = self.operations[at].1.get(decision as usize)?;
        Some(series.get_or_init(|| {
            let labels = vec![
                ("operation", operation.to_owned()),
                ("outcome", decision.label().to_owned()),
            ];
            Series {
                count: self.requests.get_or_create_owned(&labels),
                durations: self.request_durations.get_or_create_owned(&labels),
            }
        }))
    }
}

fn connection_series(registry: &mut Registry) -> Connections {
    let connections = Connections::default();
    let help = "Open client connections";
    registry.register("connections", help, connections.open.clone());
    let help =
        "Maximum client connections: `connections_max`, or less if the open-file limit is too low";
    registry.register("connections_max", help, connections.max.clone());
    let help = "Times that the maximum of client connections was reached; further clients wait to be accepted";
    registry.register("connections_exhausted", help, connections.exhausted.clone());
    connections
}

fn store_series(registry: &mut Registry, store: &str) -> Vec<StoreSeries> {
    let durations = Family::<Labels, Durations>::default();
    let errors = Family::<Labels, Counter>::default();
    let help = "Duration of store operations";
    registry.register("store_duration_seconds", help, durations.clone());
    let help = "Failed store operations";
    registry.register("store_errors", help, errors.clone());
    let series = Op::ALL.map(|op| {
        let labels = vec![("store", store.to_owned()), ("op", op.label().to_owned())];
        StoreSeries {
            durations: durations.get_or_create_owned(&labels),
            errors: errors.get_or_create_owned(&labels),
        }
    });
    series.into()
}

/// The part before the colon: the rest of an address may contain a password.
fn scheme(store: &str) -> &str {
    store.split_once(':').map_or("other", |(scheme, _)| scheme)
}

impl Observer for Metrics {
    fn decided(&self, operation: &Operation, decision: Decision, took: Duration) {
        if let Some(series) = self.series(&operation.name, decision) {
            series.count.inc();
            series.durations.observe(took);
        }
    }
}

impl Meter for Metrics {
    fn answered(&self, op: Op, is_ok: bool, took: Duration) {
        let Some(series) = self.ops.get(op as usize) else {
            return;
        };
        series.durations.observe(took);
        if !is_ok {
            series.errors.inc();
        }
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Series are indexed by these numbers.
    #[test]
    fn decisions_and_questions_are_numbered_in_their_order() {
        let decisions = Decision::ALL.iter().enumerate();
        decisions.for_each(|(at, decision)| assert_eq!(*decision as usize, at, "{decision:?}"));
        let ops = Op::ALL.iter().enumerate();
        ops.for_each(|(at, op)| assert_eq!(*op as usize, at, "{op:?}"));
    }
}
