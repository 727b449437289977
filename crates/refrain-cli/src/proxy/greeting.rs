//! The text at start-up: addresses, store, guarded operations, and a command to try.

use std::{fmt::Write as _, net::SocketAddr, path::Path};

use super::receipts;
use refrain::{
    Engine, Guarantee, Store as _,
    policy::{AccessLogTarget, Mode, Operation, Settings, TlsSettings, units::Span},
};

/// Where the settings come from.
#[derive(Debug)]
pub(crate) enum Origin<'a> {
    /// A file, perhaps with overrides from flags and environment.
    File(&'a Path),
    /// Flags and environment alone, as the text of a refrain.toml.
    Flags(String),
}

/// Prints everything in one write, so that programs that wait for the ports read whole lines.
pub(super) fn print(
    settings: &Settings,
    listening: SocketAddr,
    admin: SocketAddr,
    engine: &Engine,
    origin: &Origin<'_>,
) {
    let scheme = scheme(settings.tls.as_ref());
    let admin_scheme = self::scheme(settings.admin_tls.as_ref());
    let mut text =
        format!("listening on {scheme}://{listening}\nadmin on {admin_scheme}://{admin}\n");
    let upstream = settings.upstream.as_deref().unwrap_or_default();
    let _ = writeln!(text, "upstream {upstream}");
    text += &guarding(settings, engine, origin);
    let _ = writeln!(
        text,
        "\nsend this twice to try it:\n  curl -i {scheme}://{listening}/ -X POST -H 'Idempotency-Key: try-1' -d '{{}}'"
    );
    text += &as_file(origin);
    super::tell(settings, text);
}

/// The settings as a file, if they come from flags and environment alone.
pub(crate) fn as_file(origin: &Origin<'_>) -> String {
    let Origin::Flags(said) = origin else {
        return String::new();
    };
    let lines = said.lines().map(|line| format!("  {line}\n"));
    let lines: String = lines.collect();
    format!("\nthese settings as a refrain.toml:\n{lines}")
}

/// The file, store, logs and operations, and warnings about them.
pub(crate) fn guarding(settings: &Settings, engine: &Engine, origin: &Origin<'_>) -> String {
    let mut text = String::new();
    if let Origin::File(file) = origin {
        let _ = writeln!(text, "settings {}", file.display());
    }
    let store = crate::settings::stores(settings);
    let _ = writeln!(text, "store {store} ({})", promise(engine));
    let losses = engine.store().losses();
    if !losses.is_empty() {
        let _ = writeln!(text, "  may lose acknowledged writes: {losses}");
    }
    for address in receipts::addresses(settings) {
        let _ = writeln!(text, "receipts {address}");
    }
    if settings.audit_log.is_some() || settings.audited().next().is_some() {
        let folder = settings.audit_folder();
        let _ = writeln!(
            text,
            "audit log {}: audited requests are refused while the log cannot be written",
            folder.display()
        );
    }
    if let Some(log) = &settings.access_log {
        let _ = match &log.target {
            AccessLogTarget::Stdout => writeln!(text, "access log on standard output"),
            AccessLogTarget::File(path) => writeln!(text, "access log {}", path.display()),
        };
    }
    if let Some(traces) = &settings.traces {
        let _ = writeln!(text, "traces to {}", traces.endpoint);
    }
    let _ = writeln!(text, "\noperations (the most specific pattern wins):");
    for operation in settings.policy.operations() {
        let _ = writeln!(text, "  {}", line(operation));
    }
    for warning in settings.policy.warnings() {
        let (name, message, help) = (warning.name, warning.message, warning.help);
        let _ = writeln!(text, "warning: {name}: {message}; {help}");
    }
    text
}

pub(crate) fn scheme(tls: Option<&TlsSettings>) -> &'static str {
    match tls {
        Some(_) => "https",
        None => "http",
    }
}

fn promise(engine: &Engine) -> &'static str {
    let guarantees = engine.store().guarantees();
    match (guarantees.survives_power, guarantees.survives_process) {
        (true, _) => "acknowledged writes survive a crash and a power loss",
        (false, true) => "acknowledged writes survive a crash, not a power loss",
        (false, false) => "acknowledged writes are lost when the process ends",
    }
}

fn line(operation: &Operation) -> String {
    let name = &operation.name;
    if !operation.guarded {
        return format!("{name}: unguarded");
    }
    if operation.mode == Mode::Observe {
        return format!("{name}: observed only; duplicates are counted, and reach the upstream");
    }
    let terms = &operation.terms;
    let guarantee = serde_json::to_value(terms.guarantee).unwrap_or_default();
    let guarantee = guarantee.as_str().unwrap_or_default();
    let until = match terms.guarantee {
        Guarantee::ExactlyOnce => " (at-most-once while successful responses have no receipt)",
        _ => "",
    };
    let without = match operation.required {
        true => "refused without a key",
        false => "unguarded without a key",
    };
    let retention = Span(terms.retention);
    let audited = match operation.audit {
        true => ", audited",
        false => "",
    };
    format!("{name}: {guarantee}{until}, outcomes kept {retention}, {without}{audited}")
}
