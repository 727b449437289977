//! The caller of a request: as a scope for keys, and as a credential that tells callers apart.

use std::sync::LazyLock;

use base64::{
    Engine as _, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use http::{
    HeaderMap,
    header::{AUTHORIZATION, COOKIE, HOST},
};

use super::values;
use crate::{
    Credential, Error, ErrorKind, Result, Scope, Secret,
    fingerprint::Json,
    key::{CredentialPart, Pointer, ScopePart},
};

/// The scope of a request.
///
/// `operation` is the name of the matched operation, `path_value` returns the named segments of its path.
/// A missing header differs from an empty one.
/// `header:host` is the request's [`host`](super::host), in every version of HTTP.
///
/// # Errors
/// [`ErrorKind::Unsupported`] for `jwt:CLAIM`, because an unverified claim must not pass for a verified one;
/// [`ErrorKind::Invalid`] if the path has no segment of that name.
pub fn scope<'v>(
    parts: &[ScopePart],
    secret: &Secret,
    headers: &HeaderMap,
    host: Option<&str>,
    operation: &str,
    path_value: impl Fn(&str) -> Option<&'v [u8]>,
) -> Result<Scope> {
    let mut scope = Scope::none();
    for part in parts {
        scope = match part {
            ScopePart::Credential => with_credential(scope, secret, headers),
            ScopePart::Header(name) if name == HOST.as_str() => {
                let host = host.map(str::as_bytes);
                with_values(scope, name, host.into_iter())
            }
            ScopePart::Header(name) => {
                let values = values(headers, name);
                with_values(scope, name, values.map(|value| value.as_bytes()))
            }
            ScopePart::Path(name) => scope.with(
                &part.to_string(),
                path_value(name).ok_or_else(|| no_value(name))?,
            ),
            ScopePart::Route => scope.with("route", operation),
            ScopePart::None => scope,
            ScopePart::Jwt(claim) => return Err(unverified(claim)),
        };
    }
    Ok(scope)
}

/// Digest of the caller's credential over all parts that the policy names.
///
/// A missing part differs from an empty one; the order of several values matters.
/// Requests without any of the parts share one anonymous credential, for every choice of parts.
#[must_use]
pub fn credential(parts: &[CredentialPart], secret: &Secret, headers: &HeaderMap) -> Credential {
    let mut digest = None;
    let mut add = |kind, name: &str, value: &[u8]| {
        let digest = digest.get_or_insert_with(|| secret.start_digest("credential"));
        // Each value follows the kind and the name of its part, so a missing part adds nothing.
        digest.tag(kind);
        digest.part(name.as_bytes());
        digest.part(value);
    };
    for part in parts {
        match part {
            CredentialPart::Header(name) => {
                values(headers, name).for_each(|value| add(1, name, value.as_bytes()));
            }
            CredentialPart::Cookie(name) => {
                cookies(headers, name).for_each(|value| add(2, name, value));
            }
        }
    }
    digest.map_or_else(|| secret.nobody(), |digest| Credential(digest.finish()))
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

fn unverified(claim: &str) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!(
            "scope `jwt:{claim}` needs verified claims, which this build does not have; use `credential` or `header:NAME`"
        ),
    )
}

/// Adds the credential to the scope. Each kind has a name of its own, so none can pass for another.
fn with_credential(scope: Scope, secret: &Secret, headers: &HeaderMap) -> Scope {
    let values: Vec<&[u8]> = headers
        .get_all(AUTHORIZATION)
        .iter()
        .map(|value| value.as_bytes())
        .collect();
    match named_caller(&values) {
        Some(Caller::Anonymous) => scope.with("credential:anonymous", ""),
        Some(Caller::User(user)) => scope.with("credential:basic", user),
        Some(Caller::Subject { issuer, subject }) => scope
            .with("credential:issuer", issuer)
            .with("credential:subject", subject),
        None => {
            let digest: [u8; 16] = secret.digest("scope", &values);
            scope.with("credential:digest", digest)
        }
    }
}

enum Caller {
    Anonymous,
    User(Vec<u8>),
    Subject { issuer: String, subject: String },
}

/// The caller, if the credential names one. The name is not authenticated.
fn named_caller(values: &[&[u8]]) -> Option<Caller> {
    let [value] = values else {
        return values.is_empty().then_some(Caller::Anonymous);
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
