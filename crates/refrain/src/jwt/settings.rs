//! Which tokens are valid: their keys, algorithms, issuers and audiences.

use std::{fmt, path::PathBuf, time::Duration};

use serde::{Serialize, Serializer};

use super::{Algorithm, KeySet, keys::invalid};
use crate::{
    Result,
    policy::{redacted, units::Span},
};

/// Maximum leeway: the clocks of two servers never differ more if they are synchronized.
const LEEWAY_MAX: Duration = Duration::from_mins(10);
/// Maximum number of issuers, audiences or algorithms.
const LIST_MAX: usize = 64;

/// Where the keys that verify tokens come from.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum JwtKeys {
    /// A JSON Web Key Set at this URL.
    Url(String),
    /// A JSON Web Key Set in this file.
    File(PathBuf),
    /// These keys, with where they were read.
    Fixed(KeySet, Vec<String>),
}

/// Which tokens are valid, from `[jwt]`. Debug and Serialize do not print secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct JwtSettings {
    /// Where the keys come from.
    pub keys: JwtKeys,
    /// Algorithms that a token may be signed with.
    pub algorithms: Vec<Algorithm>,
    /// Issuers whose tokens are valid; without any, a token may name any issuer, or none.
    pub issuers: Vec<String>,
    /// Audiences, one of which a token must name; `None` does not check the audience.
    pub audiences: Option<Vec<String>>,
    /// How far the clocks of issuer and verifier may differ.
    #[serde(serialize_with = "as_span")]
    pub leeway: Duration,
    /// Header with the token, in lower case.
    pub header: String,
    /// Age at which a key set is fetched again.
    #[serde(serialize_with = "as_span")]
    pub jwks_refresh: Duration,
    /// Age up to which a key set is used while it cannot be fetched.
    #[serde(serialize_with = "as_span")]
    pub jwks_stale: Duration,
    /// Least time between two fetches.
    #[serde(serialize_with = "as_span")]
    pub jwks_retry: Duration,
}

impl JwtSettings {
    /// Tokens whose keys come from here. Without audience, they are invalid: add one with
    /// [`for_audience`](Self::for_audience).
    #[must_use]
    pub fn new(keys: JwtKeys) -> Self {
        let algorithms = match &keys {
            JwtKeys::Fixed(keys, _) if keys.secret_bytes().is_some() => vec![Algorithm::Hs256],
            JwtKeys::Fixed(keys, _) => Algorithm::ALL
                .into_iter()
                .filter(|it| keys.has(*it))
                .collect(),
            _ => Algorithm::ALL
                .into_iter()
                .filter(|it| !it.is_symmetric())
                .collect(),
        };
        Self {
            keys,
            algorithms,
            issuers: Vec::new(),
            audiences: Some(Vec::new()),
            leeway: Duration::from_mins(1),
            header: "authorization".into(),
            jwks_refresh: Duration::from_mins(10),
            jwks_stale: Duration::from_hours(24),
            jwks_retry: Duration::from_secs(10),
        }
    }

    /// Tokens that are signed with this secret, by HS256.
    ///
    /// # Errors
    /// As for [`KeySet::from_secret`].
    pub fn with_secret(secret: &str) -> Result<Self> {
        let keys = KeySet::from_secret(secret)?;
        Ok(Self::new(JwtKeys::Fixed(keys, vec!["given".into()])))
    }

    /// Tokens that are verified with this public key, in PEM.
    ///
    /// # Errors
    /// As for [`KeySet::from_public_key`].
    pub fn with_public_key(pem: &str) -> Result<Self> {
        let keys = KeySet::from_public_key(pem)?;
        Ok(Self::new(JwtKeys::Fixed(keys, vec!["given".into()])))
    }

    /// Adds an audience.
    #[must_use]
    pub fn for_audience(mut self, audience: &str) -> Self {
        self.audiences
            .get_or_insert_default()
            .push(audience.to_owned());
        self
    }

    /// Adds an issuer.
    #[must_use]
    pub fn from_issuer(mut self, issuer: &str) -> Self {
        self.issuers.push(issuer.to_owned());
        self
    }

    /// Checks the rules between the settings.
    ///
    /// # Errors
    /// The first violated rule, with its fix.
    pub fn check(&self) -> Result<()> {
        match self.faults().into_iter().next() {
            Some((_, message, help)) => Err(invalid(format!("{message}; {help}"))),
            None => Ok(()),
        }
    }

    /// The violated rules: the setting, the message and the fix.
    pub(crate) fn faults(&self) -> Vec<(&'static str, String, String)> {
        let mut faults = Vec::new();
        let mut fault = |setting, message: String, help: &str| {
            faults.push((setting, message, help.to_owned()));
        };
        if self.algorithms.is_empty() {
            let help = "name the algorithm of your issuer, such as \"RS256\"";
            fault("algorithms", "`algorithms` is empty".into(), help);
        }
        for algorithm in &self.algorithms {
            if let Some(why) = self.misfit(*algorithm) {
                let help = "remove it, or name the algorithm that your issuer signs with";
                fault("algorithms", format!("`{algorithm}` {why}"), help);
            }
        }
        if self.audiences.as_ref().is_some_and(Vec::is_empty) {
            let message = "`audience` is missing: a token that was issued for another service would be valid here";
            let help = "write audience = \"NAME\" as in the claim `aud` of your tokens, or audience = \"*\" to accept every token of the issuer";
            fault("audience", message.into(), help);
        }
        let lists = [
            ("issuer", self.issuers.len()),
            ("audience", self.audiences.as_ref().map_or(0, Vec::len)),
            ("algorithms", self.algorithms.len()),
        ];
        for (setting, length) in lists {
            if length > LIST_MAX {
                let message = format!("`{setting}` has {length} members, more than {LIST_MAX}");
                fault(setting, message, "remove some");
            }
        }
        if self.leeway > LEEWAY_MAX {
            let message = format!("`leeway` is {}, out of range", Span(self.leeway));
            fault(
                "leeway",
                message,
                "write a time up to 10m, and synchronize the clocks",
            );
        }
        if self.jwks_stale < self.jwks_refresh {
            let message = format!(
                "`jwks_stale` ({}) is shorter than `jwks_refresh` ({})",
                Span(self.jwks_stale),
                Span(self.jwks_refresh)
            );
            fault(
                "jwks_stale",
                message,
                "write a longer time for `jwks_stale`",
            );
        }
        faults
    }

    /// Why an algorithm cannot be used with these keys.
    fn misfit(&self, algorithm: Algorithm) -> Option<String> {
        match (&self.keys, algorithm.secret_bytes_min()) {
            (JwtKeys::Fixed(keys, _), Some(need)) => match keys.secret_bytes() {
                Some(have) if have < need => Some(format!(
                    "needs a secret of at least {need} bytes, and this one has {have}"
                )),
                Some(_) => None,
                None => Some("verifies with a secret, and the key is public".into()),
            },
            (JwtKeys::Fixed(keys, _), None) if keys.secret_bytes().is_some() => {
                Some("verifies with a public key, and the key is a secret".into())
            }
            (JwtKeys::Fixed(keys, _), None) if !keys.has(algorithm) => {
                Some("fits none of the keys".into())
            }
            (JwtKeys::Fixed(..), None) => None,
            (_, Some(_)) => Some("verifies with a secret, and a key set has public keys".into()),
            (_, None) => None,
        }
    }
}

impl fmt::Display for JwtKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(url) => f.write_str(&redacted(url)),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Fixed(_, origins) => f.write_str(&origins.join(", ")),
        }
    }
}

impl fmt::Debug for JwtKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JwtKeys({self})")
    }
}

impl Serialize for JwtKeys {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

fn as_span<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&Span(*span))
}
