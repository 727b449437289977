//! `Verifying` and `Confirming`: checks who the caller is where the policy says so. Before the claim it verifies the token
//! of the request, for a scope with a claim; before a replay it asks the upstream whether the caller may see it.
//!
//! The upstream is the service set with `RefrainLayer::with_probes`. Each duplicate is asked about with its own headers,
//! and no answer is kept: a caller that has lost its access sees no replay from that moment on.

use std::time::Duration;

use http::{HeaderMap, Response, StatusCode, header};
use tokio::time::timeout;

use super::{
    Decision, REFRAIN_OUTCOME,
    body::{Body, add_record, marked},
    layer::LayerState,
    probe::{ProbeResponse, asked_headers, probe_request},
    problem::{self, Code, Problem},
};
use crate::{
    Key, Operation, RecordId, Verdict,
    engine::ClaimReply,
    jwt::{InvalidToken, Unverified, VerifiedClaims},
    key::ScopePart,
    policy::Match,
};

/// Maximum time for the upstream to say whether a caller may see a replay; less if the operation's `timeout` is shorter.
const ASKED_FOR: Duration = Duration::from_secs(10);
/// Maximum body of a refusal that is passed on to the caller.
const REFUSAL_BYTES_MAX: usize = 64 << 10;

impl LayerState {
    /// Whether the requests of an operation need a valid token.
    pub(super) fn needs_token(&self, operation: &Operation) -> bool {
        self.scope.is_none() && operation.needs_token()
    }

    /// Verifies the token of a request, and that it has the claims of the operation's scope.
    pub(super) async fn verified_claims(
        &self,
        operation: &Operation,
        headers: &HeaderMap,
    ) -> Result<VerifiedClaims, Box<Problem>> {
        let Some(verifier) = &self.jwt else {
            return Err(Box::new(problem::unconfirmed()));
        };
        let verified = verifier.verify(headers).await;
        let checked = verified.and_then(|claims| {
            claims_of(operation).try_for_each(|claim| claims.check_usable(claim))?;
            Ok(claims)
        });
        checked.map_err(|why| Box::new(unverified(operation, &why)))
    }
}

/// The claims in the scope of an operation.
fn claims_of(operation: &Operation) -> impl Iterator<Item = &str> {
    operation.scope.iter().filter_map(|part| match part {
        ScopePart::Jwt(claim) => Some(claim.as_str()),
        _ => None,
    })
}

fn unverified(operation: &Operation, why: &Unverified) -> Problem {
    match why {
        Unverified::Invalid(why) => {
            // Not a warning, because any client can cause it at any rate.
            tracing::debug!(operation = %operation.name, %why, "the token of a request is missing or invalid");
            invalid_token(why)
        }
        Unverified::NoKeys => {
            crate::log_rarely!(warn, operation = %operation.name, "a token cannot be verified, because its key is not available");
            problem::unconfirmed()
        }
    }
}

fn invalid_token(why: &InvalidToken) -> Problem {
    let detail = format!("Nothing was executed: {why}.");
    Problem::new(Code::TokenInvalid, detail)
}

/// Whether a reply shows a caller what another request did.
pub(super) fn shows_an_outcome(reply: &crate::Result<ClaimReply>) -> bool {
    matches!(
        reply,
        Ok(ClaimReply::Refused(_)
            | ClaimReply::Live(_)
            | ClaimReply::Verdict(Verdict::Replay(_) | Verdict::OtherCredential))
    )
}

/// What the upstream says about a caller.
pub(super) enum Confirmation<R> {
    /// It may see the replay.
    Allowed,
    /// It may not; this is the upstream's response.
    Refused(Box<Response<Body<R>>>),
    /// The upstream did not say.
    Unknown,
}

/// Asks the upstream whether the sender of these headers may see the outcome of a record.
pub(super) async fn confirm<R>(
    shared: &LayerState,
    found: &Match,
    headers: &HeaderMap,
    key: &Key,
    record: RecordId,
) -> Confirmation<R> {
    let operation = &found.operation;
    let (Some(ask), Some(probe)) = (&shared.probes, &operation.replay_probe) else {
        return Confirmation::Unknown;
    };
    let id = record.to_string();
    let headers = asked_headers(headers);
    let Some(request) = probe_request(probe, found, key, Some(&id), headers) else {
        return Confirmation::Unknown;
    };
    let asking = timeout(
        ASKED_FOR.min(operation.terms.timeout),
        ask(request, REFUSAL_BYTES_MAX),
    );
    match asking.await {
        Ok(Some(response)) if response.head.status.is_success() => Confirmation::Allowed,
        Ok(Some(response)) if is_refusal(response.head.status) => {
            Confirmation::Refused(Box::new(refusal(response, record)))
        }
        _ => Confirmation::Unknown,
    }
}

fn is_refusal(status: StatusCode) -> bool {
    [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&status)
}

/// The upstream's own response to the caller; without the body if that is over the cap.
fn refusal<R>(asked: ProbeResponse, record: RecordId) -> Response<Body<R>> {
    let ProbeResponse { mut head, body } = asked;
    let not_passed = [
        header::CONTENT_LENGTH,
        header::TRANSFER_ENCODING,
        REFRAIN_OUTCOME,
    ];
    not_passed
        .iter()
        .for_each(|name| drop(head.headers.remove(name)));
    add_record(&mut head.headers, record);
    let bytes = body.map(|(bytes, _)| bytes).unwrap_or_default();
    marked(
        Decision::ReplayRefused,
        Response::from_parts(head, Body::full(bytes)),
    )
}
