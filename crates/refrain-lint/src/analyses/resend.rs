//! Requests that are sent again after the connection closed before the response arrived.

use super::{Hit, calls, work};
use crate::{
    file::File,
    item::{Role, Span},
    names,
    project::Project,
    rule::Severity,
};

/// Errors with which clients report a connection that closed after the request was sent.
const CLOSED: [&str; 35] = [
    "*connection closed before message completed",
    "*is_incomplete_message",
    "*incompletemessage",
    "*econnreset",
    "*socket hang up",
    "*remotedisconnected",
    "*nohttpresponseexception",
    "*unexpected eof",
    "io.eof",
    "io.errunexpectedeof",
    "eoferror",
    "epipe",
    "*connectionreset",
    "*connection reset",
    "*connection aborted",
    "*server closed",
    "*connectionclosed",
    "*remoteprotocolerror",
    "*empty reply",
    "*serverdisconnected",
    "*err_socket_closed",
    "*curle_got_nothing",
    "*curl error 52",
    "*curl error 56",
    "*connectionaborted",
    "*brokenpipe",
    "*broken pipe",
    "*eofexception",
    "*und_err_socket",
    "*server disconnected",
    "*other side closed",
    "*connection closed",
    "*connection was closed",
    "*closed by the remote",
    "*socket closed",
];
/// Errors that can also mean that nothing was sent: they only count if the same branch sends again.
const PERHAPS: [&str; 1] = ["*connectionerror"];

pub(super) fn on_closed(project: &Project, file: usize) -> Vec<Hit> {
    let source = &project.files[file];
    if !names::has_any(&source.lower, &CLOSED) && !names::has_any(&source.lower, &PERHAPS) {
        return Vec::new();
    }
    let mut hits: Vec<Hit> = Vec::new();
    for at in 0..source.items.len() {
        let item = &source.items[at];
        if !matches!(item.role, Role::If | Role::Catch) {
            continue;
        }
        let closed = find_first_word(source, &item.value, &CLOSED);
        let perhaps = || find_first_word(source, &item.value, &PERHAPS);
        let Some(said) = closed.or_else(perhaps) else {
            continue;
        };
        if let Some(certain) = resends(project, file, at, closed.is_some()) {
            push(&mut hits, source, said, certain);
        }
    }
    for at in source.of(Role::Function) {
        predicate(project, file, at, &mut hits);
    }
    hits
}

/// Reports functions that decide for a client whether to retry.
fn predicate(project: &Project, file: usize, function: usize, hits: &mut Vec<Hit>) {
    let source = &project.files[file];
    let item = &source.items[function];
    let asks = [
        "retrycondition",
        "shouldretry",
        "isretryable",
        "retryif",
        "retryon",
        "checkretry",
        "isretriable",
        "decider",
        "retrydecider",
        "canretry",
        "retryable",
    ];
    let around = source
        .around(function)
        .take(2)
        .any(|at| asks.contains(&source.items[at].tail()));
    if !asks.iter().any(|name| item.name.contains(name)) && !around || item.span.len() > 1_500 {
        return;
    }
    let looks_at_method = names::has_any(source.low(&item.span), &["*method", "*idempot"]);
    if let Some(said) = find_first_word(source, &item.value, &CLOSED).filter(|_| !looks_at_method) {
        let posts = source
            .of(Role::Call)
            .any(|call| calls::is_post(project, file, call));
        let keyed = names::has_any(&source.lower, &project.words.key_evidence);
        if !keyed {
            push(hits, source, said, posts);
        }
    }
}

fn push(hits: &mut Vec<Hit>, file: &File, at: usize, certain: bool) {
    let line = |at: usize| file.text[..at].matches('\n').count();
    if hits.iter().any(|hit| line(hit.at) == line(at)) {
        return;
    }
    let hit = Hit::new(
        at,
        "the request was sent when the connection closed: it may have been executed",
    );
    hits.push(if certain {
        hit
    } else {
        hit.with_severity(Severity::Hint)
    });
}

fn find_first_word(file: &File, span: &Span, words: &[&str]) -> Option<usize> {
    let text = file.low(span);
    words
        .iter()
        .filter_map(|word| names::find(text, word))
        .min()
        .map(|at| span.start + at)
}

/// Whether the branch leads to another send: `Some(true)` if the request is certainly a POST.
/// `None` if it does not send again, or a key is sent along.
fn resends(project: &Project, file: usize, branch: usize, is_closed: bool) -> Option<bool> {
    let source = &project.files[file];
    let item = &source.items[branch];
    let function = source.function(branch)?;
    let body = source.items[function].span.clone();
    let inside = item.value.end.max(item.span.start)..item.span.end;
    let sends = |span: &Span| -> Vec<String> {
        source
            .calls(span)
            .map(|at| &source.items[at])
            .filter(|it| calls_out(&it.name))
            .map(|it| it.name.clone())
            .collect()
    };
    let before = sends(&(body.start..item.at()));
    let again = source.within(&inside).any(|at| {
        let it = &source.items[at];
        let text = source.low(&it.span);
        it.role == Role::Rerun && is_closed
            || it.role == Role::Exit
                && is_closed
                && text.starts_with("continue")
                && source.nearest(branch, Role::Loop).is_some()
            || it.role == Role::Call
                && (before.contains(&it.name)
                    || is_same_call(project, source, at, &(body.start..item.at()))
                    || it.tail() == source.items[function].name && !it.tail().is_empty()
                    || names::has_any(&it.name, &["*retry", "*resend"]))
    });
    let falls_back = is_closed
        && source
            .nearest(branch, Role::Loop)
            .is_some_and(|at| project.retry_loop(source, at))
        && item.role == Role::Catch
        && !source
            .within(&inside)
            .any(|at| matches!(source.items[at].role, Role::Return | Role::Exit));
    if !again && !falls_back {
        return None;
    }
    let text = source.low(&body);
    if names::has_any(text, &project.words.key_evidence) {
        return None;
    }
    let posts: Vec<usize> = source
        .calls(&body)
        .filter(|call| calls::is_post(project, file, *call))
        .collect();
    if posts
        .iter()
        .any(|call| calls::has_key(project, file, *call))
    {
        return None;
    }
    let only_reads = posts.is_empty()
        && names::has_any(
            text,
            &["*.get(", "\"get\"", "'get'", "*method::get", "*methodget"],
        );
    (!only_reads).then_some(!posts.is_empty())
}

/// Whether the same call, with the same arguments, appears before.
fn is_same_call(project: &Project, file: &File, call: usize, before: &Span) -> bool {
    let item = &file.items[call];
    !item.args.is_empty()
        && work::is_work(project, file, call)
        && file
            .calls(before)
            .any(|at| file.low(&file.items[at].span) == file.low(&item.span))
}

fn calls_out(name: &str) -> bool {
    let tails = [
        "post",
        "send",
        "do",
        "execute",
        "request",
        "fetch",
        "perform",
        "call",
        "put",
        "patch",
        "postforobject",
        "postforentity",
        "invoke",
        "submit",
        "charge",
        "roundtrip",
        "pay",
    ];
    name.rsplit('.')
        .next()
        .is_some_and(|tail| tails.contains(&tail))
}
