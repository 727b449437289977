//! The most recent requests, for operators who watch.
//!
//! Building a summary costs an allocation or two and a lock, so the number of summaries is limited:
//! readers and a timer allow a few more at a time. While nobody reads, hardly any ordinary request is kept.

use std::{
    borrow::Cow,
    collections::VecDeque,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use refrain::{
    clock::{Clock as _, SystemClock, Timestamp},
    http::{DecidedRequest, LOOKUP_PATH},
    policy::KeysKept,
};
use serde::{Serialize, Serializer};

use super::RequestOutcome;

/// Number of requests kept.
const KEPT_MAX: usize = 512;
/// Ordinary requests that may be kept after each look of a reader.
const PER_READ: u32 = 25;
/// Ordinary requests that may be kept after each tick, while nobody reads.
const PER_TICK: u32 = 5;
/// Requests that waited and may be kept after each tick: many ordinary ones do not displace them.
const WAITED_PER_TICK: u32 = 25;
/// Refused and unknown requests that may be kept after each tick.
const UNUSUAL_PER_TICK: u32 = 100;
/// Longer paths are cut off.
const PATH_MAX: usize = 500;

/// A request whose response is ready.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct RequestSummary {
    /// Its place in the order of all that were kept.
    pub seq: u64,
    /// When the response was ready.
    #[serde(serialize_with = "as_rfc3339")]
    pub time: Timestamp,
    /// The operation that it matches; `None` if the policy guards no such operation.
    pub operation: Option<String>,
    /// The method.
    pub method: String,
    /// The path, without the query and without keys. Of a request that matches no operation, the first segment.
    pub path: String,
    /// The result.
    pub outcome: RequestOutcome,
    /// The code of the problem, if it was refused.
    pub code: Option<&'static str>,
    /// The status of the response, if there was one.
    pub status: Option<u16>,
    /// The identity of the record, if there is one.
    pub record: Option<String>,
    /// The trace id of the caller, in hexadecimal digits.
    pub trace_id: Option<String>,
    /// Microseconds until the response was ready.
    pub total_us: u64,
    /// The part of it that the upstream took.
    pub upstream_us: Option<u64>,
    /// Whether it waited for another request with the same key.
    pub waited: bool,
}

fn as_rfc3339<S: Serializer>(time: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&time.rfc3339())
}

impl RequestSummary {
    fn new(request: &DecidedRequest<'_>, outcome: RequestOutcome) -> Self {
        let path = shown_path(request);
        let trace_id = request.trace_id().map(u128::from_be_bytes);
        Self {
            seq: 0,
            time: SystemClock.wall(),
            operation: request.operation.map(|it| it.name.clone()),
            method: request.method.to_string(),
            path: path[..path.floor_char_boundary(PATH_MAX)].to_owned(),
            outcome,
            code: (outcome == RequestOutcome::Refused).then(|| request.decision.label()),
            status: request.response.map(|(status, _)| status.as_u16()),
            record: request.record().map(str::to_owned),
            trace_id: trace_id.map(|id| format!("{id:032x}")),
            total_us: micros(request.took),
            upstream_us: request.served.map(micros),
            waited: request.waited,
        }
    }
}

/// The path without what may be a secret. Of an operation, the segments that are named as a key are masked, unless its
/// records keep keys readable. Of a request that the policy does not describe, only the first segment is known to be harmless.
fn shown_path<'a>(request: &DecidedRequest<'a>) -> Cow<'a, str> {
    let path = request.target.path();
    match request.operation {
        _ if path.starts_with(LOOKUP_PATH) => Cow::Borrowed(LOOKUP_PATH),
        Some(operation) if operation.records_keys == KeysKept::Clear => Cow::Borrowed(path),
        Some(operation) => operation.pattern.masked(path, is_key),
        None => first_segment(path),
    }
}

/// Whether a named segment holds a key, by its name: `key`, `idempotency_key`.
fn is_key(name: &str) -> bool {
    name.to_ascii_lowercase().ends_with("key")
}

fn first_segment(path: &str) -> Cow<'_, str> {
    let segments = path.strip_prefix('/').unwrap_or(path);
    match segments.split_once('/') {
        Some((first, rest)) if !rest.is_empty() => Cow::Owned(format!("/{first}/…")),
        _ => Cow::Borrowed(path),
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// The most recent requests: those with a problem, and a sample of the others.
#[derive(Debug)]
pub struct RecentRequests {
    kept: Mutex<Kept>,
    ordinary_left: AtomicU32,
    waited_left: AtomicU32,
    unusual_left: AtomicU32,
    left_out: AtomicU64,
    epoch: u32,
}

#[derive(Debug, Default)]
struct Kept {
    requests: VecDeque<RequestSummary>,
    last_seq: u64,
}

impl Default for RecentRequests {
    fn default() -> Self {
        Self {
            kept: Mutex::default(),
            ordinary_left: AtomicU32::new(PER_READ),
            waited_left: AtomicU32::new(WAITED_PER_TICK),
            unusual_left: AtomicU32::new(UNUSUAL_PER_TICK),
            left_out: AtomicU64::new(0),
            epoch: rand::random(),
        }
    }
}

impl RecentRequests {
    /// Keeps a summary of the request, if one may be kept now.
    pub(super) fn offer(&self, request: &DecidedRequest<'_>) {
        let outcome = RequestOutcome::of(request);
        let left = match outcome {
            _ if is_unusual(outcome) => &self.unusual_left,
            _ if request.waited => &self.waited_left,
            _ => &self.ordinary_left,
        };
        // A plain load first: on a busy proxy nothing is left most of the time.
        let is_taken = left.load(Relaxed) > 0
            && left
                .fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1))
                .is_ok();
        if is_taken {
            self.push(RequestSummary::new(request, outcome));
        } else {
            self.left_out.fetch_add(1, Relaxed);
        }
    }

    fn push(&self, mut summary: RequestSummary) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.last_seq += 1;
        summary.seq = kept.last_seq;
        if kept.requests.len() >= KEPT_MAX {
            kept.requests.pop_front();
        }
        kept.requests.push_back(summary);
    }

    /// The requests after this sequence number, oldest first; if there are more than `limit`, the latest ones.
    /// Allows more requests to be kept: a reader that calls this a few times a second sees a live sample.
    #[must_use]
    pub fn after(&self, seq: u64, limit: usize) -> Vec<RequestSummary> {
        self.ordinary_left.fetch_max(PER_READ, Relaxed);
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found: Vec<_> = kept.after(seq).collect();
        found.truncate(limit);
        found.into_iter().rev().cloned().collect()
    }

    /// The requests after this sequence number that fit, oldest first, and the latest sequence number. If more than
    /// `limit` fit, the refused and unknown ones come before the others, and late ones before early ones.
    pub(crate) fn fitting(
        &self,
        seq: u64,
        limit: usize,
        fits: impl Fn(&RequestSummary) -> bool,
    ) -> (Vec<RequestSummary>, u64) {
        self.ordinary_left.fetch_max(PER_READ, Relaxed);
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found: Vec<_> = kept.after(seq).filter(|it| fits(it)).collect();
        // The sort is stable: each part stays in its order.
        found.sort_by_key(|it| !is_unusual(it.outcome));
        found.truncate(limit);
        found.sort_by_key(|it| it.seq);
        (found.into_iter().cloned().collect(), kept.last_seq)
    }

    /// A number that differs in each process: sequence numbers of another process mean nothing here.
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Number of requests that were counted in the metrics only.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out.load(Relaxed)
    }

    /// Allows a few requests to be kept while nobody reads.
    pub(super) fn allow_some(&self) {
        self.ordinary_left.fetch_max(PER_TICK, Relaxed);
        self.waited_left.fetch_max(WAITED_PER_TICK, Relaxed);
        self.unusual_left.fetch_max(UNUSUAL_PER_TICK, Relaxed);
    }
}

/// Whether an operator looks for requests with this result first.
fn is_unusual(outcome: RequestOutcome) -> bool {
    matches!(outcome, RequestOutcome::Refused | RequestOutcome::Unknown)
}

impl Kept {
    /// The requests after this sequence number, latest first; all if it is one of another process.
    fn after(&self, seq: u64) -> impl Iterator<Item = &RequestSummary> {
        let seq = if seq > self.last_seq { 0 } else { seq };
        let is_new = move |it: &&RequestSummary| it.seq > seq;
        self.requests.iter().rev().take_while(is_new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(outcome: RequestOutcome) -> RequestSummary {
        RequestSummary {
            seq: 0,
            time: Timestamp(0),
            operation: None,
            method: "POST".into(),
            path: "/".into(),
            outcome,
            code: None,
            status: None,
            record: None,
            trace_id: None,
            total_us: 0,
            upstream_us: None,
            waited: false,
        }
    }

    #[test]
    fn many_ordinary_requests_do_not_displace_the_unusual_ones() {
        let recent = RecentRequests::default();
        recent.push(summary(RequestOutcome::Unknown));
        recent.push(summary(RequestOutcome::Refused));
        for _ in 0..100 {
            recent.push(summary(RequestOutcome::Executed));
        }
        let (all, last) = recent.fitting(0, 25, |_| true);
        let seqs: Vec<_> = all.iter().map(|it| it.seq).collect();
        let expected: Vec<_> = [1, 2].into_iter().chain(80..=102).collect();
        assert_eq!((seqs, last), (expected, 102));
        // A filter comes before the limit.
        let refused = |it: &RequestSummary| it.outcome == RequestOutcome::Refused;
        let (found, last) = recent.fitting(0, 25, refused);
        assert_eq!((found.len(), found[0].seq, last), (1, 2, 102));
        assert_eq!(recent.fitting(102, 25, |_| true).0.len(), 0);
    }

    #[test]
    fn the_path_of_an_unknown_request_is_cut_after_its_first_segment() {
        for (path, expected) in [
            ("/", "/"),
            ("/files", "/files"),
            ("/files/", "/files/"),
            ("/reset/4711-secret", "/reset/…"),
            ("*", "*"),
        ] {
            assert_eq!(first_segment(path), expected);
        }
    }

    #[test]
    fn a_number_of_an_earlier_process_shows_what_there_is() {
        let recent = RecentRequests::default();
        recent.push(summary(RequestOutcome::Executed));
        assert_eq!(recent.after(1, 10).len(), 0);
        assert_eq!(recent.after(7_000, 10).len(), 1);
    }
}
