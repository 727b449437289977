//! Known webhook senders: where their keys are, and how long they retry.

use std::{fmt, str::FromStr, time::Duration};

use super::{Pointer, Source};
use crate::{Error, ErrorKind, Result};

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
