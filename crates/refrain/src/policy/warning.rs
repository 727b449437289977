//! Warnings about valid but probably unintended settings.

use std::time::Duration;

use serde::Serialize;

use super::{Operation, Terms, units::Span};
#[cfg(feature = "policy-file")]
use super::{Policy, WorkerSettings, schemes::Backend};
#[cfg(feature = "policy-file")]
use crate::jwt::{JwtKeys, JwtSettings};
use crate::key::{CredentialPart, ScopePart, Sender, Source};

/// Warning about a valid but probably unintended setting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Warning {
    /// The operation or worker.
    pub name: String,
    /// The problem and its consequence.
    pub message: String,
    /// Suggested fix.
    pub help: String,
}

/// A source of late redeliveries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redelivery {
    /// Name of the sender or broker, for messages.
    pub who: String,
    /// Maximum time after the first delivery at which it may redeliver.
    pub horizon: Duration,
}

impl Redelivery {
    /// Returns a warning if the retention is shorter than the redelivery horizon.
    #[must_use]
    pub fn check(&self, name: &str, terms: &Terms) -> Option<Warning> {
        let Self { who, horizon } = self;
        let (retention, remember) = (terms.retention, terms.remember);
        if retention >= *horizon {
            return None;
        }
        let (kept, wanted) = (Span(retention), Span(*horizon));
        let consequence = match retention.saturating_add(remember) < *horizon {
            true => "a late redelivery is executed again",
            false => "a late redelivery is refused, or acknowledged without its outcome",
        };
        Some(Warning {
            name: name.into(),
            message: format!(
                "retention ({kept}) ends before {who} stops redelivering ({wanted}): {consequence}"
            ),
            help: format!("write retention = \"{wanted}\" or longer"),
        })
    }
}

/// Returns the warnings about this operation.
pub(super) fn warnings(operation: &Operation) -> Vec<Warning> {
    if !operation.guarded {
        return Vec::new();
    }
    let late = redelivery(operation).and_then(|it| it.check(&operation.name, &operation.terms));
    late.into_iter()
        .chain(unsigned(operation))
        .chain(unaudited(operation))
        .chain(changing_cookies(operation))
        .collect()
}

/// Returns the redelivery horizon of the sender, known by `webhook` or by its key header.
fn redelivery(operation: &Operation) -> Option<Redelivery> {
    let is_told = |sender: &Sender| match sender.source() {
        Source::Header(name) => operation.key.contains(&Source::Header(name)),
        _ => false,
    };
    let sender = operation.webhook.or_else(|| {
        let mut senders = Sender::ALL.into_iter();
        senders.find(is_told)
    })?;
    Some(Redelivery {
        who: sender.to_string(),
        horizon: sender.horizon(),
    })
}

/// Returns the warnings about this worker.
#[cfg(feature = "policy-file")]
pub(super) fn of_worker(worker: &WorkerSettings) -> Vec<Warning> {
    let warning = |message: &str, help: &str| Warning {
        name: worker.name.clone(),
        message: message.into(),
        help: help.into(),
    };
    let mut warnings = Vec::new();
    if worker.dead_letter.is_none() {
        let message = "it has no `dead_letter`: \
                       a message that cannot be handled stays in the queue and is retried forever";
        warnings.push(warning(message, "add dead_letter = \"QUEUE\""));
    }
    // A broker that reports its redelivery horizon is asked when the worker starts.
    let broker = Backend::named(worker.source.scheme()).and_then(|it| it.broker);
    let is_silent = broker.is_some_and(|it| !it.reports_age);
    if is_silent && worker.redelivery.is_none() {
        let message = "its broker does not report how late it may redeliver: \
                       a message redelivered after its key is forgotten is handled again";
        let help = "set the maximum redelivery time, such as redelivery = \"7d\"";
        warnings.push(warning(message, help));
    }
    warnings
}

/// Returns the warnings about the tokens that are valid.
#[cfg(feature = "policy-file")]
pub(super) fn of_tokens(jwt: &JwtSettings, policy: &Policy) -> Vec<Warning> {
    let warning = |message: &str, help: &str| Warning {
        name: "[jwt]".into(),
        message: message.into(),
        help: help.into(),
    };
    let mut warnings = Vec::new();
    if !policy.operations().any(Operation::needs_token) {
        let message = "no operation has a scope with `jwt:`, so no token is verified";
        warnings.push(warning(
            message,
            "write scope = \"jwt:sub\" where callers have tokens, or remove [jwt]",
        ));
    }
    if jwt.issuers.is_empty() {
        let message = "tokens of every issuer are valid whose keys are known";
        warnings.push(warning(
            message,
            "write issuer = \"…\" as in the claim `iss` of your tokens",
        ));
    }
    let is_local = |url: &str| {
        ["127.0.0.1", "localhost", "[::1]"]
            .iter()
            .any(|host| url[7..].starts_with(host))
    };
    if let JwtKeys::Url(url) = &jwt.keys
        && url.starts_with("http://")
        && !is_local(url)
    {
        let message = "the keys are fetched without TLS: an attacker on the network can replace them and forge every token";
        warnings.push(warning(message, "write an https:// URL in `jwks_url`"));
    }
    warnings
}

/// The whole header `Cookie` in the scope: its cookies may differ between two attempts of one request.
fn changing_cookies(operation: &Operation) -> Option<Warning> {
    let is_whole = operation.credential.iter().any(|part| *part == *"cookie");
    let is_separating = is_whole && !CredentialPart::are_default(&operation.credential);
    (is_separating && operation.scope.contains(&ScopePart::Credential)).then(|| Warning {
        name: operation.name.clone(),
        message: "the whole header Cookie separates the keys of callers: \
                  a retry with another cookie is executed again"
            .into(),
        help: "name the cookie that identifies the caller, such as \"cookie:session\"".into(),
    })
}

fn unaudited(operation: &Operation) -> Option<Warning> {
    operation.is_unaudited_money().then(|| Warning {
        name: operation.name.clone(),
        message: "it moves money, but its attempts are not audited".into(),
        help: "remove audit = false, or write audit = true".into(),
    })
}

fn unsigned(operation: &Operation) -> Option<Warning> {
    let sender = operation
        .webhook
        .filter(|_| operation.signature.is_none())?;
    Some(Warning {
        name: operation.name.clone(),
        message: format!(
            "{sender} webhooks are accepted without a signature: \
             any client can forge an event, and the real event with the same ID is then a duplicate"
        ),
        help: "add signature = { secret_env = \"NAME\" }".into(),
    })
}
