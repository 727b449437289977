//! The signature algorithms of JSON Web Tokens (RFC 7518, RFC 8037).

use std::{fmt, str::FromStr};

use serde::{Serialize, Serializer};

use crate::{Error, ErrorKind, Result};

/// Signature algorithm of a token. `none` is not one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// RSASSA-PKCS1-v1_5 with SHA-256.
    Rs256,
    /// RSASSA-PKCS1-v1_5 with SHA-384.
    Rs384,
    /// RSASSA-PKCS1-v1_5 with SHA-512.
    Rs512,
    /// RSASSA-PSS with SHA-256.
    Ps256,
    /// RSASSA-PSS with SHA-384.
    Ps384,
    /// RSASSA-PSS with SHA-512.
    Ps512,
    /// ECDSA on P-256 with SHA-256.
    Es256,
    /// ECDSA on P-384 with SHA-384.
    Es384,
    /// Ed25519.
    EdDsa,
    /// HMAC with SHA-256.
    Hs256,
    /// HMAC with SHA-384.
    Hs384,
    /// HMAC with SHA-512.
    Hs512,
}

impl Algorithm {
    /// All algorithms; those for public keys come first.
    pub const ALL: [Self; 12] = [
        Self::Rs256,
        Self::Rs384,
        Self::Rs512,
        Self::Ps256,
        Self::Ps384,
        Self::Ps512,
        Self::Es256,
        Self::Es384,
        Self::EdDsa,
        Self::Hs256,
        Self::Hs384,
        Self::Hs512,
    ];

    /// The name in the header `alg` of a token.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Rs256 => "RS256",
            Self::Rs384 => "RS384",
            Self::Rs512 => "RS512",
            Self::Ps256 => "PS256",
            Self::Ps384 => "PS384",
            Self::Ps512 => "PS512",
            Self::Es256 => "ES256",
            Self::Es384 => "ES384",
            Self::EdDsa => "EdDSA",
            Self::Hs256 => "HS256",
            Self::Hs384 => "HS384",
            Self::Hs512 => "HS512",
        }
    }

    /// Whether it signs and verifies with the same secret.
    #[must_use]
    pub fn is_symmetric(self) -> bool {
        self.secret_bytes_min().is_some()
    }

    /// The least length of the secret, for a symmetric algorithm (RFC 7518, section 3.2).
    pub(super) fn secret_bytes_min(self) -> Option<usize> {
        match self {
            Self::Hs256 => Some(32),
            Self::Hs384 => Some(48),
            Self::Hs512 => Some(64),
            _ => None,
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|it| it.name() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            let message = format!("unsupported algorithm `{text}`; write one of {names}");
            Error::new(ErrorKind::Invalid, message)
        })
    }
}

impl Serialize for Algorithm {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}
