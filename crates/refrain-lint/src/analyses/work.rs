//! What a handler does in which order.

use crate::{
    file::File,
    item::{Item, Role},
    names,
    project::Project,
};

/// Whether a call does the work of a handler, as opposed to looking, telling and acknowledging.
pub(super) fn is_work(project: &Project, file: &File, call: usize) -> bool {
    let item = &file.items[call];
    let words = &project.words.messages;
    let inner = file.around(call).take(2).any(|at| {
        let outer = &file.items[at];
        outer.role == Role::Call && outer.holds(&item.span) && outer.span.start == item.span.start
    });
    !item.name.is_empty()
        && !inner
        && !names::fits_any(&item.name, &words.talk)
        && !names::fits_any(&item.name, &words.acks)
        && !names::fits_any(&item.name, &words.marks)
        && file.nearest(call, Role::Attribute).is_none()
}

/// The work calls of a function, closures inside it included.
pub(super) fn work(project: &Project, file: &File, function: usize) -> Vec<usize> {
    let body = file.items[function].value.clone();
    file.calls(&body)
        .filter(|call| is_work(project, file, *call))
        .collect()
}

/// Whether what stands at `later` is run after what stands at `earlier`, in the same run.
pub(super) fn follows(file: &File, earlier: usize, later: usize) -> bool {
    let (first, second) = (&file.items[earlier], &file.items[later]);
    if second.at() < first.span.end {
        return false;
    }
    if file.items[..].get(earlier).is_some() && ends_loop(file, earlier, second) {
        return false;
    }
    file.around(earlier).all(|at| {
        let around = &file.items[at];
        match around.role {
            Role::Function if !around.holds(&second.span) => {
                around.holds(&first.span) && is_block(file, at)
            }
            Role::If if around.value.start <= first.at() && first.span.end <= around.value.end => {
                true
            }
            Role::If | Role::Catch if around.holds(&second.span) => {
                !is_alternative(file, first, second)
            }
            Role::If | Role::Catch => !leaves(file, at, first),
            _ => true,
        }
    })
}

/// In another loop than the one around what comes first, or behind it.
fn ends_loop(file: &File, earlier: usize, second: &Item) -> bool {
    let inner = file.nearest(earlier, Role::Loop);
    let function = file.function(earlier);
    inner.is_some_and(|at| {
        !file.items[at].holds(&second.span)
            && function.is_none_or(|function| file.items[at].at() > file.items[function].at())
    })
}

/// A closure that runs where it stands, such as the block of a transaction.
fn is_block(file: &File, function: usize) -> bool {
    let parent = &file.items[file.items[function].parent];
    parent.role == Role::Call
        && matches!(
            parent.tail(),
            "transaction" | "synchronize" | "atomic" | "tap" | "then" | "withlock"
        )
}

fn is_alternative(file: &File, first: &Item, second: &Item) -> bool {
    let between = file.low(&(first.span.end..second.at()));
    names::has_any(
        between,
        &[
            "else", "elif", "elsif", "case ", "when ", "default:", "=> {",
        ],
    )
}

/// Whether the branch is left after what stands in it.
fn leaves(file: &File, branch: usize, first: &Item) -> bool {
    let branch = &file.items[branch];
    file.within(&(first.at()..branch.span.end)).any(|at| {
        let item = &file.items[at];
        matches!(item.role, Role::Return | Role::Exit | Role::Rerun)
            || item.role == Role::Call
                && matches!(item.tail(), "raise" | "panic" | "exit" | "die" | "bail")
    }) || file
        .around(file.innermost(&first.span).unwrap_or(0))
        .take(2)
        .any(|at| file.items[at].role == Role::Return)
}

/// Whether a function handles messages.
pub(super) fn is_handler(project: &Project, file: &File, function: usize) -> bool {
    let item = &file.items[function];
    let named =
        !item.name.is_empty() && names::fits_any(&item.name, &project.words.messages.handlers);
    let told = item.args.iter().any(|arg| {
        [
            "message",
            "msg",
            "event",
            "evt",
            "delivery",
            "job",
            "record",
            "envelope",
            "webhook",
            "jobdata",
            "eventid",
            "messageid",
        ]
        .contains(&arg.name.as_str())
    });
    let marked = names::has_any(
        &item.base,
        &[
            "*listener",
            "*incoming",
            "*eventpattern",
            "*messagepattern",
            "*.task",
            "@shared_task",
            "*actor",
        ],
    );
    named || told || marked
}
