//! Handling of failed attempts: errors that are stored as outcomes, and claims that are deleted after an error.

use super::{Hit, calls, claims, money};
use crate::{
    file::File,
    item::{Item, Role},
    names,
    project::{Kind, Project},
    rule::Severity,
};

/// Errors that prove that nothing was executed.
const NOTHING_RAN: [&str; 12] = [
    "*connecterror",
    "*connectionrefused",
    "*econnrefused",
    "*refused",
    "*validation",
    "*declined",
    "*invalidrequest",
    "*badrequest",
    "*carderror",
    "*resolve",
    "*unauthorized",
    "*ratelimit",
];

/// Expressions that read the status of a response, in contrast to a status that the code sets.
const STATUS: [&str; 12] = [
    "*.status",
    "*status_code",
    "*statuscode",
    "*->status",
    "*getstatus",
    "*status()",
    "status:",
    "status,",
    "rec.code",
    "recorder.code",
    "rr.code",
    "rec.result",
];

/// Errors that are stored as the outcome, so that retries get them.
pub(super) fn kept(project: &Project, file: usize) -> Vec<Hit> {
    let source = &project.files[file];
    let mut hits = Vec::new();
    for set in source.of(Role::Call) {
        let item = &source.items[set];
        let writes = names::fits_any(&item.name, &project.words.stores.sets) && item.args.len() > 1;
        if !writes || claims::reads_header(source, set) || !is_idempotency(project, file, set) {
            continue;
        }
        let text = source.low(&item.value);
        let note = "the failure is stored as the outcome: every retry gets it";
        match failing(source, set) {
            Some(_) if is_state(text) => {}
            Some(_) => {
                let again = project.rerun(file, set).is_some()
                    || names::has_any(
                        &source.lower,
                        &["*at-least-once", "*at_least_once", "*atleastonce"],
                    );
                let hit = Hit::new(money::position_of_call(source, set), note);
                hits.push(if again {
                    hit
                } else {
                    hit.with_severity(Severity::Hint)
                });
            }
            None if keeps_status(project, file, set)
                && !is_state(text)
                && !looks_at_status(source, set) =>
            {
                let note = "the response is stored with any status: every retry gets a stored 503";
                hits.push(
                    Hit::new(money::position_of_call(source, set), note)
                        .with_severity(Severity::Hint),
                );
            }
            None => {}
        }
    }
    hits
}

/// Whether the written value contains the status of a response.
fn keeps_status(project: &Project, file: usize, set: usize) -> bool {
    let source = &project.files[file];
    source.items[set].args.iter().any(|arg| {
        let pieces = project.reach(file, &arg.span).pieces;
        let near = pieces.iter().filter(|piece| {
            piece.file == file
                && piece.span.len() < 240
                && matches!(piece.kind, Kind::Own | Kind::Variable)
        });
        near.into_iter().any(|piece| {
            let text = source.low(&piece.span);
            names::has_any(text, &STATUS) && !says_success(text)
        })
    })
}

/// Whether the status is a literal 20x.
fn says_success(text: &str) -> bool {
    text.split("status").skip(1).any(|rest| {
        let rest = rest.trim_start_matches(|c: char| !c.is_alphanumeric());
        rest.starts_with("20") && rest[2..].starts_with(|c: char| c.is_ascii_digit())
    })
}

/// Claims that are deleted although the effect may have happened.
pub(super) fn dropped(project: &Project, file: usize) -> Vec<Hit> {
    let source = &project.files[file];
    let mut hits = Vec::new();
    for delete in source.of(Role::Call) {
        let item = &source.items[delete];
        let deletes =
            names::fits_any(&item.name, &project.words.stores.deletes) && !item.args.is_empty();
        if !deletes || !is_idempotency(project, file, delete) {
            continue;
        }
        let Some(place) = failing(source, delete)
            .filter(|at| !names::has_any(source.low(&source.items[*at].value), &NOTHING_RAN))
        else {
            continue;
        };
        if moves_money(project, file, place, delete) {
            let note =
                "the call may have taken effect: without the claim the next retry repeats it";
            hits.push(Hit::new(money::position_of_call(source, delete), note));
        }
    }
    hits
}

/// Whether an argument is the key of an idempotency record.
fn is_idempotency(project: &Project, file: usize, call: usize) -> bool {
    let source = &project.files[file];
    let item = &source.items[call];
    let words = ["*idempot", "idem:", "idem_key", "idemkey", "idem-"];
    names::has_any(source.low(&item.value), &words)
        || names::has_any(&item.base, &words)
        || item.args.iter().any(|arg| {
            let pieces = project.reach(file, &arg.span).pieces;
            pieces
                .iter()
                .filter(|piece| piece.span.len() < 200)
                .any(|piece| names::has_any(project.files[piece.file].low(&piece.span), &words))
        })
}

/// The enclosing error handler, or branch for a failure.
fn failing(file: &File, item: usize) -> Option<usize> {
    file.around(item)
        .take_while(|at| file.items[*at].role != Role::Function || file.items[*at].name.is_empty())
        .find(|at| {
            let around = &file.items[*at];
            let head = file.low(&around.value);
            match around.role {
                Role::Catch => true,
                Role::If => {
                    !around.value.contains(&file.items[item].at())
                        && fails(head)
                        && !in_else(file, around, item)
                }
                _ => false,
            }
        })
}

fn fails(head: &str) -> bool {
    let ok = names::has_any(
        head,
        &[
            "== nil",
            "is none",
            "is_ok",
            "*redis.nil",
            "existing",
            "cached",
            "*2xx",
            "< 400",
            "< 500",
            "<400",
            "<500",
            "< 300",
            "ok(",
        ],
    );
    let bad = names::has_any(
        head,
        &[
            "err != nil",
            "error",
            "err(",
            "*is_err",
            ">= 400",
            ">= 500",
            ">=500",
            ">=400",
            "*is_server_error",
            "*isservererror",
            "*servererror",
            "*failed",
            "> 499",
            "*exception",
            "!response.ok",
            "!resp.ok",
            "!res.ok",
            "*is5xx",
        ],
    );
    bad && !ok
}

fn in_else(file: &File, branch: &Item, item: usize) -> bool {
    let before = file.low(&(branch.value.end..file.items[item].at()));
    names::has_any(before, &["else"])
}

/// Whether the text is a state of the record, not a response to replay.
fn is_state(text: &str) -> bool {
    names::has_any(
        text,
        &[
            "*in_progress",
            "*inprogress",
            "*in-progress",
            "pending",
            "processing",
            "*started",
            "\"failed\"",
            "'failed'",
            "*indeterminate",
            "*unknown",
            "*in_flight",
        ],
    )
}

fn looks_at_status(file: &File, set: usize) -> bool {
    let Some(function) = file.method(set) else {
        return true;
    };
    let body = &file.items[function].span;
    file.within(body).any(|at| {
        let item = &file.items[at];
        item.role == Role::If
            && names::has_any(
                file.low(&item.value),
                &["*status", "*.ok", "*success", "*is5xx", "*failed", "*error"],
            )
    }) || names::has_any(
        file.low(body),
        &[
            "*raise_for_status",
            "*error_for_status",
            "*ensuresuccess",
            "->throw()",
            "*match ",
        ],
    )
}

/// Whether the code that was tried sends a POST, calls a payment SDK, or has a name about money.
fn moves_money(project: &Project, file: usize, place: usize, delete: usize) -> bool {
    let source = &project.files[file];
    let tried = match source.items[place].role {
        Role::Catch => source.nearest(place, Role::Try).or(source.function(place)),
        _ => source.function(delete),
    };
    // The head of an `if` may contain the call itself.
    let end = match source.items[place].role {
        Role::Catch => source.items[place].at(),
        _ => source.items[delete].at(),
    };
    let Some(span) = tried.map(|at| source.items[at].span.start..end) else {
        return false;
    };
    let verbs = [
        "charge", "pay", "capture", "refund", "transfer", "payout", "withdraw", "debit", "credit",
        "process", "execute", "handle", "submit", "send", "callnext", "next", "place",
    ];
    source.calls(&span).any(|call| {
        let tail = source.items[call].tail();
        calls::sdk(project, source, call).is_some()
            || calls::is_post(project, file, call)
            || verbs.iter().any(|verb| tail.starts_with(verb))
    })
}
