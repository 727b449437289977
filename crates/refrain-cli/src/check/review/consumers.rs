//! Whether messages are guarded as requests are.

use refrain::{
    Guarantee,
    key::{KEY_HEADER, Source},
    policy::{Operation, WorkerSettings},
};

use refrain_plan::Consumer;

use super::{Line, ReviewInput, host_and_path, or_done};
use crate::check::summary::enum_name;

pub(super) fn aligned(facts: &ReviewInput) -> Vec<Line> {
    let settings = &facts.settings;
    let unheard: Vec<_> = facts
        .consumed
        .iter()
        .filter_map(|it| unhandled_channel(facts, it))
        .collect();
    if settings.workers.is_empty() {
        let why = "the file has no workers; consumers in code have their own settings";
        let none = Line::not_applicable(facts.whole(), why);
        return std::iter::once(none).chain(unheard).collect();
    }
    let is_worker = |name: &String| settings.workers.iter().any(|it| it.name == *name);
    let warned = settings.warnings().filter(|it| is_worker(&it.name));
    let mut open: Vec<_> = warned
        .map(|it| {
            let why = format!("worker {}: {}", it.name, it.message);
            Line::open(facts.location(&it.name), why, it.help)
        })
        .collect();
    for worker in &settings.workers {
        open.extend(both_ways(facts, worker));
    }
    open.extend(unheard);
    let workers = settings.workers.iter().map(|it| {
        let guarantee = enum_name(&it.terms.guarantee);
        format!("{} is {guarantee}", it.name)
    });
    let workers: Vec<_> = workers.collect();
    or_done(open, facts.whole(), workers.join("; "))
}

/// Advice for a channel that the project's AsyncAPI description consumes and no worker of the file handles.
fn unhandled_channel(
    facts: &ReviewInput,
    (description, consumer): &(String, Consumer),
) -> Option<Line> {
    let mut workers = facts.settings.workers.iter();
    let is_taken = workers.any(|it| it.queue == consumer.channel || it.name == consumer.name);
    let why = format!(
        "{} is consumed, but the file has no worker for it",
        consumer.channel
    );
    let fix = format!(
        "make sure that its consumer in code deduplicates messages, or run refrain plan {description}"
    );
    (!is_taken).then(|| Line::advice(description, why, fix))
}

/// Findings where a worker and an operation of the policy guard the same endpoint differently.
fn both_ways(facts: &ReviewInput, worker: &WorkerSettings) -> Vec<Line> {
    let (host, path) = host_and_path(worker.deliver.as_str());
    let path = path
        .split('?')
        .next()
        .filter(|it| !it.is_empty())
        .unwrap_or("/");
    let (is_proxy, is_upstream) = (facts.is_proxy(host), facts.is_upstream(host));
    let found = facts.settings.policy.find("POST", path);
    let Some(found) = found.filter(|_| is_proxy || is_upstream) else {
        return Vec::new();
    };
    let (name, place, operation) = (&worker.name, facts.location(&worker.name), &found.operation);
    let mut open = Vec::new();
    if is_proxy && !takes_key_header(operation) {
        let why = format!(
            "worker {name} sends its key as Idempotency-Key, but {} takes its key from elsewhere",
            operation.name
        );
        open.push(Line::open(
            &place,
            why,
            "add \"header:Idempotency-Key\" to the operation's `key`",
        ));
    }
    if is_upstream && !facts.is_catch_all(operation) {
        let why = format!(
            "worker {name} bypasses the proxy and delivers to {}: a request that comes both ways executes twice",
            operation.name
        );
        let fix = format!(
            "deliver to http://{} instead, or use only one of the two ways",
            facts.settings.listen
        );
        open.push(Line::advice(&place, why, fix));
    }
    let is_weaker = worker.terms.guarantee == Guarantee::AtLeastOnce
        && operation.terms.guarantee != Guarantee::AtLeastOnce;
    if is_weaker && is_upstream && !facts.is_catch_all(operation) {
        let why = format!(
            "worker {name} is at-least-once, but {} is {} for requests",
            operation.name,
            enum_name(&operation.terms.guarantee)
        );
        let fix = "give both the same guarantee";
        open.push(Line::open(&place, why, fix));
    }
    open
}

fn takes_key_header(operation: &Operation) -> bool {
    let header = Source::Header(KEY_HEADER.into());
    operation.key.contains(&header)
}
