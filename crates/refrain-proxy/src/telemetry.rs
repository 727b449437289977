//! Observes every request: metrics, the recent requests that operators see, and the rates of the last hour.

use std::{
    fmt, io,
    sync::{Arc, OnceLock},
    time::Duration,
};

use http::StatusCode;
use refrain::{
    Operation,
    clock::{Clock as _, SystemClock, Timestamp},
    http::{Code, DecidedRequest, Decision, Observed, Observer},
    policy::AccessLogSettings,
};
use tokio::time::Instant;

mod access_log;
mod counts;
mod rates;
mod recent;
mod waiters;

#[cfg_attr(not(feature = "otel"), path = "telemetry/traces_off.rs")]
mod traces;

pub(crate) use counts::TelemetryCounts;
pub(crate) use rates::Totals;
pub use rates::{RateHistory, RateSample};
pub use recent::{RecentRequests, RequestSummary};
#[cfg(feature = "otel")]
pub use traces::TraceOptions;
pub(crate) use traces::{ClientSpan, Tracer};
use waiters::Waiters;
pub(crate) use waiters::{RECORDS_MAX, WAITERS_MAX, Waiter};

use access_log::{AccessLine, AccessLog};

use crate::admin::Metrics;

/// The observer of the proxy's layer. Pass it to the layer and to the admin listener.
pub struct Telemetry {
    metrics: Arc<Metrics>,
    recent: RecentRequests,
    waiters: Waiters,
    rates: RateHistory,
    /// Unset if there is no access log.
    access_log: OnceLock<AccessLog>,
    /// Unset if there are no traces.
    tracer: OnceLock<Tracer>,
    started: Instant,
    started_at: Timestamp,
}

impl Telemetry {
    /// Creates an observer that counts in these metrics.
    #[must_use]
    pub fn new(metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            metrics,
            recent: RecentRequests::default(),
            waiters: Waiters::default(),
            rates: RateHistory::default(),
            access_log: OnceLock::new(),
            tracer: OnceLock::new(),
            started: Instant::now(),
            started_at: SystemClock.wall(),
        })
    }

    /// The metrics of requests and store operations.
    #[must_use]
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// When the process began to observe requests.
    #[must_use]
    pub fn started(&self) -> Instant {
        self.started
    }

    /// When that was, on this process's clock. Another time after a restart.
    #[must_use]
    pub fn started_at(&self) -> Timestamp {
        self.started_at
    }

    /// The most recent requests.
    #[must_use]
    pub fn recent(&self) -> &RecentRequests {
        &self.recent
    }

    /// The requests that waited for another one with the same key.
    pub(crate) fn waiters(&self) -> &Waiters {
        &self.waiters
    }

    /// Rates and latencies of the last hour.
    #[must_use]
    pub fn rates(&self) -> &RateHistory {
        &self.rates
    }

    /// Opens the access log, in which every request gets a line from now on. Call it once.
    ///
    /// # Errors
    /// If the file cannot be opened or is not a regular file; the message names it and the fix.
    pub fn open_access_log(&self, settings: &AccessLogSettings) -> io::Result<()> {
        let dropped = self.metrics.telemetry().access_log_dropped.clone();
        let _ = self.access_log.set(AccessLog::open(settings, dropped)?);
        Ok(())
    }

    /// Records the spans of requests from now on, and exports them in a task of this runtime. Call it once.
    /// `store` has the records that replays link to.
    ///
    /// # Errors
    /// If the URL of the collector is invalid, or needs TLS and this machine trusts no certificate authority.
    #[cfg(feature = "otel")]
    pub fn trace(&self, options: TraceOptions, store: refrain::store::AnyStore) -> io::Result<()> {
        let counts = self.metrics.telemetry().clone();
        let _ = self.tracer.set(Tracer::start(options, store, counts)?);
        Ok(())
    }

    /// Records spans, if requests are traced.
    pub(crate) fn tracer(&self) -> Option<&Tracer> {
        self.tracer.get()
    }

    /// Writes the lines of the access log and exports the spans that are still queued, for a few seconds at most.
    pub async fn close(self: &Arc<Self>) {
        let telemetry = self.clone();
        let writing = tokio::task::spawn_blocking(move || {
            if let Some(log) = telemetry.access_log.get() {
                log.close();
            }
        });
        if let Some(tracer) = self.tracer() {
            tracer.close().await;
        }
        let _ = writing.await;
    }

    /// Counts and logs a request that was refused because of its head, before the layer saw it.
    pub(crate) fn head_refused(&self, code: Code, status: StatusCode) {
        let labels = [("code", code.code())];
        self.metrics.refused_heads().get_or_create(&labels).inc();
        if let Some(log) = self.access_log.get() {
            log.push(&AccessLine {
                record: None,
                operation: None,
                method: None,
                outcome: RequestOutcome::Refused.label(),
                code: Some(code.code()),
                status: Some(status.as_u16()),
                upstream: None,
                total: Duration::ZERO,
                trace_id: None,
            });
        }
    }

    /// Takes samples for the rates until it is dropped.
    pub(crate) async fn sample(&self) -> std::convert::Infallible {
        let mut ticks = tokio::time::interval(RateHistory::INTERVAL);
        // After a stall, samples of no time at all would be drawn as gaps.
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.rates.push(self.metrics.totals());
            self.recent.allow_some();
        }
    }
}

impl Observer for Telemetry {
    fn decided(&self, request: &DecidedRequest<'_>) {
        self.metrics.decided(request);
        self.recent.offer(request);
        if request.waited {
            self.waiters.note(request);
        }
        if let Some(log) = self.access_log.get() {
            log.push(&AccessLine::of(request));
        }
        if let Some(tracer) = self.tracer() {
            tracer.decided(request);
        }
    }

    fn observed(&self, operation: &Operation, result: Observed) {
        self.metrics.observed(operation, result);
    }
}

impl fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Telemetry").finish_non_exhaustive()
    }
}

/// The result of a request, in the words of the dashboard and the access log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RequestOutcome {
    /// The operation ran.
    Executed,
    /// It got a stored outcome.
    Replayed,
    /// It waited for a running request with the same key, and got the response of that one.
    Waited,
    /// It got a problem of Refrain, and nothing ran for it.
    Refused,
    /// The outcome of the operation is unknown.
    Unknown,
    /// It passed unguarded.
    Passed,
    /// A client looked up the state of its key.
    LookedUp,
    /// The client disconnected before the response.
    Disconnected,
}

impl RequestOutcome {
    /// All of them, in the order of declaration.
    pub const ALL: [Self; 8] = [
        Self::Executed,
        Self::Replayed,
        Self::Waited,
        Self::Refused,
        Self::Unknown,
        Self::Passed,
        Self::LookedUp,
        Self::Disconnected,
    ];

    /// The result of this request.
    #[must_use]
    pub fn of(request: &DecidedRequest<'_>) -> Self {
        match Self::of_decision(request.decision) {
            Self::Replayed if request.waited => Self::Waited,
            Self::Unknown if request.operation.is_none() => Self::Passed,
            outcome => outcome,
        }
    }

    /// The result of a request with this decision, which did not wait.
    pub(crate) fn of_decision(decision: Decision) -> Self {
        match decision {
            Decision::FreshKept | Decision::FreshReleased => Self::Executed,
            Decision::Replayed | Decision::Acknowledged => Self::Replayed,
            Decision::Refused => Self::Waited,
            Decision::OutcomeUnknown | Decision::Failed => Self::Unknown,
            Decision::Passed | Decision::Unguarded | Decision::Observed | Decision::PageServed => {
                Self::Passed
            }
            Decision::LookedUp => Self::LookedUp,
            Decision::HungUp => Self::Disconnected,
            _ => Self::Refused,
        }
    }

    /// Its name.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Executed => "executed",
            Self::Replayed => "replayed",
            Self::Waited => "waited",
            Self::Refused => "refused",
            Self::Unknown => "unknown",
            Self::Passed => "passed",
            Self::LookedUp => "looked-up",
            Self::Disconnected => "disconnected",
        }
    }
}
