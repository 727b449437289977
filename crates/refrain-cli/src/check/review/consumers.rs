//! Whether messages are guarded as requests are.

use refrain::{
    Guarantee,
    key::{KEY_HEADER, Source},
    policy::{Operation, WorkerSettings},
};

use super::{Facts, Line, or_done};
use crate::check::summary::word;

pub(super) fn aligned(facts: &Facts) -> Vec<Line> {
    let settings = &facts.settings;
    if settings.workers.is_empty() {
        let why = "the file has no workers; consumers in code have their own settings";
        return vec![Line::not_applicable(facts.whole(), why)];
    }
    let is_worker = |name: &String| settings.workers.iter().any(|it| it.name == *name);
    let warned = settings.warnings().filter(|it| is_worker(&it.name));
    let mut open: Vec<_> = warned
        .map(|it| {
            let why = format!("worker {}: {}", it.name, it.message);
            Line::open(facts.place(&it.name), why, it.help)
        })
        .collect();
    for worker in &settings.workers {
        open.extend(both_ways(facts, worker));
    }
    let workers = settings.workers.iter().map(|it| {
        let guarantee = word(&it.terms.guarantee);
        format!("{} is {guarantee}", it.name)
    });
    let workers: Vec<_> = workers.collect();
    or_done(open, facts.whole(), workers.join("; "))
}

/// Where a worker delivers to what the policy guards, the two have to agree.
fn both_ways(facts: &Facts, worker: &WorkerSettings) -> Vec<Line> {
    let rest = worker
        .deliver
        .split_once("://")
        .map_or("", |(_, rest)| rest);
    let (host, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let path = path
        .split('?')
        .next()
        .filter(|it| !it.is_empty())
        .unwrap_or("/");
    let is_proxy = facts.settings.listen.to_string() == host;
    let upstream = facts.settings.upstream.as_deref();
    let is_upstream = upstream.is_some_and(|it| it.ends_with(&format!("://{host}")));
    let found = facts.settings.policy.find("POST", path);
    let Some(found) = found.filter(|_| is_proxy || is_upstream) else {
        return Vec::new();
    };
    let (name, place, operation) = (&worker.name, facts.place(&worker.name), &found.operation);
    let mut open = Vec::new();
    if is_proxy && !takes_key_header(operation) {
        let why = format!(
            "worker {name} sends its key as Idempotency-Key, and {} takes another",
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
            "worker {name} delivers past the proxy to {}: what comes by both ways runs twice",
            operation.name
        );
        let fix = format!(
            "deliver to http://{} instead, or keep it to one way",
            facts.settings.listen
        );
        open.push(Line::advice(&place, why, fix));
    }
    let is_weaker = worker.terms.guarantee == Guarantee::AtLeastOnce
        && operation.terms.guarantee != Guarantee::AtLeastOnce;
    if is_weaker && is_upstream && !facts.is_catch_all(operation) {
        let why = format!(
            "worker {name} is at-least-once, and {} is {} for requests",
            operation.name,
            word(&operation.terms.guarantee)
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
