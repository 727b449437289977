//! Extracts key, scope, credential and the input of the fingerprint from a request, between the match and its claim.
//!
//! Nothing here decides whether a request is guarded, and nothing here authenticates the caller.

use std::{borrow::Cow, sync::LazyLock};

use base64::{
    Engine as _, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Uri,
    header::{AUTHORIZATION, CONTENT_TYPE, COOKIE, HOST},
    request::Parts,
    uri::PathAndQuery,
};

use super::{ClientCertificate, TraceContext, layer::LayerState};
use crate::{
    Credential, Error, ErrorKind, Intent, Key, Operation, Result, Scope, Secret,
    clock::{Clock as _, SystemClock},
    engine::Count,
    fingerprint::{Content, Fields, Fingerprints, Json, NotJson, RequestView, normal_host},
    jwt::VerifiedClaims,
    key::{CredentialPart, KEY_HEADER, Pointer, ScopePart, Source, Syntax, TLS_SUBJECT},
    policy::{KeysKept, Match, ReplayTo, Unverified},
    record::OriginFields,
};

/// Default key header.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static(KEY_HEADER);

/// Result of looking for the key in the head of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeadKey {
    /// The key is in the head.
    Found(Key),
    /// The request has no key; the body need not be read.
    Absent,
    /// The key may be in the body, or is derived from it.
    NeedsBody,
}

/// Looks for the key in the head alone, so that a request without one can stream through untouched.
///
/// # Errors
/// [`ErrorKind::Invalid`] if a key header is malformed or sent twice.
pub fn head_key(sources: &[Source], syntax: Syntax, headers: &HeaderMap) -> Result<HeadKey> {
    for source in sources {
        let Source::Header(name) = source else {
            return Ok(HeadKey::NeedsBody);
        };
        if let Some(key) = header_key(name, syntax, headers)? {
            return Ok(HeadKey::Found(key));
        }
    }
    Ok(HeadKey::Absent)
}

/// Finds the key of a request: the first source that is present decides, and the others are ignored.
/// `uri` is the URI that the client requested; a router may have stripped a prefix from the one in `head`.
///
/// # Errors
/// [`ErrorKind::Invalid`] if that source holds an invalid key.
pub fn find_key(
    sources: &[Source],
    syntax: Syntax,
    head: &Parts,
    uri: &Uri,
    content: &Content<'_>,
) -> Result<Option<Key>> {
    for source in sources {
        let key = match source {
            Source::Header(name) => header_key(name, syntax, &head.headers)?,
            Source::Body(pointer) => body_key(pointer, content)?,
            Source::Derive => Some(Key::derive_from_request(&view(head, uri, None, content))),
            Source::Natural(template) => match readable(content)? {
                Some(json) => template.render(json)?,
                None => None,
            },
        };
        if key.is_some() {
            return Ok(key);
        }
    }
    Ok(None)
}

/// The body with its media type.
#[must_use]
pub fn content<'a>(head: &Parts, body: &'a Bytes) -> Content<'a> {
    let content_type = head.headers.get(CONTENT_TYPE);
    Content::new(content_type.map(|value| value.as_bytes()), body)
}

/// Input of the fingerprint: head and body, with the `uri` that the client requested and its [`host`].
#[must_use]
pub fn view<'a>(
    head: &'a Parts,
    uri: &'a Uri,
    host: Option<&'a str>,
    content: &'a Content<'a>,
) -> RequestView<'a> {
    RequestView {
        method: head.method.as_str(),
        path: uri.path(),
        query: uri.query(),
        host,
        headers: &head.headers,
        content,
    }
}

/// The authority of a request, in its [normal form](normal_host):
/// that of its target, such as `:authority`, else the header `Host`.
#[must_use]
pub fn host<'a>(head: &'a Parts, uri: &'a Uri) -> Option<Cow<'a, str>> {
    if let Some(authority) = uri.authority().or(head.uri.authority()) {
        return Some(normal_host(authority.as_str()));
    }
    let written = values(&head.headers, "host").map(|value| match value.to_str() {
        Ok(host) => normal_host(host),
        Err(_) => value.as_bytes().escape_ascii().to_string().into(),
    });
    written.reduce(|all, next| format!("{all},{next}").into())
}

/// Verifies the signature of a request, if its operation requires one.
pub(super) fn verify(
    shared: &LayerState,
    operation: &Operation,
    headers: &HeaderMap,
    body: &Bytes,
) -> Result<(), Unverified> {
    let Some(signature) = &operation.signature else {
        return Ok(());
    };
    let verified = signature.verify(headers, body, SystemClock.wall());
    if let Err(why) = verified {
        shared.engine.tally().count(Count::Unverified);
        // Not a warning, because any client can cause it at any rate.
        tracing::debug!(operation = %operation.name, %why, "the signature of a request is missing or invalid");
    }
    verified
}

/// The intent of a request: its scope, key, fingerprint and credential, with the operation's terms.
/// `claims` are those of its token, if the scope needs one.
pub(super) fn intent(
    shared: &LayerState,
    found: &Match,
    key: Key,
    head: &Parts,
    claims: Option<&VerifiedClaims>,
    body: &Bytes,
) -> Result<Intent> {
    let (operation, secret) = (&found.operation, shared.engine.secret());
    let certificate = head.extensions.get();
    if operation.needs_client_certificate() && certificate.is_none() {
        return Err(no_certificate());
    }
    let uri = shared.uri(head);
    let host = host(head, &uri);
    let host = host.as_deref();
    let scope = match &shared.scope {
        Some(derive) => derive(head),
        None => {
            let input = ScopeInput {
                secret,
                headers: &head.headers,
                host,
                credential: &operation.credential,
                certificate,
                claims,
            };
            scope_of(found, &input)?
        }
    };
    let content = content(head, body);
    let view = view(head, &uri, host, &content);
    let fingerprints = Fingerprints::of(secret, &operation.fingerprint, &view);
    let fields = OriginFields {
        operation: &operation.name,
        method: head.method.as_str(),
        target: match operation.records_query {
            true => uri
                .path_and_query()
                .map_or(uri.path(), PathAndQuery::as_str),
            false => uri.path(),
        },
        key: match operation.records_keys {
            KeysKept::Digest => "",
            KeysKept::Clear => key.as_str(),
        },
        host: match operation.probe {
            Some(_) => host.unwrap_or_default(),
            None => "",
        },
        trace_id: traceparent(&head.headers)
            .and_then(TraceContext::read)
            .map(|caller| caller.trace_id)
            .unwrap_or_default(),
        ..OriginFields::default()
    };
    let origin = shared.engine.origin(&scope, &key, &fields);
    Ok(Intent {
        scope,
        key,
        fingerprint: fingerprints.whole,
        earlier_fingerprint: fingerprints.hostless,
        credential: (operation.replay_to == ReplayTo::SameCredential)
            .then(|| credential(&operation.credential, secret, &head.headers, certificate)),
        terms: operation.terms,
        probe: None,
        receipts: shared.witness(operation).cloned(),
        audit: None,
        origin: Some(origin),
    })
}

fn scope_of(found: &Match, input: &ScopeInput<'_>) -> Result<Scope> {
    let Operation {
        scope: parts, name, ..
    } = &*found.operation;
    scope(parts, input, name, |it: &str| found.value(it))
}

/// The scope in which earlier versions kept the record of a request, if that is another one: they knew no source of the
/// credential but `Authorization`.
pub(super) fn earlier_scope(
    shared: &LayerState,
    found: &Match,
    head: &Parts,
    claims: Option<&VerifiedClaims>,
) -> Option<Scope> {
    static AUTHORIZATION_ALONE: LazyLock<[CredentialPart; 1]> =
        LazyLock::new(|| [CredentialPart::Header(AUTHORIZATION.as_str().into())]);
    let operation = &found.operation;
    let is_affected = shared.scope.is_none()
        && operation.scope.contains(&ScopePart::Credential)
        // Earlier versions knew no certificates.
        && !operation.needs_client_certificate()
        && differs_from_authorization_alone(&operation.credential, &head.headers);
    if !is_affected {
        return None;
    }
    let uri = shared.uri(head);
    let host = host(head, &uri);
    let input = ScopeInput {
        secret: shared.engine.secret(),
        headers: &head.headers,
        host: host.as_deref(),
        credential: &*AUTHORIZATION_ALONE,
        certificate: None,
        claims,
    };
    scope_of(found, &input).ok()
}

/// Whether the scope `credential` uses more sources than `Authorization` alone, or not that one.
fn differs_from_authorization_alone(credential: &[CredentialPart], headers: &HeaderMap) -> bool {
    let is_authorization = |part: &&CredentialPart| **part == *AUTHORIZATION.as_str();
    let mut others = separating(credential).filter(|it| !is_authorization(it));
    others.any(|part| sent(part, headers, None).next().is_some())
        || headers.contains_key(AUTHORIZATION) && !credential.iter().any(|it| is_authorization(&it))
}

/// The header `traceparent` of W3C Trace Context.
pub(super) fn traceparent(headers: &HeaderMap) -> Option<&HeaderValue> {
    values(headers, "traceparent").next()
}

impl Fields for HeaderMap {
    fn each(&self, name: &str, show: &mut dyn FnMut(&[u8])) {
        values(self, name).for_each(|value| show(value.as_bytes()));
    }
}

/// All values of a header. Most requests have few headers: comparing each name is faster than a map lookup.
fn values<'h>(headers: &'h HeaderMap, name: &str) -> impl Iterator<Item = &'h HeaderValue> {
    // Both are usually in lower case, so the comparison of bytes comes first.
    let is_named = move |it: &HeaderName| {
        let it = it.as_str();
        it.len() == name.len() && (it == name || it.eq_ignore_ascii_case(name))
    };
    let fields = headers.iter();
    fields.filter_map(move |(name, value)| is_named(name).then_some(value))
}

fn header_key(name: &str, syntax: Syntax, headers: &HeaderMap) -> Result<Option<Key>> {
    let mut values = values(headers, name);
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        let message = format!("the header {name} is sent twice; send one key");
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    let key = syntax.read(value.as_bytes());
    key.map(Some)
        .map_err(|error| add_location(&format!("header {name}"), &error))
}

fn body_key(pointer: &Pointer, content: &Content<'_>) -> Result<Option<Key>> {
    let text = readable(content)?.and_then(|json| json.text(pointer));
    text.map(Key::new)
        .transpose()
        .map_err(|error| add_location(&format!("{pointer} in the body"), &error))
}

/// The body as JSON; `None` if it is not JSON and so has no members.
///
/// JSON that parsers may read differently is rejected: a key must not depend on the parser.
fn readable<'c>(content: &'c Content<'_>) -> Result<Option<&'c Json>> {
    let why = match content.json() {
        Ok(json) => return Ok(Some(json)),
        Err(NotJson::Malformed) => return Ok(None),
        Err(NotJson::DuplicateName) => "a member name occurs twice; use each name once",
        Err(NotJson::TooDeep) => "it is nested too deeply; flatten it",
        Err(NotJson::TooLarge) => "it is too large; send a smaller one",
    };
    let message = format!("the key cannot be read from the body: {why}");
    Err(Error::new(ErrorKind::Invalid, message))
}

fn add_location(place: &str, error: &Error) -> Error {
    Error::new(error.kind(), format!("{place}: {error}"))
}

/// The parts of a request that a [`scope`] can be made of, besides its operation and path.
#[derive(Debug, Clone, Copy)]
pub struct ScopeInput<'a> {
    /// The key of the digests.
    pub secret: &'a Secret,
    /// The headers of the request.
    pub headers: &'a HeaderMap,
    /// Its [`host`], which is `header:host` in every version of HTTP.
    pub host: Option<&'a str>,
    /// The sources of the caller's credential, for `credential`.
    pub credential: &'a [CredentialPart],
    /// The verified certificate of the client, for `tls:subject`.
    pub certificate: Option<&'a ClientCertificate>,
    /// The claims of its token, for `jwt:CLAIM`.
    pub claims: Option<&'a VerifiedClaims>,
}

/// The scope of a request.
///
/// `operation` is the name of the matched operation, `path_value` returns the named segments of its path.
/// A missing header differs from an empty one.
///
/// # Errors
/// [`ErrorKind::Unsupported`] for `jwt:CLAIM` without claims, because an unverified claim must not pass for a verified one;
/// [`ErrorKind::Invalid`] if the path has no segment of that name, the claim is unusable, or there is no certificate for
/// `tls:subject`.
pub fn scope<'v>(
    parts: &[ScopePart],
    input: &ScopeInput<'_>,
    operation: &str,
    path_value: impl Fn(&str) -> Option<&'v [u8]>,
) -> Result<Scope> {
    let mut scope = Scope::none();
    for part in parts {
        scope = match part {
            ScopePart::Credential => with_credential(scope, input),
            ScopePart::Header(name) if name == HOST.as_str() => {
                let host = input.host.map(str::as_bytes);
                with_values(scope, name, host.into_iter())
            }
            ScopePart::Header(name) => {
                let values = values(input.headers, name);
                with_values(scope, name, values.map(|value| value.as_bytes()))
            }
            ScopePart::Path(name) => scope.with(
                &part.to_string(),
                path_value(name).ok_or_else(|| no_value(name))?,
            ),
            ScopePart::TlsSubject => {
                let certificate = input.certificate.ok_or_else(no_certificate)?;
                scope.with(TLS_SUBJECT, certificate.subject())
            }
            ScopePart::Route => scope.with("route", operation),
            ScopePart::None => scope,
            ScopePart::Jwt(claim) => {
                let claims = input.claims.ok_or_else(|| unverified(claim))?;
                let with_claim = claims.add_to(scope, claim);
                with_claim.map_err(|why| Error::new(ErrorKind::Invalid, why.to_string()))?
            }
        };
    }
    Ok(scope)
}

/// Digest of the caller's credential over all parts that the policy names.
///
/// A missing part differs from an empty one; the order of several values matters.
/// Requests without any of the parts share one anonymous credential, for every choice of parts.
#[must_use]
pub fn credential(
    parts: &[CredentialPart],
    secret: &Secret,
    headers: &HeaderMap,
    certificate: Option<&ClientCertificate>,
) -> Credential {
    let mut digest = None;
    let mut add = |kind, name: &str, value: &[u8]| {
        let digest = digest.get_or_insert_with(|| secret.start_digest("credential"));
        // Each value follows the kind and the name of its part, so a missing part adds nothing.
        digest.tag(kind);
        digest.part(name.as_bytes());
        digest.part(value);
    };
    for part in parts {
        let (kind, name) = match part {
            CredentialPart::Header(name) => (1, name.as_str()),
            CredentialPart::Cookie(name) => (2, name.as_str()),
            CredentialPart::TlsSubject => (3, ""),
        };
        sent(part, headers, certificate).for_each(|value| add(kind, name, value));
    }
    digest.map_or_else(|| secret.nobody(), |digest| Credential(digest.finish()))
}

/// The values of a part of the credential that the request has.
fn sent<'h>(
    part: &'h CredentialPart,
    headers: &'h HeaderMap,
    certificate: Option<&'h ClientCertificate>,
) -> impl Iterator<Item = &'h [u8]> {
    let (header, cookie, certificate) = match part {
        CredentialPart::Header(name) => (Some(name), None, None),
        CredentialPart::Cookie(name) => (None, Some(name), None),
        CredentialPart::TlsSubject => (None, None, certificate),
    };
    let headers_sent = header.into_iter().flat_map(|name| values(headers, name));
    let cookies_sent = cookie.into_iter().flat_map(|name| cookies(headers, name));
    let subject = certificate.map(ClientCertificate::subject);
    let sent = headers_sent.map(HeaderValue::as_bytes);
    sent.chain(cookies_sent).chain(subject)
}

/// The sources of the credential that the scope `credential` uses. In the default list, the header `Cookie` as a whole
/// is none of them: cookies change between retries, and a retry in another scope would execute again.
fn separating(credential: &[CredentialPart]) -> impl Iterator<Item = &CredentialPart> {
    let is_default = CredentialPart::are_default(credential);
    let is_whole_cookie = |part: &CredentialPart| *part == *COOKIE.as_str();
    let parts = credential.iter();
    parts.filter(move |part| !(is_default && is_whole_cookie(part)))
}

fn cookies<'h>(headers: &'h HeaderMap, name: &'h str) -> impl Iterator<Item = &'h [u8]> {
    let pairs = headers
        .get_all(COOKIE)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b';'));
    pairs.filter_map(move |pair| {
        let pair = pair.trim_ascii();
        let equals = pair.iter().position(|byte| *byte == b'=')?;
        (&pair[..equals] == name.as_bytes()).then_some(&pair[equals + 1..])
    })
}

fn with_values<'v>(scope: Scope, name: &str, values: impl Iterator<Item = &'v [u8]>) -> Scope {
    let mut values = values.peekable();
    // Header names contain no colon, so no header has this name.
    if values.peek().is_none() {
        return scope.with(&format!("header:{name}:absent"), "");
    }
    values.fold(scope, |scope, value| {
        scope.with(&format!("header:{name}"), value)
    })
}

fn no_value(name: &str) -> Error {
    let message = format!(
        "scope `path:{name}`: the operation's path has no {{{name}}}; name one of its segments"
    );
    Error::new(ErrorKind::Invalid, message)
}

fn no_certificate() -> Error {
    let message = format!("`{TLS_SUBJECT}` needs a verified certificate of the client; send one");
    Error::new(ErrorKind::Invalid, message)
}

fn unverified(claim: &str) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!(
            "scope `jwt:{claim}` needs verified claims; set the keys with `RefrainLayer::with_jwt`"
        ),
    )
}

/// Adds the credential to the scope. Each source and kind has a name of its own, so none can pass for another.
fn with_credential(mut scope: Scope, input: &ScopeInput<'_>) -> Scope {
    let mut is_anonymous = true;
    for part in separating(input.credential) {
        let values: Vec<&[u8]> = sent(part, input.headers, input.certificate).collect();
        if values.is_empty() {
            continue;
        }
        is_anonymous = false;
        scope = match *part == *AUTHORIZATION.as_str() {
            true => with_authorization(scope, input.secret, &values),
            false => {
                let digest: [u8; 16] = input.secret.digest("scope", &values);
                scope.with(&format!("credential:{part}"), digest)
            }
        };
    }
    match is_anonymous {
        true => scope.with("credential:anonymous", ""),
        false => scope,
    }
}

fn with_authorization(scope: Scope, secret: &Secret, values: &[&[u8]]) -> Scope {
    match named_caller(values) {
        Some(Caller::User(user)) => scope.with("credential:basic", user),
        Some(Caller::Subject { issuer, subject }) => scope
            .with("credential:issuer", issuer)
            .with("credential:subject", subject),
        None => {
            let digest: [u8; 16] = secret.digest("scope", values);
            scope.with("credential:digest", digest)
        }
    }
}

enum Caller {
    User(Vec<u8>),
    Subject { issuer: String, subject: String },
}

/// The caller, if the credential names one. The name is not authenticated.
fn named_caller(values: &[&[u8]]) -> Option<Caller> {
    let [value] = values else {
        return None;
    };
    let value = std::str::from_utf8(value).ok()?.trim_ascii();
    let (scheme, rest) = value.split_once(' ')?;
    let rest = rest.trim_ascii();
    match () {
        () if scheme.eq_ignore_ascii_case("basic") => basic_user(rest).map(Caller::User),
        () if scheme.eq_ignore_ascii_case("bearer") => jwt_subject(rest),
        () => None,
    }
}

/// Accepts base64 with or without padding: clients send both.
const LENIENT: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
const BASE64: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, LENIENT);
const BASE64_URL: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, LENIENT);

/// The user name; `None` if it is empty, because then the password alone tells callers apart.
fn basic_user(encoded: &str) -> Option<Vec<u8>> {
    let mut pair = BASE64.decode(encoded).ok()?;
    let colon = pair.iter().position(|byte| *byte == b':')?;
    pair.truncate(colon);
    (!pair.is_empty()).then_some(pair)
}

/// Issuer and subject from the unverified claims of a JWT: a namespace, not a proof.
fn jwt_subject(jwt: &str) -> Option<Caller> {
    static ISSUER: LazyLock<Option<Pointer>> = LazyLock::new(|| "/iss".parse().ok());
    static SUBJECT: LazyLock<Option<Pointer>> = LazyLock::new(|| "/sub".parse().ok());
    let mut segments = jwt.split('.');
    let (_, claims, _, None) = (
        segments.next()?,
        segments.next()?,
        segments.next()?,
        segments.next(),
    ) else {
        return None;
    };
    let claims = Json::parse(&BASE64_URL.decode(claims).ok()?).ok()?;
    Some(Caller::Subject {
        issuer: claims.string(ISSUER.as_ref()?)?.into_owned(),
        subject: claims.string(SUBJECT.as_ref()?)?.into_owned(),
    })
}
