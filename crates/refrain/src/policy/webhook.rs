//! `webhook = "stripe"`: presets for webhook senders, and rules for signatures.

use std::time::Duration;

use super::{
    Class, Operation, ReplayTo,
    rules::{RuleFault, fault},
    signature::{self, SECRETS_MAX},
    units::{Span, days},
};
use crate::{
    fingerprint::Part,
    key::{Pointer, ScopePart, Sender, Syntax},
};

/// Maximum time that a duplicate waits for the request in flight. The least patient sender gives up after 5 s.
const WAIT: Duration = Duration::from_secs(3);

/// Applies the presets for this sender's webhooks.
pub(super) fn apply(sender: Sender, operation: &mut Operation) {
    Class::Event.apply(operation);
    operation.webhook = Some(sender);
    operation.key = vec![sender.source()];
    operation.syntax = Syntax::Raw;
    operation.required = true;
    operation.scope = scope(sender);
    // Senders present no credential; the signature authenticates them.
    operation.replay_to = ReplayTo::SameScope;
    operation.fingerprint = fingerprint(sender);
    operation.terms.wait = WAIT;
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

/// Adds the violated rules of an operation's signature.
pub(super) fn faults(operation: &Operation, faults: &mut Vec<RuleFault>) {
    let Some(signature) = &operation.signature else {
        return;
    };
    if !operation.guarded {
        let message =
            "`signature` has no effect on an unguarded operation: it would not be verified";
        faults.push(fault(&["signature"], message, "choose another class"));
    }
    let secrets = signature.secrets().len();
    if !(1..=SECRETS_MAX).contains(&secrets) {
        let message = format!("`signature` has {secrets} secrets");
        let help = format!("write secret_env or secret_file, with 1 to {SECRETS_MAX} names");
        faults.push(fault(&["signature"], message, help));
    }
    let (least, most) = (Duration::from_secs(1), days(1));
    let tolerance = signature.tolerance();
    if signature::is_timed(signature.sender()) && !(least..=most).contains(&tolerance) {
        let message = format!("`tolerance` is {}, out of range", Span(tolerance));
        let help = format!("write a duration from {} to {}", Span(least), Span(most));
        faults.push(fault(&["signature"], message, help));
    }
}
