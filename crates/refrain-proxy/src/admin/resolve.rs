//! `POST /api/records/{id}/resolve` and `DELETE /api/records/{id}`: decisions of operators about a record.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use axum::{
    Json,
    extract::{Path, State, rejection::BytesRejection},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};
use refrain::{
    Operation, Outcome, RecordId, Store as _,
    engine::{OperatorAction, Resolution, Resolved},
    outcome::Packer,
    policy::Terms,
    record::{Erased, Fence, ScopeDigest},
    store::StateName,
};
use serde::Deserialize;
use serde_json::json;

use super::{
    Admin,
    records::{AdminResult, ScopeParts, absent, parse, parse_id, scope_of, span},
    refusal::Refusal,
};

/// An operator's resolution of an unknown outcome.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Finding {
    pub(crate) r#as: As,
    pub(crate) reason: String,
    /// The fence of the attempt that the operator looked at; a later attempt is not resolved.
    pub(crate) fence: Option<String>,
    /// Name of the operator; written to the audit log as given.
    pub(crate) by: Option<String>,
    pub(crate) status: Option<u16>,
    #[serde(default)]
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Option<String>,
    pub(crate) body_base64: Option<String>,
    /// How long the outcome is kept, and how long the key is remembered after that; by default the longest of any operation.
    pub(crate) retention: Option<String>,
    pub(crate) remember: Option<String>,
}

impl Finding {
    fn fence(&self) -> Result<Option<Fence>, Refusal> {
        let fence = self.fence.as_deref().map(str::parse).transpose();
        let fix = "send the fence that GET /api/records/ID shows";
        fence.map_err(|error: refrain::Error| Refusal::bad(format!("fence: {error}"), fix))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum As {
    Completed,
    NeverHappened,
}

pub(super) async fn resolve(
    State(admin): State<Arc<Admin>>,
    Path(id): Path<String>,
    body: Result<Bytes, BytesRejection>,
) -> AdminResult {
    let id = parse_id(&id)?;
    let finding: Finding = parse(&body?, RESOLVE_FIX)?;
    let prepared = prepare(&admin, id, &finding).await?;
    apply(&admin, id, prepared, &finding).await?;
    let found = match finding.r#as {
        As::Completed => "completed",
        As::NeverHappened => "never-happened",
    };
    Ok(Json(json!({ "id": id.to_string(), "resolved": found })))
}

/// Resolves a record as [`prepare`] returned it.
pub(crate) async fn apply(
    admin: &Admin,
    id: RecordId,
    resolution: Resolution,
    finding: &Finding,
) -> Result<(), Refusal> {
    let action = action(admin, &finding.reason, finding.by.as_deref());
    let fence = finding.fence()?;
    let engine = admin.layer.engine();
    match engine
        .resolve_attempt(id, fence, resolution, action)
        .await?
    {
        Resolved::Applied => Ok(()),
        Resolved::OtherAttempt => Err(other_attempt()),
        Resolved::TooEarly { left } => Err(too_early(left)),
        Resolved::NotInDoubt(None) => Err(absent(id)),
        Resolved::NotInDoubt(Some(state)) => Err(not_in_doubt(state)),
    }
}

const RESOLVE_FIX: &str = r#"send {"as":"completed","status":200,"headers":{},"body":"","reason":""} or {"as":"never-happened","reason":""}"#;

/// Checks a finding, and returns the resolution that it asks for. Changes nothing.
pub(crate) async fn prepare(
    admin: &Admin,
    id: RecordId,
    finding: &Finding,
) -> Result<Resolution, Refusal> {
    action(admin, &finding.reason, finding.by.as_deref()).check()?;
    finding.fence()?;
    if finding.r#as == As::NeverHappened {
        let is_bare = finding.status.is_none()
            && finding.headers.is_empty()
            && finding.body.is_none()
            && finding.body_base64.is_none();
        return match is_bare {
            true => Ok(Resolution::NeverHappened),
            false => Err(Refusal::bad(
                "never-happened takes no status, headers or body",
                RESOLVE_FIX,
            )),
        };
    }
    let reading = admin.layer.engine().store().read(id).await?;
    let history = reading.and_then(|it| it.record.trace.read());
    let (retention, remember) = kept_for(admin, &history.unwrap_or_default().operation);
    Ok(Resolution::Completed {
        retention: span_or("retention", finding.retention.as_deref(), retention)?,
        remember: span_or("remember", finding.remember.as_deref(), remember)?,
        outcome: outcome(admin, finding)?,
    })
}

/// The retention and remember times of an operation, or of the worker of this name. If there is none, the longest of all:
/// only a shorter time is unsafe.
pub(crate) fn kept_for(admin: &Admin, operation: &str) -> (Duration, Duration) {
    let operations = admin.layer.policy().operations();
    let operations = operations.map(|it| (&*it.name, &it.terms));
    let workers = admin.workers.iter().flat_map(|it| it.settings());
    let workers = workers.map(|it| (&*it.name, &it.terms));
    let all: Vec<_> = operations.chain(workers).collect();
    if let Some((_, terms)) = all.iter().find(|(name, _)| *name == operation) {
        return (terms.retention, terms.remember);
    }
    let start = Terms::default();
    all.iter().map(|(_, terms)| terms).fold(
        (start.retention, start.remember),
        |(retention, remember), it| (retention.max(it.retention), remember.max(it.remember)),
    )
}

fn span_or(name: &str, text: Option<&str>, default: Duration) -> Result<Duration, Refusal> {
    text.map_or(Ok(default), |text| span(name, text))
}

fn outcome(admin: &Admin, finding: &Finding) -> Result<Outcome, Refusal> {
    let status = finding
        .status
        .filter(|status| (200..=599).contains(status))
        .ok_or_else(|| Refusal::bad("status: missing, or not between 200 and 599", RESOLVE_FIX))?;
    for (name, value) in &finding.headers {
        check_header(admin, name, value)?;
    }
    let headers: Vec<_> = finding
        .headers
        .iter()
        .map(|(name, value)| (name.to_ascii_lowercase(), value.as_bytes()))
        .collect();
    let body = match (&finding.body, &finding.body_base64) {
        (Some(_), Some(_)) => {
            let error = "body and body_base64 are both set";
            return Err(Refusal::bad(error, "send either body or body_base64"));
        }
        (Some(text), None) => Bytes::copy_from_slice(text.as_bytes()),
        (None, Some(packed)) => BASE64_STANDARD
            .decode(packed)
            .map_err(|error| Refusal::bad(format!("body_base64: {error}"), "send valid base64"))?
            .into(),
        (None, None) => Bytes::new(),
    };
    let pairs = headers.iter().map(|(name, value)| (name.as_str(), *value));
    let mut packer = Packer::with_room(status, pairs, body.len());
    packer.push(&body);
    Ok(packer.finish([]))
}

/// Accepts only headers that would be replayed.
fn check_header(admin: &Admin, name: &str, value: &str) -> Result<(), Refusal> {
    let bad = |what: &str| Refusal::bad(format!("headers: {name}: {what}"), RESOLVE_FIX);
    HeaderName::try_from(name).map_err(|_| bad("invalid header name"))?;
    HeaderValue::try_from(value).map_err(|_| bad("invalid header value"))?;
    let lower = name.to_ascii_lowercase();
    let mut operations = admin.layer.policy().operations();
    // A process that only runs workers has no operations.
    let is_replayed = Operation::always_replays(&lower)
        || operations.any(|operation| operation.replays_header(&lower));
    match is_replayed {
        true => Ok(()),
        false => Err(bad("no operation replays this header; remove it")),
    }
}

/// Request body of `DELETE /api/records/{id}`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Erasing {
    reason: String,
    by: Option<String>,
}

/// The audit entry of an operator action: `actor` is how the caller got access, `by` is only the caller's claim.
pub(crate) fn action<'a>(
    admin: &Admin,
    reason: &'a str,
    by: Option<&'a str>,
) -> OperatorAction<'a> {
    let actor = match admin.token {
        Some(_) => "token",
        None => "loopback",
    };
    OperatorAction { reason, actor, by }
}

pub(super) async fn erase(
    State(admin): State<Arc<Admin>>,
    Path(id): Path<String>,
    body: Result<Bytes, BytesRejection>,
) -> AdminResult {
    let id = parse_id(&id)?;
    let erasing: Erasing = parse(&body?, r#"send {"reason":"why it is deleted"}"#)?;
    let action = action(&admin, &erasing.reason, erasing.by.as_deref());
    match admin.layer.engine().erase(id, action).await? {
        Erased::Gone => Ok(Json(json!({ "id": id.to_string(), "erased": true }))),
        Erased::Absent => Err(absent(id)),
        Erased::InFlight => Err(Refusal::conflict(
            "the record is in flight: its operation is running",
            "wait until the operation ends",
        )),
        Erased::Indeterminate => Err(Refusal::conflict(
            "the record is indeterminate (unknown outcome): it may have taken effect",
            "find out whether it took effect, and resolve the record",
        )),
    }
}

/// Request body of `POST /api/scopes/erase`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ErasingScope {
    /// The parts of the scope, in their order.
    scope: ScopeParts,
    reason: String,
    by: Option<String>,
}

const ERASE_SCOPE_FIX: &str =
    r#"send {"scope":[["header:x-tenant","acme"]],"reason":"why it is erased"}"#;

pub(super) async fn erase_scope(
    State(admin): State<Arc<Admin>>,
    body: Result<Bytes, BytesRejection>,
) -> AdminResult {
    let erasing: ErasingScope = parse(&body?, ERASE_SCOPE_FIX)?;
    if erasing.scope.is_empty() {
        let error = "scope: it has no parts";
        return Err(Refusal::bad(error, ERASE_SCOPE_FIX));
    }
    let engine = admin.layer.engine();
    if engine.store().encryption().is_none() {
        let error = "the records are not encrypted, so there is no data key to erase";
        let fix =
            "delete the records of the scope one by one, or configure [encryption] for new records";
        return Err(Refusal::conflict(error, fix));
    }
    let scope = ScopeDigest::derive(engine.secret(), &scope_of(&erasing.scope));
    let action = action(&admin, &erasing.reason, erasing.by.as_deref());
    match engine.erase_scope(scope, action).await? {
        true => Ok(Json(
            json!({ "scope_digest": scope.to_string(), "erased": true }),
        )),
        false => Err(Refusal::new(
            StatusCode::NOT_FOUND,
            "this scope has no data key: no record of it is encrypted, or the key was already erased",
            "check the parts of the scope and their order",
        )),
    }
}

pub(crate) fn too_early(left: Duration) -> Refusal {
    let seconds = u64::try_from(left.as_millis().div_ceil(1_000)).unwrap_or(u64::MAX);
    let error = "the attempt may still take effect, so never-happened is not accepted yet";
    let mut refusal = Refusal::conflict(error, format!("retry in {seconds} s"));
    refusal.retry_after = Some(seconds);
    refusal
}

pub(crate) fn other_attempt() -> Refusal {
    let error =
        "the record has changed since you looked: the outcome of a later attempt is unknown";
    let fix =
        "find out whether the later attempt took effect, and resolve the record with its fence";
    Refusal::conflict(error, fix)
}

pub(crate) fn not_in_doubt(state: StateName) -> Refusal {
    let (error, fix) = match state {
        StateName::InFlight => ("the record is in flight", "wait until the operation ends"),
        StateName::Completed => (
            "the record is completed, and its outcome cannot be changed",
            "delete the record if a retry may execute again",
        ),
        _ => (
            "the record is past retention",
            "delete the record if a retry may execute again",
        ),
    };
    Refusal::conflict(error, fix)
}
