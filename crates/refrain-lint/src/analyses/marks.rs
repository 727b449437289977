//! Messages that are marked as processed before they are handled.

use super::{Hit, claims, money, publish, work};
use crate::{
    file::File,
    item::{Role, Span},
    names,
    project::Project,
};

pub(super) fn before_work(project: &Project, file: usize) -> Vec<Hit> {
    let source = &project.files[file];
    let found = found(project, file).into_iter();
    found
        .map(|(mark, after)| {
            let note = format!(
                "`{}` comes only after it: if that fails, the mark stays and the message is lost",
                source.items[after].name
            );
            Hit::new(money::position_of_call(source, mark), note)
        })
        .collect()
}

/// Calls that mark a message before it is handled.
pub(super) fn marks(project: &Project, file: usize) -> Vec<usize> {
    let found = found(project, file).into_iter();
    found.map(|(mark, _)| mark).collect()
}

/// Marks before the work, each with the first work after it.
fn found(project: &Project, file: usize) -> Vec<(usize, usize)> {
    let source = &project.files[file];
    let mut found = Vec::new();
    let mut seen = Vec::new();
    for mark in source.of(Role::Call) {
        if !is_mark(project, file, mark) {
            continue;
        }
        let Some(body) = handled_in(project, source, mark) else {
            continue;
        };
        let work: Vec<usize> = source
            .calls(&body)
            .filter(|at| work::is_work(project, source, *at))
            .filter(|at| !claims::is_store(project, source, *at))
            .collect();
        let before = work.iter().any(|at| {
            source.items[*at].span.end <= source.items[mark].at()
                && work::follows(source, *at, mark)
        });
        let after = work.iter().find(|at| work::follows(source, mark, **at));
        let Some(after) = after.filter(|_| !before && !seen.contains(&body)) else {
            continue;
        };
        if publish::transaction(project, file, mark).is_some()
            || is_taken_back(project, source, &body, mark)
        {
            continue;
        }
        seen.push(body);
        found.push((mark, *after));
    }
    found
}

/// Body of the handler, or of the loop over messages, that handles the marked message.
fn handled_in(project: &Project, file: &File, mark: usize) -> Option<Span> {
    let function = file.function(mark);
    let item = &file.items[mark];
    // A loop that fills a set in memory only removes duplicates from its own input.
    let in_memory =
        matches!(item.tail(), "add" | "insert" | "push") && !claims::is_shared(&item.base);
    let around = file.nearest(mark, Role::Loop).filter(|at| {
        let inner =
            function.is_none_or(|function| file.items[*at].at() > file.items[function].at());
        inner && !in_memory && work::is_loop_of_messages(project, file, *at)
    });
    if let Some(at) = around {
        let around = &file.items[at];
        return Some(around.value.end.clamp(around.span.start, around.span.end)..around.span.end);
    }
    let function = function?;
    let mut functions = file
        .around(function)
        .chain([function])
        .filter(|at| file.items[*at].role == Role::Function);
    functions
        .any(|at| work::is_handler(project, file, at))
        .then(|| file.items[function].value.clone())
}

/// Whether a call records that a message is processed.
fn is_mark(project: &Project, file: usize, call: usize) -> bool {
    let source = &project.files[file];
    let (item, words) = (&source.items[call], &project.words);
    if names::fits_any(&item.name, &words.messages.marks) {
        return true;
    }
    let nx = [
        "*setnx",
        "*setifabsent",
        "*sadd",
        "*putifabsent",
        "cache.add",
        "*.setnx",
    ];
    let writes = names::fits_any(&item.name, &words.stores.sets)
        || nx.iter().any(|it| names::fits(&item.name, it));
    if !writes || item.args.is_empty() {
        return false;
    }
    let mut text = String::from(source.low(&item.value));
    for arg in &item.args {
        for piece in project
            .reach(file, &arg.span)
            .pieces
            .iter()
            .filter(|piece| piece.span.len() < 200)
        {
            text.push_str(project.files[piece.file].low(&piece.span));
            text.push('\n');
        }
    }
    let sql = text.contains("insert into")
        || !names::fits_any(
            &item.name,
            &[
                "execute".into(),
                "exec".into(),
                "query".into(),
                "*.execute".into(),
                "*.exec".into(),
                "execcontext".into(),
                "*.query".into(),
            ],
        );
    let receiver = names::has_any(
        &item.base,
        &["*processed", "*seen", "*dedup", "*handled", "*inbox"],
    );
    sql && (names::has_any(&text, &words.messages.marked) || receiver)
}

/// Whether the mark only means "started" and is settled later, or is deleted when the work fails.
fn is_taken_back(project: &Project, file: &File, body: &Span, mark: usize) -> bool {
    let item = &file.items[mark];
    let own = file.low(&item.value);
    if names::has_any(
        own,
        &[
            "*in_progress",
            "*inprogress",
            "*in-progress",
            "pending",
            "processing",
            "'started",
            "\"started",
            "claimed",
            "*in_flight",
            "lease",
            "lock",
            "*lock:",
        ],
    ) {
        return true;
    }
    file.calls(body).any(|at| {
        let call = &file.items[at];
        let undone = names::fits_any(&call.name, &project.words.stores.deletes)
            && file
                .around(at)
                .any(|it| matches!(file.items[it].role, Role::Catch | Role::If | Role::Finally));
        call.at() > item.at() && undone
    })
}
