//! The resolved settings as text: which operations are guarded, and how.

use refrain::{
    Guarantee,
    fingerprint::Part,
    policy::{
        Address, Mode, OnStoreFailure, Operation, Paths, RelaySettings, ReplayTo, Reply, Settings,
        Signature, Warning,
        schemes::{Backend, ClaimDurability},
        units::Span,
    },
};

use crate::settings::Loaded;

pub(super) fn summary(name: &str, loaded: &Loaded, missing: &[String]) -> String {
    let settings = &loaded.settings;
    let upstream = settings.upstream.as_deref().unwrap_or("not set");
    let operations = || settings.policy.operations();
    let mut rows = vec![HEADINGS.map(String::from)];
    rows.extend(operations().map(row));
    format!(
        "{name} is valid.{}{}\n\nlisten   {}\nadmin    {}\nupstream {upstream}\nstore    {}{}{}{}\n\n{}\n\n{}{}{}",
        overrides(loaded),
        lines("\nThis build cannot run it:", missing),
        settings.listen,
        settings.admin,
        crate::settings::stores(settings),
        tokens(settings),
        workers(settings),
        relays(settings),
        aligned(&rows),
        legend(operations()),
        caveat(settings),
        warnings(settings)
    )
}

/// Settings that come from the environment.
fn overrides(loaded: &Loaded) -> String {
    let names = loaded.overrides.iter().map(|(name, _)| *name);
    let names: Vec<_> = names.collect();
    match names.is_empty() {
        true => String::new(),
        false => format!("\nFrom the environment: {}.", names.join(", ")),
    }
}

/// A heading with lines below it, or nothing if there are none.
fn lines(heading: &str, lines: &[String]) -> String {
    match lines.is_empty() {
        true => String::new(),
        false => format!("\n{heading}\n  {}", lines.join("\n  ")),
    }
}

/// Which tokens are valid.
fn tokens(settings: &Settings) -> String {
    let Some(jwt) = &settings.jwt else {
        return String::new();
    };
    let issuers = match jwt.issuers.is_empty() {
        true => "of any issuer".into(),
        false => format!("of {}", list(&jwt.issuers, " or ")),
    };
    let audiences = match &jwt.audiences {
        Some(audiences) => format!("for {}", list(audiences, " or ")),
        None => "for any audience".into(),
    };
    format!(
        "\ntokens   {issuers} {audiences}, in the header {}, signed with {} by a key from {}, leeway {}",
        jwt.header,
        list(&jwt.algorithms, ", "),
        jwt.keys,
        Span(jwt.leeway)
    )
}

/// The workers that `refrain work` would run.
fn workers(settings: &Settings) -> String {
    let told = settings.workers.iter().map(|worker| {
        format!(
            "\nworker   {}: {} at {} to {}, {}, key from {}, duplicates detected for {}",
            worker.name,
            worker.queue,
            worker.source,
            worker.deliver,
            enum_name(&worker.terms.guarantee),
            list(&worker.key, " or "),
            Span(worker.terms.retention + worker.terms.remember)
        )
    });
    told.collect()
}

/// The relays that `refrain relay` would run.
fn relays(settings: &Settings) -> String {
    let told = settings.relays.iter().map(|relay| {
        let RelaySettings {
            name, outbox, to, ..
        } = relay;
        format!("\nrelay    {name}: from the outbox at {outbox} to {to}")
    });
    told.collect()
}

/// Settings that are allowed and probably a mistake.
fn warnings(settings: &Settings) -> String {
    let told = settings.warnings().map(|warning| {
        let Warning {
            name,
            message,
            help,
            ..
        } = warning;
        format!("\n\nwarning: {name}: {message}\n  fix: {help}")
    });
    told.collect()
}

/// A requirement that only the running store can confirm.
fn caveat(settings: &Settings) -> String {
    // Claims are kept in the last store named.
    let backend = settings.store.last().map(Address::scheme);
    let backend = backend.and_then(Backend::named);
    let store = backend.and_then(|it| Some((it.title, it.store?.durability)));
    let mut operations = settings.policy.operations();
    match store {
        Some((title, ClaimDurability::Configured(configuration)))
            if operations.any(Operation::needs_every_claim) =>
        {
            format!(
                "\n\nAt-most-once on {title} needs a server that loses no claims: {configuration}.\n\
                 The proxy checks this at start, and refuses any other server unless accept_lossy_claims = true."
            )
        }
        _ => String::new(),
    }
}

/// An explanation of each guarantee in force.
fn legend<'a>(operations: impl Iterator<Item = &'a Operation>) -> String {
    let in_force: Vec<_> = operations
        .filter(|operation| operation.guarded && operation.mode == Mode::Enforce)
        .map(|operation| operation.terms.guarantee)
        .collect();
    let promises = [
        (
            Guarantee::AtMostOnce,
            "a request that may have executed is never executed again automatically; if its result is not known, it has an unknown outcome",
        ),
        (
            Guarantee::AtLeastOnce,
            "a request that did not demonstrably succeed executes again on the next retry, and may execute twice",
        ),
        (
            Guarantee::ExactlyOnce,
            "effect and receipt are committed together; a request without a receipt executes again on the next retry; at-most-once while successful responses have no receipt",
        ),
    ];
    let said = promises.iter().filter(|(it, _)| in_force.contains(it));
    let said = said.map(|(guarantee, promise)| format!("{}: {promise}", enum_name(guarantee)));
    let said: Vec<_> = said.collect();
    match said.is_empty() {
        true => "Nothing is guarded.".into(),
        false => said.join("\n"),
    }
}

const HEADINGS: [&str; 8] = [
    "OPERATION",
    "CLASS",
    "GUARANTEE",
    "KEY",
    "SCOPE",
    "RETENTION",
    "REMEMBER",
    "NOTES",
];

fn row(operation: &Operation) -> [String; 8] {
    let class = operation
        .class
        .map_or("-".into(), |class| enum_name(&class));
    let name = operation.name.clone();
    if !operation.guarded {
        let dash = || "-".to_owned();
        return [
            name,
            class,
            "unguarded".into(),
            dash(),
            dash(),
            dash(),
            dash(),
            String::new(),
        ];
    }
    let terms = &operation.terms;
    [
        name,
        class,
        match operation.mode {
            Mode::Enforce => enum_name(&terms.guarantee),
            Mode::Observe => "observed only".into(),
        },
        list(&operation.key, " or ")
            + if operation.required {
                " (required)"
            } else {
                ""
            },
        list(&operation.scope, " + "),
        Span(terms.retention).to_string(),
        Span(terms.remember).to_string(),
        notes(operation),
    ]
}

/// Settings that differ from the usual ones.
fn notes(operation: &Operation) -> String {
    let notes = [
        (operation.reply == Reply::Streamed, "streamed"),
        (
            operation.on_store_failure == OnStoreFailure::Pass,
            "passes without store",
        ),
        (
            operation.replay_to == ReplayTo::SameScope,
            "replays to the scope",
        ),
        (
            !operation.keep.is_empty() || !operation.release.is_empty(),
            "own keep/release",
        ),
        (operation.replay_probe.is_some(), "asks before replays"),
        (operation.probe.is_some(), "probe"),
        (operation.is_receipted(), "receipts"),
        (operation.accept_lossy_claims, "accepts lossy claims"),
        (operation.audit && !operation.audit_required, "audit"),
        (operation.audit_required, "audit required"),
        (
            operation.paths == Paths::CaseSensitive,
            "case-sensitive paths",
        ),
        (!operation.fingerprint.contains(&Part::Host), "any host"),
    ];
    let said = notes
        .iter()
        .filter(|(is_so, _)| *is_so)
        .map(|(_, note)| (*note).to_owned());
    let signed = operation.signature.iter().map(signed);
    signed.chain(said).collect::<Vec<_>>().join(", ")
}

/// The sender of signed requests, and where the secrets come from.
fn signed(signature: &Signature) -> String {
    let (sender, secrets) = (signature.sender(), list(signature.secrets(), ", "));
    format!("signed by {sender} ({secrets})")
}

pub(super) fn list(parts: &[impl ToString], between: &str) -> String {
    let parts: Vec<_> = parts.iter().map(ToString::to_string).collect();
    parts.join(between)
}

/// An enum value as the file spells it.
pub(super) fn enum_name(choice: &impl serde::Serialize) -> String {
    let value = serde_json::to_value(choice).unwrap_or_default();
    value.as_str().unwrap_or_default().into()
}

fn aligned(rows: &[[String; 8]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<_> = (0..8).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &[String; 8]| {
        let cells = row.iter().zip(&widths);
        let cells: Vec<_> = cells
            .map(|(cell, &width)| format!("{cell:width$}"))
            .collect();
        cells.join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}
