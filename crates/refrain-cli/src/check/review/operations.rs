//! Questions about each operation: its class, its keys, their scope, and its fingerprint.

use refrain::{
    fingerprint::Part,
    key::{ScopePart, Source},
    policy::{Class, Mode, Operation, ReplayTo},
};

use super::{Line, ReviewInput, described, folded, grouped, or_done};
use crate::check::summary::{enum_name, list};

pub(super) fn classified(facts: &ReviewInput) -> Vec<Line> {
    let named: Vec<_> = facts
        .settings
        .policy
        .operations()
        .filter(|it| !facts.is_catch_all(it))
        .collect();
    if named.is_empty() && facts.settings.workers.is_empty() {
        return vec![Line::open(
            facts.whole(),
            "the file has no operations: every POST and PATCH has the same settings, and PUT and DELETE are not guarded",
            "add an [[operation]] with `match` and `class` for each mutating path",
        )];
    }
    let unclear = named.iter().filter(|it| it.class.is_none()).map(|it| {
        Line::open(
            facts.location(&it.name),
            format!("{} has no class", it.name),
            "write class = \"create\", \"monetary\", \"transition\", \"replace\", \"delete\", \"event\" or \"read\"",
        )
    });
    let undecided = named.iter().filter_map(|it| undecided(facts, it));
    let mut open: Vec<_> = unclear.chain(undecided).collect();
    open.extend(described::differing(facts));
    let classes = named
        .iter()
        .filter_map(|it| Some((enum_name(&it.class?), it.name.clone())));
    let classes = match named.is_empty() {
        true => "the file has no operations, only workers".into(),
        false => grouped(classes),
    };
    or_done(open, facts.whole(), classes)
}

/// A line for a class that the plan guessed and nobody has confirmed.
fn undecided(facts: &ReviewInput, operation: &Operation) -> Option<Line> {
    let Operation { name, .. } = operation;
    let mark = facts.marks.of_operation(name).filter(|it| it.is_unsure)?;
    let why = format!(
        "{name} is classified as {}, but the plan is unsure",
        mark.class
    );
    let fix = "decide: correct `class`, or remove the comment `unsure` above it";
    Some(Line::open(facts.location(name), why, fix))
}

pub(super) fn keys(facts: &ReviewInput) -> Vec<Line> {
    let mut open = Vec::new();
    for operation in facts.guarded() {
        let (name, place) = (&operation.name, facts.location(&operation.name));
        let is_money = operation.class == Some(Class::Monetary);
        if is_money && !operation.required {
            let why = format!("{name} moves money, but requests without a key are not guarded");
            open.push(Line::open(&place, why, "write required = true"));
        }
        if is_money && operation.key.contains(&Source::Derive) {
            let why = format!(
                "{name} derives its key: two intended payments with equal content become one"
            );
            let fix = "take the key from a header or from business identifiers";
            open.push(Line::open(&place, why, fix));
        }
    }
    let is_lax = |it: &&Operation| {
        !it.required && it.class != Some(Class::Monetary) && !facts.is_catch_all(it)
    };
    let lax: Vec<_> = facts
        .guarded()
        .filter(is_lax)
        .map(|it| it.name.clone())
        .collect();
    open.extend(folded(
        facts,
        &lax,
        "does not guard requests without a key",
        "do not guard requests without a key",
        "write required = true once all clients send a key",
    ));
    let strategy = facts
        .guarded()
        .map(|it| (list(&it.key, " or "), it.name.clone()));
    or_done(open, facts.whole(), grouped(strategy))
}

pub(super) fn scope(facts: &ReviewInput) -> Vec<Line> {
    let mut open = Vec::new();
    for operation in facts.guarded() {
        let (name, place) = (&operation.name, facts.location(&operation.name));
        let is_shared = operation.scope.contains(&ScopePart::None);
        let is_trusting = operation.replay_to == ReplayTo::SameScope;
        if is_shared && is_trusting && operation.signature.is_none() {
            let why = format!("all callers share the keys of {name}, and get each other's replays");
            let fix = "set a scope, or write replay_to = \"same-credential\"";
            open.push(Line::open(&place, why, fix));
        }
        let is_chosen = |part: &ScopePart| matches!(part, ScopePart::Header(_));
        if is_trusting && operation.webhook.is_none() && operation.scope.iter().any(is_chosen) {
            let why = format!("replays of {name} go to every client that sends its scope header");
            let fix =
                "make sure that a gateway sets this header, and removes it from client requests";
            open.push(Line::advice(&place, why, fix));
        }
    }
    let scopes = facts
        .guarded()
        .map(|it| (list(&it.scope, " + "), it.name.clone()));
    or_done(open, facts.whole(), grouped(scopes))
}

pub(super) fn conflicts(facts: &ReviewInput) -> Vec<Line> {
    let mut open = Vec::new();
    for operation in facts.guarded() {
        let (name, place) = (&operation.name, facts.location(&operation.name));
        if operation.mode == Mode::Observe {
            let why = format!("{name} is only observed: duplicates execute");
            open.push(Line::open(&place, why, "write mode = \"enforce\""));
        }
        let is_body = |part: &Part| matches!(part, Part::Body | Part::Member(_));
        if operation.webhook.is_none() && !operation.fingerprint.iter().any(is_body) {
            let why = format!(
                "the fingerprint of {name} does not cover the body: a different request with the same key gets the first outcome"
            );
            open.push(Line::open(
                &place,
                why,
                "add \"body\", or the relevant members of it, to `fingerprint`",
            ));
        }
        let is_path = |part: &Part| matches!(part, Part::Path);
        if !operation.fingerprint.iter().any(is_path) {
            let why = format!("the fingerprint of {name} does not cover the path");
            open.push(Line::advice(&place, why, "add \"path\" to `fingerprint`"));
        }
    }
    let why = "a different request with the same key gets 422 key-reused; a duplicate of a request in flight gets its outcome or 409";
    or_done(open, facts.whole(), why)
}
