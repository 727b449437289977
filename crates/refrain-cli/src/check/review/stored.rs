//! Questions about the store, and about retention.

use refrain::{
    policy::{
        Address, Class, OnStoreFailure,
        schemes::{Backend, BackendId, ClaimDurability, alternatives, stores},
        units::Span,
    },
    store::embedded::Durability,
};

use super::{Line, ReviewInput, grouped, or_done};

pub(super) fn storage(facts: &ReviewInput) -> Vec<Line> {
    let settings = &facts.settings;
    let mut open = Vec::new();
    // Claims are kept in the last store named.
    let store = settings.store.last();
    let place = facts.location(store.map_or("", Address::as_str));
    let backend = store.and_then(|it| Backend::named(it.scheme()));
    let durability = backend.and_then(|it| Some(it.store?.durability));
    if durability == Some(ClaimDurability::UntilExit) {
        let why = "memory: loses every key when the process ends, and retries execute again";
        let durable = stores().filter(|(_, it)| it.durability != ClaimDurability::UntilExit);
        let durable = alternatives(durable.map(|(_, it)| format!("\"{}\"", it.usage())));
        open.push(Line::open(&place, why, format!("write store = {durable}")));
    }
    if backend.is_some_and(|it| it.id == BackendId::Embedded)
        && settings.durability == Durability::Relaxed
    {
        let why = "durability = \"relaxed\" may lose granted claims on a power loss";
        open.push(Line::open(&place, why, "write durability = \"full\""));
    }
    let needs = facts.guarded().find(|it| it.needs_every_claim());
    if let (Some(operation), Some(backend)) = (needs, backend)
        && let Some(ClaimDurability::Configured(configuration)) = durability
    {
        let (name, title) = (&operation.name, backend.title);
        let why = format!(
            "{name} is at-most-once on {title}, which must not lose acknowledged claims; only the server can tell"
        );
        let fix = format!("configure the server with {configuration}; the proxy refuses any other");
        open.push(Line::advice(&place, why, fix));
    }
    for operation in facts.guarded() {
        let (name, place) = (&operation.name, facts.location(&operation.name));
        let is_money = operation.class == Some(Class::Monetary);
        if operation.accept_lossy_claims {
            let why = format!(
                "{name} accepts a store that may lose claims: a request whose claim is lost executes twice"
            );
            let fix = "remove accept_lossy_claims, or write guarantee = \"at-least-once\"";
            open.push(line(is_money, place.clone(), why, fix));
        }
        if operation.on_store_failure == OnStoreFailure::Pass {
            let why = format!("{name} is not guarded while the store is unavailable");
            open.push(line(
                is_money,
                place,
                why,
                "write on_store_failure = \"refuse\"",
            ));
        }
    }
    for worker in settings.workers.iter().filter(|it| it.accept_lossy_claims) {
        let name = &worker.name;
        let why = format!(
            "worker {name} accepts a store that may lose claims: a message whose claim is lost is delivered twice"
        );
        let fix = "remove accept_lossy_claims, or write guarantee = \"at-least-once\"";
        open.push(Line::advice(facts.location(name), why, fix));
    }
    let stores: Vec<_> = settings.store.iter().map(ToString::to_string).collect();
    or_done(
        open,
        place,
        format!("records are in {}", stores.join(", in front of ")),
    )
}

fn line(is_required: bool, place: String, why: String, fix: &str) -> Line {
    match is_required {
        true => Line::open(place, why, fix),
        false => Line::advice(place, why, fix),
    }
}

pub(super) fn retention(facts: &ReviewInput) -> Vec<Line> {
    let settings = &facts.settings;
    let warned = settings.policy.warnings();
    let mut open: Vec<_> = warned
        .map(|it| {
            let why = format!("{}: {}", it.name, it.message);
            Line::open(facts.location(&it.name), why, it.help)
        })
        .collect();
    for operation in facts.guarded().filter(|it| it.terms.remember.is_zero()) {
        let why = format!(
            "{} executes again as soon as retention has ended",
            operation.name
        );
        let fix = "write remember = \"7d\" or longer, so that a late retry is refused";
        open.push(Line::open(facts.location(&operation.name), why, fix));
    }
    let operations = facts.guarded().map(|it| {
        let (kept, known) = (Span(it.terms.retention), Span(it.terms.remember));
        (format!("{kept}, then refused for {known}"), it.name.clone())
    });
    let workers = settings.workers.iter().map(|it| {
        let known = Span(it.terms.retention + it.terms.remember);
        (
            format!("duplicates detected for {known}"),
            format!("worker {}", it.name),
        )
    });
    or_done(open, facts.whole(), grouped(operations.chain(workers)))
}
