//! `/records/{id}`: what happened to a record, its stored answer, and what duplicates get now.

use std::fmt::Write as _;

use axum::{Extension, extract::Path, response::Response};
use http::{StatusCode, Uri};
use maud::{Markup, html};
use refrain::{
    Outcome,
    record::{History, Hold, State},
    store::{Reading, StateName},
};

use super::{
    Desk, advice,
    frame::{self, Failed, Section, moment, notice, span},
    once::Changes,
    resolve::{self, Entries},
    search::reason_text,
    timeline::{timeline, waiters},
    visit::Fields,
};
use crate::{
    admin::{
        records::{parse_id, read, receipt},
        view::Past,
    },
    telemetry::RequestSummary,
};

/// Bytes of a text body that are shown.
const TEXT_SHOWN: usize = 16 << 10;
/// Bytes of another body that are shown.
const BINARY_SHOWN: usize = 256;
/// Most recent requests of a record that are shown.
const REQUESTS_SHOWN: usize = 20;

pub(super) async fn show(
    desk: Desk,
    Extension(changes): Extension<Changes>,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Response, Failed> {
    let id = parse_id(&id)?;
    let settled = changes.shown(&Fields::of_query(&uri));
    let contents = match (read(&desk.admin, id).await, settled) {
        (Ok(reading), settled) => {
            let message = settled.unwrap_or_default();
            contents(&desk, &reading, &Entries::default(), &message).await
        }
        // The key is free again, or the store does not respond now; the record was settled.
        (Err(_), Some(settled)) => html! {
            p.crumbs { a href="/unknown" { "Unknown outcomes" } " › settled" }
            h1 { "Record settled" }
            (settled)
        },
        (Err(refusal), None) => return Err(refusal.into()),
    };
    Ok(page(&desk, &contents, StatusCode::OK))
}

/// The page of a record, with these contents.
pub(super) fn page(desk: &Desk, contents: &Markup, status: StatusCode) -> Response {
    frame::page_with(desk, Section::Records, "Record", contents, status)
}

/// The contents of the page, with the entries of the form and a message about them.
pub(super) async fn contents(
    desk: &Desk,
    reading: &Reading,
    entries: &Entries,
    message: &Markup,
) -> Markup {
    let history = reading.record.trace.read().unwrap_or_default();
    let past = Past::new(reading.now);
    let receipt = receipt(&desk.admin, reading).await;
    html! {
        (heading(reading, &history))
        (message)
        @if let State::Indeterminate { reason, .. } = &reading.record.state {
            (notice("fail", "It is not known whether this operation took effect", &html! {
                p { "Why: " (reason_text(*reason)) "." }
                p {
                    "Look in the system behind the operation whether the effect exists. Then "
                    a href="#settle" { "settle this record" } "."
                }
            }))
        }
        div.columns {
            section aria-labelledby="facts" {
                h2 #facts { "Facts" }
                (facts(reading, &history, &past, receipt.as_deref()))
            }
            section aria-labelledby="timeline" {
                h2 #timeline { "What happened" }
                (timeline(desk, reading, &history, &past))
            }
        }
        (advice::section(desk, reading, &history))
        @if let State::Completed { outcome, .. } = &reading.record.state { (answer(outcome)) }
        @if reading.record.state.name() == StateName::Indeterminate {
            (resolve::form(desk, reading, &history, entries))
        }
        (waiters(desk, reading))
        (requests(desk, reading))
    }
}

fn heading(reading: &Reading, history: &History) -> Markup {
    html! {
        p.crumbs { a href="/records" { "Records" } " › record" }
        h1 {
            @if history.target.is_empty() { "Record" } @else { code { (history.target) } }
            " " (frame::state(reading.record.state.name()))
        }
        p.id-line { "Record " code.id { (reading.id) } }
    }
}

fn facts(reading: &Reading, history: &History, past: &Past, receipt: Option<&str>) -> Markup {
    let last = history.attempts.last();
    html! {
        dl.facts {
            @if !history.operation.is_empty() { dt { "Operation" } dd { code { (history.operation) } } }
            @if let Some(key) = &history.key { dt { "Key" } dd { code { (key) } } }
            @if let Some(digest) = &history.key_digest { dt { "Digest of the key" } dd { code { (digest) } } }
            @if let Some(at) = history.first_seen() { dt { "First seen" } dd { (moment(past, at)) } }
            @if let Some(at) = history.last_change() { dt { "Last change" } dd { (moment(past, at)) } }
            @if let Some(attempt) = last.filter(|it| !it.node.is_empty()) { dt { "Node" } dd { code { (attempt.node) } } }
            @if let Some(fence) = reading.record.fence() { dt { "Fence (fencing token)" } dd { code { (fence) } } }
            (state_facts(reading))
            @if let Some(receipt) = receipt { dt { "Receipt" } dd { (receipt) } }
            dt { "Fingerprint" } dd { code { (reading.record.fingerprint) } }
        }
    }
}

fn state_facts(reading: &Reading) -> Markup {
    let now = reading.now;
    html! {
        @match &reading.record.state {
            State::InFlight { hold, lease_ends } => {
                (hold_facts(hold))
                dt { "Lease" } dd { "lapses in " (span(lease_ends.left(now))) ", unless it is renewed" }
            }
            State::Indeterminate { hold, .. } => {
                (hold_facts(hold))
                dt { "The attempt may still act" }
                dd { @match hold.settles.left(now) { left if left.is_zero() => { "no longer" } left => { "for " (span(left)) } } }
            }
            State::Completed { retention_ends, remember_ends, .. } => {
                dt { "Kept for" } dd { (span(retention_ends.left(now))) " more" }
                dt { "Key refused after that for" } dd { (span(remember_ends.left(*retention_ends))) }
            }
            State::Tombstone { remember_ends } => {
                dt { "Key refused for" } dd { (span(remember_ends.left(now))) " more" }
            }
        }
    }
}

fn hold_facts(hold: &Hold) -> Markup {
    html! {
        dt { "Guarantee" } dd { (guarantee(hold.guarantee)) }
        dt { "Attempts" } dd { (hold.attempts) " of at most " (hold.attempts_max) }
    }
}

/// The name of a guarantee, as in the policy.
pub(super) fn guarantee(guarantee: refrain::Guarantee) -> &'static str {
    match guarantee {
        refrain::Guarantee::AtMostOnce => "at-most-once",
        refrain::Guarantee::AtLeastOnce => "at-least-once",
        refrain::Guarantee::ExactlyOnce => "exactly-once",
    }
}

/// The stored answer of a completed record.
fn answer(outcome: &Outcome) -> Markup {
    let body = outcome.body();
    html! {
        section aria-labelledby="answer" {
            h2 #answer { "Stored answer" }
            p {
                "Status " strong { (outcome.status()) } ", body of " (frame::size(body.len() as u64))
                @if !outcome.is_body_kept() { ", which was over " code { "outcome_bytes_max" } " and was not kept" }
            }
            (headers(outcome))
            @if outcome.is_body_kept() && !body.is_empty() { (body_text(&body)) }
        }
    }
}

fn headers(outcome: &Outcome) -> Markup {
    html! {
        @if outcome.headers().next().is_some() {
            dl.facts.headers {
                @for (name, value) in outcome.headers() {
                    dt { code { (name) } } dd { code { (String::from_utf8_lossy(&value)) } }
                }
            }
        }
    }
}

/// A body: as text if it is UTF-8, otherwise as hexadecimal digits; cut if it is long.
pub(super) fn body_text(body: &[u8]) -> Markup {
    let Ok(text) = std::str::from_utf8(body) else {
        let shown = &body[..body.len().min(BINARY_SHOWN)];
        return html! {
            p.soft { "Binary, " (frame::size(body.len() as u64)) @if shown.len() < body.len() { "; the first " (shown.len()) " bytes:" } }
            pre.body tabindex="0" aria-label="Body as hexadecimal digits" { (hex(shown)) }
        };
    };
    let shown = &text[..text.floor_char_boundary(TEXT_SHOWN)];
    html! {
        pre.body tabindex="0" aria-label="Body" { (shown) }
        @if shown.len() < text.len() {
            p.soft {
                "Cut after " (frame::size(shown.len() as u64)) ". " code { "refrain records show" } " prints the whole body."
            }
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 3);
    for line in bytes.chunks(16) {
        for byte in line {
            let _ = write!(text, "{byte:02x} ");
        }
        text.push('\n');
    }
    text
}

/// The requests of this record among the recent ones of this process.
fn requests(desk: &Desk, reading: &Reading) -> Markup {
    let id = reading.id.to_string();
    let mut recent = desk.admin.telemetry.recent().after(0, usize::MAX);
    recent.retain(|it| it.record.as_deref() == Some(&id));
    let skipped = recent.len().saturating_sub(REQUESTS_SHOWN);
    html! {
        @if !recent.is_empty() {
            section aria-labelledby="requests" {
                h2 #requests { "Recent requests of this record" }
                table.list {
                    caption.unseen { "Recent requests of this record, the latest first" }
                    thead { tr {
                        th scope="col" { "Time" }
                        th scope="col" { "Result" }
                        th scope="col" { "Status" }
                        th scope="col" { "Took" }
                        th scope="col" { "Trace id" }
                    } }
                    tbody { @for request in recent.iter().skip(skipped).rev() { (request_row(request)) } }
                }
                p.soft { "A sample: a busy process does not keep every request." }
            }
        }
    }
}

fn request_row(request: &RequestSummary) -> Markup {
    let time = request.time.rfc3339();
    html! {
        tr {
            td data-name="Time" { time datetime=(time) { (frame::readable(&time)) } }
            td data-name="Result" {
                (request.outcome.label())
                @if request.waited { ", after it waited" }
                @if let Some(code) = request.code { " " code { (code) } }
            }
            td data-name="Status" { @match request.status { Some(status) => (status), None => "none" } }
            td data-name="Took" { (micros(request.total_us)) }
            td data-name="Trace id" { @if let Some(id) = &request.trace_id { code { (id) } } }
        }
    }
}

/// A duration in microseconds, with a unit that fits.
pub(super) fn micros(micros: u64) -> String {
    match micros {
        0..1_000 => format!("{micros} µs"),
        1_000..10_000 => format!("{:.1} ms", micros as f64 / 1e3),
        10_000..1_000_000 => format!("{} ms", micros / 1_000),
        _ => format!("{:.1} s", micros as f64 / 1e6),
    }
}
