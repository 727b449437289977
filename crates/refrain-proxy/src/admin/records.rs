//! `/api/records` and `/api/find`: list, show, find, resolve and delete records.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use axum::{
    Json,
    extract::{
        Path, Query, State,
        rejection::{BytesRejection, QueryRejection},
    },
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, StatusCode, Uri, header, request::Parts};
use refrain::{
    Key, Outcome, Receipts as _, RecordId, Scope, Store as _,
    engine::{OperatorAction, Resolution, Resolved},
    outcome::Packer,
    policy::{Terms, units},
    record::{Erased, KeyDigest},
    store::{self, LIST_MAX, StateName},
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{Admin, refusal::Refusal, view};

/// Most records that are in memory at a time, because each comes with its outcome.
const PAGE_MAX: u32 = 16;
const LIMIT_DEFAULT: u32 = 100;

type AdminResult = Result<Json<Value>, Refusal>;

/// Query parameters of the record list.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    state: Option<StateName>,
    operation: Option<String>,
    /// Time since a record was first seen, such as `10m`.
    older_than: Option<String>,
    newer_than: Option<String>,
    limit: Option<u32>,
    after: Option<String>,
}

pub(super) async fn list(
    State(admin): State<Arc<Admin>>,
    wanted: Result<Query<ListQuery>, QueryRejection>,
) -> AdminResult {
    let Query(wanted) = wanted?;
    let limit = wanted.limit.unwrap_or(LIMIT_DEFAULT);
    if !(1..=LIST_MAX).contains(&limit) {
        let error = format!("limit: {limit} is not between 1 and {LIST_MAX}");
        return Err(Refusal::bad(
            error,
            "request fewer records, and page with ?after=ID",
        ));
    }
    let age = |name: &str, text: Option<&str>| text.map(|text| span(name, text)).transpose();
    let query = store::Query {
        state: wanted.state,
        after: wanted.after.as_deref().map(parse_id).transpose()?,
        older_than: age("older_than", wanted.older_than.as_deref())?,
        newer_than: age("newer_than", wanted.newer_than.as_deref())?,
        operation: wanted.operation,
        limit,
        ..store::Query::default()
    };
    listed(&admin, query).await
}

/// Lists the records that fit the query, page by page.
async fn listed(admin: &Admin, mut query: store::Query) -> AdminResult {
    let limit = query.limit;
    let mut records = Vec::new();
    while records.len() < limit as usize {
        let left = limit - records.len() as u32;
        query.limit = left.min(PAGE_MAX);
        let page = admin.layer.engine().store().list(&query).await?;
        records.extend(page.readings.iter().map(view::summary));
        query.after = page.next;
        if query.after.is_none() {
            break;
        }
    }
    let next = query.after.map(|id| id.to_string());
    Ok(Json(json!({ "records": records, "next": next })))
}

pub(super) async fn show(State(admin): State<Arc<Admin>>, Path(id): Path<String>) -> AdminResult {
    let id = parse_id(&id)?;
    let reading = admin.layer.engine().store().read(id).await?;
    let reading = reading.ok_or_else(|| absent(id))?;
    let mut shown = view::whole(&reading);
    if let Some(receipt) = receipt(&admin, id).await {
        shown["receipt"] = receipt.into();
    }
    Ok(Json(shown))
}

/// Description of a record's receipt; `None` if no operation has receipts.
/// All receipts are searched, because records of earlier releases do not name their operation.
async fn receipt(admin: &Admin, id: RecordId) -> Option<String> {
    let mut shown = None;
    for witness in admin.layer.witnesses() {
        match witness.receipts().find(id).await {
            Ok(Some(receipt)) => {
                let (fence, status) = (receipt.fence, receipt.status);
                return Some(format!("committed with fence {fence} and status {status}"));
            }
            Ok(None) => shown = shown.or_else(|| Some("none".to_owned())),
            Err(error) => shown = Some(format!("cannot be read: {error}")),
        }
    }
    shown
}

/// An operator's resolution of an unknown outcome.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ResolveRequest {
    r#as: As,
    reason: String,
    /// Name of the operator; written to the audit log as given.
    by: Option<String>,
    status: Option<u16>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    body: Option<String>,
    body_base64: Option<String>,
    /// How long the outcome is kept, and how long the key is remembered after that; by default the longest of any operation.
    retention: Option<String>,
    remember: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum As {
    Completed,
    NeverHappened,
}

pub(super) async fn resolve(
    State(admin): State<Arc<Admin>>,
    Path(id): Path<String>,
    body: Result<Bytes, BytesRejection>,
) -> AdminResult {
    let id = parse_id(&id)?;
    let finding: ResolveRequest = parse(&body?, RESOLVE_FIX)?;
    let (r#as, reason, by) = (finding.r#as, finding.reason.clone(), finding.by.clone());
    let resolution = resolution(&admin, id, finding).await?;
    let engine = admin.layer.engine();
    let action = action(&admin, &reason, by.as_deref());
    match engine.resolve(id, resolution, action).await? {
        Resolved::Applied => {
            let found = match r#as {
                As::Completed => "completed",
                As::NeverHappened => "never-happened",
            };
            Ok(Json(json!({ "id": id.to_string(), "resolved": found })))
        }
        Resolved::TooEarly { left } => Err(too_early(left)),
        Resolved::NotInDoubt(None) => Err(absent(id)),
        Resolved::NotInDoubt(Some(state)) => Err(not_in_doubt(state)),
    }
}

const RESOLVE_FIX: &str = r#"send {"as":"completed","status":200,"headers":{},"body":"","reason":""} or {"as":"never-happened","reason":""}"#;

async fn resolution(
    admin: &Admin,
    id: RecordId,
    finding: ResolveRequest,
) -> Result<Resolution, Refusal> {
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
        outcome: outcome(admin, &finding)?,
    })
}

/// The retention and remember times of an operation. If the policy does not have it, the longest of all operations:
/// only a shorter time is unsafe.
fn kept_for(admin: &Admin, operation: &str) -> (Duration, Duration) {
    let operations = || admin.layer.policy().operations();
    if let Some(found) = operations().find(|it| it.name == operation) {
        return (found.terms.retention, found.terms.remember);
    }
    let start = Terms::default();
    let terms = operations().map(|it| &it.terms);
    terms.fold(
        (start.retention, start.remember),
        |(retention, remember), it| (retention.max(it.retention), remember.max(it.remember)),
    )
}

fn span_or(name: &str, text: Option<&str>, default: Duration) -> Result<Duration, Refusal> {
    text.map_or(Ok(default), |text| span(name, text))
}

fn span(name: &str, text: &str) -> Result<Duration, Refusal> {
    units::duration(text)
        .map_err(|error| Refusal::bad(format!("{name}: {error}"), "write it as 24h or 30d"))
}

fn outcome(admin: &Admin, finding: &ResolveRequest) -> Result<Outcome, Refusal> {
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
    match operations.any(|operation| operation.replays_header(&lower)) {
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
pub(super) fn action<'a>(
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

/// A request whose record is to be found; or a key alone, with the scopes that hold it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FindRequest {
    method: Option<String>,
    path: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    body: String,
    key: Option<String>,
    /// The parts of the scope of a key, in their order.
    #[serde(default)]
    scope: Vec<(String, String)>,
    after: Option<String>,
}

const FIND_FIX: &str = r#"send {"key":"..."}, or {"method":"POST","path":"/v1/payments","headers":{"Authorization":"..."},"key":"..."}"#;

pub(super) async fn find(
    State(admin): State<Arc<Admin>>,
    body: Result<Bytes, BytesRejection>,
) -> AdminResult {
    let sought: FindRequest = parse(&body?, FIND_FIX)?;
    let key = sought.key.as_deref().map(Key::new).transpose()?;
    let (method, path) = match (&sought.method, &sought.path, &key) {
        (Some(method), Some(path), _) if sought.scope.is_empty() => (method, path),
        (None, None, Some(key)) => return find_key(&admin, key, &sought).await,
        _ => {
            let error = "neither a key alone nor a request";
            return Err(Refusal::bad(error, FIND_FIX));
        }
    };
    let head = head(method, path, &sought)?;
    let located = admin.layer.locate(&head, &sought.body.into(), key)?;
    let store = admin.layer.engine().store();
    let reading = store.read(located.record).await?;
    let state = reading.map(|reading| reading.record.state.name());
    Ok(Json(json!({
        "id": located.record.to_string(),
        "operation": located.operation,
        "state": state,
    })))
}

/// Lists the records of a key: in one scope, or in all of them.
async fn find_key(admin: &Admin, key: &Key, sought: &FindRequest) -> AdminResult {
    let engine = admin.layer.engine();
    if sought.scope.is_empty() {
        let query = store::Query {
            key: Some(KeyDigest::derive(engine.secret(), key)),
            after: sought.after.as_deref().map(parse_id).transpose()?,
            ..store::Query::default()
        };
        return listed(admin, query).await;
    }
    let parts = sought.scope.iter();
    let scope = parts.fold(Scope::none(), |scope, (name, value)| {
        scope.with(name, value)
    });
    let id = RecordId::derive(engine.secret(), &scope, key);
    let reading = engine.store().read(id).await?;
    let records: Vec<_> = reading.iter().map(view::summary).collect();
    Ok(Json(json!({ "records": records, "next": null })))
}

fn head(method: &str, path: &str, sought: &FindRequest) -> Result<Parts, Refusal> {
    let bad = |what: String| Refusal::bad(what, FIND_FIX);
    let parsed: Result<Method, _> = method.parse();
    let method = parsed.map_err(|_| bad(format!("method: {method} is not a method")))?;
    let uri: Result<Uri, _> = path.parse();
    let uri = uri.ok().filter(|_| path.starts_with('/'));
    let uri = uri.ok_or_else(|| bad(format!("path: {path} is not a path that starts with /")))?;
    let mut request = Request::builder().method(method).uri(uri);
    for (name, value) in &sought.headers {
        request = request.header(name, value);
    }
    let request = request.body(());
    let request = request.map_err(|error| bad(format!("headers: {error}")))?;
    let mut head = request.into_parts().0;
    // Without a content type the body would not be parsed as JSON, which may contain the key.
    if !sought.body.is_empty() {
        let json = HeaderValue::from_static("application/json");
        let kind = head.headers.entry(header::CONTENT_TYPE);
        kind.or_insert(json);
    }
    Ok(head)
}

pub(super) fn parse<T: DeserializeOwned>(body: &[u8], fix: &str) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|error| Refusal::bad(format!("body: {error}"), fix))
}

fn parse_id(text: &str) -> Result<RecordId, Refusal> {
    let id = text.parse();
    id.map_err(|error: refrain::Error| {
        Refusal::bad(
            error.to_string(),
            "use an id from /api/records or /api/find",
        )
    })
}

fn absent(id: RecordId) -> Refusal {
    let error = format!("there is no record {id}");
    let fix = "it was released or swept, or never existed; look it up with POST /api/find";
    Refusal::new(StatusCode::NOT_FOUND, error, fix)
}

fn too_early(left: Duration) -> Refusal {
    let seconds = u64::try_from(left.as_millis().div_ceil(1_000)).unwrap_or(u64::MAX);
    let error = "the attempt may still take effect, so never-happened is not accepted yet";
    let mut refusal = Refusal::conflict(error, format!("retry in {seconds} s"));
    refusal.retry_after = Some(seconds);
    refusal
}

fn not_in_doubt(state: StateName) -> Refusal {
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
