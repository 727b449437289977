//! Messages that are published before the transaction commits.

use super::{Hit, money};
use crate::{
    file::File,
    item::{Role, Span},
    language::Lang,
    names,
    project::Project,
};

pub(super) fn in_transaction(project: &Project, file: usize) -> Vec<Hit> {
    let source = &project.files[file];
    let mut hits: Vec<Hit> = Vec::new();
    for call in source.of(Role::Call) {
        let item = &source.items[call];
        let Some(scope) = transaction(project, file, call) else {
            continue;
        };
        let own = publishes(project, source, call);
        let callees = project.callees(file, call);
        let through = callees
            .iter()
            .find(|(at, function)| helper_publishes(project, *at, *function));
        let is_outbox = callees
            .iter()
            .any(|(at, function)| keeps_outbox(project, *at, *function));
        let found = if callees.is_empty() {
            own
        } else {
            through.is_some()
        };
        let deferred = source.around(call).any(|at| {
            source.items[at].role == Role::Call
                && names::has_any(&source.items[at].name, &project.words.publishing.exempt)
        });
        if !found
            || is_outbox
            || deferred
            || is_exempt(project, source.low(&scope)) && own && !says_db(source.low(&scope))
        {
            continue;
        }
        let nested = hits.iter().any(|hit| item.span.contains(&hit.at));
        if !nested {
            let how = if own && callees.is_empty() {
                "it is sent"
            } else {
                "its helper publishes"
            };
            hits.push(Hit::new(
                money::position_of_call(source, call),
                format!("{how} before the commit, and is not undone by a rollback"),
            ));
        }
    }
    hits
}

/// Byte range of the enclosing transaction: block, closure, annotated function, or the code from begin to commit.
pub(super) fn transaction(project: &Project, file: usize, item: usize) -> Option<Span> {
    let source = &project.files[file];
    let words = &project.words.publishing;
    for at in source.around(item) {
        let around = &source.items[at];
        let found = match around.role {
            Role::With => source
                .calls(&around.value)
                .any(|call| names::fits_any(&source.items[call].name, &words.transactions)),
            Role::Function => {
                let parent = &source.items[around.parent];
                let handed = parent.role == Role::Call
                    && around.parent != at
                    && names::fits_any(&parent.name, &words.transactions);
                let class = source
                    .nearest(at, Role::Class)
                    .map_or("", |class| source.items[class].base.as_str());
                let marked = names::has_any(&format!("{}\n", around.base), &words.transactional)
                    || !around.name.is_empty() && names::has_any(class, &words.transactional)
                    || is_callback(source, at);
                if !handed
                    && !marked
                    && let Some(span) = begun(source, at, item)
                {
                    return Some(span);
                }
                handed || marked
            }
            _ => false,
        };
        if found {
            return Some(around.span.clone());
        }
    }
    None
}

/// The code from `begin` to `commit`, if both are in the same function.
fn begun(file: &File, function: usize, item: usize) -> Option<Span> {
    let body = &file.items[function].span;
    let at = file.items[item].at();
    let begins = [
        "begin",
        "begintx",
        "beginx",
        "begintransaction",
        "starttransaction",
        "*.begin",
        "begintxx",
        "beginner",
    ];
    let begin = file.calls(body).find(|call| {
        let it = &file.items[*call];
        let opens = it.tail() == "transaction" && it.args.is_empty() && in_assign(file, *call)
            || begins_by_itself(file, body, *call)
            || says(file, *call, "begin")
            || it.tail() == "setautocommit" && file.low(&it.value) == "(false)";
        (begins.contains(&it.tail()) || opens) && it.span.end <= at
    })?;
    let commit = file.calls(body).find(|call| {
        let it = &file.items[*call];
        is_commit(file, *call)
            && it.at() > at
            && *call != item
            && file.nearest(*call, Role::Deferred).is_none()
    })?;
    let early = file
        .calls(&(file.items[begin].span.end..at))
        .any(|call| is_commit(file, call));
    (!early).then(|| file.items[begin].at()..file.items[commit].span.end)
}

fn is_commit(file: &File, call: usize) -> bool {
    matches!(file.items[call].tail(), "commit" | "committransaction") || says(file, call, "commit")
}

/// Whether the call sends only this word to the database: `client.query('BEGIN')`.
fn says(file: &File, call: usize, word: &str) -> bool {
    let item = &file.items[call];
    let first = item.args.first().map(|arg| file.low(&arg.span));
    let sends = matches!(
        item.tail(),
        "query" | "execute" | "exec" | "run" | "executescript"
    );
    let said = first.map(|text| text.trim_matches(['"', '\'', '`', ';', ' ']));
    sends
        && said.is_some_and(|said| said == word || said.strip_suffix(" transaction") == Some(word))
}

/// Ruby: whether the method is a model callback that runs before the commit: `after_save :announce`.
fn is_callback(file: &File, function: usize) -> bool {
    let name = &file.items[function].name;
    if file.lang != Lang::Ruby || name.is_empty() {
        return false;
    }
    let Some(class) = file.nearest(function, Role::Class) else {
        return false;
    };
    // Callbacks are declared above the methods.
    let mut head = file.items[class + 1..function]
        .iter()
        .take_while(|it| it.role != Role::Function || it.name.is_empty());
    head.any(|it| {
        it.role == Role::Call
            && matches!(
                it.tail(),
                "aftersave"
                    | "aftercreate"
                    | "afterupdate"
                    | "afterdestroy"
                    | "beforesave"
                    | "beforecreate"
            )
            && it
                .args
                .iter()
                .any(|arg| names::fold(file.low(&arg.span)) == *name)
    })
}

/// Python: a session starts a transaction with its first statement, until its commit.
fn begins_by_itself(file: &File, body: &Span, call: usize) -> bool {
    let item = &file.items[call];
    let first = matches!(
        item.tail(),
        "add" | "addall" | "flush" | "execute" | "merge"
    );
    file.lang == Lang::Python
        && first
        && names::has_any(&item.base, &["*session", "*conn", "db", "*cursor", "cur"])
        && file.calls(&(item.span.end..body.end)).any(|at| {
            let it = &file.items[at];
            it.tail() == "commit" && it.base == item.base
        })
}

/// `t = await sequelize.transaction()` returns a handle, and is not a block.
fn in_assign(file: &File, call: usize) -> bool {
    let mut around = file.around(call).take(2);
    around.any(|at| file.items[at].role == Role::Assign)
}

fn publishes(project: &Project, file: &File, call: usize) -> bool {
    let item = &file.items[call];
    let fits = names::fits_any(&item.name, &project.words.publishing.publishes);
    let here = match item.tail() {
        "dispatch" => file.lang == Lang::Php && (item.args.len() <= 3),
        "delay" | "applyasync" => file.lang == Lang::Python,
        "enqueue" | "add" | "push" => !item.args.is_empty(),
        _ => true,
    };
    let text = file.low(&super::calls::chain(file, call));
    fits && here
        && !is_exempt(project, text)
        && !names::has_any(
            &item.base,
            &["*outbox", "*eventemitter", "subject", "*listener"],
        )
}

fn is_exempt(project: &Project, text: &str) -> bool {
    names::has_any(text, &project.words.publishing.exempt)
}

fn says_db(text: &str) -> bool {
    names::has_any(
        text,
        &[
            "insert ",
            "update ",
            "*.save",
            "*.create",
            "*.execute",
            "insert(",
            "update(",
            "*->save",
            "*->persist",
            "*::create",
        ],
    )
}

/// Whether a helper inserts the message into a table (outbox) in the same transaction.
fn keeps_outbox(project: &Project, file: usize, function: usize) -> bool {
    let source = &project.files[file];
    let text = source.low(&source.items[function].span);
    names::has_any(
        text,
        &[
            "*outbox",
            "insert into",
            "*pending_events",
            "*pendingevents",
        ],
    )
}

/// Whether a helper publishes, itself or through one more helper.
fn helper_publishes(project: &Project, file: usize, function: usize) -> bool {
    let source = &project.files[file];
    let span = source.items[function].value.clone();
    source.calls(&span).any(|call| {
        let callees = project.callees(file, call);
        if callees.is_empty() {
            return publishes(project, source, call);
        }
        callees.iter().any(|(at, function)| {
            let helper = &project.files[*at];
            !keeps_outbox(project, *at, *function)
                && helper.calls(&helper.items[*function].value).any(|call| {
                    publishes(project, helper, call) && project.callees(*at, call).is_empty()
                })
        })
    })
}
