//! Messages that are marked as done before they are handled.

use super::{Hit, claims, money, publish, work};
use crate::{file::File, item::Role, names, project::Project};

pub(super) fn before_work(project: &Project, file: usize) -> Vec<Hit> {
    let source = &project.files[file];
    let mut hits: Vec<Hit> = Vec::new();
    let mut seen = Vec::new();
    for mark in source.of(Role::Call) {
        if !is_mark(project, file, mark) {
            continue;
        }
        let Some(function) = source.function(mark).filter(|at| {
            work::is_handler(project, source, *at)
                || source.around(*at).any(|it| {
                    source.items[it].role == Role::Function && work::is_handler(project, source, it)
                })
        }) else {
            continue;
        };
        let before = work::work(project, source, function).into_iter().any(|at| {
            source.items[at].span.end <= source.items[mark].at()
                && work::follows(source, at, mark)
                && !claims::is_store(project, source, at)
        });
        let after = work::work(project, source, function)
            .into_iter()
            .find(|at| work::follows(source, mark, *at) && !claims::is_store(project, source, *at));
        let Some(after) = after.filter(|_| !before && !seen.contains(&function)) else {
            continue;
        };
        if publish::transaction(project, file, mark).is_some()
            || is_taken_back(project, source, function, mark)
        {
            continue;
        }
        seen.push(function);
        let note = format!(
            "`{}` comes only after it: if that fails, the mark stays and the message is lost",
            source.items[after].name
        );
        hits.push(Hit::new(money::place(source, mark), note));
    }
    hits
}

/// A call that writes down that a message is done.
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

/// The mark says "begun" and is settled later, or is taken back when the work fails.
fn is_taken_back(project: &Project, file: &File, function: usize, mark: usize) -> bool {
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
    let body = &file.items[function].span;
    file.calls(body).any(|at| {
        let call = &file.items[at];
        let undone = names::fits_any(&call.name, &project.words.stores.deletes)
            && file
                .around(at)
                .any(|it| matches!(file.items[it].role, Role::Catch | Role::If | Role::Finally));
        call.at() > item.at() && undone
    })
}
