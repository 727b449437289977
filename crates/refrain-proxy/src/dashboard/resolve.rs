//! `POST /records/{id}/resolve`: settles an unknown outcome in three steps: form, confirmation, result.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use axum::{Extension, extract::Path, response::Response};
use maud::{Markup, html};
use refrain::{
    RecordId,
    engine::Resolution,
    record::{History, State},
    store::{Reading, StateName},
};

use super::{
    Desk,
    frame::{self, Failed, notice, span},
    once::{self, Changes},
    record,
    visit::{Fields, see_other},
};
use crate::admin::{
    Admin,
    access::{Access, Role},
    records::{parse_id, read},
    refusal::Refusal,
    resolve::{As, Finding, apply, kept_for, prepare},
};

/// The fields of the form, which every step sends on. `fence` is that of the attempt that the form was made for.
const FIELDS: [&str; 7] = [
    "as",
    "status",
    "content_type",
    "body",
    "reason",
    "by",
    "fence",
];

/// What an operator has entered.
#[derive(Debug, Clone)]
pub(super) struct Entries([String; FIELDS.len()]);

impl Default for Entries {
    fn default() -> Self {
        let mut entries = Self(Default::default());
        entries.0[2] = "application/json".into();
        entries
    }
}

impl Entries {
    fn of(fields: &Fields) -> Self {
        // Browsers send line ends as CR LF; a stored body has those of the system that it was copied from.
        Self(FIELDS.map(|name| fields.get(name).replace("\r\n", "\n")))
    }

    fn get(&self, name: &str) -> &str {
        let at = FIELDS.iter().position(|it| *it == name);
        at.map_or("", |at| &self.0[at])
    }

    fn filled(&self, name: &str) -> Option<String> {
        let value = self.get(name).trim();
        (!value.is_empty()).then(|| value.to_owned())
    }

    /// What the entries say, in the form that the API takes too.
    fn finding(&self) -> Result<Finding, Refusal> {
        let r#as = match self.get("as") {
            "completed" => As::Completed,
            "never-happened" => As::NeverHappened,
            _ => {
                let fix = "choose whether it succeeded or never happened";
                return Err(Refusal::bad("nothing is chosen", fix));
            }
        };
        let is_completed = r#as == As::Completed;
        let status = self.filled("status").map(|status| {
            let fix = "enter the number of an HTTP status, such as 201";
            let parsed = status.parse::<u16>();
            parsed.map_err(|_| Refusal::bad(format!("status: `{status}` is not a number"), fix))
        });
        let content_type = self.filled("content_type").filter(|_| is_completed);
        let headers = content_type.map(|value| ("Content-Type".to_owned(), value));
        let body = Some(self.get("body")).filter(|body| !body.is_empty());
        Ok(Finding {
            r#as,
            reason: self.get("reason").trim().to_owned(),
            by: self.filled("by"),
            fence: self.filled("fence"),
            status: status.transpose()?,
            headers: headers.into_iter().collect::<BTreeMap<_, _>>(),
            body: body.map(str::to_owned),
            body_base64: None,
            retention: None,
            remember: None,
        })
    }
}

pub(super) async fn resolve(
    desk: Desk,
    Extension(access): Extension<Arc<Access>>,
    Extension(changes): Extension<Changes>,
    Extension(fields): Extension<Fields>,
    Path(id): Path<String>,
) -> Result<Response, Failed> {
    access.check_resolver(desk.visitor.role.unwrap_or(Role::Reader))?;
    let id = parse_id(&id)?;
    let entries = Entries::of(&fields);
    if fields.get("step") == "settle" {
        let settling = settle(desk.admin.clone(), id, entries.clone());
        return match changes.make(&fields, settling).await {
            Ok(change) => Ok(see_other(&once::address(
                &format!("/records/{id}"),
                &change,
            ))),
            Err(refusal) => {
                let reading = read(&desk.admin, id).await?;
                Ok(form_again(&desk, &reading, &entries, Some(&refusal)).await)
            }
        };
    }
    let reading = read(&desk.admin, id).await?;
    if fields.get("step") == "edit" {
        return Ok(form_again(&desk, &reading, &entries, None).await);
    }
    match check(&desk.admin, &reading, &entries).await {
        Ok((_, resolution)) => Ok(confirmation(&desk, &reading, &entries, &resolution)),
        Err(refusal) => Ok(form_again(&desk, &reading, &entries, Some(&refusal)).await),
    }
}

/// Settles the record; returns what was done.
async fn settle(admin: Arc<Admin>, id: RecordId, entries: Entries) -> Result<Markup, Refusal> {
    let reading = read(&admin, id).await?;
    let (finding, resolution) = check(&admin, &reading, &entries).await?;
    let next = Consequence::of(&admin, &reading, &resolution);
    apply(&admin, id, resolution, &finding).await?;
    Ok(done(&admin, id, &finding, &next))
}

/// Checks a finding as far as that is possible without a change.
async fn check(
    admin: &Admin,
    reading: &Reading,
    entries: &Entries,
) -> Result<(Finding, Resolution), Refusal> {
    let finding = entries.finding()?;
    let State::Indeterminate { hold, .. } = &reading.record.state else {
        return Err(crate::admin::resolve::not_in_doubt(
            reading.record.state.name(),
        ));
    };
    if finding.fence != Some(hold.fence.to_string()) {
        return Err(crate::admin::resolve::other_attempt());
    }
    let resolution = prepare(admin, reading.id, &finding).await?;
    let left = hold.settles.left(reading.now);
    match resolution == Resolution::NeverHappened && !left.is_zero() {
        true => Err(crate::admin::resolve::too_early(left)),
        false => Ok((finding, resolution)),
    }
}

/// The record with the filled form, and what is wrong with it.
async fn form_again(
    desk: &Desk,
    reading: &Reading,
    entries: &Entries,
    refusal: Option<&Refusal>,
) -> Response {
    let message = html! {
        @if reading.record.state.name() == StateName::Completed {
            (notice("warn", "Already settled", &html! {
                p { "The record is completed; its stored answer is below. Nothing was changed now." }
            }))
        } @else if let Some(refusal) = refusal {
            (notice("fail", "Not settled", &html! {
                p { (frame::sentence(&refusal.error)) " " (frame::sentence(&refusal.fix)) }
                p { "Nothing was changed. " a href="#settle" { "Your entries are kept below." } }
            }))
        }
    };
    let contents = record::contents(desk, reading, entries, &message).await;
    let status = refusal.map_or(http::StatusCode::OK, |it| it.status);
    record::page(desk, &contents, status)
}

/// What a resolution means for duplicates.
struct Consequence(Markup);

impl Consequence {
    fn of(admin: &Admin, reading: &Reading, resolution: &Resolution) -> Self {
        let history = reading.record.trace.read().unwrap_or_default();
        Self(match resolution {
            Resolution::NeverHappened => never_happened(),
            Resolution::Completed { outcome, .. } => {
                let kept = kept_for(admin, &history.operation);
                completed(Some((outcome.status(), outcome.body().len())), kept)
            }
        })
    }
}

fn never_happened() -> Markup {
    html! {
        "The key is free: the next request with this key " strong { "executes the operation" } ". "
        "If the first attempt did take effect, that makes it take effect twice."
    }
}

fn completed(answer: Option<(u16, usize)>, (retention, remember): (Duration, Duration)) -> Markup {
    html! {
        "Duplicates get "
        @match answer {
            Some((status, bytes)) => { strong { (status) " with this body (" (frame::size(bytes as u64)) ")" } }
            None => { strong { "this status and body" } }
        }
        " for " (span(retention)) ", and 410 " code { "key-expired" } " for " (span(remember)) " after that. "
        "The operation does not execute again."
    }
}

/// The form to settle a record.
pub(super) fn form(desk: &Desk, reading: &Reading, history: &History, entries: &Entries) -> Markup {
    html! {
        section.settle #settle aria-labelledby="settle-title" {
            h2 #settle-title { "Settle this outcome" }
            @if desk.visitor.is_resolver() {
                (form_fields(desk, reading, history, entries))
            } @else {
                p { "You are logged in as a reader. Log in with the admin token to settle this record." }
            }
        }
    }
}

fn form_fields(desk: &Desk, reading: &Reading, history: &History, entries: &Entries) -> Markup {
    let kept = kept_for(&desk.admin, &history.operation);
    html! {
        form.stack method="post" action={ "/records/" (reading.id) "/resolve" } {
            (frame::form_token(&desk.visitor))
            input type="hidden" name="step" value="check";
            @if let Some(fence) = reading.record.fence() { input type="hidden" name="fence" value=(fence); }
            fieldset {
                legend { "What did you find out?" }
                div.choice {
                    input #as-completed type="radio" name="as" value="completed" required checked[entries.get("as") == "completed"] aria-describedby="as-completed-help";
                    label for="as-completed" { "It succeeded, with this answer" }
                    p.help #as-completed-help { (completed(None, kept)) }
                }
                (answer_fields(entries))
                div.choice {
                    input #as-never type="radio" name="as" value="never-happened" required checked[entries.get("as") == "never-happened"] aria-describedby="as-never-help";
                    label for="as-never" { "It never happened" }
                    p.help #as-never-help { (never_happened()) " " (earliest(reading)) }
                }
            }
            div.field {
                label for="reason" { "Reason " span.soft { "(required; written to the audit log)" } }
                input #reason name="reason" required maxlength="1000" value=(entries.get("reason")) placeholder="found in the ledger" autocomplete="off";
            }
            div.field {
                label for="by" { "Your name " span.soft { "(optional; written to the audit log, not verified)" } }
                input #by name="by" maxlength="1000" value=(entries.get("by")) autocomplete="name";
            }
            div.actions { button type="submit" { "Check and continue" } }
        }
    }
}

fn answer_fields(entries: &Entries) -> Markup {
    html! {
        div.answer {
            div.pair {
                div.field {
                    label for="status" { "Status" }
                    input #status name="status" inputmode="numeric" value=(entries.get("status")) placeholder="201" autocomplete="off";
                }
                div.field {
                    label for="content_type" { "Content type" }
                    input #content_type name="content_type" value=(entries.get("content_type")) autocomplete="off" spellcheck="false";
                }
            }
            div.field {
                label for="body" { "Body" }
                textarea #body name="body" rows="5" spellcheck="false" { "\n" (entries.get("body")) }
            }
        }
    }
}

/// From when on "it never happened" is accepted.
fn earliest(reading: &Reading) -> Markup {
    let left = match &reading.record.state {
        State::Indeterminate { hold, .. } => hold.settles.left(reading.now),
        _ => Duration::ZERO,
    };
    html! {
        @if left.is_zero() { "Accepted now." }
        @else {
            strong { "Accepted in " (span(left)) "." }
            " Until then a slow attempt may still take effect."
        }
    }
}

/// The page between the form and the change.
fn confirmation(
    desk: &Desk,
    reading: &Reading,
    entries: &Entries,
    resolution: &Resolution,
) -> Response {
    let title = match resolution {
        Resolution::NeverHappened => "Settle as: it never happened?",
        Resolution::Completed { .. } => "Settle as: it succeeded?",
    };
    let history = reading.record.trace.read().unwrap_or_default();
    let contents = html! {
        p.crumbs { a href={ "/records/" (reading.id) } { "Record" } " › confirmation" }
        h1 { (title) }
        dl.facts {
            @if !history.target.is_empty() { dt { "Request" } dd { code { (history.target) } } }
            dt { "Record" } dd { code.id { (reading.id) } }
            (answer_facts(resolution, entries))
            dt { "Reason" } dd { (entries.get("reason").trim()) }
            @if let Some(by) = entries.filled("by") { dt { "By" } dd { (by) } }
        }
        (notice("warn", "What will happen", &html! {
            p { (Consequence::of(&desk.admin, reading, resolution).0) }
            p { "This cannot be undone. Decision, reason and name are written to the audit log." }
        }))
        form method="post" action={ "/records/" (reading.id) "/resolve" } {
            (frame::form_token(&desk.visitor))
            (once::field())
            @for name in FIELDS {
                // A text area keeps line ends; a hidden field would be normalised.
                @if name == "body" { textarea.unseen name="body" readonly tabindex="-1" aria-hidden="true" { "\n" (entries.get(name)) } }
                @else { input type="hidden" name=(name) value=(entries.get(name)); }
            }
            div.actions {
                button type="submit" name="step" value="settle" { "Settle this record" }
                button.quiet type="submit" name="step" value="edit" { "Back to the form" }
            }
        }
    };
    record::page(desk, &contents, http::StatusCode::OK)
}

fn answer_facts(resolution: &Resolution, entries: &Entries) -> Markup {
    html! {
        @if let Resolution::Completed { outcome, .. } = resolution {
            dt { "Status" } dd { (outcome.status()) }
            @if let Some(kind) = entries.filled("content_type") { dt { "Content type" } dd { code { (kind) } } }
            dt { "Body" }
            dd {
                @if outcome.body().is_empty() { span.soft { "empty" } }
                @else { (record::body_text(&outcome.body())) }
            }
        }
    }
}

/// What was done, and what was written to the audit log.
fn done(admin: &Admin, id: RecordId, finding: &Finding, next: &Consequence) -> Markup {
    let found = match finding.r#as {
        As::Completed => "it succeeded",
        As::NeverHappened => "it never happened",
    };
    notice(
        "pass",
        "Settled",
        &html! {
            p { "Record " code.id { (id) } " is settled as: " (found) ". " (next.0) }
            (audited(admin, id, finding))
            p { a.button href="/unknown" { "Next unknown outcome" } }
        },
    )
}

fn audited(admin: &Admin, id: RecordId, finding: &Finding) -> Markup {
    let actor = crate::admin::resolve::action(admin, "", None).actor;
    html! {
        @if admin.layer.engine().audit().is_some() {
            p {
                "Written to the audit log: " code { "resolving" } " and " code { "resolved" }
                " with this record, actor " code { (actor) }
                @if let Some(by) = &finding.by { ", by “" (by) "”" }
                ", reason “" (finding.reason) "”. "
                code { "refrain audit export --record " (id) } " prints them."
            }
        } @else {
            p { "This process has no audit log: the decision is in its log on standard error only." }
        }
    }
}
