//! Metrics of every request and every store operation.
//!
//! Labels come only from the policy and from this code, never from a request, so their number is bounded.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{
            AtomicU64,
            Ordering::{Acquire, Release},
        },
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use http::StatusCode;
use prometheus_client::{
    encoding::text,
    metrics::{counter::Counter, family::Family, info::Info},
    registry::Registry,
};
use refrain::{
    Operation, Policy,
    http::{Code, DecidedRequest, Decision, Observed, Observer},
    policy::Mode,
    store::{Meter, Op},
};

use super::{
    census::CensusCache, durations::Durations, reload::ReloadCounts, scans::ScanLimit,
    unknown::UnknownCache,
};
use crate::{
    descriptors::Connections,
    telemetry::{RequestOutcome, TelemetryCounts, Totals},
    tls::{HandshakeCounts, ServerTls, handshake_counts},
};

/// Operations whose counts are kept although the policy does not name them any more.
const OPERATIONS_MAX: usize = 10_000;

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
type RefusedHeads = Family<[(&'static str, &'static str); 1], Counter>;

/// Requests that got no response from the upstream, or only a part of one, by reason. Clones share their counters.
pub(crate) type UpstreamErrors = Family<[(&'static str, &'static str); 1], Counter>;

/// Requests that the admin listener refused, by reason. Clones share their counters.
pub(crate) type RefusedAccess = Family<[(&'static str, &'static str); 1], Counter>;

/// Why the admin listener refuses requests.
const ACCESS_REFUSALS: [&str; 8] = [
    "content-type",
    "form",
    "host",
    "origin",
    "role",
    "session",
    "token-missing",
    "token-wrong",
];

/// The reasons of upstream errors.
const UPSTREAM_ERRORS: [&str; 6] = [
    "unreachable",
    "timeout",
    "reset",
    "failed",
    "truncated",
    "stalled",
];

/// Metrics of the proxy. Pass them to the layer as its observer, and to the store as its meter.
pub struct Metrics {
    registry: Registry,
    requests: Family<Labels, Counter>,
    request_durations: Family<Labels, Durations>,
    waited: Family<Labels, Counter>,
    observed: Family<Labels, Counter>,
    /// Sorted by the operation's name. A reload of the policy adds those of new operations.
    operations: ArcSwap<Vec<Arc<OperationSeries>>>,
    /// Requests that match no operation, by class of status.
    unmatched: [Series; StatusClass::ALL.len()],
    /// The look-ups among them.
    looked_up: AtomicU64,
    /// Indexed by the store operation.
    ops: Vec<StoreSeries>,
    connections: Connections,
    refused_heads: RefusedHeads,
    upstream_errors: UpstreamErrors,
    census: CensusCache,
    unknown: UnknownCache,
    scans: ScanLimit,
    refused_access: RefusedAccess,
    handshakes: HandshakeCounts,
    telemetry: TelemetryCounts,
    reloads: ReloadCounts,
}

/// Class of the status of a response.
#[derive(Debug, Clone, Copy)]
enum StatusClass {
    Informational,
    Success,
    Redirect,
    ClientError,
    ServerError,
    /// No response: the client disconnected.
    Absent,
}

impl StatusClass {
    const ALL: [Self; 6] = [
        Self::Informational,
        Self::Success,
        Self::Redirect,
        Self::ClientError,
        Self::ServerError,
        Self::Absent,
    ];

    fn of(status: Option<StatusCode>) -> Self {
        match status.map(|status| status.as_u16() / 100) {
            Some(1) => Self::Informational,
            Some(2) => Self::Success,
            Some(3) => Self::Redirect,
            Some(4) => Self::ClientError,
            Some(_) => Self::ServerError,
            None => Self::Absent,
        }
    }

    fn label(self) -> &'static str {
        match self {
            Self::Informational => "1xx",
            Self::Success => "2xx",
            Self::Redirect => "3xx",
            Self::ClientError => "4xx",
            Self::ServerError => "5xx",
            Self::Absent => "none",
        }
    }
}

/// Series of one operation.
#[derive(Debug)]
struct OperationSeries {
    name: String,
    /// Indexed by the decision.
    decisions: Vec<OnceLock<Series>>,
}

impl OperationSeries {
    fn new(operation: &Operation) -> Self {
        Self {
            name: operation.name.clone(),
            decisions: Decision::ALL.iter().map(|_| OnceLock::new()).collect(),
        }
    }
}

/// Series of one operation and one decision.
#[derive(Debug)]
struct Series {
    count: Counter,
    durations: Durations,
}

impl Series {
    fn count(&self, took: Duration) {
        self.count.inc();
        self.durations.observe(took);
    }
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
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "Version of Refrain", build);
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
        let waited = Family::<Labels, Counter>::default();
        let help = "Requests to guarded operations that waited for another one with the same key";
        registry.register("waited_requests", help, waited.clone());
        let observed = Family::<Labels, Counter>::default();
        let help =
            "What guarding would have done with requests to operations with mode = \"observe\"";
        registry.register("observed_requests", help, observed.clone());
        let unmatched = unmatched_series(&mut registry);
        let upstream_errors = UpstreamErrors::default();
        let help = "Requests without a complete response from the upstream, by reason; \
            guarded requests that exceed their timeout, or whose response breaks off, are in `refrain_doubts_total`";
        registry.register("upstream_errors", help, upstream_errors.clone());
        for reason in UPSTREAM_ERRORS {
            drop(upstream_errors.get_or_create(&[("reason", reason)]));
        }
        let refused_access = RefusedAccess::default();
        let help = "Requests that the admin listener refused, by reason";
        registry.register("admin_refused", help, refused_access.clone());
        for reason in ACCESS_REFUSALS {
            drop(refused_access.get_or_create(&[("reason", reason)]));
        }
        let handshakes = handshake_counts(&mut registry);
        let telemetry = TelemetryCounts::registered(&mut registry);
        let reloads = ReloadCounts::registered(&mut registry);
        let metrics = Self {
            operations: ArcSwap::default(),
            reloads,
            waited,
            observed,
            unmatched,
            looked_up: AtomicU64::new(0),
            upstream_errors,
            refused_access,
            handshakes,
            telemetry,
            registry,
            requests,
            request_durations,
            ops,
            connections,
            refused_heads,
            census: CensusCache::default(),
            unknown: UnknownCache::default(),
            scans: ScanLimit::default(),
        };
        metrics.follow(policy);
        Arc::new(metrics)
    }

    /// Counts the requests to the operations of this policy, which is in force from now on.
    ///
    /// The counts of other operations stay, because requests in progress still belong to them. Only when there are very
    /// many, those that the policy does not name any more are removed.
    pub fn follow(&self, policy: &Policy) {
        let known = self.operations.load();
        let mut operations: BTreeMap<_, _> = match known.len() {
            0..OPERATIONS_MAX => known
                .iter()
                .map(|it| (it.name.clone(), it.clone()))
                .collect(),
            _ => BTreeMap::new(),
        };
        for operation in policy.operations() {
            let new = || {
                self.find(&operation.name)
                    .unwrap_or_else(|| Arc::new(OperationSeries::new(operation)))
            };
            operations.entry(operation.name.clone()).or_insert_with(new);
            self.export_zeros(operation);
        }
        for removed in known.iter().filter(|it| !operations.contains_key(&it.name)) {
            self.remove(&removed.name);
        }
        self.operations
            .store(Arc::new(operations.into_values().collect()));
    }

    /// Exports the counters of an operation before its first request, so that alerts can be written.
    fn export_zeros(&self, operation: &Operation) {
        if !operation.guarded {
            return;
        }
        let labels = vec![("operation", operation.name.clone())];
        drop(self.waited.get_or_create(&labels));
        if operation.mode == Mode::Observe {
            for result in Observed::ALL {
                drop(
                    self.observed
                        .get_or_create(&result_labels(operation, *result)),
                );
            }
        }
    }

    fn remove(&self, operation: &str) {
        let label = ("operation", operation.to_owned());
        self.waited.remove(&vec![label.clone()]);
        for decision in Decision::ALL {
            let labels = vec![label.clone(), ("outcome", decision.label().to_owned())];
            self.requests.remove(&labels);
            self.request_durations.remove(&labels);
        }
        for result in Observed::ALL {
            self.observed
                .remove(&vec![label.clone(), ("result", result.label().to_owned())]);
        }
    }

    /// Counters of reloads.
    #[must_use]
    pub fn reloads(&self) -> &ReloadCounts {
        &self.reloads
    }

    /// Metrics of connections, which the proxy updates.
    pub(crate) fn connections(&self) -> &Connections {
        &self.connections
    }

    /// Counters of refused heads, which the proxy increments.
    pub(crate) fn refused_heads(&self) -> &RefusedHeads {
        &self.refused_heads
    }

    /// Counters of upstream errors, which the proxy increments.
    pub(crate) fn upstream_errors(&self) -> &UpstreamErrors {
        &self.upstream_errors
    }

    /// Counters of the access log and the traces, which they increment.
    pub(crate) fn telemetry(&self) -> &TelemetryCounts {
        &self.telemetry
    }

    /// Counts since the start, by result.
    pub(crate) fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for operation in self.operations.load().iter() {
            self.add_operation(operation, &mut totals);
        }
        // Read before the others, which are counted first.
        let looked_up = self.looked_up.load(Acquire);
        totals.outcomes[RequestOutcome::LookedUp as usize] += looked_up;
        let unmatched = self.unmatched.iter().map(|series| series.count.get());
        let passed = unmatched.sum::<u64>().saturating_sub(looked_up);
        totals.outcomes[RequestOutcome::Passed as usize] += passed;
        totals
    }

    /// The same for each operation.
    pub(super) fn operation_totals(&self) -> Vec<(String, Totals)> {
        let operations = self.operations.load();
        let totals = operations.iter().map(|operation| {
            let mut totals = Totals::default();
            self.add_operation(operation, &mut totals);
            (operation.name.clone(), totals)
        });
        totals.collect()
    }

    fn add_operation(&self, operation: &OperationSeries, totals: &mut Totals) {
        for (series, decision) in operation.decisions.iter().zip(Decision::ALL) {
            let Some(series) = series.get() else { continue };
            let outcome = RequestOutcome::of_decision(*decision);
            totals.outcomes[outcome as usize] += series.count.get();
            match outcome {
                RequestOutcome::Executed => series.durations.add_to(&mut totals.executed),
                RequestOutcome::Replayed => series.durations.add_to(&mut totals.replayed),
                _ => {}
            }
        }
        let waited = self
            .waited
            .get(&vec![("operation", operation.name.clone())]);
        totals.waited += waited.map_or(0, |count| count.get());
    }

    /// The last count of the store's records.
    pub(super) fn census(&self) -> &CensusCache {
        &self.census
    }

    /// The last sample of unknown outcomes.
    pub(super) fn unknown(&self) -> &UnknownCache {
        &self.unknown
    }

    /// The limit of searches of the records.
    pub(crate) fn scans(&self) -> &ScanLimit {
        &self.scans
    }

    /// Counters of requests that the admin listener refused.
    pub(super) fn refused_access(&self) -> &RefusedAccess {
        &self.refused_access
    }

    /// Counts the TLS handshakes of a listener here. Call it once for each.
    pub fn count_handshakes(&self, tls: &ServerTls) {
        tls.count_in(&self.handshakes);
    }

    /// Appends the metrics as text, without an end marker.
    pub(super) fn encode(&self, out: &mut String) -> fmt::Result {
        text::encode_registry(out, &self.registry)
    }

    fn find(&self, operation: &str) -> Option<Arc<OperationSeries>> {
        let operations = self.operations.load();
        let at = operations.binary_search_by(|it| it.name.as_str().cmp(operation));
        at.ok().map(|at| operations[at].clone())
    }

    fn count(&self, operation: &str, decision: Decision, took: Duration) {
        let operations = self.operations.load();
        let at = operations.binary_search_by(|it| it.name.as_str().cmp(operation));
        let found = at
            .ok()
            .and_then(|at| operations[at].decisions.get(decision as usize));
        if let Some(series) = found {
            series
                .get_or_init(|| self.series(operation, decision))
                .count(took);
        }
    }

    fn series(&self, operation: &str, decision: Decision) -> Series {
        let labels = vec![
            ("operation", operation.to_owned()),
            ("outcome", decision.label().to_owned()),
        ];
        Series {
            count: self.requests.get_or_create_owned(&labels),
            durations: self.request_durations.get_or_create_owned(&labels),
        }
    }
}

fn result_labels(operation: &Operation, result: Observed) -> Labels {
    vec![
        ("operation", operation.name.clone()),
        ("result", result.label().to_owned()),
    ]
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
    let help = "Open connections to the upstream";
    registry.register("upstream_connections", help, connections.upstream.clone());
    connections
}

fn unmatched_series(registry: &mut Registry) -> [Series; StatusClass::ALL.len()] {
    let counts = Family::<Labels, Counter>::default();
    let durations = Family::<Labels, Durations>::default();
    let help = "Requests that match no guarded operation, by class of status";
    registry.register("unmatched_requests", help, counts.clone());
    let help = "Time from such a request to the start of its response";
    let name = "unmatched_request_duration_seconds";
    registry.register(name, help, durations.clone());
    StatusClass::ALL.map(|class| {
        let labels = vec![("status", class.label().to_owned())];
        Series {
            count: counts.get_or_create_owned(&labels),
            durations: durations.get_or_create_owned(&labels),
        }
    })
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
    fn decided(&self, request: &DecidedRequest<'_>) {
        match request.operation {
            Some(operation) => self.count(&operation.name, request.decision, request.took),
            None => {
                let status = request.response.map(|(status, _)| status);
                if let Some(series) = self.unmatched.get(StatusClass::of(status) as usize) {
                    series.count(request.took);
                }
            }
        }
        if request.decision == Decision::LookedUp && request.operation.is_none() {
            self.looked_up.fetch_add(1, Release);
        }
        if let Some(operation) = request.operation.filter(|_| request.waited) {
            let labels = vec![("operation", operation.name.clone())];
            self.waited.get_or_create(&labels).inc();
        }
    }

    fn observed(&self, operation: &Operation, result: Observed) {
        let labels = result_labels(operation, result);
        self.observed.get_or_create(&labels).inc();
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
