//! `/api/records` and `/api/find`: list, show and find records.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use axum::{
    Json,
    extract::{
        Path, Query, State,
        rejection::{BytesRejection, QueryRejection},
    },
};
use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, Uri, header, request::Parts};
use refrain::{
    Key, Receipts as _, RecordId, Scope, Secret, Store as _,
    key::ScopePart,
    policy::units,
    receipts::Witness,
    record::{KeyDigest, ScopeDigest},
    store::{self, LIST_MAX, Reading, StateName},
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use super::{Admin, refusal::Refusal, view};

/// Most records that are in memory at a time, because each comes with its outcome.
const PAGE_MAX: u32 = 16;
/// The same for records without an outcome: a store may read all its records for each page.
const BARE_PAGE_MAX: u32 = 250;
/// The same with a filter, which few records fit, and for which a store may read all its records.
const FILTERED_PAGE_MAX: u32 = 64;
const LIMIT_DEFAULT: u32 = 100;
/// Longest time for the receipts of a record, which is shown without them then.
const RECEIPT_MAX: Duration = Duration::from_secs(2);

pub(super) type AdminResult = Result<Json<Value>, Refusal>;

/// Query parameters of the record list.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListQuery {
    pub(crate) state: Option<StateName>,
    pub(crate) operation: Option<String>,
    /// Time since a record was first seen, such as `10m`.
    pub(crate) older_than: Option<String>,
    pub(crate) newer_than: Option<String>,
    /// The parts of a scope in their order, as JSON: `[["header:x-tenant","acme"]]`.
    pub(crate) scope: Option<String>,
    pub(crate) limit: Option<u32>,
    pub(crate) after: Option<String>,
}

/// Names and values of the parts of a scope.
pub(super) type ScopeParts = Vec<(String, String)>;

impl ListQuery {
    /// The query for the store; `secret` is that of the store.
    pub(crate) fn parsed(self, secret: &Secret) -> Result<store::Query, Refusal> {
        let limit = self.limit.unwrap_or(LIMIT_DEFAULT);
        if !(1..=LIST_MAX).contains(&limit) {
            let error = format!("limit: {limit} is not between 1 and {LIST_MAX}");
            let fix = "request fewer records, and page with ?after=ID";
            return Err(Refusal::bad(error, fix));
        }
        let age = |name: &str, text: Option<&str>| text.map(|text| span(name, text)).transpose();
        let parts: Option<ScopeParts> = self
            .scope
            .map(|scope| parse(scope.as_bytes(), r#"?scope=[["header:x-tenant","acme"]]"#))
            .transpose()?;
        Ok(store::Query {
            scope: parts.map(|parts| ScopeDigest::derive(secret, &scope_of(&parts))),
            state: self.state,
            after: self.after.as_deref().map(parse_id).transpose()?,
            older_than: age("older_than", self.older_than.as_deref())?,
            newer_than: age("newer_than", self.newer_than.as_deref())?,
            operation: self.operation,
            limit,
            ..store::Query::default()
        })
    }
}

pub(super) fn scope_of(parts: &[(String, String)]) -> Scope {
    let parts = parts.iter();
    parts.fold(Scope::none(), |scope, (name, value)| {
        scope.with(name, value)
    })
}

pub(super) async fn list(
    State(admin): State<Arc<Admin>>,
    wanted: Result<Query<ListQuery>, QueryRejection>,
) -> AdminResult {
    let Query(wanted) = wanted?;
    let query = wanted.parsed(admin.layer.engine().secret())?;
    listed(&admin, query).await
}

async fn listed(admin: &Admin, query: store::Query) -> AdminResult {
    let _permit = admin.telemetry.metrics().scans().acquire().await?;
    let (records, next) = list_as(admin, query, view::summary).await?;
    let searched = searched_percent(next);
    let next = next.map(|id| id.to_string());
    Ok(Json(
        json!({ "records": records, "next": next, "searched_percent": searched }),
    ))
}

/// The part of the store that was searched when the next page begins after `next`.
/// Identities are digests, so they are spread evenly.
pub(crate) fn searched_percent(next: Option<RecordId>) -> u32 {
    next.map_or(100, |id| u32::from(id.0[0]) * 100 / 256)
}

/// Lists the records that fit the query, as what `shown` makes of each; and where the next page begins.
/// It reads a few at a time, because each comes with its outcome, and ends early if the search takes long:
/// a response that comes too late would also lose the place at which to continue.
pub(crate) async fn list_as<T>(
    admin: &Admin,
    mut query: store::Query,
    shown: impl Fn(&Reading) -> T,
) -> Result<(Vec<T>, Option<RecordId>), Refusal> {
    let limit = query.limit;
    let page_max = match query.state {
        Some(StateName::InFlight | StateName::Indeterminate | StateName::Tombstone) => {
            BARE_PAGE_MAX
        }
        Some(StateName::Completed) | None if query.is_filtered() => FILTERED_PAGE_MAX,
        Some(StateName::Completed) | None => PAGE_MAX,
    };
    let start = Instant::now();
    let mut records = Vec::new();
    while records.len() < limit as usize {
        let left = limit - records.len() as u32;
        query.limit = left.min(page_max);
        let time_left = admin.search_time.saturating_sub(start.elapsed());
        query.search_time = Some(time_left);
        let page = admin.layer.engine().store().list(&query).await?;
        records.extend(page.readings.iter().map(&shown));
        query.after = page.next;
        if query.after.is_none() || start.elapsed() >= admin.search_time {
            break;
        }
    }
    Ok((records, query.after))
}

pub(super) async fn show(State(admin): State<Arc<Admin>>, Path(id): Path<String>) -> AdminResult {
    let reading = read(&admin, parse_id(&id)?).await?;
    let mut shown = view::whole(&reading);
    if let Some(receipt) = receipt(&admin, &reading).await {
        shown["receipt"] = receipt.into();
    }
    Ok(Json(shown))
}

/// Reads a record, which has to exist.
pub(crate) async fn read(admin: &Admin, id: RecordId) -> Result<Reading, Refusal> {
    let reading = admin.layer.engine().store().read(id).await?;
    reading.ok_or_else(|| absent(id))
}

/// Description of a record's receipt; `None` if its operation has no receipts.
/// A receipts database that does not respond delays the record, and does not hide it.
pub(crate) async fn receipt(admin: &Admin, reading: &Reading) -> Option<String> {
    let history = reading.record.trace.read().unwrap_or_default();
    let found = find_receipt(admin, reading.id, &history.operation);
    timeout(RECEIPT_MAX, found)
        .await
        .unwrap_or_else(|_| Some("cannot be read: the receipts database did not respond".into()))
}

/// Records of earlier releases do not name their operation: then all receipts are searched.
async fn find_receipt(admin: &Admin, id: RecordId, operation: &str) -> Option<String> {
    let witnesses = admin.layer.witnesses();
    let is_meant = |it: &&Arc<Witness>| operation.is_empty() || it.operation() == operation;
    let mut shown = None;
    for witness in witnesses.filter(is_meant) {
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
    scope: ScopeParts,
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
        "missing_headers": missing_headers(&admin, &located.operation, &head),
    })))
}

/// The headers that are part of the operation's scope and that the request does not have.
/// A request without them has another record than one with them.
fn missing_headers(admin: &Admin, operation: &str, head: &Parts) -> Vec<String> {
    let mut operations = admin.layer.policy().operations();
    let found = operations.find(|it| it.name == operation);
    let parts = found.into_iter().flat_map(|it| &it.scope);
    let token = admin.layer.jwt().map(|it| it.settings().header.as_str());
    let names = parts.filter_map(|part| match part {
        ScopePart::Credential => Some("authorization"),
        ScopePart::Header(name) => Some(name.as_str()),
        ScopePart::Jwt(_) => token,
        _ => None,
    });
    let is_missing = |name: &&str| !head.headers.contains_key(*name);
    names.filter(is_missing).map(String::from).collect()
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
    let scope = scope_of(&sought.scope);
    let id = RecordId::derive(engine.secret(), &scope, key);
    let reading = engine.store().read(id).await?;
    let records: Vec<_> = reading.iter().map(view::summary).collect();
    Ok(Json(
        json!({ "records": records, "next": null, "searched_percent": 100 }),
    ))
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

pub(super) fn span(name: &str, text: &str) -> Result<Duration, Refusal> {
    units::duration(text)
        .map_err(|error| Refusal::bad(format!("{name}: {error}"), "write it as 24h or 30d"))
}

pub(super) fn parse<T: DeserializeOwned>(body: &[u8], fix: &str) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|error| Refusal::bad(format!("body: {error}"), fix))
}

pub(crate) fn parse_id(text: &str) -> Result<RecordId, Refusal> {
    let id = text.parse();
    id.map_err(|error: refrain::Error| {
        Refusal::bad(
            error.to_string(),
            "use an id from /api/records or /api/find",
        )
    })
}

pub(super) fn absent(id: RecordId) -> Refusal {
    let error = format!("there is no record {id}");
    let fix = "it was released or swept, or never existed; look it up with POST /api/find";
    Refusal::new(StatusCode::NOT_FOUND, error, fix)
}
