//! What duplicates of a request get in the state that its record has now; and the pages of problems.

use axum::{extract::Path, response::Response};
use http::StatusCode;
use maud::{Markup, PreEscaped, html};
use refrain::{
    Guarantee, Operation,
    http::Code,
    policy::{Duplicates, Mode, ReplayTo},
    record::{History, State},
    store::Reading,
};

use super::{
    Desk,
    frame::{self, Failed, Section, span},
};
use crate::admin::refusal::Refusal;

/// One kind of request, and what its client gets.
struct Advice {
    who: &'static str,
    gets: String,
    code: Option<Code>,
}

impl Advice {
    fn new(who: &'static str, gets: impl Into<String>, code: Option<Code>) -> Self {
        Self {
            who,
            gets: gets.into(),
            code,
        }
    }
}

const SAME: &str = "The same request with this key";

/// What clients get now, by the policy of this process.
pub(super) fn section(desk: &Desk, reading: &Reading, history: &History) -> Markup {
    let mut operations = desk.admin.layer.policy().operations();
    let operation = operations.find(|it| it.name == history.operation);
    html! {
        section aria-labelledby="advice" {
            h2 #advice { "What clients get now" }
            @match operation {
                Some(operation) if operation.mode == Mode::Observe => {
                    p {
                        "The operation has " code { "mode = \"observe\"" }
                        ": Refrain changes nothing, and every duplicate executes."
                    }
                }
                Some(operation) => (table(&advice(operation, reading))),
                None => (of_worker(reading)),
            }
        }
    }
}

fn table(rows: &[Advice]) -> Markup {
    html! {
        table.list {
            caption.unseen { "What clients get now" }
            thead { tr {
                th scope="col" { "Request" }
                th scope="col" { "Response" }
                th scope="col" { "Advice to the client" }
            } }
            tbody { @for row in rows { tr {
                td data-name="Request" { (row.who) }
                td data-name="Response" {
                    (row.gets)
                    @if let Some(code) = row.code { " " a href={ "/problems/" (code.code()) } { code { (code.code()) } } }
                }
                td data-name="Advice to the client" { @match row.code { Some(code) => (meaning(code)), None => "none needed" } }
            } } }
        }
    }
}

/// The advice of a problem, in words.
fn meaning(code: Code) -> String {
    let text = match code.advice() {
        "wait" => "send the same request again later",
        "reuse-key" => "send the same request again with the same key",
        "new-key" => "correct the request, and use a new key",
        _ => "find out the result first, or ask the operator",
    };
    format!("{}: {text}", code.advice())
}

fn advice(operation: &Operation, reading: &Reading) -> Vec<Advice> {
    let mut rows = match &reading.record.state {
        State::InFlight { hold, lease_ends } => {
            in_flight(operation, hold.guarantee, lease_ends.left(reading.now))
        }
        State::Completed { outcome, .. } if outcome.is_body_kept() => {
            let bytes = frame::size(outcome.body().len() as u64);
            let gets = format!(
                "{} with the stored body ({bytes}), marked Idempotent-Replayed: true",
                outcome.status()
            );
            vec![Advice::new(SAME, gets, None)]
        }
        State::Completed { .. } => vec![instead_of_outcome(operation, Code::BodyNotKept)],
        State::Indeterminate { hold, .. } => vec![unknown(operation, hold.guarantee)],
        State::Tombstone { .. } => vec![instead_of_outcome(operation, Code::KeyExpired)],
    };
    let problem = |code: Code| (format!("{}", code.status().as_u16()), Some(code));
    let (gets, code) = problem(Code::KeyReused);
    rows.push(Advice::new("Another request with this key", gets, code));
    if operation.replay_to == ReplayTo::SameCredential && reading.record.credential.is_some() {
        let (gets, code) = problem(Code::CredentialChanged);
        rows.push(Advice::new("This key with another credential", gets, code));
    }
    rows
}

fn in_flight(
    operation: &Operation,
    guarantee: Guarantee,
    lease_left: std::time::Duration,
) -> Vec<Advice> {
    let wait = span(operation.terms.wait);
    let gets = format!("the outcome, if it comes within {wait}; otherwise 409 with Retry-After");
    let lapsed = match guarantee {
        Guarantee::AtMostOnce => "the outcome is unknown, and nothing executes again",
        Guarantee::AtLeastOnce => "the next retry executes again",
        Guarantee::ExactlyOnce => "the receipt decides: replay, or the next retry executes",
    };
    let after = format!("after {}: {lapsed}", span(lease_left));
    vec![
        Advice::new(SAME, gets, Some(Code::InFlight)),
        Advice::new("If the lease lapses, because the process died", after, None),
    ]
}

fn instead_of_outcome(operation: &Operation, code: Code) -> Advice {
    match operation.duplicates {
        Duplicates::Acknowledge => Advice::new(SAME, "200 without a body", None),
        Duplicates::Explain => Advice::new(SAME, code.status().as_u16().to_string(), Some(code)),
    }
}

fn unknown(operation: &Operation, guarantee: Guarantee) -> Advice {
    let first = match (guarantee, &operation.probe) {
        (Guarantee::ExactlyOnce, _) => "Refrain looks for the receipt first; without one, ",
        (_, Some(_)) => "Refrain asks the probe first; if it cannot tell, ",
        _ => "",
    };
    let gets = format!("{first}409 without Retry-After");
    Advice::new(SAME, gets, Some(Code::OutcomeUnknown))
}

/// Records of operations that the policy does not have: those of workers, or of an earlier policy.
fn of_worker(reading: &Reading) -> Markup {
    let text = match &reading.record.state {
        State::InFlight { .. } => "returned to the queue, until the outcome is known",
        State::Completed { .. } | State::Tombstone { .. } => "acknowledged, and not handled again",
        State::Indeterminate { .. } => {
            "sent to the dead-letter queue, until the outcome is settled"
        }
    };
    html! {
        p {
            "The policy of this process has no operation of this name. "
            "If the record belongs to a worker, a redelivery of its message is " (text) "."
        }
    }
}

/// The documentation page of a problem.
pub(super) async fn problem(desk: Desk, Path(code): Path<String>) -> Result<Response, Failed> {
    let found = Code::ALL.into_iter().find(|it| it.code() == code);
    let found = found.ok_or_else(|| {
        let fix = "open it from a record, or read the reference of problem codes";
        Refusal::new(StatusCode::NOT_FOUND, "there is no such problem code", fix)
    })?;
    let contents = html! {
        p.crumbs { "Problem " code { (found.code()) } }
        // The page is part of this program: nothing in it comes from outside.
        article.prose { (PreEscaped(found.page_html().unwrap_or_default())) }
    };
    Ok(frame::page(
        &desk,
        Section::Records,
        found.title(),
        &contents,
    ))
}
