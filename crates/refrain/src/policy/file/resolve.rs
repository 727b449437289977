//! Resolves the typed file into checked settings.

use std::ops::Range;

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    FILE_BYTES_MAX, RelaySettings, Secrets, Settings, TlsSettings, WorkerSettings, authorization,
    draft::Draft,
    encryption, jwt,
    problem::{FOUND_MAX, Report},
    proxy,
    relay::{self, RELAYS_MAX},
    server, signed,
    table::{self, ConfigTable, Part, Places},
    telemetry, tls,
    typed::{OperationHead, Proxy, Relay, Section, Server, Tls, Worker},
    worker::{self, WORKERS_MAX},
};
use crate::policy::{
    OPERATIONS_MAX, Operation, Pattern, Policy, clash_help, default_operations, units,
};

/// Resolves a whole file. The result must not be used unless the report is empty.
pub(super) fn settings(
    text: &str,
    secrets: Secrets<'_>,
    overrides: &[(&str, &str)],
    report: &mut Report<'_>,
) -> Option<Settings> {
    if text.len() > FILE_BYTES_MAX {
        let message = format!(
            "the file has {}, more than the maximum of {}",
            units::Size(text.len()),
            units::Size(FILE_BYTES_MAX)
        );
        report.push(
            0..0,
            message,
            "split the file, or match several operations with one pattern",
        );
        return None;
    }
    let mut root = match DeTable::parse(text) {
        Ok(root) => root.into_inner(),
        Err(error) => {
            report.push(error.span().unwrap_or_default(), error.message(), "");
            return None;
        }
    };
    table::refuse_unknown(&mut root, ConfigTable::Top, report);
    let policy = root.remove("policy");
    let proxy = self::proxy(root.remove("proxy"), overrides, report);
    let tls = self::tls(root.remove("tls"), "tls", overrides, report);
    let admin_tls = self::tls(root.remove("admin_tls"), "admin_tls", overrides, report);
    report.reads_secrets = secrets.has_store();
    let encryption = root.remove("encryption").and_then(|value| {
        let (table, at) = table_of(value, "write [encryption], once", report)?;
        encryption::resolve(table, at, report)
    });
    let operations = root.remove("operation");
    let tokens = root.remove("jwt");
    let workers = self::workers(root.remove("worker"), secrets, report);
    let relays = self::relays(root.remove("relay"), secrets, overrides, report);
    let server = self::server(root, secrets, overrides, report);
    report.reads_secrets = secrets.has_operations();
    report.has_client_certificates = tls.as_ref().is_some_and(TlsSettings::requires_client);
    let has_keys = tokens.is_some();
    let jwt = tokens
        .and_then(|value| table_of(value, "write [jwt], once", report))
        .and_then(|(table, at)| jwt::resolve(table, at, report));
    let policy = self::policy(policy, operations, has_keys, report);
    Some(Settings {
        listen: server.listen,
        admin: server.admin,
        admin_hosts: server.admin_hosts,
        upstream: server.upstream,
        store: server.store,
        durability: server.durability,
        encryption,
        audit_log: server.audit_log,
        problems: server.problems,
        proxy: proxy::resolve(&proxy, report),
        tls,
        admin_tls,
        trusted_proxies: proxy::trusted_proxies(&proxy, report),
        access_log: telemetry::access_log(&proxy, report),
        traces: telemetry::traces(&proxy, report),
        workers,
        relays,
        jwt,
        policy,
    })
}

type Value<'a> = Spanned<DeValue<'a>>;

fn proxy(
    value: Option<Value<'_>>,
    overrides: &[(&str, &str)],
    report: &mut Report<'_>,
) -> Part<Proxy> {
    let table = value.and_then(|value| table_of(value, "write [proxy], once", report));
    let mut table = table.map(|(table, _)| table).unwrap_or_default();
    table::refuse_unknown(&mut table, ConfigTable::Proxy, report);
    table::replace::<Proxy>(&mut table, overrides);
    table::read(table, report)
}

/// Resolves the TLS of a listener. An override is named after the table and the setting, such as `tls_key`.
fn tls(
    value: Option<Value<'_>>,
    name: &str,
    overrides: &[(&str, &str)],
    report: &mut Report<'_>,
) -> Option<TlsSettings> {
    let help = &format!("write [{name}], once");
    let written = value.and_then(|value| table_of(value, help, report));
    let above: Vec<_> = overrides
        .iter()
        .filter_map(|(name_of, value)| {
            let setting = name_of.strip_prefix(name)?.strip_prefix('_')?;
            Some((setting, *value))
        })
        .collect();
    if written.is_none() && above.is_empty() {
        return None;
    }
    let (mut table, at) = written.unwrap_or_default();
    table::replace::<Tls>(&mut table, &above);
    tls::resolve(table, at, report)
}

/// Resolves the settings at the top of the file. A wrong value is an error also if it is overridden; only its
/// secret is not read then.
fn server(
    mut table: DeTable<'_>,
    secrets: Secrets<'_>,
    overrides: &[(&str, &str)],
    report: &mut Report<'_>,
) -> server::Resolved {
    if !overrides.is_empty() {
        report.reads_secrets = false;
        server::resolve(&table::read(table.clone(), report), report);
        table::replace::<Server>(&mut table, overrides);
    }
    report.reads_secrets = secrets.has_store();
    let part = table::read(table, report);
    let resolved = server::resolve(&part, report);
    server::check_ports(&part, &resolved, report);
    resolved
}

fn policy(
    policy: Option<Value<'_>>,
    operations: Option<Value<'_>>,
    has_keys: bool,
    report: &mut Report<'_>,
) -> Policy {
    let (base, base_places) = base(policy, report);
    if !has_keys {
        refuse_tokens(&base.operation, base_places.get("scope"), report);
    }
    let (mut resolved, mut places) = (Vec::new(), Vec::new());
    let several = "match several operations with one pattern that has {name} or *";
    for (table, at) in tables(operations, "operation", OPERATIONS_MAX, several, report) {
        let scope_at = table.get("scope").map(Spanned::span);
        if let Some((operation, place)) = operation(table, at, &base, &base_places, report) {
            if !has_keys {
                refuse_tokens(&operation, scope_at.as_ref(), report);
            }
            resolved.push(operation);
            places.push(place);
        }
    }
    let defaults = default_operations(&base.operation, &resolved);
    resolved.extend(defaults);
    let (policy, clashes) = Policy::build(resolved);
    for clash in clashes.into_iter().take(FOUND_MAX) {
        tell_clash(clash, &policy, &places, report);
    }
    policy
}

/// Reports a scope that needs tokens, in a file that does not say which ones are valid.
fn refuse_tokens(operation: &Operation, place: Option<&Range<usize>>, report: &mut Report<'_>) {
    if let Some(place) = place.filter(|_| operation.needs_token()) {
        let message = "a scope with `jwt:` needs verified tokens, and the file has no [jwt]";
        let help = format!("add the table [jwt]: {}", jwt::HELP);
        report.push(place.clone(), message, help);
    }
}

fn workers(
    value: Option<Value<'_>>,
    secrets: Secrets<'_>,
    report: &mut Report<'_>,
) -> Vec<WorkerSettings> {
    let several = "split the file, and start one process for each";
    let mut resolved: Vec<WorkerSettings> = Vec::new();
    for (mut table, at) in tables(value, "worker", WORKERS_MAX, several, report) {
        table::refuse_unknown(&mut table, ConfigTable::Worker, report);
        report.reads_secrets = secrets.has_worker(name(&table).unwrap_or_default());
        let shown = table.remove("authorization").and_then(|value| {
            let (table, at) = table_of(value, authorization::HELP, report)?;
            authorization::resolve(table, at, authorization::HELP, report)
        });
        let part = table::read::<Worker>(table, report);
        let Some(worker) = worker::resolve(&part, at, shown, report) else {
            continue;
        };
        if resolved.iter().any(|other| other.name == worker.name) {
            let message = format!("two workers are named `{}`", worker.name);
            let help = "rename one: the name is the scope of its keys";
            let place = part.places.get("name").cloned().unwrap_or_default();
            report.push(place, message, help);
        }
        resolved.push(worker);
    }
    resolved
}

fn relays(
    value: Option<Value<'_>>,
    secrets: Secrets<'_>,
    overrides: &[(&str, &str)],
    report: &mut Report<'_>,
) -> Vec<RelaySettings> {
    let several = "split the file, and start one process for each";
    let mut resolved: Vec<RelaySettings> = Vec::new();
    for (mut table, at) in tables(value, "relay", RELAYS_MAX, several, report) {
        table::refuse_unknown(&mut table, ConfigTable::Relay, report);
        report.reads_secrets = secrets.has_relay(name(&table).unwrap_or(relay::NAME));
        if report.reads_secrets {
            table::replace::<Relay>(&mut table, overrides);
        }
        let part = table::read::<Relay>(table, report);
        let Some(relay) = relay::resolve(&part, at.clone(), report) else {
            continue;
        };
        if resolved.iter().any(|other| other.name == relay.name) {
            let message = format!("two relays are named `{}`", relay.name);
            let help = "give one another `name`: it identifies the relay in reports";
            let place = part.places.get("name").cloned().unwrap_or(at);
            report.push(place, message, help);
        }
        resolved.push(relay);
    }
    resolved
}

/// The name of a worker or relay, as written.
fn name<'a>(table: &'a DeTable<'_>) -> Option<&'a str> {
    table.get("name")?.get_ref().as_str()
}

/// Resolves `[policy]` into the base of every operation, with the positions of its settings.
fn base(policy: Option<Value<'_>>, report: &mut Report<'_>) -> (Draft, Places) {
    let table = policy.and_then(|value| table_of(value, "write [policy], once", report));
    let part = table.map(|(mut table, _)| {
        table::refuse_unknown(&mut table, ConfigTable::Policy, report);
        table::read::<Section>(table, report)
    });
    let part = part.unwrap_or_default();
    let mut base = Draft::default();
    base.apply(&part, report);
    base.finish(&[&part.places], 0..0, report);
    (base, part.places)
}

fn tell_clash(
    (first, second): (usize, usize),
    policy: &Policy,
    places: &[Range<usize>],
    report: &mut Report<'_>,
) {
    let at = |at: usize| Some((policy.operations().nth(at)?, places.get(at)?));
    if let (Some((first, first_at)), Some((second, second_at))) = (at(first), at(second)) {
        let line = report.line(first_at.start);
        let message = format!(
            "`{}` matches the same requests as `{}` on line {line}",
            second.name, first.name
        );
        let help = clash_help(first, second);
        report.push(second_at.clone(), message, help);
    }
}

fn table_of<'a>(
    value: Value<'a>,
    help: &str,
    report: &mut Report<'_>,
) -> Option<(DeTable<'a>, Range<usize>)> {
    let at = value.span();
    match value.into_inner() {
        DeValue::Table(table) => Some((table, at)),
        _ => {
            report.push(at, "this is not a table", help);
            None
        }
    }
}

/// Returns the tables of a list such as `[[operation]]`. `several` is the help text for too many of them.
fn tables<'a>(
    value: Option<Value<'a>>,
    name: &str,
    at_most: usize,
    several: &str,
    report: &mut Report<'_>,
) -> Vec<(DeTable<'a>, Range<usize>)> {
    let help = &format!("write [[{name}]], with two brackets, above each {name}");
    let Some(value) = value else {
        return Vec::new();
    };
    let at = value.span();
    let DeValue::Array(members) = value.into_inner() else {
        report.push(at, format!("`{name}` is not a list of tables"), help);
        return Vec::new();
    };
    if members.len() > at_most {
        let message = format!(
            "the file has {} {name}s, more than the maximum of {at_most}",
            members.len()
        );
        report.push(at, message, several);
        return Vec::new();
    }
    members
        .into_iter()
        .filter_map(|member| table_of(member, help, report))
        .collect()
}

/// Resolves one operation and the position of its pattern; `None` without a valid pattern.
fn operation(
    mut table: DeTable<'_>,
    at: Range<usize>,
    base: &Draft,
    base_places: &Places,
    report: &mut Report<'_>,
) -> Option<(Operation, Range<usize>)> {
    table::refuse_unknown(&mut table, ConfigTable::Operation, report);
    let signature = table.remove("signature");
    let probe_authorization = table.remove("probe_authorization");
    let mut head_table = DeTable::new();
    for name in table::fields::<OperationHead>() {
        head_table.extend(table.remove_entry(*name));
    }
    let mut head = table::read::<OperationHead>(head_table, report);
    let section = table::read::<Section>(table, report);
    let signed_at = signature
        .as_ref()
        .map(|value| ("signature".into(), value.span()));
    head.places.extend(signed_at);
    let probe_at = probe_authorization
        .as_ref()
        .map(|value| ("probe_authorization".into(), value.span()));
    head.places.extend(probe_at);
    let pattern = pattern(&head, at, report)?;
    let mut draft = base.clone();
    draft.operation = draft.operation.at(pattern);
    draft.apply_webhook(&head, report);
    draft.apply_class(&head, &section, report);
    draft.apply(&section, report);
    draft.apply_probe(&head, report);
    let signature = signature.and_then(|value| table_of(value, signed::HELP, report));
    if let Some((table, _)) = signature {
        let place = head.places.get("signature").cloned().unwrap_or_default();
        let operation = &mut draft.operation;
        operation.signature = signed::resolve(table, place, operation.webhook, report);
    }
    if let Some(value) = probe_authorization {
        let help = authorization::PROBE_HELP;
        draft.operation.probe_authorization = table_of(value, help, report)
            .and_then(|(table, at)| authorization::resolve(table, at, help, report));
    }
    let place = head.places.get("match").cloned().unwrap_or_default();
    draft.finish(
        &[&section.places, &head.places, base_places],
        place.clone(),
        report,
    );
    Some((draft.operation, place))
}

fn pattern(
    head: &Part<OperationHead>,
    at: Range<usize>,
    report: &mut Report<'_>,
) -> Option<Pattern> {
    let Some(text) = &head.values.pattern else {
        if !head.places.contains_key("match") {
            report.push(
                at,
                "this operation has no `match`",
                "add one, such as match = \"POST /v1/payments\"",
            );
        }
        return None;
    };
    let place = head.places.get("match").cloned().unwrap_or_default();
    text.parse()
        .map_err(|error| report.push_error(place, &error))
        .ok()
}
