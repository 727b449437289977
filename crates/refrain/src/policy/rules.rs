//! Rules that every resolved operation must satisfy, from a file or from Rust.

use std::{ops::RangeInclusive, time::Duration};

use super::{
    OnStoreFailure, Operation, Probe, Reply, Statuses, Terms,
    probe::{KEY_PLACE, RECORD_PLACE},
    signature::{SECRETS_MAX, is_timed},
    terms::WAITING_MAX,
    units::{Size, Span, days},
};
use crate::{
    fingerprint::Part,
    key::{ScopePart, Source, TLS_SUBJECT},
};

/// A violated rule.
#[derive(Debug)]
pub(super) struct RuleFault {
    /// The settings involved, the most likely cause first.
    pub(super) settings: &'static [&'static str],
    /// Error message.
    pub(super) message: String,
    /// Suggested fix.
    pub(super) help: String,
}

const YEARS_10: Duration = days(3653);
/// Each request in flight holds its body in memory while it is read and stored.
const BYTES_MAX: usize = 64 << 20;
/// Maximum length of an operation's lists.
const LIST_MAX: usize = 64;
/// Headers that are never replayed: they belong to the caller, the time or the connection, not to the outcome.
const NEVER_REPLAYED: [&str; 23] = [
    "set-cookie",
    "set-cookie2",
    "www-authenticate",
    "proxy-authenticate",
    "proxy-authorization",
    "authentication-info",
    "proxy-authentication-info",
    "date",
    "age",
    "connection",
    "proxy-connection",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "content-length",
    "cache-control",
    "retry-after",
    "traceparent",
    "tracestate",
    "idempotent-replayed",
    "b3",
];
const NEVER_REPLAYED_FAMILIES: [&str; 5] = [
    "ratelimit",
    "x-ratelimit",
    "x-rate-limit",
    "x-b3-",
    "refrain-",
];

/// Returns all violated rules.
pub(super) fn faults(operation: &Operation) -> Vec<RuleFault> {
    let mut faults = Vec::new();
    faults.extend(terms(&operation.terms));
    sizes(operation, &mut faults);
    lists(operation, &mut faults);
    key_and_scope(operation, &mut faults);
    statuses(operation, &mut faults);
    headers(operation, &mut faults);
    probe(operation, &mut faults);
    replay_probe(operation, &mut faults);
    streamed(operation, &mut faults);
    receipts(operation, &mut faults);
    signature(operation, &mut faults);
    faults
}

fn fault(
    settings: &'static [&'static str],
    message: impl Into<String>,
    help: impl Into<String>,
) -> RuleFault {
    let (message, help) = (message.into(), help.into());
    RuleFault {
        settings,
        message,
        help,
    }
}

/// Returns the violated rules of these terms.
pub(super) fn terms(terms: &Terms) -> Vec<RuleFault> {
    let mut faults = Vec::new();
    let second = Duration::from_secs(1);
    let spans: [(&'static [&'static str], Duration, RangeInclusive<Duration>); 6] = [
        (&["wait"], terms.wait, Duration::ZERO..=second * 300),
        (&["lease"], terms.lease, second..=second * 3600),
        (&["retention"], terms.retention, second..=YEARS_10),
        (&["remember"], terms.remember, Duration::ZERO..=YEARS_10),
        (
            &["timeout"],
            terms.timeout,
            Duration::from_millis(10)..=days(1),
        ),
        (
            &["settle_after"],
            terms.settle_after,
            Duration::ZERO..=days(30),
        ),
    ];
    for (setting, value, range) in spans {
        if !range.contains(&value) {
            let (low, high) = (Span(*range.start()), Span(*range.end()));
            let message = format!("`{}` is {}, out of range", setting[0], Span(value));
            faults.push(fault(
                setting,
                message,
                format!("write a duration from {low} to {high}"),
            ));
        }
    }
    if terms.settle_after < terms.timeout {
        let (settle, timeout) = (Span(terms.settle_after), Span(terms.timeout));
        let message = format!(
            "`settle_after` ({settle}) is shorter than `timeout` ({timeout}): an attempt could still take effect after it was resolved as never happened"
        );
        let help = format!("write at least {timeout}, or leave `settle_after` out");
        faults.push(fault(&["settle_after", "timeout"], message, help));
    }
    if !(1..=WAITING_MAX).contains(&terms.waiting_max) {
        let message = format!("`waiting_max` is {}, out of range", terms.waiting_max);
        let help = format!("write a number from 1 to {WAITING_MAX}");
        faults.push(fault(&["waiting_max"], message, help));
    }
    if !(1..=1000).contains(&terms.attempts_max) {
        let message = format!("`attempts_max` is {}, out of range", terms.attempts_max);
        faults.push(fault(
            &["attempts_max"],
            message,
            "write a number from 1 to 1000",
        ));
    }
    faults
}

fn sizes(operation: &Operation, faults: &mut Vec<RuleFault>) {
    let sizes: [(&'static [&'static str], usize); 2] = [
        (&["request_bytes_max"], operation.request_bytes_max),
        (&["outcome_bytes_max"], operation.outcome_bytes_max),
    ];
    for (setting, bytes) in sizes {
        if bytes > BYTES_MAX {
            let message = format!(
                "`{}` is {}: bodies are held in memory while they are checked and stored",
                setting[0],
                Size(bytes)
            );
            faults.push(fault(
                setting,
                message,
                format!("write at most {}", Size(BYTES_MAX)),
            ));
        }
    }
}

fn lists(operation: &Operation, faults: &mut Vec<RuleFault>) {
    let lists: [(&'static [&'static str], usize, &str); 7] = [
        (
            &["key"],
            operation.key.len(),
            "name a source, such as \"header:Idempotency-Key\"",
        ),
        (
            &["scope"],
            operation.scope.len(),
            "write \"none\" if all callers share one namespace",
        ),
        (
            &["credential"],
            operation.credential.len(),
            "write replay_to = \"same-scope\" if the scope alone decides",
        ),
        (
            &["fingerprint"],
            // The host alone does not distinguish requests.
            operation
                .fingerprint
                .iter()
                .filter(|it| **it != Part::Host)
                .count(),
            "name the parts that a retry must repeat, such as \"body\"",
        ),
        (&["keep"], operation.keep.len(), ""),
        (&["release"], operation.release.len(), ""),
        (&["replay_headers"], operation.replay_headers.len(), ""),
    ];
    for (setting, len, help) in lists {
        if len == 0 && !help.is_empty() {
            faults.push(fault(setting, format!("`{}` is empty", setting[0]), help));
        }
        if len > LIST_MAX {
            let message = format!("`{}` has {len} members", setting[0]);
            faults.push(fault(setting, message, format!("write at most {LIST_MAX}")));
        }
    }
}

fn key_and_scope(operation: &Operation, faults: &mut Vec<RuleFault>) {
    let derive_at = operation
        .key
        .iter()
        .position(|source| *source == Source::Derive);
    if derive_at.is_some_and(|at| at + 1 < operation.key.len()) {
        let message = "`derive` always finds a key: sources after it are never used";
        faults.push(fault(&["key"], message, "move \"derive\" to the end"));
    }
    if operation.scope.len() > 1 && operation.scope.contains(&ScopePart::None) {
        let message = "`none` cannot be combined with other parts of the scope";
        faults.push(fault(
            &["scope"],
            message,
            "remove \"none\", or all other parts",
        ));
    }
    for part in &operation.scope {
        match part {
            ScopePart::Path(name) if !operation.pattern.names().any(|other| other == name) => {
                let pattern = &operation.pattern;
                faults.push(fault(
                    &["scope"],
                    format!("`{part}` names a segment that `{pattern}` does not have"),
                    format!(
                        "write {{{name}}} in the operation's `match`, and `scope` in that operation"
                    ),
                ));
            }
            _ => {}
        }
    }
}

/// The violated rule of an operation that depends on certificates of clients, where clients may have none.
pub(super) fn certificates(operation: &Operation) -> Option<RuleFault> {
    if !operation.needs_client_certificate() {
        return None;
    }
    let settings: &'static [&'static str] = match operation.scope.contains(&ScopePart::TlsSubject) {
        true => &["scope"],
        false => &["credential"],
    };
    let message = format!("`{TLS_SUBJECT}` needs a verified certificate of every client");
    let help = "write client_ca = \"FILE\" in [tls], and do not set client_auth = \"optional\"";
    Some(fault(settings, message, help))
}

fn statuses(operation: &Operation, faults: &mut Vec<RuleFault>) {
    let clash = operation.keep.iter().find_map(|kept| {
        let common = |released: &Statuses| kept.common(*released);
        operation.release.iter().find_map(common)
    });
    if let Some(status) = clash {
        let message = format!("status {status} is in `keep` and in `release`");
        let help = "keep it in one of them; write a range of statuses like \"500-502\"";
        faults.push(fault(&["release", "keep"], message, help));
    }
}

fn headers(operation: &Operation, faults: &mut Vec<RuleFault>) {
    for written in &operation.replay_headers {
        let name = written.to_ascii_lowercase();
        if name != *written {
            let message = format!("header `{written}` is not in lower case");
            faults.push(fault(
                &["replay_headers"],
                message,
                format!("write `{name}`"),
            ));
        }
        let in_family = NEVER_REPLAYED_FAMILIES
            .iter()
            .any(|family| name.starts_with(family));
        if in_family || NEVER_REPLAYED.contains(&name.as_str()) {
            let message = format!(
                "header `{name}` is never replayed: it belongs to one caller, moment or connection, not to the outcome"
            );
            faults.push(fault(&["replay_headers"], message, "remove it"));
        }
    }
}

fn probe(operation: &Operation, faults: &mut Vec<RuleFault>) {
    let Some(probe) = &operation.probe else {
        if operation.probe_authorization.is_some() {
            let message = "`probe_authorization` has no effect without a `probe`";
            faults.push(fault(
                &["probe_authorization"],
                message,
                "add a probe, or remove it",
            ));
        }
        return;
    };
    if probe.places().next().is_none() {
        let message = format!("invalid probe `{probe}`: it is the same for every record");
        let help = "write {key} where the key goes, or {record}";
        faults.push(fault(&["probe"], message, help));
    }
    faults.extend(unknown_place(&["probe"], probe, operation));
}

fn replay_probe(operation: &Operation, faults: &mut Vec<RuleFault>) {
    let Some(probe) = &operation.replay_probe else {
        return;
    };
    faults.extend(unknown_place(&["replay_probe"], probe, operation));
    if operation.lookup {
        let message = "`lookup` tells the state of a key without asking the upstream, which `replay_probe` demands";
        let help = "remove one of the two";
        faults.push(fault(&["lookup", "replay_probe"], message, help));
    }
}

fn unknown_place(
    settings: &'static [&'static str],
    probe: &Probe,
    operation: &Operation,
) -> Option<RuleFault> {
    let is_known = |place: &&str| {
        [KEY_PLACE, RECORD_PLACE].contains(place)
            || operation.pattern.names().any(|name| name == *place)
    };
    let place = probe.places().find(|place| !is_known(place))?;
    let pattern = &operation.pattern;
    let message = format!(
        "the probe's {{{place}}} is neither the key, nor the record, nor a segment of `{pattern}`"
    );
    let help = "write {key}, {record}, or a name that `match` has";
    Some(fault(settings, message, help))
}

/// Each lease renewal of a streamed response extends its deadline by `settle_after`.
fn streamed(operation: &Operation, faults: &mut Vec<RuleFault>) {
    let terms = &operation.terms;
    if operation.reply == Reply::Streamed && terms.settle_after < terms.lease {
        let (settle, lease) = (Span(terms.settle_after), Span(terms.lease));
        let message = format!(
            "`settle_after` ({settle}) is shorter than `lease` ({lease}): a streamed response would be cut off before its lease is renewed"
        );
        let help = format!("write at least {lease}, or leave `settle_after` out");
        faults.push(fault(&["settle_after", "lease"], message, help));
    }
}

/// Exactly-once depends on receipts, so settings that could execute or respond without one are rejected.
fn receipts(operation: &Operation, faults: &mut Vec<RuleFault>) {
    if !operation.is_receipted() {
        return;
    }
    if operation.receipts.is_none() {
        let message = "exactly-once needs `receipts`: the database in which the operation commits its effect and its receipt together";
        let help = "add receipts = \"postgres://HOST/DATABASE\", or write \"at-most-once\"";
        faults.push(fault(&["guarantee"], message, help));
    }
    if operation.reply == Reply::Streamed {
        let message = "a streamed response is sent before its receipt can be read";
        let help = "write reply = \"stored\", or another guarantee than \"exactly-once\"";
        faults.push(fault(&["reply", "guarantee"], message, help));
    }
    if operation.on_store_failure == OnStoreFailure::Pass {
        let message =
            "a request that runs without the store has no receipt, and is not exactly-once";
        let help = "write on_store_failure = \"refuse\", or another guarantee";
        faults.push(fault(&["on_store_failure", "guarantee"], message, help));
    }
}

/// Adds the violated rules of an operation's signature.
fn signature(operation: &Operation, faults: &mut Vec<RuleFault>) {
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
    if is_timed(signature.sender()) && !(least..=most).contains(&tolerance) {
        let message = format!("`tolerance` is {}, out of range", Span(tolerance));
        let help = format!("write a duration from {} to {}", Span(least), Span(most));
        faults.push(fault(&["signature"], message, help));
    }
}
