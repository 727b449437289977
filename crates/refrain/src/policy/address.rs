//! Addresses of databases, brokers and services. They may contain passwords, which are never printed.

use std::{convert::Infallible, fmt, str::FromStr};

use serde::{Serialize, Serializer};

use super::{
    invalid,
    schemes::{AddressForm, Backend, LoginKind, is_known, is_shown},
};
use crate::Result;

/// Text printed in place of a secret.
const HIDDEN: &str = "***";
/// Maximum length of a scheme, in bytes.
const SCHEME_BYTES_MAX: usize = 32;

/// Address of a database, a broker or a service. Display, Debug and Serialize redact its secrets.
///
/// Redacted are the password, a login that may be a token, the fragment,
/// and the value of every parameter that is not known to be harmless.
/// If the address can be parsed in two ways, everything except the scheme is redacted.
///
/// ```
/// use refrain::policy::Address;
/// let address = Address::new("postgres://app:secret@db/app?sslpassword=other");
/// assert_eq!(address.to_string(), "postgres://app:***@db/app?sslpassword=***");
/// assert_eq!(address.as_str(), "postgres://app:secret@db/app?sslpassword=other");
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Address(String);

impl Address {
    /// Stores an address without checking it.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the whole address, including its secrets. Use it to connect; do not print it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the scheme, such as `redis+cluster`; empty if there is none.
    #[must_use]
    pub fn scheme(&self) -> &str {
        let scheme = self.0.split_once(':').map_or("", |(scheme, _)| scheme);
        if is_scheme(scheme) { scheme } else { "" }
    }

    /// Rejects an address that can be parsed in two ways, because a password contains an unencoded `?` or `#`,
    /// or because a user name and password without a host look like a host and a port.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid), with the percent-encoding to use.
    pub fn check(&self) -> Result<()> {
        let Some((scheme, rest)) = self.0.split_once("://") else {
            return Ok(());
        };
        let what = match Parts::of(scheme, rest) {
            None => "an `@` after a `?` or `#`, so its host is ambiguous",
            Some(parts) if parts.has_fragment => "a `#`, but a fragment is not supported",
            Some(parts) if !parts.hosts.split(',').map(str::trim).all(is_host) => {
                "a host with invalid characters, or a port that is not a number"
            }
            Some(_) => return Ok(()),
        };
        Err(invalid(format!(
            "the address has {what}; \
             percent-encode user name, password and parameters: @ as %40, ? as %3F, # as %23, / as %2F"
        )))
    }
}

impl From<String> for Address {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<&str> for Address {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl FromStr for Address {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.into()))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&redact(&self.0))
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({self})")
    }
}

impl Serialize for Address {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Redacts the secrets of every address in a text.
///
/// A text that begins with `scheme://` is one address to its end.
/// Inside other text, an address ends at its closing quote, or at white space.
///
/// ```
/// use refrain::policy::redacted;
/// assert_eq!(redacted("postgres://app:secret@db/app"), "postgres://app:***@db/app");
/// assert_eq!(redacted("to = \"nats://t0ken@h\" # x"), "to = \"nats://***@h\" # x");
/// ```
#[must_use]
pub fn redacted(text: &str) -> String {
    let mut printed = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let is_part = |c: char| c.is_ascii_alphanumeric() || "+.-".contains(c);
        let start = rest[..at].trim_end_matches(is_part).len();
        let before = &rest[..start];
        let end = match (printed.is_empty() && start == 0, before.chars().last()) {
            (true, _) => rest.len(),
            (_, Some(quote @ ('"' | '\'' | '`'))) => start + quoted_bytes(&rest[start..], quote),
            _ => {
                let ends = |c: char| c.is_whitespace() || "\"'`".contains(c);
                rest[start..].find(ends).map_or(rest.len(), |at| start + at)
            }
        };
        printed.push_str(before);
        printed.push_str(&redact(&rest[start..end]));
        rest = &rest[end..];
    }
    printed + rest
}

/// Number of bytes before the closing quote, or of the whole text if there is none.
pub(super) fn quoted_bytes(text: &str, quote: char) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices() {
        match (is_escaped, c) {
            (true, _) => is_escaped = false,
            (_, '\\') if quote == '"' => is_escaped = true,
            (_, c) if c == quote => return at,
            _ => {}
        }
    }
    text.len()
}

/// Redacts one address.
fn redact(text: &str) -> String {
    match text.split_once("://") {
        Some((scheme, _)) if !is_scheme(scheme) => HIDDEN.into(),
        Some((scheme, rest)) => match Parts::of(scheme, rest) {
            Some(parts) => format!("{scheme}://{}", parts.redact(scheme)),
            None => format!("{scheme}://{HIDDEN}"),
        },
        None if is_place(text) => text.into(),
        None => match text.split_once(':') {
            Some((scheme, _)) if is_local(scheme) => text.into(),
            Some((scheme, _)) if is_scheme(scheme) => format!("{scheme}:{HIDDEN}"),
            _ => HIDDEN.into(),
        },
    }
}

/// Whether the scheme is of a store without a server, and so without a login.
fn is_local(scheme: &str) -> bool {
    let store = Backend::named(scheme).and_then(|it| it.store);
    store.is_some_and(|it| it.form != AddressForm::Url && it.schemes.contains(&scheme))
}

fn is_scheme(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"+.-".contains(&byte);
    !text.is_empty() && text.len() <= SCHEME_BYTES_MAX && text.bytes().all(is_part)
}

/// Whether the text is a path or a host and port, which cannot contain a secret.
fn is_place(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"._/-".contains(&byte);
    let (host, path) = text.split_at(text.find('/').unwrap_or(text.len()));
    is_host(host) && path.bytes().all(is_part)
}

/// The part of an address after the scheme.
struct Parts<'a> {
    login: Option<&'a str>,
    hosts: &'a str,
    /// With its leading slash.
    path: &'a str,
    query: Option<&'a str>,
    has_fragment: bool,
}

impl<'a> Parts<'a> {
    /// Parses the part after the scheme; `None` if it is ambiguous.
    fn of(scheme: &str, rest: &'a str) -> Option<Self> {
        let (front, tail) = rest.split_at(rest.find(['?', '#']).unwrap_or(rest.len()));
        let (login, place) = match front.rsplit_once('@') {
            Some((login, place)) => (Some(login), place),
            None => (None, front),
        };
        let (hosts, path) = place.split_at(place.find('/').unwrap_or(place.len()));
        let (query, fragment) = match tail.split_once('#') {
            Some((query, fragment)) => (query, Some(fragment)),
            None => (tail, None),
        };
        let query = query.strip_prefix('?');
        // An unencoded `?` or `#` in a password makes the rest of the login look like a query.
        let is_certain = !tail.contains('@')
            || (fragment.is_none_or(|text| !text.contains('@'))
                && hosts.split(',').all(is_host)
                && query.is_none_or(|query| is_query(scheme, query)));
        is_certain.then_some(Self {
            login,
            hosts,
            path,
            query,
            has_fragment: fragment.is_some(),
        })
    }

    fn redact(&self, scheme: &str) -> String {
        let hosts: Vec<_> = self.hosts.split(',').map(shown_host).collect();
        let mut text = self.login.map_or(String::new(), |it| login(scheme, it));
        text += &hosts.join(",");
        // After a login without a host, the path may be the rest of the password.
        text += match self.path {
            "" => "",
            _ if !self.hosts.split(',').all(is_host) => "/***",
            path => path,
        };
        if let Some(query) = self.query {
            let pairs: Vec<_> = query.split('&').map(pair).collect();
            text += &format!("?{}", pairs.join("&"));
        }
        if self.has_fragment {
            text += "#***";
        }
        text
    }
}

fn login(scheme: &str, text: &str) -> String {
    let kind = Backend::named(scheme).map_or(LoginKind::Secret, |it| it.login);
    let is_plain = |user: &str| {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"._%+-".contains(&byte);
        user.bytes().all(is_part)
    };
    match text.split_once(':') {
        Some((user, _)) if kind != LoginKind::Secret && is_plain(user) => {
            format!("{user}:{HIDDEN}@")
        }
        None if kind == LoginKind::User && is_plain(text) => format!("{text}@"),
        _ => format!("{HIDDEN}@"),
    }
}

/// Whether this is a host with an optional port: `db`, `db:5432`, `[::1]:5432`.
fn is_host(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"._-%".contains(&byte);
    let (host, port) = split_port(text);
    let host = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .map_or_else(|| host.into(), |host| host.replace(':', "."));
    host.bytes().all(is_part) && port.is_none_or(|port| port.bytes().all(|it| it.is_ascii_digit()))
}

fn split_port(text: &str) -> (&str, Option<&str>) {
    let end = text.rfind(']').map_or(0, |at| at + 1);
    match text[end..].find(':') {
        Some(at) => (&text[..end + at], Some(&text[end + at + 1..])),
        None => (text, None),
    }
}

/// Redacts a port that is not a number: a login without a host looks like a host and a port.
fn shown_host(text: &str) -> String {
    match split_port(text) {
        _ if is_host(text) => text.into(),
        (host, Some(_)) if is_host(host) => format!("{host}:{HIDDEN}"),
        _ => HIDDEN.into(),
    }
}

fn is_name(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    !text.is_empty() && text.bytes().all(is_part)
}

/// Whether this is certainly a query.
fn is_query(scheme: &str, text: &str) -> bool {
    let takes_any = Backend::named(scheme).is_some_and(|it| it.takes_any_parameter);
    let is_parameter = |pair: &str| match pair.split_once('=') {
        Some((name, _)) if takes_any => is_name(name),
        Some((name, _)) => is_known(name),
        None => pair.is_empty(),
    };
    text.split('&').all(is_parameter)
}

fn pair(text: &str) -> String {
    let is_harmless = |value: &str| !value.contains('@') && !value.contains("%40");
    match text.split_once('=') {
        Some((name, value)) if is_shown(name) && is_harmless(value) => text.into(),
        // Any other name may be part of a secret that contains a `&`.
        Some((name, _)) if is_known(name) => format!("{name}={HIDDEN}"),
        None if text.is_empty() => String::new(),
        _ => HIDDEN.into(),
    }
}

#[cfg(test)]
mod tests {
    //! Tests that no password is printed, in any position of an address.

    use super::*;
    use crate::policy::schemes::{BACKENDS, broker_schemes, store_schemes};

    const CANARIES: [&str; 9] = [
        "canary", "can/ary", "can#ary", "can?ary", "can@ary", "can:ary", "can&ary=", "can ary",
        "can\"ary",
    ];

    fn assert_hidden(text: &str) {
        let address = Address::new(text);
        let mut prints = vec![
            address.to_string(),
            format!("{address:?}"),
            serde_json::to_string(&address).unwrap(),
        ];
        if text.contains("://") {
            prints.push(redacted(text));
            prints.push(redacted(&format!("source = '{text}'")));
        }
        for printed in prints {
            assert!(!printed.contains("can"), "{text}: {printed}");
            assert!(!printed.contains("ary"), "{text}: {printed}");
        }
    }

    #[test]
    fn no_scheme_prints_a_secret_in_any_position() {
        let all = || store_schemes().chain(broker_schemes());
        let others = ["http", "https", "mysql"];
        let secrets = BACKENDS.iter().flat_map(|it| it.secret.iter().copied());
        let names: Vec<_> = secrets.chain(["token", "secret", "unheard-of"]).collect();
        for scheme in all().chain(others) {
            for canary in CANARIES {
                for text in [
                    format!("{scheme}://u:{canary}@h"),
                    format!("{scheme}://u:{canary}@h:1/x"),
                    format!("{scheme}://u:{canary}@h,i/x?schema=a"),
                    format!("{scheme}://:{canary}@h/0"),
                    format!("{scheme}://u:{canary}@h/x#f"),
                    format!("{scheme}://u:p@h/x#{canary}"),
                ] {
                    assert_hidden(&text);
                }
                // Skipped with an `@`: the part after it would be the host, which is printed.
                if !canary.contains('@') {
                    assert_hidden(&format!("{scheme}://u:{canary}"));
                    assert_hidden(&format!("{scheme}://u:{canary}/x"));
                }
                for name in &names {
                    assert_hidden(&format!("{scheme}://u:p@h/x?{name}={canary}"));
                    assert_hidden(&format!("{scheme}://h/x?schema=a&{name}={canary}#f"));
                }
            }
        }
        let names_user =
            |scheme: &&str| Backend::named(scheme).is_some_and(|it| it.login == LoginKind::User);
        for scheme in all().chain(others).filter(|it| !names_user(it)) {
            assert_hidden(&format!("{scheme}://canary@h"));
        }
        assert_hidden("host=db password=canary");
        assert_hidden("postgres:u:canary@h");
    }

    #[test]
    fn everything_except_secrets_is_printed() {
        for (text, printed) in [
            ("postgres://app@db:5432/app", "postgres://app@db:5432/app"),
            ("postgres://app:s/x@db/app", "postgres://app:***@db/app"),
            (
                "postgres://[::1]:5432/a?schema=b",
                "postgres://[::1]:5432/a?schema=b",
            ),
            (
                "postgres:///a?host=/run&user=b",
                "postgres:///a?host=/run&user=b",
            ),
            (
                "redis+sentinel://:s@a:1,b/m/2",
                "redis+sentinel://:***@a:1,b/m/2",
            ),
            (
                "redis://:s@h/?expect_records=true",
                "redis://:***@h/?expect_records=true",
            ),
            (
                "redis://h/?prefix=a&accept_lost_records=true",
                "redis://h/?prefix=a&accept_lost_records=true",
            ),
            ("nats://u:s@h", "nats://u:***@h"),
            (
                "kafka://a:1,b:2?sasl.username=u&sasl.password=a@b",
                "kafka://a:1,b:2?sasl.username=u&sasl.password=***",
            ),
            (
                "sqs://k:s@eu-1?endpoint=http://127.0.0.1:1",
                "sqs://k:***@eu-1?endpoint=http://127.0.0.1:1",
            ),
            (
                "http://127.0.0.1:3000/events",
                "http://127.0.0.1:3000/events",
            ),
            ("file:/var/lib/re frain", "file:/var/lib/re frain"),
            ("memory:", "memory:"),
            ("refrain-data", "refrain-data"),
        ] {
            assert_eq!(Address::new(text).to_string(), printed);
            assert!(Address::new(text).check().is_ok(), "{text}");
        }
    }

    #[test]
    fn an_address_that_can_be_read_in_two_ways_is_refused_with_the_encoding() {
        for text in [
            "redis://u:a?b@h",
            "nats://u:a#b@h",
            "postgres://u:p@h/x?b@c",
            "postgres://h/x#a?b",
            "kafka://u:a?b",
            "nats://h,i:a?b",
        ] {
            let error = Address::new(text).check().unwrap_err().to_string();
            assert!(error.contains("%23"), "{error}");
            assert!(!error.contains("a?b"), "{error}");
        }
    }
}
