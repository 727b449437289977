//! Predicates that patterns of rules can require at a match.

use crate::{
    item::{Role, Span},
    names,
    project::Project,
};

/// Predicate names that a rule can use in `when`.
pub(crate) const NAMES: [&str; 5] = [
    "in-function",
    "in-transaction",
    "in-try",
    "key-takes-part",
    "runs-again",
];

/// Whether all predicates of `when` hold at a byte range.
pub(crate) fn holds(project: &Project, file: usize, span: &Span, when: &[String]) -> bool {
    when.iter().all(|name| match name.strip_prefix("not-") {
        Some(name) => !is_true(project, file, span, name),
        None => is_true(project, file, span, name),
    })
}

fn is_true(project: &Project, file: usize, span: &Span, name: &str) -> bool {
    let source = &project.files[file];
    let Some(item) = source.innermost(span) else {
        return false;
    };
    match name {
        "in-function" => source.function(item).is_some(),
        "in-transaction" => crate::analyses::in_transaction(project, file, item),
        "in-try" => source.nearest(item, Role::Try).is_some(),
        "runs-again" => project.rerun(file, item).is_some(),
        _ => {
            let reach = project.reach(file, span);
            reach.has(project, &project.words.key_evidence)
                || names::has_any(source.low(span), &project.words.key_evidence)
        }
    }
}
