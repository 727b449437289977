//! Calls that move money and send no key.

use super::{Hit, calls, retries};
use crate::{item::Role, names, project::Project, rule::Severity};

pub(super) fn without_key(project: &Project, file: usize) -> Vec<Hit> {
    let source = &project.files[file];
    let mut hits = Vec::new();
    for call in source.of(Role::Call) {
        if let Some(sdk) = calls::sdk(project, source, call) {
            if !calls::has_key(project, file, call) && !later_part(project, file, call) {
                let note = format!(
                    "`{}` of {} is called without a key",
                    source.items[call].name, sdk.name
                );
                hits.push(Hit::new(position_of_call(source, call), note));
            }
        } else if is_money_post(project, file, call)
            && !calls::has_key(project, file, call)
            && retries::retried(project, file, call).is_none()
        {
            hits.push(
                Hit::new(
                    position_of_call(source, call),
                    "the URL is one that moves money",
                )
                .with_severity(Severity::Warning),
            );
        }
    }
    hits
}

/// Whether an enclosing SDK call executes this one: a builder such as `OrdersCreateRequest` is part of that call.
fn later_part(project: &Project, file: usize, call: usize) -> bool {
    let source = &project.files[file];
    source
        .around(call)
        .any(|at| source.items[at].role == Role::Call && calls::sdk(project, source, at).is_some())
}

/// Position to report for a call: its own name in the call chain.
pub(super) fn position_of_call(file: &crate::file::File, call: usize) -> usize {
    let item = &file.items[call];
    let text = &file.text[item.span.start..item.value.start];
    let head = text.trim_end();
    let name = head
        .rfind(|c: char| !c.is_alphanumeric() && c != '_')
        .map_or(0, |at| at + 1);
    item.span.start + name.min(head.len())
}

/// Whether the call is a POST to a URL about payments.
pub(super) fn is_money_post(project: &Project, file: usize, call: usize) -> bool {
    if !calls::is_post(project, file, call) {
        return false;
    }
    let words = &project.words.http;
    let address = calls::address(project, file, call);
    names::has_any(&address, &words.money_paths) && !names::has_any(&address, &words.reads)
}
