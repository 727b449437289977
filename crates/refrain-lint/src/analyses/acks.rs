//! Messages that are acknowledged before they are handled.

use super::{Hit, money, work};
use crate::{file::File, item::Role, names, project::Project};

pub(super) fn before_work(project: &Project, file: usize) -> Vec<Hit> {
    let source = &project.files[file];
    let mut hits = Vec::new();
    for ack in source.of(Role::Call) {
        let item = &source.items[ack];
        // Sneakers workers call `ack!` without a receiver.
        let is_bare = item.name == "ack" && source.low(&item.span) == "ack!";
        if !is_bare && !names::fits_any(&item.name, &project.words.messages.acks) {
            continue;
        }
        let guarded = source.around(ack).any(|at| {
            matches!(
                source.items[at].role,
                Role::Catch | Role::Finally | Role::Deferred
            )
        });
        let function = source.function(ack);
        if guarded || function.is_some_and(|at| is_wrapper(source, at)) {
            continue;
        }
        // Work for the previous message in a loop does not count for this one.
        let around = source.nearest(ack, Role::Loop).filter(|at| {
            function.is_none_or(|function| source.items[*at].at() > source.items[function].at())
        });
        let Some(body) = around
            .map(|at| source.items[at].span.clone())
            .or_else(|| function.map(|at| source.items[at].value.clone()))
        else {
            continue;
        };
        let head = around.map_or(0..0, |at| source.items[at].value.clone());
        // An acknowledgement may be created here and sent later; sending it is not work.
        let made = source.nearest(ack, Role::Assign);
        let made = made.map_or("", |at| &source.items[at].name);
        let is_its_own = |at: usize| !made.is_empty() && source.items[at].base == made;
        let work: Vec<usize> = source
            .calls(&body)
            .filter(|at| work::is_work(project, source, *at))
            .filter(|at| !head.contains(&source.items[*at].at()) && !is_its_own(*at))
            .collect();
        let before = work.iter().any(|at| {
            let it = &source.items[*at];
            it.at() < item.at()
                && !it.holds(&item.span)
                && !item.holds(&it.span)
                && work::follows(source, *at, ack)
        });
        let after = work.iter().find(|at| work::follows(source, ack, **at));
        if let Some(after) = after.filter(|_| !before) {
            let note = format!("`{}` comes only after it", source.items[*after].name);
            hits.push(Hit::new(money::position_of_call(source, ack), note));
        }
    }
    hits
}

/// Whether the function only wraps an acknowledgement; the order is then up to its callers.
fn is_wrapper(file: &File, function: usize) -> bool {
    let name = &file.items[function].name;
    [
        "ack", "delete", "commit", "settle", "complete", "confirm", "done",
    ]
    .iter()
    .any(|word| name.starts_with(word))
}
