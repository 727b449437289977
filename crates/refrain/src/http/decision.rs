//! What the layer decided about a request, for those who count.

use std::{fmt::Debug, sync::Arc, time::Duration};

use http::Response;
use tokio::time::Instant;

use super::{Code, body::Body, service::Answer};
use crate::{Operation, policy::Mode};

/// Is told what was decided about each request to a guarded operation, once. Set with [`RefrainLayer::with_observer`](super::RefrainLayer::with_observer).
///
/// Called on the way of every request: it must be quick, and must not block.
pub trait Observer: Debug + Send + Sync + 'static {
    /// The answer is ready, that long after the request came; its body may still be on its way.
    fn decided(&self, operation: &Operation, decision: Decision, took: Duration);
}

macro_rules! decisions {
    ($($(#[$doc:meta])* $decision:ident = $label:literal,)*) => {
        /// What the layer decided about a request.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Decision { $($(#[$doc])* $decision,)* }

        impl Decision {
            /// Every decision there is, in the order of their numbers.
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
    /// It ran, and its outcome is kept.
    FreshKept = "fresh-kept",
    /// It ran or was refused, and its key is free again.
    FreshReleased = "fresh-released",
    /// A stored outcome was replayed.
    Replayed = "replayed",
    /// A duplicate got the answer of the refused one that it waited for.
    Refused = "refused",
    /// Somebody else is running it.
    InFlight = "in-flight",
    /// The key was used for another request.
    KeyReused = "key-reused",
    /// There was no key where one is required.
    KeyMissing = "key-missing",
    /// The key was malformed.
    KeyInvalid = "key-invalid",
    /// The record belongs to another credential.
    CredentialChanged = "credential-changed",
    /// It may or may not have taken effect.
    OutcomeUnknown = "outcome-unknown",
    /// Nothing was sent.
    UpstreamUnreachable = "upstream-unreachable",
    /// Its outcome is known, and its body was not kept.
    BodyNotKept = "body-not-kept",
    /// The key is past retention.
    KeyExpired = "key-expired",
    /// The store did not answer; nothing ran.
    StoreUnavailable = "store-unavailable",
    /// The request's body was over the cap.
    RequestTooLarge = "request-too-large",
    /// It was not signed as it should be; nothing ran.
    SignatureInvalid = "signature-invalid",
    /// The bodies that are held took up the memory for them; nothing ran.
    OverBudget = "over-budget",
    /// It was malformed; nothing ran.
    RequestMalformed = "request-malformed",
    /// Its body did not come in time; nothing ran.
    RequestTimeout = "request-timeout",
    /// A duplicate of what is done was told so, without its outcome.
    Acknowledged = "acknowledged",
    /// It had no key, and none is required: it passed unguarded.
    Passed = "passed",
    /// The store did not answer, and the policy lets it pass unguarded.
    Unguarded = "unguarded",
    /// It passed, and was only watched.
    Observed = "observed",
    /// The service failed without an answer.
    Failed = "failed",
    /// The client hung up before there was an answer.
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

/// Marks the answer with what was decided.
pub(super) fn marked<R>(decision: Decision, mut response: Response<Body<R>>) -> Response<Body<R>> {
    response.body_mut().decision = Some(decision);
    response
}

fn decision<R, E>(operation: &Operation, answer: &Answer<R, E>) -> Option<Decision> {
    let Ok(response) = answer else {
        return Some(Decision::Failed);
    };
    match operation.mode {
        Mode::Observe => Some(Decision::Observed),
        Mode::Enforce => response.body().decision,
    }
}

/// Tells the observer what became of a request, also if its client hangs up: when this is dropped.
pub(super) struct Telling {
    observer: Arc<dyn Observer>,
    operation: Arc<Operation>,
    since: Instant,
    /// `None` where nothing was decided: the request could not be read.
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

    /// The answer is there.
    pub(super) fn tell<R, E>(mut self, answer: &Answer<R, E>) {
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
