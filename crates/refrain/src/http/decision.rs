//! All states: the layer's decision about a request, for metrics.

use std::{fmt::Debug, sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::Operation;

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

/// Reports the decision about a request to the observer when it is dropped, so also if the client disconnects.
pub(super) struct DecisionReport {
    observer: Arc<dyn Observer>,
    operation: Arc<Operation>,
    since: Instant,
    /// `None` if the response carries no decision: nothing is reported then.
    decision: Option<Decision>,
}

impl DecisionReport {
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

    /// Reports the decision that the response carries, if it carries one.
    pub(super) fn send(mut self, decision: Option<Decision>) {
        self.decision = decision;
    }
}

impl Drop for DecisionReport {
    fn drop(&mut self) {
        if let Some(decision) = self.decision {
            let took = self.since.elapsed();
            self.observer.decided(&self.operation, decision, took);
        }
    }
}
