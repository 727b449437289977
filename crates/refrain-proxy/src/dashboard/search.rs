//! `/records`: search records; `/unknown`: the work list of unknown outcomes.

use std::time::Duration;

use axum::response::Response;
use http::Uri;
use maud::{Markup, html};
use refrain::{
    Key, RecordId,
    clock::{Clock as _, SystemClock, Timestamp},
    record::{KeyDigest, Reason, State},
    store::{self, Reading, StateName},
};

use super::{
    Desk,
    frame::{self, Failed, Section, notice},
    visit::{Fields, see_other},
};
use crate::admin::{
    records::{ListQuery, list_as, parse_id, searched_percent},
    refusal::Refusal,
    view::Past,
};

/// Records on a page of a search.
const PAGE: u32 = 50;
/// Unknown outcomes on a page. They are sorted by age, so a page is as long as one list may be.
const UNKNOWN_PAGE: u32 = 200;

const STATES: [(StateName, &str, &str); 4] = [
    (StateName::Indeterminate, "indeterminate", "Unknown outcome"),
    (StateName::InFlight, "in-flight", "In flight"),
    (StateName::Completed, "completed", "Completed"),
    (
        StateName::Tombstone,
        "tombstone",
        "Tombstone (past retention)",
    ),
];

/// What a list shows of a record.
#[derive(Debug)]
struct Row {
    id: RecordId,
    state: StateName,
    operation: String,
    target: String,
    key: Option<String>,
    /// When the record was first seen, and how long ago.
    first_seen: Option<(String, Duration)>,
    /// Why the outcome is unknown, and how long "it never happened" is not accepted yet.
    doubt: Option<(Reason, Duration)>,
    status: Option<u16>,
}

impl Row {
    fn new(reading: &Reading) -> Self {
        let Reading { id, record, now } = reading;
        let history = record.trace.read().unwrap_or_default();
        let past = Past::new(*now);
        let first_seen = history.first_seen();
        Self {
            id: *id,
            state: record.state.name(),
            first_seen: first_seen.map(|at| (past.show(at), past.ago(at))),
            operation: history.operation,
            target: history.target,
            key: history.key,
            doubt: match &record.state {
                State::Indeterminate { hold, reason } => Some((*reason, hold.settles.left(*now))),
                _ => None,
            },
            status: match &record.state {
                State::Completed { outcome, .. } => Some(outcome.status()),
                _ => None,
            },
        }
    }

    fn age(&self) -> Duration {
        self.first_seen
            .as_ref()
            .map_or(Duration::MAX, |(_, age)| *age)
    }
}

pub(super) async fn records(desk: Desk, uri: Uri) -> Result<Response, Failed> {
    let fields = Fields::of_query(&uri);
    if let Some(id) = fields.filled("id") {
        return match parse_id(id) {
            Ok(id) => Ok(see_other(&format!("/records/{id}"))),
            Err(refusal) => Ok(search_page(&desk, &fields, &told(&refusal))),
        };
    }
    let found = match query(&desk, &fields) {
        Ok(query) => list(&desk, query).await,
        Err(refusal) => Err(refusal),
    };
    let results = match found {
        Ok((rows, next)) => results(&fields, &rows, next),
        Err(refusal) => told(&refusal),
    };
    Ok(search_page(&desk, &fields, &results))
}

/// A page of records, and where the next one begins. One search runs at a time.
async fn list(desk: &Desk, query: store::Query) -> Result<(Vec<Row>, Option<RecordId>), Refusal> {
    let _permit = desk.admin.telemetry.metrics().scans().acquire().await?;
    let (mut rows, next) = list_as(&desk.admin, query, Row::new).await?;
    rows.sort_by_key(Row::age);
    Ok((rows, next))
}

fn told(refusal: &Refusal) -> Markup {
    let fix = html! { p { (frame::sentence(&refusal.fix)) } };
    notice("fail", &frame::sentence(&refusal.error), &fix)
}

/// The query of a filled search form.
fn query(desk: &Desk, fields: &Fields) -> Result<store::Query, Refusal> {
    let text = |name| fields.filled(name).map(str::to_owned);
    let wanted = ListQuery {
        state: state(fields),
        operation: text("operation"),
        older_than: text("older_than"),
        newer_than: text("newer_than"),
        scope: None,
        limit: Some(PAGE),
        after: text("after"),
    };
    let key = fields.filled("key").map(Key::new).transpose()?;
    let secret = desk.admin.layer.engine().secret();
    let query = wanted.parsed(secret)?;
    let now = SystemClock.wall();
    let age = |name| moment(fields, name).map(|at| at.map(|at| now.left(at)));
    let (first, last) = (age("from")?, age("to")?);
    Ok(store::Query {
        key: key.map(|key| KeyDigest::derive(secret, &key)),
        newer_than: query.newer_than.into_iter().chain(first).min(),
        older_than: query.older_than.into_iter().chain(last).max(),
        ..query
    })
}

/// The time in a field that a browser fills, such as `2026-02-28T21:00`, in UTC.
fn moment(fields: &Fields, name: &'static str) -> Result<Option<Timestamp>, Refusal> {
    let Some(text) = fields.filled(name) else {
        return Ok(None);
    };
    let seconds = if text.len() == "2026-02-28T21:00".len() {
        ":00"
    } else {
        ""
    };
    let parsed = Timestamp::from_rfc3339(&format!("{text}{seconds}Z"));
    let fix = "enter a date and a time in UTC, such as 2026-02-28T21:00";
    let at = parsed.map_err(|_| Refusal::bad(format!("{name}: `{text}` is no time"), fix))?;
    Ok(Some(at))
}

fn state(fields: &Fields) -> Option<StateName> {
    let mut states = STATES.into_iter();
    let found = states.find(|(_, value, _)| *value == fields.get("state"));
    found.map(|(state, ..)| state)
}

fn search_page(desk: &Desk, fields: &Fields, results: &Markup) -> Response {
    let contents = html! {
        h1 { "Records" }
        p.lead { "Each idempotency key has one record for each scope (namespace of keys) that uses it." }
        (form(desk, fields))
        (results)
    };
    frame::page(desk, Section::Records, "Records", &contents)
}

fn form(desk: &Desk, fields: &Fields) -> Markup {
    let value = |name: &'static str| fields.get(name).to_owned();
    html! {
        form.search method="get" action="/records" role="search" {
            div.field {
                label for="id" { "Record id" }
                input #id name="id" value=(value("id")) placeholder="32 hexadecimal digits" spellcheck="false" autocomplete="off";
            }
            div.field {
                label for="key" { "Key" }
                input #key name="key" value=(value("key")) placeholder="as the client sent it" spellcheck="false" autocomplete="off";
            }
            div.field {
                label for="operation" { "Operation" }
                input #operation name="operation" value=(value("operation")) list="operations" spellcheck="false" autocomplete="off";
                datalist #operations {
                    @for operation in desk.admin.layer.policy().operations() { option value=(operation.name) {} }
                }
            }
            div.field {
                label for="state" { "State" }
                select #state name="state" {
                    option value="" { "any" }
                    @for (_, name, text) in STATES {
                        option value=(name) selected[fields.get("state") == name] { (text) }
                    }
                }
            }
            div.field {
                label for="older_than" { "First seen more than … ago" }
                input #older_than name="older_than" value=(value("older_than")) placeholder="10m, 2h, 7d" autocomplete="off";
            }
            div.field {
                label for="newer_than" { "First seen less than … ago" }
                input #newer_than name="newer_than" value=(value("newer_than")) placeholder="10m, 2h, 7d" autocomplete="off";
            }
            div.field {
                label for="from" { "First seen from " span.soft { "(UTC)" } }
                input #from name="from" type="datetime-local" value=(value("from"));
            }
            div.field {
                label for="to" { "First seen until " span.soft { "(UTC)" } }
                input #to name="to" type="datetime-local" value=(value("to"));
            }
            div.actions {
                button type="submit" { "Search" }
                a.button.quiet href="/records" { "Clear" }
            }
        }
    }
}

fn results(fields: &Fields, rows: &[Row], next: Option<RecordId>) -> Markup {
    html! {
        section aria-labelledby="results" {
            h2 #results { @if rows.is_empty() && next.is_none() { "No records" } @else { "Results" } }
            @if next.is_some() || !fields.get("after").is_empty() {
                p.soft { "On this page, the latest first; other pages may have later and earlier ones." }
            }
            @if rows.is_empty() && next.is_none() {
                p.soft {
                    @if fields.get("key").is_empty() { "No record matches." }
                    @else { "No record has this key: it was never used, or its record was released, erased or swept." }
                }
            } @else if !rows.is_empty() {
                (table(rows, "Records, the latest first"))
            }
            (searched(rows.len(), PAGE, next))
            (pages(fields, "/records", rows.len() < PAGE as usize, next))
        }
    }
}

/// What a page means that has room for more records, and is not the last one.
fn searched(found: usize, page: u32, next: Option<RecordId>) -> Markup {
    let is_partial = next.is_some() && found < page as usize;
    html! {
        @if is_partial {
            (notice("info", "The search is not finished", &html! {
                p {
                    @match found { 0 => "No record was found so far.", 1 => "1 record was found so far.", _ => { (found) " records were found so far." } }
                    " Searched so far: " (searched_percent(next)) " % of the store. Continue the search."
                }
            }))
        }
    }
}

/// Links to the first and to the next page.
fn pages(fields: &Fields, address: &str, is_partial: bool, next: Option<RecordId>) -> Markup {
    let is_first = fields.get("after").is_empty();
    html! {
        @if !is_first || next.is_some() {
            nav.pages aria-label="Pages of the list" {
                @if !is_first { a.button.quiet href={ (address) "?" (fields.query_with("after", "")) } { "First page" } }
                @if let Some(next) = next {
                    a.button href={ (address) "?" (fields.query_with("after", &next.to_string())) } {
                        @if is_partial { "Continue the search" } @else { "Next page" }
                    }
                }
            }
        }
    }
}

fn table(rows: &[Row], caption: &str) -> Markup {
    html! {
        table.list {
            caption.unseen { (caption) }
            thead { tr {
                th scope="col" { "State" }
                th scope="col" { "Request" }
                th scope="col" { "First seen" }
                th scope="col" { "Record" }
            } }
            tbody { @for row in rows { tr {
                td data-name="State" {
                    (frame::state(row.state))
                    @if let Some(status) = row.status { " " span.number { (status) } }
                }
                td data-name="Request" { (request(row)) }
                td data-name="First seen" { (first_seen(row)) }
                td data-name="Record" { a.id href={ "/records/" (row.id) } { (row.id) } }
            } } }
        }
    }
}

fn request(row: &Row) -> Markup {
    html! {
        @if row.target.is_empty() && row.operation.is_empty() {
            span.soft { "not known: recorded by an earlier release" }
        } @else {
            code.target { (if row.target.is_empty() { &row.operation } else { &row.target }) }
            @if row.operation != row.target && !row.target.is_empty() {
                div.soft { "operation " code { (row.operation) } }
            }
        }
        @if let Some(key) = &row.key { div.soft { "key " code { (key) } } }
    }
}

fn first_seen(row: &Row) -> Markup {
    html! {
        @if let Some((text, age)) = &row.first_seen {
            time datetime=(text) { (frame::readable(text)) }
            div.soft { (frame::span(*age)) " ago" }
        } @else { span.soft { "not known" } }
    }
}

pub(super) async fn unknown(desk: Desk, uri: Uri) -> Result<Response, Failed> {
    let fields = Fields::of_query(&uri);
    let query = store::Query {
        state: Some(StateName::Indeterminate),
        after: fields.filled("after").map(parse_id).transpose()?,
        limit: UNKNOWN_PAGE,
        ..store::Query::default()
    };
    let (mut rows, next) = list(&desk, query).await?;
    rows.reverse();
    let is_all = next.is_none() && fields.get("after").is_empty();
    let contents = html! {
        h1 { "Unknown outcomes" }
        p.lead {
            "Each of these operations may have taken effect, or may not have. "
            "Find out in the system behind it, then settle the record: until then, its duplicates get 409 "
            a href="/problems/outcome-unknown" { "outcome-unknown" } "."
        }
        @if rows.is_empty() && next.is_none() {
            (notice("pass", "Nothing to settle", &html! { p { "No record has an unknown outcome." } }))
        } @else {
            p.soft {
                (rows.len()) @if rows.len() == 1 { " record" } @else { " records" }
                @if is_all && rows.len() == 1 { "." }
                @else if is_all { ", the oldest first." }
                @else { " on this page, the oldest of them first. Other pages may have older ones." }
            }
            (work_list(&rows))
        }
        (searched(rows.len(), UNKNOWN_PAGE, next))
        (pages(&fields, "/unknown", rows.len() < UNKNOWN_PAGE as usize, next))
    };
    Ok(frame::page(
        &desk,
        Section::Unknown,
        "Unknown outcomes",
        &contents,
    ))
}

fn work_list(rows: &[Row]) -> Markup {
    html! {
        table.list {
            caption.unseen { "Unknown outcomes, the oldest first" }
            thead { tr {
                th scope="col" { "Request" }
                th scope="col" { "First seen" }
                th scope="col" { "Why it is unknown" }
                th scope="col" { "“It never happened” is accepted" }
                th scope="col" { "Record" }
            } }
            tbody { @for row in rows { tr {
                td data-name="Request" { (request(row)) }
                td data-name="First seen" { (first_seen(row)) }
                td data-name="Why it is unknown" {
                    @if let Some((reason, _)) = row.doubt { (reason_text(reason)) }
                }
                td data-name="“It never happened” is accepted" {
                    @match row.doubt {
                        Some((_, left)) if !left.is_zero() => { "in " (frame::span(left)) }
                        _ => { "now" }
                    }
                }
                td data-name="Record" {
                    a.button href={ "/records/" (row.id) } { "Settle" span.unseen { " record " (row.id) } }
                    div { code.id { (row.id) } }
                }
            } } }
        }
    }
}

/// Why an outcome is unknown, in words.
pub(super) fn reason_text(reason: Reason) -> String {
    let meaning = match reason {
        Reason::Lapsed => "the lease lapsed: the process died, or lost the store",
        Reason::Timeout => "no response came in time",
        Reason::Reset => "the connection broke after the request was sent",
        Reason::Truncated => "the response was cut off",
        Reason::Panicked => "the handler panicked",
        Reason::Dropped => "the operation was dropped while it ran",
        _ => "the handler failed without saying whether it took effect",
    };
    format!("{} – {meaning}", reason.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_that_is_not_finished_says_so_and_goes_on() {
        let fields = Fields::of_query(&"/records?operation=payments".parse().unwrap());
        let next = RecordId([7; 16]);
        let page = results(&fields, &[], Some(next)).into_string();
        assert!(page.contains("The search is not finished"), "{page}");
        assert!(
            page.contains(&format!("operation=payments&amp;after={next}")),
            "{page}"
        );
        assert!(!page.contains("No records"), "{page}");
        let page = results(&fields, &[], None).into_string();
        assert!(page.contains("No record matches"), "{page}");
        assert!(!page.contains("not finished"), "{page}");
    }
}
