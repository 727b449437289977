//! What happened to a record: its attempts with their leases and ends, and the requests that waited for them.

use std::time::Duration;

use maud::{Markup, html};
use refrain::{
    record::{Attempt, End, History, State},
    store::{Reading, StateName},
};

use super::{
    Desk,
    frame::{moment, readable, span},
    record::micros,
    search::reason_text,
};
use crate::{
    admin::view::Past,
    telemetry::{RECORDS_MAX, WAITERS_MAX, Waiter},
};

/// The attempts, oldest first.
pub(super) fn timeline(desk: &Desk, reading: &Reading, history: &History, past: &Past) -> Markup {
    let counted = attempts(reading);
    let last = history.attempts.last();
    let left_out = match (last, counted) {
        (Some(last), Some(counted)) => counted.saturating_sub(last.number),
        _ => 0,
    };
    let gaps = history.attempts.windows(2);
    let gaps = gaps.map(|pair| left_out_between(pair[0].number, pair[1].number));
    let gaps = gaps.chain([left_out]);
    html! {
        @if history.attempts.is_empty() {
            p.soft { "This record was made by a release that kept no history." }
        } @else {
            ol.timeline {
                @for (attempt, gap) in history.attempts.iter().zip(gaps) { (steps(attempt, gap, past)) }
                @if reading.record.state.name() == StateName::InFlight { (running(reading, past)) }
            }
            (lease(desk, history))
        }
    }
}

/// Number of attempts that the record counts, if it still does.
fn attempts(reading: &Reading) -> Option<u16> {
    match &reading.record.state {
        State::InFlight { hold, .. } | State::Indeterminate { hold, .. } => Some(hold.attempts),
        _ => None,
    }
}

/// Numbers start again after a key was free.
fn left_out_between(one: u16, next: u16) -> u16 {
    next.saturating_sub(one).saturating_sub(1)
}

/// An attempt, the attempts after it that the record does not list, and the ends. What ended after attempts were left
/// out is the last one of them: a record keeps its first attempt and its latest events.
fn steps(attempt: &Attempt, left_out: u16, past: &Past) -> Markup {
    let trace_id = attempt.trace_id.map(u128::from_be_bytes);
    html! {
        li {
            div.when { (moment(past, attempt.at)) }
            span.what { "Attempt " (attempt.number) " started" }
            div.soft {
                @if !attempt.node.is_empty() { "by " code { (attempt.node) } ", " }
                "fence " code { (attempt.fence) }
            }
            @if let Some(id) = trace_id { div.soft { "trace id " code { (format!("{id:032x}")) } } }
        }
        @if left_out > 0 {
            li {
                span.what { (left_out) @if left_out == 1 { " attempt" } @else { " attempts" } " left out" }
                div.soft { "A record keeps its first attempt and the latest events." }
            }
        }
        @for (at, end) in &attempt.ends {
            @let (tone, text) = end_text(*end);
            li class=(tone) {
                div.when { (moment(past, *at)) }
                span.what { (text) }
            }
        }
    }
}

fn end_text(end: End) -> (&'static str, String) {
    match end {
        End::Completed => ("pass", "Completed: the outcome is stored".into()),
        End::Unknown(reason) => ("fail", format!("Outcome unknown: {}", reason_text(reason))),
        End::NoEffect => (
            "info",
            "Ended without effect: the key was free again".into(),
        ),
    }
}

fn running(reading: &Reading, past: &Past) -> Markup {
    html! {
        li.info {
            span.what { "Still running" }
            @if let State::InFlight { lease_ends, .. } = &reading.record.state {
                @let until = past.show(*lease_ends);
                @let left = lease_ends.left(reading.now);
                div.soft {
                    "lease until " time datetime=(until) { (readable(&until)) } ", "
                    @if left.is_zero() { "which has passed" } @else { "in " (span(left)) "; it is renewed while the attempt runs" }
                }
            }
        }
    }
}

/// The length of the leases: a record keeps only the end of the current one.
fn lease(desk: &Desk, history: &History) -> Markup {
    html! {
        @if let Some(lease) = lease_of(desk, &history.operation) {
            p.soft {
                "Each attempt has a lease of " (span(lease)) ", by the settings in force now; it is renewed while the attempt runs."
            }
        }
    }
}

/// The lease of an operation, or of the worker of this name.
fn lease_of(desk: &Desk, name: &str) -> Option<Duration> {
    let operations = desk.admin.layer.policy().operations();
    let mut operations = operations.map(|it| (&*it.name, &it.terms));
    let workers = desk.admin.workers.iter().flat_map(|it| it.settings());
    let mut workers = workers.map(|it| (&*it.name, &it.terms));
    let is_meant = |(it, _): &(&str, _)| *it == name;
    let found = operations.find(is_meant).or_else(|| workers.find(is_meant));
    found.map(|(_, terms)| terms.lease)
}

/// The requests that waited for this record.
pub(super) fn waiters(desk: &Desk, reading: &Reading) -> Markup {
    let found = desk.admin.telemetry.waiters().of(reading.id);
    html! {
        @if desk.has_operations() {
            section aria-labelledby="waiters" {
                h2 #waiters { "Who waited" }
                @if found.kept.is_empty() { p.soft { "No request waited for this record." } }
                @else { (waiters_table(found.kept.iter().rev())) }
                p.soft {
                    "In this process, since it started " (span(desk.admin.telemetry.started().elapsed())) " ago: the last "
                    (WAITERS_MAX) " requests of each of " (RECORDS_MAX) " records. Those whose client disconnected are not listed."
                    @if found.left_out > 0 { " " (found.left_out) " earlier ones are left out." }
                }
            }
        }
    }
}

fn waiters_table<'a>(waiters: impl Iterator<Item = &'a Waiter>) -> Markup {
    html! {
        table.list {
            caption.unseen { "Requests that waited for this record, the latest first" }
            thead { tr {
                th scope="col" { "Response at" }
                th scope="col" { "After" }
                th scope="col" { "Result" }
                th scope="col" { "Trace id" }
            } }
            tbody { @for waiter in waiters { tr {
                td data-name="Response at" {
                    @let time = waiter.at.rfc3339();
                    time datetime=(time) { (readable(&time)) }
                }
                td data-name="After" { (micros(u64::try_from(waiter.took.as_micros()).unwrap_or(u64::MAX))) }
                td data-name="Result" {
                    (waiter.outcome.label())
                    @if let Some(code) = waiter.code { " " code { (code) } }
                }
                td data-name="Trace id" {
                    @if let Some(id) = waiter.trace_id { code { (format!("{:032x}", u128::from_be_bytes(id))) } }
                }
            } } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_between_two_that_are_listed_are_counted() {
        for (one, next, expected) in [(1, 2, 0), (1, 7, 5), (7, 1, 0)] {
            assert_eq!(left_out_between(one, next), expected, "{one} {next}");
        }
    }
}
