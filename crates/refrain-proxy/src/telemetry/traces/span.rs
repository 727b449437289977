//! A span that has ended.

use std::time::Duration;

use http::{Method, StatusCode};
use refrain::{Fence, RecordId, http::TraceContext};

use crate::telemetry::RequestOutcome;

/// The side of a request that a span describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SpanKind {
    /// A request of a client.
    Server,
    /// A call of the upstream.
    Client,
}

/// A span that has ended.
#[derive(Debug)]
pub(super) struct Span {
    pub(super) context: TraceContext,
    pub(super) kind: SpanKind,
    /// Since 1970.
    pub(super) start: Duration,
    /// Since 1970.
    pub(super) end: Duration,
    pub(super) method: Method,
    pub(super) operation: Option<String>,
    pub(super) outcome: Option<RequestOutcome>,
    /// The problem code of a request that Refrain refused.
    pub(super) code: Option<&'static str>,
    pub(super) status: Option<StatusCode>,
    /// Why there is no response.
    pub(super) error: Option<&'static str>,
    pub(super) record: Option<RecordId>,
    /// Whether the upstream was called; if not, the span links to the execution of its record.
    pub(super) executes: bool,
    pub(super) link: Option<SpanLink>,
}

/// The span of another request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SpanLink {
    pub(super) trace_id: [u8; 16],
    pub(super) span_id: [u8; 8],
}

/// The span of the call that executes the operation of this record under this fence.
///
/// The record does not keep it: it keeps the trace and the fence, from which every process derives the same span.
pub(super) fn execution_span_id(record: RecordId, fence: Fence) -> [u8; 8] {
    let mut hasher = blake3::Hasher::new_derive_key("refrain execution span");
    hasher.update(&record.0);
    hasher.update(&fence.epoch.to_be_bytes());
    hasher.update(&fence.counter.to_be_bytes());
    hasher.update(&fence.nonce.to_be_bytes());
    let mut id = [0; 8];
    hasher.finalize_xof().fill(&mut id);
    u64::from_be_bytes(id).max(1).to_be_bytes()
}
