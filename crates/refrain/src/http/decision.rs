//! The layer's decision about a request, for metrics.

use std::{fmt::Debug, sync::Arc, time::Duration};

use http::Response;
use tokio::time::Instant;

use super::{Code, body::Body, service::ServiceResult};
use crate::{Operation, policy::Mode};

/// Receives the decision about each request to a guarded operation, once.
/// Set with [`RefrainLayer::with_observer`](super::RefrainLayer::with_observer).
///
/// Called on the path of every request: it must be quick, and must not block.
pub trait Observer: Debug + Send + Sync + 'static {
    /// Called when the response is ready, `took` after the request arrived; its body may not be sent yet.
    fn decided(&self, operation: &Operation, decision: Decision, took: Duration);
}

macro_rules! decisions {
    ($($(#[$doc:meta])* $decision:ident = $label:literal,)*) => {
        /// Decision of the layer about a request.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Decision { $($(#[$doc])* $decision,)* }

        impl Decision {
            /// All decisions, in the order of declaration.
            pub const ALL: &[Self] = &[$(Self::$decision,)*];

            /// Its name in metrics.
            #[must_use]
            pub fn label(self) -> &'static str {
                match self { $(Self::$decision => $label,)* }
            }
        }
    };
}

decisions! {
    /// The operation ran, and its outcome is kept.
    FreshKept = "fresh-kept",
    /// The operation ran or was refused, and its key is free again.
    FreshReleased = "fresh-released",
    /// A stored outcome was replayed.
    Replayed = "replayed",
    /// A duplicate got the response of the released request that it waited for.
    Refused = "refused",
    /// Another request with the same key is still running.
    InFlight = "in-flight",
    /// The key was used for another request.
    KeyReused = "key-reused",
    /// There was no key where one is required.
    KeyMissing = "key-missing",
    /// The key was malformed.
    KeyInvalid = "key-invalid",
    /// The record belongs to another credential.
    CredentialChanged = "credential-changed",
    /// The operation may or may not have taken effect.
    OutcomeUnknown = "outcome-unknown",
    /// The upstream is unreachable; nothing was sent.
    UpstreamUnreachable = "upstream-unreachable",
    /// The outcome is known, but its body was not kept.
    BodyNotKept = "body-not-kept",
    /// The key is past retention.
    KeyExpired = "key-expired",
    /// The store did not answer; nothing ran.
    StoreUnavailable = "store-unavailable",
    /// The request body was over the cap.
    RequestTooLarge = "request-too-large",
    /// The signature is missing or invalid; nothing ran.
    SignatureInvalid = "signature-invalid",
    /// The memory budget for bodies was used up; nothing ran.
    OverBudget = "over-budget",
    /// The request was malformed; nothing ran.
    RequestMalformed = "request-malformed",
    /// The request body did not arrive in time; nothing ran.
    RequestTimeout = "request-timeout",
    /// A duplicate of a completed request was acknowledged, without the outcome.
    Acknowledged = "acknowledged",
    /// The request had no key, and none is required: it passed unguarded.
    Passed = "passed",
    /// The store did not answer, and the policy lets the request pass unguarded.
    Unguarded = "unguarded",
    /// The request passed in `mode = "observe"`.
    Observed = "observed",
    /// The service failed without a response.
    Failed = "failed",
    /// The client disconnected before the response.
    HungUp = "hung-up",
}

impl From<Code> for Decision {
    fn from(code: Code) -> Self {
        match code {
            Code::InFlight => Self::InFlight,
            Code::KeyReused => Self::KeyReused,
            Code::KeyMissing => Self::KeyMissing,
            Code::KeyInvalid => Self::KeyInvalid,
            Code::CredentialChanged => Self::CredentialChanged,
            Code::OutcomeUnknown => Self::OutcomeUnknown,
            Code::UpstreamUnreachable => Self::UpstreamUnreachable,
            Code::BodyNotKept => Self::BodyNotKept,
            Code::KeyExpired => Self::KeyExpired,
            Code::StoreUnavailable => Self::StoreUnavailable,
            Code::RequestTooLarge => Self::RequestTooLarge,
            Code::SignatureInvalid => Self::SignatureInvalid,
            Code::OverBudget => Self::OverBudget,
            Code::RequestMalformed
            | Code::TargetTooLong
            | Code::HeadTooLarge
            | Code::MethodUnsupported => Self::RequestMalformed,
            Code::RequestTimeout => Self::RequestTimeout,
            Code::UpstreamFailed | Code::UpstreamTimeout => Self::Failed,
        }
    }
}

/// Stores the decision in the response.
pub(super) fn marked<R>(decision: Decision, mut response: Response<Body<R>>) -> Response<Body<R>> {
    response.body_mut().decision = Some(decision);
    response
}

fn decision<R, E>(operation: &Operation, answer: &ServiceResult<R, E>) -> Option<Decision> {
    let Ok(response) = answer else {
        return Some(Decision::Failed);
    };
    match operation.mode {
        Mode::Observe => Some(Decision::Observed),
        Mode::Enforce => response.body().decision,
    }
}

/// Reports the decision about a request to the observer when it is dropped, so also if the client disconnects.
pub(super) struct Telling {
    observer: Arc<dyn Observer>,
    operation: Arc<Operation>,
    since: Instant,
    /// `None` if the response carries no decision: nothing is reported then.
    decision: Option<Decision>,
}

impl Telling {
    pub(super) fn new(
        observer: &Arc<dyn Observer>,
        operation: &Arc<Operation>,
        since: Instant,
    ) -> Self {
        Self {
            observer: observer.clone(),
            operation: operation.clone(),
            since,
            decision: Some(Decision::HungUp),
        }
    }

    /// Reports the decision that the response carries.
    pub(super) fn tell<R, E>(mut self, answer: &ServiceResult<R, E>) {
        self.decision = decision(&self.operation, answer);
    }
}

impl Drop for Telling {
    fn drop(&mut self) {
        if let Some(decision) = self.decision {
            let took = self.since.elapsed();
            self.observer.decided(&self.operation, decision, took);
        }
    }
}
