//! What all pages share: the frame around them, and how times, sizes and states are written.

use std::time::Duration;

use axum::response::{Html, IntoResponse as _, Response};
use http::{StatusCode, header};
use maud::{DOCTYPE, Markup, html};
use refrain::{clock::Timestamp, store::StateName};

use super::{Desk, visit::Visitor};
use crate::admin::{access::Role, refusal::Refusal, view::Past};

/// The pages of the navigation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Section {
    Overview,
    Unknown,
    Records,
    Operations,
    Workers,
    Store,
    Configuration,
}

impl Section {
    const ALL: [(Self, &str, &str); 7] = [
        (Self::Overview, "/", "Overview"),
        (Self::Unknown, "/unknown", "Unknown outcomes"),
        (Self::Records, "/records", "Records"),
        (Self::Operations, "/operations", "Operations"),
        (Self::Workers, "/workers", "Workers"),
        (Self::Store, "/store", "Store"),
        (Self::Configuration, "/configuration", "Configuration"),
    ];
}

/// A page for a visitor with a role.
pub(super) fn page(desk: &Desk, here: Section, title: &str, contents: &Markup) -> Response {
    page_with(desk, here, title, contents, StatusCode::OK)
}

pub(super) fn page_with(
    desk: &Desk,
    here: Section,
    title: &str,
    contents: &Markup,
    status: StatusCode,
) -> Response {
    let is_shown = |section| match section {
        Section::Operations => desk.has_operations(),
        Section::Workers => desk.admin.workers.is_some(),
        _ => true,
    };
    let navigation = html! {
        nav aria-label="Pages" {
            ul {
                @for (section, address, name) in Section::ALL.into_iter().filter(|it| is_shown(it.0)) {
                    li { a href=(address) aria-current=[(section == here).then_some("page")] { (name) } }
                }
            }
        }
        (leave(&desk.visitor))
    };
    (status, document(title, &navigation, contents)).into_response()
}

/// The role of the visitor, and how to log out.
fn leave(visitor: &Visitor) -> Markup {
    html! {
        @if visitor.role == Some(Role::Reader) {
            span.role { "Reader: changes nothing" }
        }
        @if visitor.has_session() {
            form.leave method="post" action="/logout" {
                (form_token(visitor))
                button.quiet type="submit" { "Log out" }
            }
        }
    }
}

/// The field that every form has to send back.
pub(super) fn form_token(visitor: &Visitor) -> Markup {
    html! { input type="hidden" name="form_token" value=(visitor.form_token); }
}

fn document(title: &str, navigation: &Markup, contents: &Markup) -> Html<String> {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " – Refrain" }
                link rel="icon" href="data:,";
                link rel="stylesheet" href="/dashboard.css";
                script src="/dashboard.js" defer {}
            }
            body {
                a.skip href="#main" { "Skip to the contents" }
                header.top { a.brand href="/" { "Refrain" } (navigation) }
                main #main tabindex="-1" { (contents) }
            }
        }
    };
    Html(page.into_string())
}

/// The log-in page.
pub(super) fn login(
    visitor: &Visitor,
    next: &str,
    needs_token: bool,
    fault: Option<&str>,
) -> Response {
    let contents = html! {
        div.narrow {
            h1 { "Log in" }
            @if let Some(fault) = fault {
                (notice("fail", "Not logged in", &html! { p { (fault) } }))
            }
            @if needs_token {
                form.stack method="post" action="/login" {
                    (form_token(visitor))
                    input type="hidden" name="next" value=(next);
                    label for="token" { "Admin token" }
                    input #token name="token" type="password" required autocomplete="current-password" autofocus aria-describedby="token-help";
                    p.help #token-help {
                        "The value of " code { "REFRAIN_ADMIN_TOKEN" } " of the proxy. With "
                        code { "REFRAIN_ADMIN_READER_TOKEN" } " you see everything and can change nothing."
                    }
                    div.actions { button type="submit" { "Log in" } }
                }
                p.soft { "Already logged in, and sent here by a link of another site? " a href=(next) { "Continue" } }
            } @else {
                p { "This listener needs no token. " a href="/" { "Open the overview" } }
            }
        }
    };
    let status = match fault {
        Some(_) => StatusCode::UNAUTHORIZED,
        None => StatusCode::OK,
    };
    (status, document("Log in", &html! {}, &contents)).into_response()
}

/// A page that says what failed and what to do.
pub(super) fn failure(refusal: &Refusal) -> Response {
    let contents = html! {
        h1 { "This did not work" }
        (notice("fail", &sentence(&refusal.error), &html! { p { (sentence(&refusal.fix)) } }))
        p { a href="/" { "Overview" } " · " a href="/unknown" { "Unknown outcomes" } }
    };
    let page = document("Failed", &html! {}, &contents);
    let mut response = (refusal.status, page).into_response();
    if let Some(seconds) = refusal.retry_after {
        let headers = response.headers_mut();
        headers.insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

/// A refusal as a page for browsers, and as JSON for programs.
pub(super) struct Failed(pub(super) Refusal);

impl axum::response::IntoResponse for Failed {
    fn into_response(self) -> Response {
        failure(&self.0)
    }
}

impl<R: Into<Refusal>> From<R> for Failed {
    fn from(refusal: R) -> Self {
        Self(refusal.into())
    }
}

/// A highlighted message. `tone` is `fail`, `warn`, `pass` or `info`; the title says the same in words.
pub(super) fn notice(tone: &str, title: &str, contents: &Markup) -> Markup {
    let role = if tone == "fail" { "alert" } else { "status" };
    html! {
        section class={ "notice " (tone) } role=(role) {
            p.notice-title { (title) }
            (contents)
        }
    }
}

/// A text as a sentence: with a capital letter and a full stop.
pub(super) fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|it| it.to_uppercase().to_string());
    let end = if text.ends_with(['.', '}', '?']) {
        ""
    } else {
        "."
    };
    format!("{}{}{end}", first.unwrap_or_default(), letters.as_str())
}

/// Name and tone of a state.
pub(super) fn state(name: StateName) -> Markup {
    let (tone, text) = match name {
        StateName::InFlight => ("info", "In flight"),
        StateName::Completed => ("pass", "Completed"),
        StateName::Indeterminate => ("fail", "Unknown outcome"),
        StateName::Tombstone => ("soft", "Tombstone"),
    };
    badge(tone, text)
}

pub(super) fn badge(tone: &str, text: &str) -> Markup {
    html! { span class={ "badge " (tone) } { (text) } }
}

/// A link to a record, as short as `shown`; plain text if it is no identity of a record.
pub(super) fn record_link(record: &str, shown: usize) -> Markup {
    let is_id = record.parse::<refrain::RecordId>().is_ok();
    let short = record
        .get(..shown)
        .filter(|short| short.len() < record.len());
    html! {
        @if is_id {
            a.id href={ "/records/" (record) } aria-label={ "Record " (record) } {
                @match short { Some(short) => { (short) "…" } None => (record) }
            }
        } @else { code { (record) } }
    }
}

/// A moment in the past: its time, and how long ago.
pub(super) fn moment(past: &Past, at: Timestamp) -> Markup {
    let text = past.show(at);
    html! {
        time datetime=(text) { (readable(&text)) }
        " " span.soft { "(" (span(past.ago(at))) " ago)" }
    }
}

/// A time of RFC 3339 in UTC, to the second.
pub(super) fn readable(text: &str) -> String {
    let seconds = text.get(..19).unwrap_or(text).replace('T', " ");
    format!("{seconds} UTC")
}

/// A span of time with its two largest units.
pub(super) fn span(span: Duration) -> String {
    let seconds = span.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    let two = |large: u64, large_unit: &str, small: u64, small_unit: &str| match small {
        0 => format!("{large} {large_unit}"),
        _ => format!("{large} {large_unit} {small} {small_unit}"),
    };
    match seconds {
        0 if span.is_zero() => "0 s".into(),
        0 => format!("{} ms", span.as_millis().max(1)),
        1..60 => format!("{seconds} s"),
        60..3_600 => two(minutes, "min", seconds % 60, "s"),
        3_600..86_400 => two(hours, "h", minutes, "min"),
        _ => two(days, "d", hours, "h"),
    }
}

/// A number of bytes.
pub(super) fn size(bytes: u64) -> String {
    match bytes {
        0..10_240 => format!("{bytes} bytes"),
        10_240..10_485_760 => format!("{} KiB", bytes >> 10),
        10_485_760..10_737_418_240 => format!("{} MiB", bytes >> 20),
        _ => format!("{} GiB", bytes >> 30),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_their_two_largest_units() {
        let cases = [
            (0, "0 s"),
            (7, "7 ms"),
            (59_999, "59 s"),
            (61_000, "1 min 1 s"),
            (3_600_000, "1 h"),
            (90_000_000, "1 d 1 h"),
        ];
        for (millis, expected) in cases {
            assert_eq!(span(Duration::from_millis(millis)), expected);
        }
    }

    #[test]
    fn messages_become_sentences() {
        let cases = [
            ("retry in 7 s", "Retry in 7 s."),
            ("ends.", "Ends."),
            ("", "."),
        ];
        for (text, expected) in cases {
            assert_eq!(sentence(text), expected);
        }
    }
}
