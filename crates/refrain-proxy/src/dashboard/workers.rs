//! `/workers`: the message consumers of this process, their dead letters, and redrives.

use std::sync::Arc;

use axum::{Extension, extract::Path, response::Response};
use http::{StatusCode, Uri};
use maud::{Markup, html};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use refrain::consume::DeadLetter;

use super::{
    Desk,
    frame::{self, Failed, Section, badge, notice, readable, record_link, size, span},
    once::{self, Changes},
    visit::{Fields, see_other},
};
use crate::admin::{
    Admin, RedriveStatus, WorkerStatus,
    access::{Access, Role},
    refusal::Refusal,
    workers::{RedriveRequest, letters_of, redrive_letters},
};

pub(super) async fn list(desk: Desk) -> Response {
    let workers = match &desk.admin.workers {
        Some(workers) => workers.list().await,
        None => Vec::new(),
    };
    let contents = html! {
        h1 { "Workers" }
        @if workers.is_empty() {
            p.lead { "This process runs no workers. The admin address of " code { "refrain work" } " shows them." }
        }
        @for worker in &workers { (card(worker)) }
    };
    frame::page(&desk, Section::Workers, "Workers", &contents)
}

/// The workers in a few words, for the overview; nothing if the process runs none.
pub(super) async fn summary(admin: &Admin) -> Markup {
    let workers = match &admin.workers {
        Some(workers) => workers.list().await,
        None => return html! {},
    };
    html! {
        section aria-labelledby="workers" {
            h2 #workers { a href="/workers" { "Workers" } }
            table.list {
                caption.unseen { "Workers" }
                thead { tr {
                    th scope="col" { "Worker" }
                    th scope="col" { "State" }
                    th.number scope="col" { "Waiting (lag)" }
                    th.number scope="col" { "Being handled" }
                    th.number scope="col" { "Dead letters" }
                } }
                tbody { @for worker in &workers { tr {
                    td data-name="Worker" { (worker.name) }
                    td data-name="State" { (state(worker)) }
                    td.number data-name="Waiting (lag)" { (known(worker.lag)) }
                    td.number data-name="Being handled" { (worker.in_flight) }
                    td.number data-name="Dead letters" { (known(worker.dead_letters)) }
                } } }
            }
        }
    }
}

fn state(worker: &WorkerStatus) -> Markup {
    match worker.trouble {
        None => badge("pass", "running"),
        Some(_) => badge("fail", "in trouble"),
    }
}

fn address(worker: &str) -> String {
    format!("/workers/{}", utf8_percent_encode(worker, NON_ALPHANUMERIC))
}

fn card(worker: &WorkerStatus) -> Markup {
    html! {
        section {
            h2 {
                (worker.name) " "
                (state(worker))
            }
            @if let Some(trouble) = &worker.trouble { (notice("fail", "No message can be handled now", &html! { p { (trouble) } })) }
            div.columns.inner {
                dl.facts {
                    dt { "From" } dd { code { (worker.source) } " " code { (worker.queue) } }
                    dt { "To" } dd { code { (worker.deliver) } }
                    dt { "Guarantee" } dd { (worker.guarantee) }
                    dt { "Waiting (lag)" } dd { (known(worker.lag)) @if worker.is_approximate { span.soft { " approximately" } } }
                    dt { "Being handled" } dd.number { (worker.in_flight) }
                    dt { "Not acknowledged" } dd { (known(worker.unacknowledged)) }
                    dt { "Oldest of them" }
                    dd { @match worker.oldest_seconds { Some(age) => { (span(std::time::Duration::from_secs(age))) } None => span.soft { "not known" } } }
                    dt { "Dead letters" }
                    dd {
                        @if worker.dead_letter.is_some() { (known(worker.dead_letters)) " · " a href=(address(&worker.name)) { "List and redrive" span.unseen { " those of " (worker.name) } } }
                        @else { span.soft { "no dead-letter queue is set" } }
                    }
                    @if let Some(redrive) = &worker.redrive { dt { "Last redrive" } dd { (result(redrive)) } }
                }
                dl.facts { @for (name, count) in &worker.counts { dt { (name) } dd.number { (count) } } }
            }
        }
    }
}

fn known(number: Option<u64>) -> Markup {
    html! { @match number { Some(number) => span.number { (number) }, None => span.soft { "not known" } } }
}

pub(super) async fn show(
    desk: Desk,
    Extension(changes): Extension<Changes>,
    Path(name): Path<String>,
    uri: Uri,
) -> Result<Response, Failed> {
    let contents = match changes.shown(&Fields::of_query(&uri)) {
        // Without the letters: a broker that is slow after a redrive must not hide its result.
        Some(redriven) => html! {
            (heading(&name))
            (redriven)
            p { a.button.quiet href=(address(&name)) { "List the dead letters" } }
        },
        None => {
            let letters = letters_of(&desk.admin, &name, None).await?;
            html! { (heading(&name)) (listed(&desk, &name, &letters)) }
        }
    };
    Ok(page(&desk, &contents, StatusCode::OK))
}

fn page(desk: &Desk, contents: &Markup, status: StatusCode) -> Response {
    frame::page_with(desk, Section::Workers, "Dead letters", contents, status)
}

fn heading(name: &str) -> Markup {
    html! {
        p.crumbs { a href="/workers" { "Workers" } " › " (name) }
        h1 { "Dead letters of " (name) }
    }
}

fn listed(desk: &Desk, name: &str, (letters, are_all): &(Vec<DeadLetter>, bool)) -> Markup {
    html! {
        @if letters.is_empty() { p.soft { "There are none." } }
        @else {
            p.soft { (letters.len()) @if *are_all { " in all. " } @else { " shown; there are more. " } "Listing consumes none." }
            (table(letters))
            (form(desk, name, &Fields::default()))
        }
    }
}

fn table(letters: &[DeadLetter]) -> Markup {
    html! {
        table.list {
            caption.unseen { "Dead letters" }
            thead { tr {
                th scope="col" { "Since" }
                th scope="col" { "Reason" }
                th scope="col" { "Attempts" }
                th scope="col" { "Last failure" }
                th scope="col" { "Record" }
            } }
            tbody { @for letter in letters { tr {
                td data-name="Since" { @match letter.time { Some(at) => { (readable(&at.rfc3339())) } None => span.soft { "not known" } } }
                td data-name="Reason" {
                    (letter.reason.as_deref().unwrap_or("not known"))
                    @if letter.redrives > 0 { div.soft { "redriven " (letter.redrives) " times" } }
                }
                td data-name="Attempts" { (known(letter.attempts.map(u64::from))) }
                td data-name="Last failure" {
                    (letter.last_failure.as_deref().unwrap_or("not known"))
                    div.soft {
                        @if let Some(source) = &letter.source { "from " code { (source) } ", " }
                        (size(letter.payload_bytes))
                    }
                }
                td data-name="Record" {
                    @if let Some(record) = &letter.record { (record_link(record, record.len())) }
                }
            } } }
        }
    }
}

fn form(desk: &Desk, name: &str, entries: &Fields) -> Markup {
    html! {
        section.settle aria-labelledby="redrive" {
            h2 #redrive { "Redrive" }
            @if desk.visitor.is_resolver() {
                form.stack method="post" action={ (address(name)) "/redrive" } {
                    (frame::form_token(&desk.visitor))
                    (once::field())
                    p {
                        "The letters are published to their queue again and handled again. "
                        "Those whose effect has happened are removed instead."
                    }
                    div.field {
                        label for="at_most" { "At most" }
                        input #at_most name="at_most" inputmode="numeric" value=(entries.filled("at_most").unwrap_or("100")) autocomplete="off";
                    }
                    div.field {
                        label for="reason" { "Reason " span.soft { "(required; written to the audit log)" } }
                        input #reason name="reason" required maxlength="1000" value=(entries.get("reason")) autocomplete="off";
                    }
                    div.field {
                        label for="by" { "Your name " span.soft { "(optional; written to the audit log, not verified)" } }
                        input #by name="by" maxlength="1000" value=(entries.get("by")) autocomplete="name";
                    }
                    div.choice {
                        input #sure type="checkbox" name="sure" value="yes" required;
                        label for="sure" { "Why the letters failed is repaired" }
                    }
                    div.actions { button type="submit" { "Redrive dead letters" } }
                }
            } @else {
                p { "You are logged in as a reader. Log in with the admin token to redrive them." }
            }
        }
    }
}

pub(super) async fn redrive(
    desk: Desk,
    Extension(access): Extension<Arc<Access>>,
    Extension(changes): Extension<Changes>,
    Extension(fields): Extension<Fields>,
    Path(name): Path<String>,
) -> Result<Response, Failed> {
    access.check_resolver(desk.visitor.role.unwrap_or(Role::Reader))?;
    let redriving = redriven(desk.admin.clone(), name.clone(), fields.clone());
    let refusal = match changes.make(&fields, redriving).await {
        Ok(change) => return Ok(see_other(&once::address(&address(&name), &change))),
        Err(refusal) => refusal,
    };
    let text =
        html! { p { (frame::sentence(&refusal.error)) " " (frame::sentence(&refusal.fix)) } };
    let contents = html! {
        (heading(&name))
        (notice("fail", "Not redriven", &text))
        (form(&desk, &name, &fields))
        p { a.button.quiet href=(address(&name)) { "List the dead letters" } }
    };
    Ok(page(&desk, &contents, refusal.status))
}

/// Redrives dead letters; returns what was done.
async fn redriven(admin: Arc<Admin>, name: String, fields: Fields) -> Result<Markup, Refusal> {
    if fields.get("sure") != "yes" {
        let fix = "repair it first, then tick the box";
        return Err(Refusal::bad(
            "it is not confirmed that the cause is repaired",
            fix,
        ));
    }
    let at_most = fields.filled("at_most").map(str::parse::<u32>);
    let at_most = at_most
        .transpose()
        .map_err(|_| Refusal::bad("at most: not a number", "enter a number such as 100"))?;
    let asked = RedriveRequest {
        reason: fields.get("reason").trim().to_owned(),
        by: fields.filled("by").map(str::to_owned),
        at_most,
    };
    let redriven = redrive_letters(&admin, &name, &asked).await?;
    Ok(told(&redriven, &asked.reason))
}

fn told(redriven: &RedriveStatus, reason: &str) -> Markup {
    let title = match redriven.is_running {
        true => "The redrive runs",
        false => "Redriven",
    };
    notice(
        "pass",
        title,
        &html! {
            p { (result(redriven)) }
            p { "The reason “" (reason) "” is written to the audit log." }
        },
    )
}

/// The state of a redrive in words.
fn result(redrive: &RedriveStatus) -> Markup {
    html! {
        @if redrive.is_running { "It is not finished yet; the page of all workers shows its result." }
        @else {
            (redrive.sent) " published again, " (redrive.skipped) " removed because their effect has happened, "
            (redrive.left) " left because they name no source or were redriven too often."
        }
        @if let Some(error) = &redrive.error { " It ended early: " (error) }
    }
}
