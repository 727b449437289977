//! Resolves `[[worker]]`: a queue, and the service that its messages are delivered to.

use std::{ops::Range, time::Duration};

use serde::{Serialize, Serializer};

use super::{
    draft::Apply,
    given::{Given, check_address},
    problem::Report,
    proxy::{count, time},
    table::Part,
    typed,
};
use crate::{
    Guarantee,
    consume::{Gap, KeySource, Sequence, Source},
    policy::{
        Address, Authorization, Terms, rules,
        schemes::{Backend, broker_schemes, broker_usage},
        suggest,
        units::{self, Span},
    },
};

/// Maximum number of workers in one file.
pub(super) const WORKERS_MAX: usize = 256;

/// Settings of a worker, which delivers the messages of a queue to a service; from `[[worker]]`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct WorkerSettings {
    /// Consumer name: the scope of its keys, and its name at the broker.
    pub name: String,
    /// Address of the broker.
    pub source: Address,
    /// Stream, queue or topic to consume.
    pub queue: String,
    /// URL that each message is delivered to, by POST.
    pub deliver: Address,
    /// Credentials that are sent to the target with each message.
    pub authorization: Option<Authorization>,
    /// Sources of a message's key, tried in order; the first one present is used.
    #[serde(serialize_with = "as_texts")]
    pub key: Vec<KeySource>,
    /// Send a message with a known key but another payload to the dead letters.
    pub compare: bool,
    /// Write every attempt and its result to the audit log.
    pub audit: bool,
    /// Allow at-most-once claims in a store that may lose acknowledged writes.
    pub accept_lossy_claims: bool,
    /// Maximum number of attempts before a message goes to the dead letters.
    pub attempts: u16,
    /// Dead-letter queue.
    pub dead_letter: Option<String>,
    /// Maximum number of messages handled at a time.
    pub concurrency: usize,
    /// Pause after the first failure; it doubles after each further one.
    #[serde(serialize_with = "as_span")]
    pub backoff: Duration,
    /// Maximum pause between attempts.
    #[serde(serialize_with = "as_span")]
    pub backoff_max: Duration,
    /// Time without acknowledgement or progress report after which the broker redelivers.
    #[serde(serialize_with = "as_span")]
    pub ack_wait: Duration,
    /// Maximum time after which a message may be redelivered, if the broker does not report it.
    #[serde(serialize_with = "as_spans")]
    pub redelivery: Option<Duration>,
    /// Order check: events of one aggregate are accepted once and in order.
    #[serde(serialize_with = "as_text")]
    pub sequence: Option<Sequence>,
    /// Database with the receipts, under exactly-once.
    pub receipts: Option<Address>,
    /// Guarantee, lease, retention and other terms.
    pub terms: Terms,
}

impl WorkerSettings {
    /// Whether a store that may lose acknowledged claims breaks the guarantee of this worker.
    #[must_use]
    pub fn needs_every_claim(&self) -> bool {
        self.terms.guarantee == Guarantee::AtMostOnce && !self.accept_lossy_claims
    }

    /// Returns the source of its messages.
    #[must_use]
    pub fn source(&self) -> Source {
        let mut source = Source::new(self.source.as_str(), &self.queue, &self.name);
        source.ack_wait = self.ack_wait;
        source
    }

    /// Maximum time after which a message may be redelivered, as far as the file determines it:
    /// the longer of `redelivery` and all attempts at the longest pause.
    #[must_use]
    pub fn redelivery_path(&self) -> Duration {
        let tried = (self.ack_wait + self.backoff_max) * u32::from(self.attempts);
        self.redelivery.unwrap_or_default().max(tried)
    }
}

pub(super) fn resolve(
    part: &Part<typed::Worker>,
    at: Range<usize>,
    authorization: Option<Authorization>,
    report: &mut Report<'_>,
) -> Option<WorkerSettings> {
    let values = &part.values;
    let place = |name: &str| part.places.get(name).cloned().unwrap_or(at.clone());
    let source = Given {
        name: "source",
        text: &values.source,
        env: &values.source_env,
        file: &values.source_file,
    };
    let source_at = source.place(&part.places).unwrap_or(at.clone());
    let source = source.read(&part.places, report);
    let mut needed = |name: &str, place: Range<usize>, text: Option<String>, example: &str| {
        let text = text.filter(|text| !text.trim().is_empty());
        if text.is_none() && !report.has(&place) {
            let message = format!("this worker has no `{name}`");
            report.push(place, message, format!("add {name} = \"{example}\""));
        }
        text
    };
    let source = needed("source", source_at.clone(), source, "nats://127.0.0.1:4222");
    let mut plain = |name: &str, text: &Option<String>, example: &str| {
        needed(name, place(name), text.clone(), example)
    };
    let queue = plain("queue", &values.queue, "ORDERS");
    let deliver = plain("deliver", &values.deliver, "http://127.0.0.1:3000/events");
    let name = plain("name", &values.name, "billing");
    let (source, queue, deliver, name) = (source?, queue?, deliver?, name?);
    check_deliver(&deliver, place("deliver"), report);
    check_name(&name, place("name"), report);
    let source = broker("source", source, source_at, report);
    let mut it = WorkerSettings {
        name,
        source,
        queue,
        deliver: Address::new(deliver),
        authorization,
        key: KeySource::DEFAULT.to_vec(),
        compare: values.compare.unwrap_or(true),
        audit: false,
        accept_lossy_claims: values.accept_lossy_claims.unwrap_or(false),
        attempts: 10,
        dead_letter: values.dead_letter.clone(),
        concurrency: 16,
        backoff: Duration::from_secs(1),
        backoff_max: Duration::from_mins(5),
        ack_wait: Source::ACK_WAIT,
        redelivery: None,
        sequence: None,
        receipts: None,
        terms: Terms {
            guarantee: Guarantee::AtLeastOnce,
            retention: units::days(7),
            remember: units::days(30),
            ..Terms::default()
        },
    };
    apply(&mut it, part, report);
    it.sequence = sequence(part, &place, report);
    check(&it, &place, report);
    Some(it)
}

fn apply(it: &mut WorkerSettings, part: &Part<typed::Worker>, report: &mut Report<'_>) {
    let values = &part.values;
    let mut apply = Apply {
        places: &part.places,
        report,
    };
    let words = [
        "id",
        "cloudevents",
        "position",
        "header",
        "body",
        "natural",
        "preset",
    ];
    apply.list("key", &values.key, &words, &mut it.key);
    apply.choice("guarantee", &values.guarantee, &mut it.terms.guarantee);
    let receipts = Given {
        name: "receipts",
        text: &values.receipts,
        env: &values.receipts_env,
        file: &values.receipts_file,
    };
    apply.receipts(&receipts, &mut it.receipts);
    it.audit = apply
        .audit(&values.audit)
        .is_some_and(|audit| audit.is_on());
    let within = |first, last| move |text: &str| count(text, first, last);
    apply.scalar(
        "concurrency",
        &values.concurrency,
        within(1, 10_000),
        &mut it.concurrency,
    );
    let mut attempts = usize::from(it.attempts);
    apply.scalar(
        "attempts",
        &values.attempts,
        within(1, 1_000),
        &mut attempts,
    );
    // The range was checked above.
    it.attempts = u16::try_from(attempts).unwrap_or(u16::MAX);
    it.terms.attempts_max = it.attempts;
    let times = [
        ("backoff", &values.backoff, &mut it.backoff),
        ("backoff_max", &values.backoff_max, &mut it.backoff_max),
        ("ack_wait", &values.ack_wait, &mut it.ack_wait),
        ("timeout", &values.timeout, &mut it.terms.timeout),
        ("lease", &values.lease, &mut it.terms.lease),
    ];
    for (name, text, field) in times {
        apply.scalar(name, text, time, field);
    }
    let spans = [
        ("retention", &values.retention, &mut it.terms.retention),
        ("remember", &values.remember, &mut it.terms.remember),
    ];
    for (name, text, field) in spans {
        apply.scalar(name, text, units::duration, field);
    }
    apply.scalar(
        "redelivery",
        &values.redelivery,
        |text| units::duration(text).map(Some),
        &mut it.redelivery,
    );
    it.terms.settle_after = it.terms.timeout + it.terms.lease;
    // A message whose claim is held elsewhere for longer is returned to the broker instead.
    it.terms.wait = Duration::from_secs(1);
}

fn sequence(
    part: &Part<typed::Worker>,
    place: &impl Fn(&str) -> Range<usize>,
    report: &mut Report<'_>,
) -> Option<Sequence> {
    let values = &part.values;
    let mut gap = Gap::default();
    let mut apply = Apply {
        places: &part.places,
        report,
    };
    apply.choice("on_gap", &values.on_gap, &mut gap);
    let (aggregate, number) = match (&values.aggregate, &values.sequence) {
        (Some(aggregate), Some(number)) => (aggregate, number),
        (None, None) => {
            if values.on_gap.is_some() {
                let message = "`on_gap` has no effect without `aggregate` and `sequence`";
                report.push(place("on_gap"), message, "add both, or remove `on_gap`");
            }
            return None;
        }
        (Some(_), None) => {
            let message = "`aggregate` needs `sequence`, the field with the event's number";
            let help = "add sequence = \"body:/version\", or remove `aggregate`";
            report.push(place("aggregate"), message, help);
            return None;
        }
        (None, Some(_)) => {
            let message = "`sequence` needs `aggregate`, the field that identifies the aggregate";
            let help = "add aggregate = \"body:/order\", or remove `sequence`";
            report.push(place("sequence"), message, help);
            return None;
        }
    };
    // Check each field alone, to know which one to report.
    let blamed = match Sequence::new(aggregate, "body:/number") {
        Ok(_) => "sequence",
        Err(_) => "aggregate",
    };
    match Sequence::new(aggregate, number) {
        Ok(sequence) => Some(sequence.with_gap(gap)),
        Err(error) => {
            report.push_error(place(blamed), &error);
            None
        }
    }
}

/// Checks rules that involve several settings.
fn check(it: &WorkerSettings, place: &impl Fn(&str) -> Range<usize>, report: &mut Report<'_>) {
    for fault in rules::terms(&it.terms) {
        let setting = fault.settings.first().copied().unwrap_or_default();
        if !report.has(&place(setting)) {
            report.push(place(setting), fault.message, fault.help);
        }
    }
    if it.backoff > it.backoff_max {
        let message = format!(
            "`backoff` ({}) is longer than `backoff_max` ({})",
            Span(it.backoff),
            Span(it.backoff_max)
        );
        report.push(place("backoff"), message, "swap them, or leave one out");
    }
    if it.terms.guarantee == Guarantee::ExactlyOnce && it.receipts.is_none() {
        let message = "exactly-once needs `receipts`: the database in which the target commits its effect and its receipt together";
        let help = "add receipts = \"postgres://HOST/DATABASE\", or write \"at-least-once\"";
        report.push(place("guarantee"), message, help);
    }
    let (known, path) = (it.terms.retention + it.terms.remember, it.redelivery_path());
    if known < path {
        let message = format!(
            "a message may be redelivered after {}, but its key is kept for only {} \
             (retention plus remember): it would be handled again",
            Span(path),
            Span(known)
        );
        let help = format!("make retention plus remember at least {}", Span(path));
        report.push(place("retention"), message, help);
    }
    if it.dead_letter.as_deref() == Some(it.queue.as_str()) {
        let message =
            "`dead_letter` is the queue itself: a failed message would return to it forever";
        report.push(place("dead_letter"), message, "name another queue");
    }
}

/// Checks the address of a broker. An invalid one is not quoted, because it may contain a password.
pub(super) fn broker(
    setting: &str,
    text: String,
    at: Range<usize>,
    report: &mut Report<'_>,
) -> Address {
    if Backend::of_broker(&text).is_some() {
        return check_address(Address::new(text), at, report);
    }
    let scheme = text.split_once("://").map_or(&*text, |(scheme, _)| scheme);
    let help = match suggest::nearest(scheme, broker_schemes()) {
        Some(meant) if broker_schemes().all(|it| it != scheme) => {
            format!("did you mean `{meant}://`?")
        }
        _ => format!("write {} and the host", broker_usage()),
    };
    report.push(at, format!("invalid broker address in `{setting}`"), help);
    Address::new(text)
}

fn check_deliver(url: &str, at: Range<usize>, report: &mut Report<'_>) {
    let rest = url
        .strip_prefix("http://")
        .or_else(|| url.strip_prefix("https://"));
    let host = rest.and_then(|rest| rest.split(['/', '?']).next());
    let is_plain = url.bytes().all(|byte| byte.is_ascii_graphic()) && !url.contains('#');
    if is_plain && host.is_some_and(|host| !host.is_empty() && !host.contains('@')) {
        return;
    }
    let help = "write the whole URL, such as \"http://127.0.0.1:3000/events\"; \
                put credentials into `authorization`";
    report.push(at, "invalid URL in `deliver`", help);
}

/// Checks a consumer name: brokers accept few characters.
fn check_name(name: &str, at: Range<usize>, report: &mut Report<'_>) {
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    if name.len() > 64 || !name.bytes().all(is_fit) {
        let message = format!("invalid worker name `{name}`");
        let help = "write at most 64 letters, digits, - and _";
        report.push(at, message, help);
    }
}

fn as_text<S: Serializer>(it: &Option<Sequence>, serializer: S) -> Result<S::Ok, S::Error> {
    match it {
        Some(sequence) => serializer.collect_str(sequence),
        None => serializer.serialize_none(),
    }
}

fn as_texts<S: Serializer>(list: &[KeySource], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(list.iter().map(ToString::to_string))
}

fn as_span<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&Span(*time))
}

fn as_spans<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => as_span(time, serializer),
        None => serializer.serialize_none(),
    }
}
