//! Questions about operations that move money.

use std::path::Path;

use refrain::{
    ErrorKind, Guarantee, Terms, audit,
    policy::{Class, Operation, WorkerSettings, units},
};

use super::{Line, ReviewInput, folded, listed, or_done};

/// Words in a path that suggest money.
const WORDS: [&str; 12] = [
    "payment",
    "payments",
    "charge",
    "charges",
    "refund",
    "refunds",
    "transfer",
    "transfers",
    "payout",
    "payouts",
    "withdrawal",
    "withdrawals",
];

pub(super) fn financial(facts: &ReviewInput) -> Vec<Line> {
    let operations = || facts.settings.policy.operations();
    let doubtful =
        operations().filter(|it| it.class != Some(Class::Monetary) && sounds_of_money(it));
    let mut open: Vec<_> = doubtful
        .map(|it| {
            let why = format!(
                "{} seems to move money, but its class is not monetary",
                it.name
            );
            Line::advice(
                facts.location(&it.name),
                why,
                "write class = \"monetary\" if it moves money",
            )
        })
        .collect();
    let money: Vec<_> = operations()
        .filter(|it| it.class == Some(Class::Monetary))
        .collect();
    let workers = facts.settings.workers.iter();
    let workers: Vec<_> = workers.filter(|it| moves_money(facts, it)).collect();
    if money.is_empty() && workers.is_empty() {
        let why = "no operation is monetary, and no worker is known to move money";
        open.insert(0, Line::not_applicable(facts.whole(), why));
        return open;
    }
    for operation in &money {
        let Operation { name, terms, .. } = operation;
        open.extend(short_retention(name, facts.location(name), terms));
    }
    let is_left = |it: &&&Operation| it.probe.is_none() && !it.is_receipted();
    let left: Vec<_> = money
        .iter()
        .filter(is_left)
        .map(|it| it.name.clone())
        .collect();
    open.extend(folded(
        facts,
        &left,
        "needs an operator to resolve an unknown outcome",
        "need an operator to resolve an unknown outcome",
        "add a `probe`, or guarantee = \"exactly-once\" with `receipts`",
    ));
    for worker in &workers {
        let (place, name) = (
            facts.location(&worker.name),
            format!("worker {}", worker.name),
        );
        open.extend(short_retention(&name, place.clone(), &worker.terms));
        open.extend(repeated(&name, place, worker));
    }
    open.extend(audited(facts, &money, &workers));
    let names = money.iter().map(|it| it.name.clone());
    let names = names.chain(workers.iter().map(|it| format!("worker {}", it.name)));
    let why = format!(
        "kept for 30d or longer: {}",
        listed(&names.collect::<Vec<_>>())
    );
    let mut lines = or_done(open, facts.whole(), why);
    lines.extend(written_down(facts, &money, &workers));
    lines
}

/// A line with the audited operations and workers, and the folder of the log.
fn written_down(
    facts: &ReviewInput,
    money: &[&Operation],
    workers: &[&WorkerSettings],
) -> Option<Line> {
    let operations = money.iter().filter(|it| it.audit).map(|it| it.name.clone());
    let workers = workers.iter().filter(|it| it.audit);
    let workers = workers.map(|it| format!("worker {}", it.name));
    let names: Vec<_> = operations.chain(workers).collect();
    let folder = facts.settings.audit_folder();
    let why = format!("audited in {}: {}", folder.display(), listed(&names));
    (!names.is_empty()).then(|| Line::done(facts.whole(), why))
}

/// Whether the plan classified the worker's messages as monetary, in the file or in a description found now.
fn moves_money(facts: &ReviewInput, worker: &WorkerSettings) -> bool {
    let mark = facts.marks.of_worker(&worker.name);
    let is_planned = mark.is_some_and(|it| it.class == "monetary");
    let mut consumed = facts.consumed.iter().filter(|(_, it)| it.is_monetary);
    is_planned || consumed.any(|(_, it)| it.channel == worker.queue)
}

fn sounds_of_money(operation: &Operation) -> bool {
    let name = operation.name.to_lowercase();
    let mut words = name.split(|it: char| !it.is_alphanumeric());
    operation.guarded && words.any(|word| WORDS.contains(&word))
}

/// A line for retention or `remember` below those of the `monetary` preset.
fn short_retention(name: &str, place: String, terms: &Terms) -> Option<Line> {
    let least = Operation::default().with_class(Class::Monetary).terms;
    let span = units::Span;
    if terms.retention < least.retention {
        let why = format!(
            "outcomes of {name} are kept for only {}",
            span(terms.retention)
        );
        let fix = format!(
            "write retention = \"{}\" or longer, because disputes come weeks later",
            span(least.retention)
        );
        return Some(Line::open(place, why, fix));
    }
    if terms.remember < least.remember {
        let why = format!(
            "keys of {name} are refused for {} after retention, and then execute again",
            span(terms.remember)
        );
        let fix = format!("write remember = \"{}\" or longer", span(least.remember));
        return Some(Line::advice(place, why, fix));
    }
    None
}

/// Lines for operations and workers that move money without an audit, and for a damaged audit log.
fn audited(facts: &ReviewInput, money: &[&Operation], workers: &[&WorkerSettings]) -> Vec<Line> {
    let unaudited = money.iter().filter(|it| !it.audit).map(|it| {
        Line::open(
            facts.location(&it.name),
            format!("{} is not audited", it.name),
            "write audit = true, or remove `audit`: class = \"monetary\" sets it",
        )
    });
    let left = workers.iter().filter(|it| !it.audit).map(|it| {
        Line::advice(
            facts.location(&it.name),
            format!("worker {} moves money and is not audited", it.name),
            "write audit = true",
        )
    });
    let folder = facts.settings.audit_folder();
    unaudited.chain(left).chain(damaged(&folder)).collect()
}

/// A line for a damaged or unreadable log; `None` if there is no log yet.
fn damaged(folder: &Path) -> Option<Line> {
    if !folder.is_dir() {
        return None;
    }
    let place = folder.display().to_string();
    match audit::verify(folder, &audit::Check::default(), &mut |_| ()) {
        Ok(found) => {
            let first = found.damage.first()?;
            let why = format!("the audit log is damaged: {}", first.what);
            let fix = "see `refrain audit verify`, and keep the folder as evidence";
            Some(Line::open(place, why, fix))
        }
        // The folder exists, and has no log yet.
        Err(error) if error.kind() == ErrorKind::Invalid => None,
        Err(error) => {
            let fix = "run `refrain audit verify` as a user who may read the folder";
            Some(Line::advice(place, error.to_string(), fix))
        }
    }
}

/// Advice for a worker that may deliver a monetary message twice.
fn repeated(name: &str, place: String, worker: &WorkerSettings) -> Option<Line> {
    if worker.terms.guarantee != Guarantee::AtLeastOnce {
        return None;
    }
    let why = format!(
        "{name} moves money at-least-once: a message whose delivery is interrupted is delivered again"
    );
    let fix = "write guarantee = \"exactly-once\" with `receipts`, or make the target deduplicate by Idempotency-Key";
    Some(Line::advice(place, why, fix))
}
