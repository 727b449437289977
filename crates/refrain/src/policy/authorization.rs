//! The credential that Refrain itself sends: with a worker's deliveries, and with probes after a restart.

use std::fmt;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::{Serialize, Serializer};

use super::invalid;
use crate::Result;

/// An `Authorization` header. Display and Debug print the origin of the secret, never the secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Authorization {
    header: String,
    scheme: &'static str,
    /// Origin of the secret, such as `env:BILLING_TOKEN`.
    origin: String,
}

impl Authorization {
    /// `Authorization: Bearer TOKEN`.
    ///
    /// # Errors
    /// If the token contains characters that are not allowed in a header.
    pub fn bearer(token: &str) -> Result<Self> {
        let is_header = |byte: u8| (0x20..0x7F).contains(&byte);
        if token.is_empty() || !token.bytes().all(is_header) {
            return Err(invalid(
                "the token is empty, or contains characters that are not allowed in a header; \
                 copy the token again, on one line",
            ));
        }
        Ok(Self::new("bearer", format!("Bearer {token}")))
    }

    /// `Authorization: Basic …`.
    ///
    /// # Errors
    /// If the user name contains a colon.
    pub fn basic(user: &str, password: &str) -> Result<Self> {
        if user.contains(':') {
            return Err(invalid(
                "basic authorization needs a `user` without a colon; add user = \"billing\"",
            ));
        }
        let encoded = BASE64_STANDARD.encode(format!("{user}:{password}"));
        Ok(Self::new("basic", format!("Basic {encoded}")))
    }

    fn new(scheme: &'static str, header: String) -> Self {
        Self {
            header,
            scheme,
            origin: "given".into(),
        }
    }

    /// Sets the origin of the secret.
    #[cfg(feature = "policy-file")]
    pub(super) fn with_origin(self, origin: String) -> Self {
        Self { origin, ..self }
    }

    /// Returns the header value, including the secret. Do not print it.
    #[must_use]
    pub fn header(&self) -> &str {
        &self.header
    }
}

impl fmt::Display for Authorization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} from {}", self.scheme, self.origin)
    }
}

impl fmt::Debug for Authorization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Authorization({self})")
    }
}

impl Serialize for Authorization {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
