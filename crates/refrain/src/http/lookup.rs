//! `LookingUp`: tells a client the state of its own key. It claims, executes and changes nothing.
//!
//! A key alone names no record: the scope is part of the identity. It is computed from the headers of the look-up,
//! as the policy says, for the operation that the client names, or for all operations that allow look-ups.
//! A key of another caller is answered like a key that was never used.

use std::{borrow::Cow, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Method, Response, StatusCode, Uri, header, request::Parts};
use http_body::Body as _;

use super::{
    Code, Decision,
    body::{Body, Carried, add_record, marked},
    extract::{self, ScopeInput},
    layer::LayerState,
    problem::Problem,
};
use crate::{
    Error, Guarantee, Key, Operation, Outcome, RecordId, Scope,
    jwt::VerifiedClaims,
    key::ScopePart,
    policy::{Match, Mode, ReplayTo, decoded},
    record::{Hold, Record, State},
    store::{Reading, Store as _},
};

/// Default path of look-ups; the key follows it.
pub const LOOKUP_PATH: &str = "/.well-known/idempotency/";

/// Maximum number of records that one look-up reads.
const RECORDS_MAX: usize = 16;
/// Maximum number of look-ups that read the store at the same time; the others wait.
pub(super) const LOOKUPS_MAX: usize = 16;
/// When a client should try again while the store cannot be read.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The request that the client sent with the key, as it names it in the query.
struct NamedRequest {
    method: String,
    path: String,
}

/// A record that may be that of the key.
struct Candidate<'p> {
    id: RecordId,
    operation: &'p Operation,
}

/// What a look-up tells.
enum KeyState {
    /// No record of this key that the caller may see.
    Absent,
    Known(KnownKey),
}

struct KnownKey {
    id: RecordId,
    operation: String,
    state: &'static str,
    /// The status of a completed request.
    status: Option<u16>,
    advice: &'static str,
}

impl LayerState {
    /// The text after the path of look-ups, if the request is one.
    pub(super) fn looked_up(&self, head: &Parts) -> Option<String> {
        let is_read = head.method == Method::GET || head.method == Method::HEAD;
        let uri = self.uri(head);
        let key = uri.path().strip_prefix(self.lookup.as_str());
        key.filter(|_| is_read).map(ToOwned::to_owned)
    }

    /// The operation is looked up only where the policy says so and the key is known without the body.
    fn allows_lookup(operation: &Operation) -> bool {
        operation.lookup
            && operation.guarded
            && operation.mode == Mode::Enforce
            && operation.signature.is_none()
    }

    /// The records to read: of the named request, or one for each different scope of the policy.
    fn candidates(
        &self,
        head: &Parts,
        key: &Key,
        named: Option<&NamedRequest>,
        claims: Option<&VerifiedClaims>,
    ) -> Result<Vec<Candidate<'_>>, Box<Problem>> {
        let uri = self.uri(head);
        let mut candidates: Vec<Candidate<'_>> = Vec::new();
        let found = named.map(|it| self.policy.find(&it.method, &it.path));
        for operation in self.policy.operations() {
            let found = match &found {
                None => None,
                Some(Some(found)) if found.operation.name == operation.name => Some(found),
                Some(_) => continue,
            };
            if !Self::allows_lookup(operation) {
                continue;
            }
            let Some(scope) = self.scope_of(head, &uri, operation, found, claims) else {
                continue;
            };
            let id = RecordId::derive(self.engine.secret(), &scope, key);
            if candidates.iter().any(|it| it.id == id) {
                continue;
            }
            if candidates.len() == RECORDS_MAX {
                return Err(unnamed());
            }
            candidates.push(Candidate { id, operation });
        }
        Ok(candidates)
    }

    /// The scope of the caller; `None` if it depends on the path of a request that was not named.
    fn scope_of(
        &self,
        head: &Parts,
        uri: &Uri,
        operation: &Operation,
        found: Option<&Match>,
        claims: Option<&VerifiedClaims>,
    ) -> Option<Scope> {
        if let Some(derive) = &self.scope {
            return Some(derive(head));
        }
        let host = extract::host(head, uri);
        let (parts, name) = (&operation.scope, &operation.name);
        let value = |it: &str| found.and_then(|found| found.value(it));
        let input = ScopeInput {
            secret: self.engine.secret(),
            headers: &head.headers,
            host: host.as_deref(),
            credential: &operation.credential,
            certificate: head.extensions.get(),
            claims,
        };
        extract::scope(parts, &input, name, value).ok()
    }

    /// The claims of the caller's token, if an operation that may be looked up needs one.
    async fn claims_to_look_up(
        &self,
        head: &Parts,
        named: Option<&NamedRequest>,
    ) -> Result<Option<VerifiedClaims>, Box<Problem>> {
        let found = named.map(|it| self.policy.find(&it.method, &it.path));
        let is_named = |it: &Operation| match &found {
            None => true,
            Some(found) => found
                .as_ref()
                .is_some_and(|found| found.operation.name == it.name),
        };
        let mut operations = self.policy.operations();
        let needing =
            operations.find(|it| Self::allows_lookup(it) && self.needs_token(it) && is_named(it));
        match needing {
            Some(operation) => {
                let verifying = self.verified_claims(operation, &head.headers);
                verifying.await.map(Some)
            }
            None => Ok(None),
        }
    }

    async fn key_state(&self, head: &Parts, text: &str) -> Result<KeyState, Box<Problem>> {
        let key = read_key(text)?;
        let named = read_query(self.uri(head).query())?;
        let claims = self.claims_to_look_up(head, named.as_ref()).await?;
        let candidates = self.candidates(head, &key, named.as_ref(), claims.as_ref())?;
        // A record is read with its whole outcome. Never closed, so it cannot fail.
        let _turn = self.lookup_turns.acquire().await;
        for candidate in candidates {
            let read = self.engine.store().read(candidate.id).await;
            let reading = read.map_err(|error| unreadable(&error))?;
            let shown = reading.and_then(|reading| self.shown(head, &candidate, &reading));
            if let Some(known) = shown {
                return Ok(KeyState::Known(known));
            }
        }
        Ok(KeyState::Absent)
    }

    /// What the caller may know of a record: nothing, unless a retry would get its replay.
    fn shown(
        &self,
        head: &Parts,
        candidate: &Candidate<'_>,
        reading: &Reading,
    ) -> Option<KnownKey> {
        // Operations may share a scope, so the record may belong to another one.
        let history = reading.record.trace.read();
        let name = history.map(|it| it.operation).filter(|it| !it.is_empty());
        let operation = match &name {
            Some(name) => self.policy.operations().find(|it| it.name == *name)?,
            None => candidate.operation,
        };
        let may_see = || {
            let names_caller = self.names_caller(candidate.operation);
            self.may_see(head, operation, &reading.record, names_caller)
        };
        if !Self::allows_lookup(operation) || !may_see() {
            return None;
        }
        let (state, status, advice) = match &reading.record.state {
            // Under at-least-once, nobody but a retry ends a claim whose process died.
            State::InFlight { lease_ends, .. } if *lease_ends <= reading.now => {
                ("unknown", None, "reuse-key")
            }
            State::InFlight { .. } => ("in-flight", None, "wait"),
            State::Completed { outcome, .. } => (
                "completed",
                Some(outcome.status()),
                after_completion(outcome),
            ),
            State::Indeterminate { hold, .. } => {
                ("unknown", None, self.advice_in_doubt(operation, hold))
            }
            State::Tombstone { .. } => ("expired", None, "ask"),
        };
        Some(KnownKey {
            id: reading.id,
            operation: operation.name.clone(),
            state,
            status,
            advice,
        })
    }

    /// Whether the caller would get the replay of this record; `names_caller` is whether the scope of the look-up
    /// contains the credential.
    fn may_see(
        &self,
        head: &Parts,
        operation: &Operation,
        record: &Record<Outcome>,
        names_caller: bool,
    ) -> bool {
        let asking = || {
            let secret = self.engine.secret();
            let certificate = head.extensions.get();
            extract::credential(&operation.credential, secret, &head.headers, certificate)
        };
        match (operation.replay_to, record.credential) {
            (ReplayTo::SameCredential, Some(first)) => asking() == first,
            // Past its retention a record has no credential: only the scope can tell whose it is.
            (ReplayTo::SameCredential, None) => names_caller,
            (ReplayTo::SameScope, _) => true,
        }
    }

    fn names_caller(&self, operation: &Operation) -> bool {
        let is_name = |it: &ScopePart| {
            matches!(
                it,
                ScopePart::Credential | ScopePart::Jwt(_) | ScopePart::TlsSubject
            )
        };
        self.scope.is_none() && operation.scope.iter().any(is_name)
    }

    fn advice_in_doubt(&self, operation: &Operation, hold: &Hold) -> &'static str {
        let is_receipted = hold.guarantee == Guarantee::ExactlyOnce;
        let has_attempts = hold.attempts < hold.attempts_max;
        match self.will_be_known(operation, is_receipted, has_attempts) {
            true => "wait",
            false => "ask",
        }
    }
}

fn after_completion(outcome: &Outcome) -> &'static str {
    match outcome.is_body_kept() {
        true => "reuse-key",
        false => "ask",
    }
}

/// Replies to a look-up.
pub(super) async fn reply<R: Carried>(
    shared: Arc<LayerState>,
    head: Parts,
    text: String,
) -> Response<Body<R>> {
    let response = match shared.key_state(&head, &text).await {
        Ok(state) => marked(Decision::LookedUp, state.response()),
        Err(problem) => shared.refuse(&problem),
    };
    match head.method == Method::HEAD {
        true => without_body(response),
        false => response,
    }
}

impl KeyState {
    fn response<R>(&self) -> Response<Body<R>> {
        let json = match self {
            Self::Absent => serde_json::json!({ "state": "absent", "advice": "reuse-key" }),
            Self::Known(known) => known.json(),
        };
        let mut response = Response::new(Body::full(Bytes::from(json.to_string())));
        let headers = response.headers_mut();
        let json = HeaderValue::from_static("application/json");
        headers.insert(header::CONTENT_TYPE, json);
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        match self {
            Self::Absent => *response.status_mut() = StatusCode::NOT_FOUND,
            Self::Known(known) => add_record(headers, known.id),
        }
        response
    }
}

impl KnownKey {
    fn json(&self) -> serde_json::Value {
        let mut json = serde_json::json!({
            "state": self.state,
            "record": self.id.to_string(),
            "operation": self.operation,
            "advice": self.advice,
        });
        if let Some(status) = self.status {
            json["status"] = status.into();
        }
        json
    }
}

fn without_body<R: Carried>(response: Response<Body<R>>) -> Response<Body<R>> {
    let (mut head, body) = response.into_parts();
    if let Some(len) = body.size_hint().exact() {
        head.headers.insert(header::CONTENT_LENGTH, len.into());
    }
    let decision = body.decision;
    let mut response = Response::from_parts(head, Body::full(Bytes::new()));
    response.body_mut().decision = decision;
    response
}

/// The key, percent-decoded.
fn read_key(text: &str) -> Result<Key, Box<Problem>> {
    let invalid = |why: &str| {
        let detail = format!("The key in the path is invalid: {why}.");
        Box::new(Problem::new(Code::KeyInvalid, detail))
    };
    let text =
        decoded(text).ok_or_else(|| invalid("a % is not followed by two hexadecimal digits"))?;
    let text = std::str::from_utf8(&text).map_err(|_| invalid("it is not visible ASCII"))?;
    Key::new(text).map_err(|error| invalid(&error.to_string()))
}

/// The request that the query names with `method` and `path`; other parameters are ignored.
fn read_query(query: Option<&str>) -> Result<Option<NamedRequest>, Box<Problem>> {
    let (mut method, mut path) = (None, None);
    for pair in query.unwrap_or_default().split('&') {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let field = match name {
            "method" => &mut method,
            "path" => &mut path,
            _ => continue,
        };
        if field.is_some() {
            return Err(unnamed());
        }
        *field = Some(read_value(value).ok_or_else(unnamed)?);
    }
    match (method, path) {
        (None, None) => Ok(None),
        (Some(method), Some(path)) if path.starts_with('/') => {
            // Of a target, only the path is matched.
            let path = path.split(['?', '#']).next().unwrap_or_default().to_owned();
            Ok(Some(NamedRequest { method, path }))
        }
        _ => Err(unnamed()),
    }
}

/// The value of a query parameter.
fn read_value(value: &str) -> Option<String> {
    let spaced: Cow<'_, str> = value.replace('+', " ").into();
    String::from_utf8(decoded(&spaced)?.into_owned()).ok()
}

fn unreadable(error: &Error) -> Box<Problem> {
    tracing::debug!(%error, "a look-up cannot read its record");
    let detail = "The state of the key cannot be read now. Nothing was executed.";
    let problem = Problem::new(Code::StoreUnavailable, detail);
    Box::new(problem.with_retry_after(RETRY_AFTER))
}

fn unnamed() -> Box<Problem> {
    let detail = "Name the request of the key by its method and its path, each once: \
                  ?method=POST&path=/v1/payments";
    Box::new(Problem::new(Code::RequestMalformed, detail))
}

#[cfg(test)]
mod tests {
    //! A key that is decoded in another way than a client encoded it would name another record.

    use super::*;

    #[test]
    fn keys_are_percent_decoded_once() {
        for (text, expected) in [
            ("order-7", Some("order-7")),
            ("a%2Fb", Some("a/b")),
            ("a/b", Some("a/b")),
            ("%2525", Some("%25")),
            ("a+b", Some("a+b")),
            ("", None),
            ("a%2", None),
            ("a%zz", None),
            ("a%20b", None),
            ("%C3%A9", None),
            ("%FF", None),
            (&"k".repeat(256), None),
        ] {
            let key = read_key(text).ok();
            assert_eq!(key.as_ref().map(Key::as_str), expected, "{text}");
        }
    }

    #[test]
    fn a_request_is_named_by_method_and_path() {
        let named = |query| {
            let named = read_query(query).map_err(|problem| problem.code());
            named.map(|named| named.map(|it| (it.method, it.path)))
        };
        let payments = Ok(Some(("POST".to_owned(), "/v1/payments".to_owned())));
        assert_eq!(named(None), Ok(None));
        assert_eq!(named(Some("other=1")), Ok(None));
        for query in [
            "method=POST&path=/v1/payments",
            "path=%2Fv1%2Fpayments&x&method=POST",
            "method=POST&path=/v1/payments%3Fdry=1",
        ] {
            assert_eq!(named(Some(query)), payments, "{query}");
        }
        for query in [
            "method=POST",
            "path=/v1",
            "method=POST&path=v1",
            "method=POST&path=/%zz",
            "method=POST&method=PUT&path=/",
        ] {
            assert_eq!(named(Some(query)), Err(Code::RequestMalformed), "{query}");
        }
    }
}
