//! The work of a message handler, and the order of calls.

use crate::{
    file::File,
    item::{Item, Role},
    language::Lang,
    names,
    project::Project,
};

/// Whether a call does the work of a handler, in contrast to reads, logging and acknowledgements.
pub(super) fn is_work(project: &Project, file: &File, call: usize) -> bool {
    let item = &file.items[call];
    let words = &project.words.messages;
    !item.name.is_empty()
        && !talks(project, file, call)
        && !names_an_id(file, call)
        && !is_only_a_part(project, file, call)
        && !is_read(file, call)
        && !names::fits_any(&item.name, &words.acks)
        && !names::fits_any(&item.name, &words.marks)
        && !is_of_an_error(file, call)
        && file.nearest(call, Role::Attribute).is_none()
}

/// Whether a call only logs, counts or looks something up.
/// A short verb such as `is` must be a word of its own: `issue_invoice` is work.
fn talks(project: &Project, file: &File, call: usize) -> bool {
    const SHORT: usize = 6;
    let item = &file.items[call];
    let written = written(file, call);
    let fits = |word: &&String| names::fits(&item.name, word);
    let mut words = project.words.messages.talk.iter().filter(fits);
    words.any(|word| match word.strip_suffix('*') {
        Some(verb) if verb.len() <= SHORT && !verb.contains(['.', '*']) => {
            let rest = written.get(verb.len()..).unwrap_or_default();
            let next = rest.chars().next();
            next.is_none_or(|c| !c.is_ascii_lowercase())
        }
        _ => true,
    })
}

/// Whether the call returns an id: `message_id(&delivery)`, `getId()`.
fn names_an_id(file: &File, call: usize) -> bool {
    let written = written(file, call);
    ["_id", "Id", "ID"].iter().any(|end| written.ends_with(end))
}

/// Last name of a callee in its original spelling, without leading underscores.
fn written(file: &File, call: usize) -> &str {
    let item = &file.items[call];
    let head = file
        .text
        .get(item.span.start..item.value.start)
        .unwrap_or_default()
        .trim_end_matches(|c: char| !c.is_alphanumeric());
    let start = head.rfind(|c: char| !c.is_alphanumeric() && c != '_');
    head[start.map_or(0, |at| at + 1)..].trim_start_matches('_')
}

/// Whether the call is only the receiver of another call: `redis.opsForValue()` before `.get(…)`.
/// A call whose result is only read is work: `service.pay(request).toJson()`.
fn is_only_a_part(project: &Project, file: &File, call: usize) -> bool {
    let item = &file.items[call];
    let outer = file.around(call).take(2).find(|at| {
        let outer = &file.items[*at];
        outer.role == Role::Call && outer.holds(&item.span) && outer.span.start == item.span.start
    });
    let Some(outer) = outer else {
        return false;
    };
    let goes_on = [
        "pipe",
        "subscribe",
        "flatmap",
        "join",
        "orelsethrow",
        "asjson",
        "throw",
    ];
    let looked_at = talks(project, file, outer) || goes_on.contains(&file.items[outer].tail());
    let runs = ["handle", "proceed", "execute", "call", "run", "process"].contains(&item.tail());
    let given = item
        .args
        .iter()
        .any(|arg| !file.low(&arg.span).starts_with(['"', '\'', '`', ':']));
    !(looked_at && (given || runs))
}

/// Ruby: an argument that is a call without arguments reads an attribute, and is not work.
fn is_read(file: &File, call: usize) -> bool {
    let item = &file.items[call];
    let outer = file
        .around(call)
        .find(|at| file.items[*at].role != Role::Pair)
        .unwrap_or(item.parent);
    let outer = &file.items[outer];
    file.lang == Lang::Ruby
        && item.args.is_empty()
        && outer.role == Role::Call
        && outer.value.start <= item.at()
        && item.span.end <= outer.value.end
}

/// Whether the call only creates the error that is thrown.
fn is_of_an_error(file: &File, call: usize) -> bool {
    let thrown = file.nearest(call, Role::Exit);
    thrown.is_some() || file.items[call].tail().ends_with("error")
}

/// Whether `later` can run after `earlier` in the same execution.
pub(super) fn follows(file: &File, earlier: usize, later: usize) -> bool {
    let (first, second) = (&file.items[earlier], &file.items[later]);
    if second.at() < first.span.end {
        return false;
    }
    if ends_loop(file, earlier, second) {
        return false;
    }
    file.around(earlier).all(|at| {
        let around = &file.items[at];
        match around.role {
            Role::Function if !around.holds(&second.span) => {
                around.holds(&first.span) && is_block(file, at)
            }
            Role::If if in_head(file, around, first) => true,
            Role::If | Role::Catch if around.holds(&second.span) => {
                !is_alternative(file, first, second)
            }
            Role::If | Role::Catch => !leaves(file, at, first),
            _ => true,
        }
    })
}

/// Whether the item is in the condition, or in Go in the statement before it: `if err := apply(m); err != nil`.
fn in_head(file: &File, branch: &Item, item: &Item) -> bool {
    let begins = branch.value.start <= item.at() || file.lang == Lang::Go;
    begins && item.span.end <= branch.value.end
}

/// Whether `second` is outside the innermost loop around `earlier`.
fn ends_loop(file: &File, earlier: usize, second: &Item) -> bool {
    let inner = file.nearest(earlier, Role::Loop);
    let function = file.function(earlier);
    inner.is_some_and(|at| {
        !file.items[at].holds(&second.span)
            && function.is_none_or(|function| file.items[at].at() > file.items[function].at())
    })
}

/// Whether the closure runs in place, such as the block of a transaction.
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

/// Whether the code after an item leaves the branch.
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

/// Folded names of parameters and variables that hold a message.
const MESSAGES: [&str; 16] = [
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
    "deliveryinfo",
    "deliverytag",
    "sqsmessage",
    "kafkamessage",
];

/// Whether the loop processes messages one by one.
pub(super) fn is_loop_of_messages(project: &Project, file: &File, at: usize) -> bool {
    let item = &file.items[at];
    let head = file.names(&item.value);
    head.iter().any(|name| MESSAGES.contains(&name.as_str()))
        || names::has_any(file.low(&item.span), &project.words.polls)
}

/// Whether a function handles messages.
pub(super) fn is_handler(project: &Project, file: &File, function: usize) -> bool {
    let item = &file.items[function];
    let named =
        !item.name.is_empty() && names::fits_any(&item.name, &project.words.messages.handlers);
    let told = item
        .args
        .iter()
        .any(|arg| MESSAGES.contains(&arg.name.as_str()));
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
    named || told || marked || is_hooked(file, function) || is_of_handler(file, function)
}

/// Whether the class is named after the messages that it handles: `WebhooksController`, `OrderConsumer`.
fn is_of_handler(file: &File, function: usize) -> bool {
    let class = file.nearest(function, Role::Class);
    let words = [
        "webhook",
        "consumer",
        "listener",
        "subscriber",
        "eventhandler",
        "messagehandler",
    ];
    class.is_some_and(|at| words.iter().any(|it| file.items[at].name.contains(it)))
}

/// Whether the closure is registered for a webhook or a message: `app.post("/webhooks", …)`, `on("message", …)`.
fn is_hooked(file: &File, function: usize) -> bool {
    let call = &file.items[file.items[function].parent];
    call.role == Role::Call
        && call.args.first().is_some_and(|arg| {
            let said = file.low(&arg.span);
            let plain = said.trim_matches(['"', '\'', '`', ':']);
            names::has_any(said, &["*webhook", "*hooks"])
                || matches!(plain, "message" | "event" | "delivery")
        })
}
