//! Where a policy takes keys, scopes and credentials from, as it writes them; and the webhook senders that it knows by name.

use std::{fmt, str::FromStr, time::Duration};

use super::{Pointer, Template, header_name};
use crate::{Error, ErrorKind, Result};

/// The name of a part that is the subject of the client's certificate.
pub(crate) const TLS_SUBJECT: &str = "tls:subject";

/// Where the key of a request comes from.
///
/// Body members are looked up regardless of the content type: a policy that names a member expects JSON,
/// and a client must not bypass its key by sending a wrong content type.
/// A body that is not JSON (for example, a compressed one) has no members; use `required` to reject such requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// `header:NAME`: sent by the client. The name is in lower case.
    Header(String),
    /// `body:/pointer`: a member of the JSON body.
    Body(Pointer),
    /// `derive`: computed from the request, so that equal requests have equal keys.
    Derive,
    /// `natural:{/customer}-{/cart}`: business identifiers from the JSON body.
    Natural(Template),
}

impl FromStr for Source {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.split_once(':') {
            None if text == "derive" => Ok(Self::Derive),
            Some(("header", name)) => header_name(name).map(Self::Header),
            Some(("body", pointer)) => pointer.parse().map(Self::Body),
            Some(("natural", template)) => template.parse().map(Self::Natural),
            Some(("preset", name)) => name.parse().map(Sender::source),
            _ => Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "invalid key source `{text}`; write header:NAME, body:/pointer, derive, natural:{{/member}}-{{/member}} or preset:NAME"
                ),
            )),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Body(pointer) => write!(f, "body:{pointer}"),
            Self::Derive => f.write_str("derive"),
            Self::Natural(template) => write!(f, "natural:{template}"),
        }
    }
}

/// One part of a scope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScopePart {
    /// `credential`: the caller, as named by the credential.
    Credential,
    /// `header:NAME`: the value of a header. The name is in lower case.
    Header(String),
    /// `jwt:CLAIM`: a verified claim of a bearer token.
    Jwt(String),
    /// `path:NAME`: a named segment of the matched path.
    Path(String),
    /// `tls:subject`: the subject of the client's verified certificate.
    TlsSubject,
    /// `route`: the operation itself.
    Route,
    /// `none`: all callers share one namespace.
    None,
}

/// One part of the credential, which tells callers apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CredentialPart {
    /// `header:NAME`: the value of a header. The name is in lower case.
    Header(String),
    /// `cookie:NAME`: the value of one cookie.
    Cookie(String),
    /// `tls:subject`: the subject of the client's verified certificate.
    TlsSubject,
}

impl CredentialPart {
    /// The headers of the default list, in lower case.
    const DEFAULT: [&str; 3] = ["authorization", "x-api-key", "cookie"];

    /// The sources that an operation names by default.
    pub(crate) fn default_list() -> Vec<Self> {
        let headers = Self::DEFAULT.into_iter();
        headers.map(|name| Self::Header(name.into())).collect()
    }

    /// Whether these are the default sources, in any order.
    pub(crate) fn are_default(parts: &[Self]) -> bool {
        let mut names = Self::DEFAULT.into_iter();
        parts.len() == Self::DEFAULT.len() && names.all(|name| parts.iter().any(|it| *it == *name))
    }
}

/// Compares with the name of a header, in lower case.
impl PartialEq<str> for CredentialPart {
    fn eq(&self, header: &str) -> bool {
        matches!(self, Self::Header(name) if name == header)
    }
}

impl FromStr for ScopePart {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.split_once(':') {
            None if text == "credential" => Ok(Self::Credential),
            None if text == "route" => Ok(Self::Route),
            None if text == "none" => Ok(Self::None),
            Some(("header", name)) => header_name(name).map(Self::Header),
            Some(("jwt", claim)) if !claim.is_empty() => Ok(Self::Jwt(claim.into())),
            Some(("path", name)) if !name.is_empty() => Ok(Self::Path(name.into())),
            Some(("tls", "subject")) => Ok(Self::TlsSubject),
            _ => Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "invalid scope `{text}`; write credential, header:NAME, jwt:CLAIM, path:NAME, tls:subject, route or none"
                ),
            )),
        }
    }
}

impl fmt::Display for ScopePart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Credential => f.write_str("credential"),
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Jwt(claim) => write!(f, "jwt:{claim}"),
            Self::Path(name) => write!(f, "path:{name}"),
            Self::TlsSubject => f.write_str(TLS_SUBJECT),
            Self::Route => f.write_str("route"),
            Self::None => f.write_str("none"),
        }
    }
}

impl FromStr for CredentialPart {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.split_once(':') {
            Some(("header", name)) => header_name(name).map(Self::Header),
            Some(("cookie", name)) if !name.is_empty() => Ok(Self::Cookie(name.into())),
            Some(("tls", "subject")) => Ok(Self::TlsSubject),
            _ => Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "invalid credential part `{text}`; write header:NAME, cookie:NAME or tls:subject"
                ),
            )),
        }
    }
}

impl fmt::Display for CredentialPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Cookie(name) => write!(f, "cookie:{name}"),
            Self::TlsSubject => f.write_str(TLS_SUBJECT),
        }
    }
}

/// A sender of webhooks that is known by name, written `preset:NAME` where a policy takes keys from it.
///
/// ```
/// use refrain::key::{Sender, Source};
/// assert_eq!("preset:github".parse::<Source>()?, Sender::Github.source());
/// # Ok::<(), refrain::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Deserialize, serde::Serialize)]
#[cfg_attr(feature = "policy-file", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Sender {
    /// Stripe: the event id is in the body.
    Stripe,
    /// GitHub: a delivery and its redeliveries have the same id.
    Github,
    /// Shopify: the id names an event; each topic and shop reports it separately.
    Shopify,
    /// Svix, with headers of its own.
    Svix,
    /// Standard Webhooks, the specification that many senders follow.
    StandardWebhooks,
}

impl Sender {
    /// All senders.
    pub const ALL: [Self; 5] = [
        Self::Stripe,
        Self::Github,
        Self::Shopify,
        Self::Svix,
        Self::StandardWebhooks,
    ];

    /// The sender's name, as a policy writes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Stripe => "stripe",
            Self::Github => "github",
            Self::Shopify => "shopify",
            Self::Svix => "svix",
            Self::StandardWebhooks => "standard-webhooks",
        }
    }

    /// The source of the key: the value that stays the same when the sender retries.
    #[must_use]
    pub fn source(self) -> Source {
        let header = |name: &str| Source::Header(name.into());
        match self {
            Self::Stripe => Source::Body(Pointer::member("id")),
            Self::Github => header("x-github-delivery"),
            Self::Shopify => header("x-shopify-event-id"),
            Self::Svix => header("svix-id"),
            Self::StandardWebhooks => header("webhook-id"),
        }
    }

    /// How long after the first attempt the sender may send the event again.
    ///
    /// For a sender that never retries automatically, how long a person can request a redelivery.
    #[must_use]
    pub fn horizon(self) -> Duration {
        const HOUR: Duration = Duration::from_secs(3_600);
        match self {
            // GitHub never retries automatically; a person can request a redelivery for three days.
            Self::Stripe | Self::Github => HOUR * 72,
            Self::Shopify => HOUR * 4,
            // The eighth and last attempt comes 27 hours and 35 minutes after the first.
            Self::Svix => HOUR * 28,
            // The retry schedule that the specification recommends ends after 75 hours and 35 minutes.
            Self::StandardWebhooks => HOUR * 76,
        }
    }
}

impl fmt::Display for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Sender {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|sender| sender.name() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            let message = format!("unknown preset `{text}`; write one of {names}");
            Error::new(ErrorKind::Invalid, message)
        })
    }
}
