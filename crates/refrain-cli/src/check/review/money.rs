//! Questions about operations that move money.

use refrain::policy::{Class, Operation, units};

use super::{Facts, Line, or_done};

/// Words in a path that speak of money.
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

pub(super) fn financial(facts: &Facts) -> Vec<Line> {
    let operations = || facts.settings.policy.operations();
    let doubtful =
        operations().filter(|it| it.class != Some(Class::Monetary) && sounds_of_money(it));
    let mut open: Vec<_> = doubtful
        .map(|it| {
            let why = format!("{} sounds of money and is not monetary", it.name);
            Line::advice(
                facts.place(&it.name),
                why,
                "write class = \"monetary\", if money moves",
            )
        })
        .collect();
    let money: Vec<_> = operations()
        .filter(|it| it.class == Some(Class::Monetary))
        .collect();
    if money.is_empty() {
        let nothing = Line::not_applicable(facts.whole(), "no operation is monetary");
        open.insert(0, nothing);
        return open;
    }
    for operation in &money {
        open.extend(kept(facts, operation));
        open.extend(audited(facts, operation));
        open.extend(settled(facts, operation));
    }
    let names: Vec<_> = money.iter().map(|it| it.name.as_str()).collect();
    let why = format!("kept for 30d or longer: {}", names.join(", "));
    or_done(open, facts.whole(), why)
}

fn sounds_of_money(operation: &Operation) -> bool {
    let name = operation.name.to_lowercase();
    let mut words = name.split(|it: char| !it.is_alphanumeric());
    operation.guarded && words.any(|word| WORDS.contains(&word))
}

/// The preset's own times are the least.
fn kept(facts: &Facts, operation: &Operation) -> Option<Line> {
    let least = Operation::default().with_class(Class::Monetary).terms;
    let Operation { name, terms, .. } = operation;
    let (span, place) = (units::Span, facts.place(name));
    if terms.retention < least.retention {
        let why = format!(
            "outcomes of {name} are kept for {} only",
            span(terms.retention)
        );
        let fix = format!(
            "write retention = \"{}\" or longer: disputes come weeks later",
            span(least.retention)
        );
        return Some(Line::open(place, why, fix));
    }
    if terms.remember < least.remember {
        let why = format!(
            "keys of {name} are refused for {} behind retention, and then run again",
            span(terms.remember)
        );
        let fix = format!("write remember = \"{}\" or longer", span(least.remember));
        return Some(Line::advice(place, why, fix));
    }
    None
}

/// An audit log is not written yet, and nobody is to believe that one is.
fn audited(facts: &Facts, operation: &Operation) -> Option<Line> {
    let (name, place) = (&operation.name, facts.place(&operation.name));
    Some(match operation.audit {
        false => Line::open(
            place,
            format!("{name} is not to be audited"),
            "write audit = true, or leave it to class = \"monetary\"",
        ),
        true => Line::advice(
            place,
            format!("{name} has audit = true, and this release writes no audit log"),
            "keep the log of the proxy, where reasons of `refrain records resolve` are, and the service's own ledger",
        ),
    })
}

fn settled(facts: &Facts, operation: &Operation) -> Option<Line> {
    if operation.probe.is_some() || operation.is_receipted() {
        return None;
    }
    let why = format!(
        "what becomes indeterminate of {} waits for a person",
        operation.name
    );
    let fix = "add a `probe`, or guarantee = \"exactly-once\" with `receipts`";
    Some(Line::advice(facts.place(&operation.name), why, fix))
}
