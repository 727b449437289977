//! The host as a part of fingerprints.
//!
//! The host is hashed on top of the digest of all other parts, so both digests are available at the cost of one.
//! Records written by versions without host support hold the digest without the host.

use std::borrow::Cow;

use super::{Fingerprint, Part, RequestView, add_maybe};
use crate::key::Secret;

/// Default ports, which are removed from an authority.
const PORTS_DEFAULT: [&str; 2] = ["80", "443"];

/// The fingerprint of a request, with and without its host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprints {
    /// The fingerprint of all parts.
    pub whole: Fingerprint,
    /// The fingerprint without the host; `None` if the host is not one of the parts.
    pub hostless: Option<Fingerprint>,
}

impl Fingerprints {
    /// Computes both fingerprints of a request.
    #[must_use]
    pub fn of(secret: &Secret, parts: &[Part], request: &RequestView<'_>) -> Self {
        let hostless = Fingerprint::without_host(secret, parts, request);
        if !parts.contains(&Part::Host) {
            return Self {
                whole: hostless,
                hostless: None,
            };
        }
        let mut digest = secret.start_digest("fingerprint-host");
        digest.part(&hostless.0);
        add_maybe(&mut digest, request.host.map(str::as_bytes));
        Self {
            whole: Fingerprint(digest.finish()),
            hostless: Some(hostless),
        }
    }
}

/// Normalizes an authority, so that all spellings of a host compare equal:
/// lower case, without user information, and without the ports 80 and 443.
///
/// ```
/// use refrain::fingerprint::normal_host;
/// assert_eq!(normal_host("Shop.Example:443"), "shop.example");
/// assert_eq!(normal_host("shop.example:8443"), "shop.example:8443");
/// assert_eq!(normal_host("[2001:DB8::1]:80"), "[2001:db8::1]");
/// ```
#[must_use]
pub fn normal_host(authority: &str) -> Cow<'_, str> {
    let authority = authority.trim_ascii();
    let host = authority.rsplit_once('@').map_or(authority, |(_, it)| it);
    let named = match host.rsplit_once(':') {
        Some((name, port)) if port.is_empty() || PORTS_DEFAULT.contains(&port) => name,
        _ => host,
    };
    match named.bytes().any(|byte| byte.is_ascii_uppercase()) {
        true => Cow::Owned(named.to_ascii_lowercase()),
        false => Cow::Borrowed(named),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_host_keeps_what_names_another_host() {
        for (written, normal) in [
            ("shop.example", "shop.example"),
            ("SHOP.example", "shop.example"),
            ("shop.example:80", "shop.example"),
            ("shop.example:443", "shop.example"),
            ("shop.example:", "shop.example"),
            ("shop.example:8080", "shop.example:8080"),
            ("shop.example:0443", "shop.example:0443"),
            (" shop.example ", "shop.example"),
            ("me:secret@shop.example:80", "shop.example"),
            ("[::1]", "[::1]"),
            ("[::80]", "[::80]"),
            ("[::1]:443", "[::1]"),
            ("", ""),
        ] {
            assert_eq!(normal_host(written), normal, "{written}");
        }
    }
}
