//! The list of recent requests: as a table, and `/live`, which sends the rows of new requests to the script.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    Extension,
    response::{
        IntoResponse as _, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use futures_util::stream;
use http::{HeaderMap, StatusCode, Uri};
use maud::{Markup, html};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, Interval, MissedTickBehavior, interval},
};

use super::{
    Desk,
    frame::{badge, readable, record_link},
    record::micros,
    visit::{Fields, Visitor},
};
use crate::{
    admin::{access::Access, refusal::Refusal},
    telemetry::{RequestOutcome, RequestSummary, Telemetry},
};

/// Most pages that are kept up to date at a time.
const STREAMS_MAX: usize = 16;
/// A stream ends after this time, and the page opens another one, for which it needs a session again.
const STREAM_LASTS: Duration = Duration::from_secs(600);
/// Time between two looks for new requests.
const TICK: Duration = Duration::from_millis(300);
/// Most rows of one update.
const ROWS_PER_TICK: usize = 25;
/// Rows of the table when the page is opened.
const ROWS: usize = 50;

/// Limits the number of streams.
#[derive(Debug, Clone)]
pub(super) struct Streams(Arc<Semaphore>);

impl Default for Streams {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(STREAMS_MAX)))
    }
}

/// Which requests are shown.
#[derive(Debug)]
struct Filter {
    outcome: Option<RequestOutcome>,
    text: String,
}

impl Filter {
    fn of(fields: &Fields) -> Self {
        let mut outcomes = RequestOutcome::ALL.into_iter();
        Self {
            outcome: outcomes.find(|it| it.label() == fields.get("outcome")),
            text: fields.get("text").trim().to_owned(),
        }
    }

    fn fits(&self, request: &RequestSummary) -> bool {
        let texts = [
            Some(&request.path),
            Some(&request.method),
            request.operation.as_ref(),
            request.record.as_ref(),
            request.trace_id.as_ref(),
        ];
        self.outcome.is_none_or(|it| it == request.outcome)
            && texts.iter().flatten().any(|it| it.contains(&self.text))
    }
}

/// The section of the overview with the latest requests.
pub(super) fn section(desk: &Desk, fields: &Fields) -> Markup {
    let filter = Filter::of(fields);
    let mut requests = desk.admin.telemetry.recent().after(0, usize::MAX);
    let last = requests.last().map_or(0, |it| it.seq);
    requests.retain(|it| filter.fits(it));
    let query = fields.query_with("after", &position(&desk.admin.telemetry, last));
    html! {
        section #requests aria-labelledby="requests-title" {
            div.title-line {
                h2 #requests-title { "Requests" }
                p.soft #live-state aria-live="polite" { "Reload the page for newer ones." }
                button.quiet #live-pause type="button" aria-pressed="false" hidden { "Pause" }
            }
            (filter_form(&filter))
            table.list {
                caption.unseen { "Recent requests, the latest first" }
                thead { tr {
                    th scope="col" { "Time" }
                    th scope="col" { "Result" }
                    th scope="col" { "Request" }
                    th.number scope="col" { "Status" }
                    th.number scope="col" { "Took" }
                    th scope="col" { "Record" }
                } }
                tbody #live data-source={ "/live?" (query) } {
                    @for request in requests.iter().rev().take(ROWS) { (row(request)) }
                }
            }
            @if requests.is_empty() { p.soft #live-none { "No requests yet." } }
            p.soft { "A sample: of many requests at a time, only some are kept; those that were refused or ended unknown come first. The charts count all." }
        }
    }
}

fn filter_form(filter: &Filter) -> Markup {
    html! {
        form.filter method="get" action="/#requests" {
            div.field {
                label for="outcome" { "Result" }
                select #outcome name="outcome" {
                    option value="" { "any" }
                    @for outcome in RequestOutcome::ALL {
                        option value=(outcome.label()) selected[filter.outcome == Some(outcome)] { (outcome.label()) }
                    }
                }
            }
            div.field {
                label for="text" { "Path, operation, record or trace id contains" }
                input #text name="text" value=(filter.text) autocomplete="off" spellcheck="false";
            }
            div.actions { button.quiet type="submit" { "Filter" } }
        }
    }
}

fn tone(outcome: RequestOutcome) -> &'static str {
    match outcome {
        RequestOutcome::Executed => "info",
        RequestOutcome::Replayed | RequestOutcome::Waited => "pass",
        RequestOutcome::Refused => "warn",
        RequestOutcome::Unknown => "fail",
        RequestOutcome::Passed | RequestOutcome::LookedUp | RequestOutcome::Disconnected => "soft",
    }
}

fn row(request: &RequestSummary) -> Markup {
    let time = request.time.rfc3339();
    let clock = readable(&time);
    html! {
        tr {
            td data-name="Time" { time datetime=(time) title=(clock) { (clock.get(11..19).unwrap_or(&clock)) } }
            td data-name="Result" {
                (badge(tone(request.outcome), request.outcome.label()))
                @if let Some(code) = request.code { " " code { (code) } }
            }
            td data-name="Request" {
                code.target { (request.method) " " (request.path) }
                @if let Some(operation) = &request.operation { " " span.soft { (operation) } }
            }
            td.number data-name="Status" { @match request.status { Some(status) => (status), None => "none" } }
            td.number data-name="Took" { (micros(request.total_us)) }
            td data-name="Record" {
                @if let Some(record) = &request.record {
                    (record_link(record, 8))
                }
            }
        }
    }
}

/// Sends the rows of new requests, until the page is closed or the stream has lasted long enough.
pub(super) async fn live(
    desk: Desk,
    Extension(streams): Extension<Streams>,
    Extension(access): Extension<Arc<Access>>,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, Refusal> {
    let permit = streams.0.try_acquire_owned().map_err(|_| {
        let error = format!("{STREAMS_MAX} pages are already kept up to date");
        let fix = "close some of them, or reload the page by hand";
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, error, fix)
    })?;
    let fields = Fields::of_query(&uri);
    // A browser that connects again says what it has seen.
    let seen = headers.get("last-event-id").and_then(|it| it.to_str().ok());
    let seen = seen.unwrap_or(fields.get("after"));
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let rows = LiveRows {
        telemetry: desk.admin.telemetry.clone(),
        filter: Filter::of(&fields),
        seq: seen_seq(&desk.admin.telemetry, seen),
        visitor: desk.visitor,
        access,
        ticks,
        ends: Instant::now() + STREAM_LASTS,
        _permit: permit,
    };
    let events = stream::unfold(rows, LiveRows::next);
    let kept_alive = Sse::new(events).keep_alive(KeepAlive::new());
    Ok(kept_alive.into_response())
}

/// What a page has seen: the process, and the sequence number in it.
fn position(telemetry: &Telemetry, seq: u64) -> String {
    format!("{:x}-{seq}", telemetry.recent().epoch())
}

/// The sequence number of a position; 0 if it is one of an earlier process.
fn seen_seq(telemetry: &Telemetry, position: &str) -> u64 {
    let (epoch, seq) = position.split_once('-').unwrap_or_default();
    let is_own = u32::from_str_radix(epoch, 16) == Ok(telemetry.recent().epoch());
    seq.parse().ok().filter(|_| is_own).unwrap_or(0)
}

/// The state of one stream.
struct LiveRows {
    telemetry: Arc<Telemetry>,
    filter: Filter,
    seq: u64,
    visitor: Visitor,
    access: Arc<Access>,
    ticks: Interval,
    ends: Instant,
    _permit: OwnedSemaphorePermit,
}

impl LiveRows {
    async fn next(mut self) -> Option<(Result<Event, Infallible>, Self)> {
        loop {
            self.ticks.tick().await;
            if Instant::now() >= self.ends || !self.visitor.is_admitted(&self.access) {
                return None;
            }
            let recent = self.telemetry.recent();
            let fits = |it: &RequestSummary| self.filter.fits(it);
            let (requests, last) = recent.fitting(self.seq, ROWS_PER_TICK, fits);
            self.seq = last;
            let shown = requests.iter().rev();
            let rows: String = shown.map(|it| row(it).into_string()).collect();
            if !rows.is_empty() {
                let id = position(&self.telemetry, self.seq);
                return Some((Ok(Event::default().id(id).data(rows)), self));
            }
        }
    }
}
