//! Where well-known senders put the name of an event.

use std::{fmt, str::FromStr};

use super::Source;
use crate::{Error, ErrorKind, Result, key::Pointer};

/// A sender of events whose way of naming them is known.
///
/// Each stands for the key sources that name one event over all of its retries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Preset {
    /// `stripe`: the event's own `id`, a member of the body.
    Stripe,
    /// `github`: the header `X-GitHub-Delivery`.
    GitHub,
    /// `shopify`: the header `X-Shopify-Webhook-Id`, or `Shopify-Webhook-Id`.
    ///
    /// `X-Shopify-Event-Id` is not taken: webhooks of several subscriptions share it, and all but one would be lost.
    Shopify,
    /// `standard-webhooks`, or `svix`: the header `webhook-id`, or `svix-id`.
    StandardWebhooks,
}

impl Preset {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::Stripe,
        Self::GitHub,
        Self::Shopify,
        Self::StandardWebhooks,
    ];

    /// What it stands for: the first source that is present names the event.
    #[must_use]
    pub fn sources(self) -> Vec<Source> {
        let headers = |names: &[&str]| {
            let header = |name: &&str| Source::Header((*name).into());
            names.iter().map(header).collect()
        };
        match self {
            Self::Stripe => vec![Source::Body(Pointer::member("id"))],
            Self::GitHub => headers(&["x-github-delivery"]),
            Self::Shopify => headers(&["x-shopify-webhook-id", "shopify-webhook-id"]),
            Self::StandardWebhooks => headers(&["webhook-id", "svix-id"]),
        }
    }

    /// The name that a policy gives it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Stripe => "stripe",
            Self::GitHub => "github",
            Self::Shopify => "shopify",
            Self::StandardWebhooks => "standard-webhooks",
        }
    }
}

impl FromStr for Preset {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let is_named = |preset: &Self| preset.name() == text;
        let named = Self::ALL.into_iter().find(is_named);
        let alias = (text == "svix").then_some(Self::StandardWebhooks);
        named.or(alias).ok_or_else(|| {
            let message = format!(
                "`{text}` is no sender whose keys are known; write stripe, github, shopify, svix or standard-webhooks"
            );
            Error::new(ErrorKind::Invalid, message)
        })
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
