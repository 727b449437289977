//! The page "Retrying safely" for clients of the API, as Markdown and as HTML.

use refrain::{
    Guarantee,
    http::Code,
    policy::{Class, Duplicates, Operation as Rule, Settings, units::Span},
};

use super::{line, mark, sealed};
use crate::{Plan, Planned, keys::KEY_HEADER};

mod layout;
use layout::{Block, Cell};

/// The page as Markdown. `settings` is the policy in force, which a person may have edited after the plan.
#[must_use]
pub fn markdown(plan: &Plan, settings: &Settings) -> String {
    let mark = format!("<!-- Made by refrain plan; {} -->\n\n", mark());
    sealed(mark + &layout::markdown(&blocks(plan, settings)))
}

/// The same page as a self-contained HTML file.
#[must_use]
pub fn html(plan: &Plan, settings: &Settings) -> String {
    let title = format!("Retrying safely: {}", line(&plan.title));
    sealed(layout::html(&title, &mark(), &blocks(plan, settings)))
}

fn blocks(plan: &Plan, settings: &Settings) -> Vec<Block> {
    let title = format!("Retrying safely: {}", line(&plan.title));
    let mut blocks = vec![Block::Heading(1, title)];
    let rows = rows(plan, settings);
    if !rows.is_empty() || plan.consumers.is_empty() {
        requests(&rows, &mut blocks);
        unmatched(plan, &mut blocks);
        sent(plan, &mut blocks);
        errors(settings, &mut blocks);
    }
    if !plan.consumers.is_empty() {
        messages(plan, settings, &mut blocks);
    }
    blocks
}

/// A guarded operation with its rule in the policy.
struct Row<'p> {
    planned: &'p Planned,
    rule: &'p Rule,
}

fn rows<'p>(plan: &'p Plan, settings: &'p Settings) -> Vec<Row<'p>> {
    let rules: std::collections::HashMap<&str, &Rule> = settings
        .policy
        .operations()
        .map(|it| (it.name.as_str(), it))
        .collect();
    let row = |planned: &'p Planned| {
        let rule = *rules.get(planned.pattern.as_deref()?)?;
        rule.guarded.then_some(Row { planned, rule })
    };
    plan.operations.iter().filter_map(row).collect()
}

fn requests(rows: &[Row<'_>], blocks: &mut Vec<Block>) {
    let text = |text: &str| Block::Text(text.into());
    let header = rows
        .iter()
        .find(|it| it.planned.verdict.class != Class::Event)
        .map_or("Idempotency-Key", |it| it.planned.keys.client_header());
    blocks.push(text("A request whose answer got lost may have taken effect. Send it again with the same key, and it takes effect once: you get the answer that you missed."));
    blocks.push(Block::Code(format!("POST /… HTTP/1.1\n{header}: 7f1d9a52-6f0c-4e0e-9a57-3b7c5a0e8c11\nContent-Type: application/json")));
    blocks.push(Block::Heading(2, "The key".into()));
    blocks.push(Block::List(vec![
        "One key for one intended effect: make it before the first attempt, store it with what you are about to do, and send it with every retry.".into(),
        "Retry with the same method, path and body. A key that comes with another request is refused.".into(),
        "Up to 255 visible ASCII characters. A random UUID is good; a time, a counter that starts again, or a value made anew for every attempt is not.".into(),
        "`abc` and `\"abc\"` are the same key. Keys of other callers do not meet yours.".into(),
        "A repeated answer has the status and, to the byte, the body of the first one, and carries `Idempotent-Replayed: true`. Of the headers it has `Content-Type`, `Content-Encoding`, `Content-Language`, `Content-Location`, `Location`, `ETag`, `Last-Modified`, `Link` and those that the policy of the service adds; the others, such as `Set-Cookie` and `Date`, are left out.".into(),
        "Back off between retries, and honour `Retry-After`.".into(),
    ]));
    blocks.push(Block::Heading(2, "Which operations take keys".into()));
    let client = rows.iter().filter(|it| {
        it.planned.verdict.class != Class::Event && it.rule.duplicates != Duplicates::Acknowledge
    });
    let client: Vec<_> = client.map(operation).collect();
    let headings = [
        "Operation",
        "Key",
        "Answer kept for",
        "Then refused for",
        "When the outcome is unknown",
    ];
    match client.is_empty() {
        true => blocks.push(text("None: nothing that clients send changes anything.")),
        false => blocks.push(Block::Table(headings.map(String::from).into(), client)),
    }
    let events: Vec<_> = rows
        .iter()
        .filter(|it| it.rule.duplicates == Duplicates::Acknowledge)
        .map(event)
        .collect();
    if !events.is_empty() {
        blocks.push(Block::Heading(2, "For those who deliver events".into()));
        blocks.push(text("Deliver until you are told 2xx. What was taken before is acknowledged again, and not handled twice."));
        let headings = ["Operation", "An event is known by", "For"];
        blocks.push(Block::Table(headings.map(String::from).into(), events));
    }
}

/// Says that unlisted operations only read. If an operation that changes something has no pattern, lists it instead.
fn unmatched(plan: &Plan, blocks: &mut Vec<Block>) {
    let is_left =
        |it: &&Planned| it.is_served && it.pattern.is_none() && it.verdict.class != Class::Read;
    let left: Vec<_> = plan
        .operations
        .iter()
        .filter(is_left)
        .map(|it| format!("`{}`", line(&it.name())))
        .collect();
    match left.is_empty() {
        true => blocks.push(Block::Text(
            "Operations that are not listed only read, and can be sent again without a key.".into(),
        )),
        false => {
            blocks.push(Block::Text("These change something, and are told from others by no pattern: ask before you rely on a key there.".into()));
            blocks.push(Block::List(left));
        }
    }
}

fn operation(row: &Row<'_>) -> Vec<Cell> {
    let Row { planned, rule } = row;
    let sources: Vec<_> = rule.key.iter().map(ToString::to_string).collect();
    let key = sources
        .iter()
        .map(|it| it.strip_prefix("header:").map_or(it.clone(), canonical))
        .collect::<Vec<_>>()
        .join(", or ");
    let key = if rule.required {
        format!("{key}, required")
    } else {
        key
    };
    let unknown = match rule.terms.guarantee {
        Guarantee::AtMostOnce => "it is not run again: 409 outcome-unknown",
        Guarantee::AtLeastOnce => "a retry runs it again",
        Guarantee::ExactlyOnce => "a retry finds out, or runs it",
    };
    vec![
        Cell::Code(planned.pattern.clone().unwrap_or_default()),
        Cell::Text(key),
        Cell::Text(Span(rule.terms.retention).to_string()),
        Cell::Text(Span(rule.terms.remember).to_string()),
        Cell::Text(unknown.into()),
    ]
}

fn event(row: &Row<'_>) -> Vec<Cell> {
    let sources: Vec<_> = row.rule.key.iter().map(ToString::to_string).collect();
    let pattern = Cell::Code(row.planned.pattern.clone().unwrap_or_default());
    // Event senders do not send a client key, unless the description declares one.
    let is_of_client = sources == [format!("header:{}", KEY_HEADER.to_ascii_lowercase())];
    if is_of_client && row.planned.keys.header.is_none() {
        let unknown = "nothing that the description names: every delivery is handled";
        return vec![pattern, Cell::Text(unknown.into()), Cell::Text("".into())];
    }
    vec![
        pattern,
        Cell::Code(sources.join(", ")),
        Cell::Text(Span(row.rule.terms.retention + row.rule.terms.remember).to_string()),
    ]
}

/// Capitalizes a header name: `Idempotency-Key`.
fn canonical(name: &str) -> String {
    let words = name.split('-').map(|word| {
        let mut chars = word.chars();
        chars
            .next()
            .map(|first| first.to_ascii_uppercase().to_string() + chars.as_str())
            .unwrap_or_default()
    });
    words.collect::<Vec<_>>().join("-")
}

/// Webhooks and callbacks that the API itself sends.
fn sent(plan: &Plan, blocks: &mut Vec<Block>) {
    let sent: Vec<_> = plan.operations.iter().filter(|it| !it.is_served).collect();
    if sent.is_empty() {
        return;
    }
    blocks.push(Block::Heading(2, "What this API sends to you".into()));
    blocks.push(Block::Text("These may come more than once. Note the id of each in the same transaction as its effect, and answer 2xx to what you have already.".into()));
    blocks.push(Block::List(
        sent.iter()
            .map(|it| format!("`{}`", line(&it.name())))
            .collect(),
    ));
}

fn errors(settings: &Settings, blocks: &mut Vec<Block>) {
    blocks.push(Block::Heading(2, "Every error, and what to do".into()));
    blocks.push(Block::Text("Errors are `application/problem+json`; go by `code` and `advice`, not by the status alone.".into()));
    let is_signed = settings
        .policy
        .operations()
        .any(|it| it.signature.is_some());
    let codes = Code::ALL
        .into_iter()
        .filter(|code| is_signed || *code != Code::SignatureInvalid);
    let rows = codes.map(|code| {
        vec![
            Cell::Text(status(code)),
            Cell::Code(code.code().into()),
            Cell::Text(code.title().into()),
            Cell::Text(advice(code).into()),
        ]
    });
    let headings = ["Status", "Code", "Means", "Do"];
    blocks.push(Block::Table(
        headings.map(String::from).into(),
        rows.collect(),
    ));
    blocks.push(Block::Text("Other errors are the operation's own. Under a key they are repeated as they were, unless the request was refused before it ran (401, 403, 408, 425, 429): then the key is free again.".into()));
}

fn status(code: Code) -> String {
    match code {
        // The first caller gets 502, 503 or 504, which give the cause; later callers get 409.
        Code::OutcomeUnknown => "409, 502, 503 or 504".into(),
        code => code.status().as_u16().to_string(),
    }
}

fn advice(code: Code) -> &'static str {
    match (code, code.advice()) {
        (Code::KeyMissing, _) => "make a key, store it, send the request with it",
        (Code::KeyInvalid, _) => "correct the key: 1 to 255 visible ASCII characters, one header",
        (Code::KeyReused, _) => {
            "make a new key for the new request; if it was meant as a retry, send the first request unchanged"
        }
        (Code::RequestTooLarge, _) => "send less in one request",
        (
            Code::RequestMalformed
            | Code::TargetTooLong
            | Code::HeadTooLarge
            | Code::MethodUnsupported,
            _,
        ) => "nothing ran: correct the request",
        (Code::UpstreamFailed | Code::UpstreamTimeout, _) => {
            "it was not guarded: look up whether it happened before you try again"
        }
        (Code::OutcomeUnknown, _) => {
            "look up whether it happened before you try again; never with a new key alone"
        }
        (Code::BodyNotKept, _) => "it took effect: read the result from where Location points",
        (Code::KeyExpired, _) => {
            "it took effect long ago: look it up; do not send it with a new key to be sure"
        }
        (Code::CredentialChanged, _) => {
            "retry with the credential of the first attempt, or look the result up"
        }
        (_, "wait") => "wait for Retry-After, then send the same request with the same key",
        (_, "reuse-key") => "nothing ran: send it again with the same key, after a pause",
        _ => "ask whoever runs the API",
    }
}

fn messages(plan: &Plan, settings: &Settings, blocks: &mut Vec<Block>) {
    let text = |text: &str| Block::Text(text.into());
    blocks.push(Block::Heading(2, "Publishing safely".into()));
    blocks.push(text("A message that is published again is handled once, as long as both carry the same key. Make the id before the first attempt, store it with what the message is about, and repeat it on every attempt."));
    let rows = plan.consumers.iter().filter_map(|consumer| {
        let worker = settings
            .workers
            .iter()
            .find(|it| it.name == consumer.name)?;
        let keys: Vec<_> = worker.key.iter().map(ToString::to_string).collect();
        Some(vec![
            Cell::Code(consumer.channel.clone()),
            Cell::Text(consumer.messages.join(", ")),
            Cell::Code(keys.join(", ")),
            Cell::Text(Span(worker.terms.retention + worker.terms.remember).to_string()),
            Cell::Text(format!("{} attempts", worker.attempts)),
        ])
    });
    let headings = [
        "Channel",
        "Messages",
        "A message is known by",
        "For",
        "Then a dead letter",
    ];
    blocks.push(Block::Table(
        headings.map(String::from).into(),
        rows.collect(),
    ));
    blocks.push(text("The same key with another payload is a mistake of the publisher, and goes to the dead letters."));
}
