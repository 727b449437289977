//! `/`: whether the process is ready, what waits for a decision, how the last hour was, and the latest requests.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{Extension, response::Response};
use http::Uri;
use maud::{Markup, html};
use refrain::store::Census;
use tokio::time::Instant;

use super::{
    Desk, chart,
    frame::{self, Section, notice, span},
    live,
    visit::Fields,
    workers,
};
use crate::{
    admin::{Admin, health, overview, unknown::READ_MAX},
    telemetry::RequestOutcome,
};

/// How long the counts of the store are shown before it is asked again.
const COUNTS_LAST: Duration = Duration::from_secs(5);
/// Warnings that are shown at once.
const WARNINGS_SHOWN: usize = 3;

/// What the store last told, for all visitors.
#[derive(Debug, Clone, Default)]
pub(super) struct StoreView(Arc<Mutex<Option<(Instant, Counted)>>>);

#[derive(Debug, Clone, Copy)]
pub(super) struct Counted {
    /// `None` if the store did not tell in time.
    pub(super) census: Option<Census>,
    /// Age of the oldest unknown outcome, and whether all were looked at.
    oldest: Option<(Duration, bool)>,
}

impl StoreView {
    pub(super) async fn get(&self, admin: &Admin) -> Counted {
        if let Some((at, counted)) = *self.0.lock().unwrap_or_else(PoisonError::into_inner)
            && at.elapsed() < COUNTS_LAST
        {
            return counted;
        }
        let census = overview::census(admin).await;
        let unknown = overview::unknown_outcomes(admin, census).await;
        let is_all = census.is_some_and(|it| it.indeterminate <= READ_MAX.into());
        let counted = Counted {
            census,
            oldest: unknown.map(|it| (it.oldest, is_all)),
        };
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *kept = Some((Instant::now(), counted));
        counted
    }
}

pub(super) async fn show(desk: Desk, Extension(store): Extension<StoreView>, uri: Uri) -> Response {
    let fields = Fields::of_query(&uri);
    let trouble = health::why_not_ready(&desk.admin).await;
    let counted = store.get(&desk.admin).await;
    let contents = html! {
        h1 { "Overview" }
        (readiness(trouble))
        (warnings(&desk.admin))
        (tiles(&desk.admin, counted))
        (workers::summary(&desk.admin).await)
        @if desk.has_operations() {
            section aria-labelledby="hour" {
                h2 #hour { "The last hour" }
                (chart::charts(&desk.admin.telemetry.rates().samples()))
            }
            (live::section(&desk, &fields))
        }
    };
    frame::page(&desk, Section::Overview, "Overview", &contents)
}

pub(super) fn readiness(trouble: Option<(&'static str, String)>) -> Markup {
    match trouble {
        None => notice(
            "pass",
            "Ready",
            &html! { p { "The store works and accepts new claims, and the audit log can be written." } },
        ),
        Some((reason, detail)) => {
            let what = match reason {
                "draining" => {
                    "The process is shutting down. Running requests finish; no new ones are accepted."
                }
                "audit" => {
                    "The audit log cannot be written, so audited operations are refused. Repair its folder, and restart."
                }
                "claims" => {
                    "The store accepts no new claims, so new requests are refused. Duplicates still get their outcomes."
                }
                "broker" => "Workers get no messages.",
                _ => "The store does not work, so guarded requests are refused.",
            };
            let contents = html! { p { (what) } p { code { (reason) } ": " (detail) } };
            notice("fail", "Not ready", &contents)
        }
    }
}

/// Probable mistakes in the settings, such as a monetary operation without an audit log.
fn warnings(admin: &Admin) -> Markup {
    let warnings: Vec<_> = admin.layer.policy().warnings().collect();
    let one = |warning: &refrain::policy::Warning| {
        let contents = html! { p { (frame::sentence(&warning.message)) " " (frame::sentence(&warning.help)) } };
        notice("warn", &warning.name, &contents)
    };
    let (shown, rest) = warnings.split_at(warnings.len().min(WARNINGS_SHOWN));
    html! {
        @for warning in shown { (one(warning)) }
        @if !rest.is_empty() {
            details.more { summary { (rest.len()) " more warnings about the settings" } @for warning in rest { (one(warning)) } }
        }
    }
}

fn tiles(admin: &Admin, counted: Counted) -> Markup {
    let has_operations = admin.layer.policy().operations().next().is_some();
    let totals = admin.telemetry.metrics().totals();
    let count = |outcome: RequestOutcome| totals.outcomes[outcome as usize];
    let prevented = count(RequestOutcome::Replayed) + count(RequestOutcome::Waited);
    let uptime = span(admin.telemetry.started().elapsed());
    let tally = admin.layer.engine().tally();
    html! {
        ul.tiles {
            (unknown_tile(counted))
            @if has_operations { li.tile {
                span.name { "Duplicates prevented" }
                span.value { (prevented) }
                span.soft { "since the start, " (uptime) " ago" }
            } }
            @if has_operations { li.tile {
                span.name { "Executed" }
                span.value { (count(RequestOutcome::Executed)) }
                span.soft { (count(RequestOutcome::Refused)) " refused, " (count(RequestOutcome::Unknown)) " told that the outcome is unknown" }
            } }
            li.tile {
                span.name { "Running now" }
                span.value { (admin.layer.engine().running()) }
                span.soft { (tally.waiting_now()) " duplicates wait for them" }
            }
        }
    }
}

fn unknown_tile(counted: Counted) -> Markup {
    let number = counted.census.map(|it| it.indeterminate);
    html! {
        li class={ "tile" @if number.is_some_and(|it| it > 0) { " fail" } } {
            a.name href="/unknown" { "Unknown outcomes" }
            @match number {
                Some(number) => span.value { (number) },
                None => span.value { "not known" },
            }
            span.soft {
                @match (number, counted.oldest) {
                    (None, _) => { "the store did not count them in time" }
                    (Some(0), _) => { "nothing to settle" }
                    (_, Some((age, true))) => { "the oldest is " (span(age)) " old" }
                    (_, Some((age, false))) => { "the oldest is at least " (span(age)) " old" }
                    _ => { "settle them" }
                }
            }
        }
    }
}
