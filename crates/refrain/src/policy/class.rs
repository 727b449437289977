//! Presets of other settings: by the class of an operation, and by the sender of the webhooks that it receives.

use std::time::Duration;

use super::{Duplicates, Operation, ReplayTo, units};
use crate::{
    Guarantee,
    fingerprint::Part,
    key::{Pointer, ScopePart, Sender, Syntax},
};

/// Maximum time that a duplicate waits for the request in flight. The least patient sender gives up after 5 s.
const WEBHOOK_WAIT: Duration = Duration::from_secs(3);

/// Class of an operation, which presets other settings.
///
/// A class changes only the settings listed with it.
/// The operation's own settings override its class, and its class overrides `[policy]`,
/// because the class is named on the operation itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Deserialize, serde::Serialize)]
#[cfg_attr(feature = "policy-file", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Changes nothing, such as a search by POST. Not guarded.
    Read,
    /// Creates a resource. At-most-once, because a second execution creates a second resource.
    Create,
    /// Moves money. Requires a key; at-most-once; retention 30d, remember 365d, because disputes and late retries
    /// come weeks later; audited.
    Monetary,
    /// Moves a resource to its next state, such as capture or cancel. At-most-once, because a second execution may
    /// find another state.
    Transition,
    /// Replaces a whole resource. At-least-once, because writing the same again changes nothing.
    Replace,
    /// Deletes a resource. At-least-once, because deleting it again changes nothing.
    Delete,
    /// Receives a webhook or message. At-least-once, because the sender retries until it is accepted; retention 7d,
    /// remember 30d, longer than senders retry. Duplicates of completed events get a success, even without an outcome.
    Event,
}

impl Class {
    /// Applies the presets of this class to the operation.
    pub(super) fn apply(self, operation: &mut Operation) {
        operation.class = Some(self);
        operation.guarded = self != Self::Read;
        let terms = &mut operation.terms;
        match self {
            Self::Read => {}
            Self::Create | Self::Transition => terms.guarantee = Guarantee::AtMostOnce,
            Self::Replace | Self::Delete => terms.guarantee = Guarantee::AtLeastOnce,
            Self::Monetary => {
                terms.guarantee = Guarantee::AtMostOnce;
                terms.retention = units::days(30);
                terms.remember = units::days(365);
                operation.required = true;
                operation.audit = true;
            }
            Self::Event => {
                terms.guarantee = Guarantee::AtLeastOnce;
                terms.retention = units::days(7);
                terms.remember = units::days(30);
                operation.duplicates = Duplicates::Acknowledge;
            }
        }
    }
}

/// Applies the presets for this sender's webhooks.
pub(super) fn apply_webhook(sender: Sender, operation: &mut Operation) {
    Class::Event.apply(operation);
    operation.webhook = Some(sender);
    operation.key = vec![sender.source()];
    operation.syntax = Syntax::Raw;
    operation.required = true;
    operation.scope = scope(sender);
    // Senders present no credential; the signature authenticates them.
    operation.replay_to = ReplayTo::SameScope;
    operation.fingerprint = fingerprint(sender);
    operation.terms.wait = WEBHOOK_WAIT;
}

/// Keys are scoped to the route, because a sender's IDs are unique among its own.
fn scope(sender: Sender) -> Vec<ScopePart> {
    let header = |name: &str| ScopePart::Header(name.into());
    match sender {
        // Shopify sends one event under several topics, and each must be handled.
        Sender::Shopify => vec![
            ScopePart::Route,
            header("x-shopify-shop-domain"),
            header("x-shopify-topic"),
        ],
        _ => vec![ScopePart::Route],
    }
}

/// Parts that a retry repeats unchanged. Signatures and times change, but are in headers.
fn fingerprint(sender: Sender) -> Vec<Part> {
    let member = |name| Part::Member(Pointer::member(name));
    match sender {
        // The body of a Stripe event counts the endpoints that have not accepted it yet.
        Sender::Stripe => vec![
            Part::Method,
            Part::Path,
            Part::Query,
            member("type"),
            member("created"),
            Part::Host,
        ],
        _ => Part::DEFAULT.to_vec(),
    }
}
