//! Resolves the settings of the process.

use std::{net::SocketAddr, ops::Range, path::PathBuf};

use super::{Durability, draft::choice, problem::Report, table::Part, typed::Server};
use crate::policy::suggest;

const LISTEN: SocketAddr = loopback(8377);
const ADMIN: SocketAddr = loopback(8378);
const PROBLEMS: &str = "/.well-known/refrain/problems/";
const STORE: &str = "file:refrain-data";
/// A front and the store behind it; more makes no sense.
const STORES_MAX: usize = 2;
const MEMORY: &str = "memory";
const FILE: &str = "file";
const SCHEMES: [&str; 10] = [
    MEMORY,
    FILE,
    "postgres",
    "postgresql",
    "redis",
    "rediss",
    "redis+cluster",
    "rediss+cluster",
    "redis+sentinel",
    "rediss+sentinel",
];

/// The settings of the process, checked.
pub(super) struct Resolved {
    pub(super) listen: SocketAddr,
    pub(super) admin: SocketAddr,
    pub(super) upstream: Option<String>,
    pub(super) store: Vec<String>,
    pub(super) durability: Durability,
    pub(super) audit_log: Option<PathBuf>,
    pub(super) problems: String,
}

pub(super) fn resolve(part: &Part<Server>, report: &mut Report<'_>) -> Resolved {
    let Server {
        listen,
        admin,
        upstream,
        durability,
        audit_log,
        problems,
        ..
    } = &part.values;
    let place = |name: &str| part.places.get(name).cloned().unwrap_or_default();
    let mut resolved = Resolved {
        listen: address(listen.as_deref(), LISTEN, place("listen"), report),
        admin: address(admin.as_deref(), ADMIN, place("admin"), report),
        upstream: upstream
            .as_deref()
            .and_then(|url| self::upstream(url, place("upstream"), report)),
        store: stores(part, report),
        durability: Durability::default(),
        audit_log: audit_log.clone().map(PathBuf::from),
        problems: problems.clone().unwrap_or_else(|| PROBLEMS.into()),
    };
    if let Some(durability) = durability {
        choice(
            &mut resolved.durability,
            durability,
            "durability",
            place("durability"),
            report,
        );
    }
    check_problems(&resolved.problems, place("problems"), report);
    if audit_log
        .as_deref()
        .is_some_and(|path| path.trim().is_empty())
    {
        let help = "write a path, such as \"/var/log/refrain-audit\", or leave it out";
        report.push(place("audit_log"), "`audit_log` names no folder", help);
    }
    if resolved.listen == resolved.admin && resolved.listen.port() != 0 {
        let at = if admin.is_some() {
            place("admin")
        } else {
            place("listen")
        };
        let message = format!(
            "`listen` and `admin` are the same address, {}",
            resolved.admin
        );
        report.push(at, message, "give one of them another port");
    }
    resolved
}

const fn loopback(port: u16) -> SocketAddr {
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), port)
}

fn address(
    text: Option<&str>,
    default: SocketAddr,
    at: Range<usize>,
    report: &mut Report<'_>,
) -> SocketAddr {
    let Some(text) = text else { return default };
    text.parse().unwrap_or_else(|_| {
        let message = format!("`{text}` is no address to listen on");
        report.push(
            at,
            message,
            format!("write a numeric address and a port, such as \"{default}\""),
        );
        default
    })
}

fn upstream(url: &str, at: Range<usize>, report: &mut Report<'_>) -> Option<String> {
    let url = url.strip_suffix('/').unwrap_or(url);
    let authority = url
        .strip_prefix("http://")
        .or_else(|| url.strip_prefix("https://"));
    let is_host = |byte: u8| byte.is_ascii_graphic() && !b"/?#@\\".contains(&byte);
    if authority.is_some_and(|host| !host.is_empty() && host.bytes().all(is_host)) {
        return Some(url.into());
    }
    let help = "write scheme, host and port alone, such as \"http://127.0.0.1:3000\"";
    report.push(at, "`upstream` is no address of a service", help);
    None
}

fn stores(part: &Part<Server>, report: &mut Report<'_>) -> Vec<String> {
    let whole = part.places.get("store").cloned().unwrap_or_default();
    let Some(list) = &part.values.store else {
        return vec![STORE.into()];
    };
    if list.0.is_empty() || list.0.len() > STORES_MAX {
        let message = format!("`store` names {} stores", list.0.len());
        report.push(
            whole.clone(),
            message,
            "name one, or a front and the store behind it",
        );
    }
    if let [(front, at), _] = &list.0[..]
        && !front.starts_with("redis")
    {
        let message = "the first of two stores is the front, from which outcomes are served";
        let at = at.clone().unwrap_or_else(|| whole.clone());
        report.push(
            at,
            message,
            "write redis://… first, and the store that holds the records behind it",
        );
    }
    for (url, place) in &list.0 {
        check_store(url, place.clone().unwrap_or_else(|| whole.clone()), report);
    }
    list.0.iter().map(|(url, _)| url.clone()).collect()
}

fn check_store(url: &str, at: Range<usize>, report: &mut Report<'_>) {
    let (scheme, rest) = url.split_once(':').unwrap_or((url, ""));
    let is_whole = match scheme {
        MEMORY => rest.is_empty() && url.ends_with(':'),
        FILE => !rest.is_empty(),
        _ => rest.starts_with("//") && rest.len() > 2,
    };
    if is_whole && SCHEMES.contains(&scheme) {
        return;
    }
    let help = match suggest::nearest(scheme, SCHEMES) {
        Some(meant) if !SCHEMES.contains(&scheme) => format!("did you mean `{meant}:`?"),
        _ => "write memory:, file:DIR, postgres://… or redis://…".into(),
    };
    // The rest of the address may hold a password.
    report.push(
        at,
        format!("`{scheme}:` with what follows is no store"),
        help,
    );
}

/// What [`check_store`] takes, as a pattern for the schema.
pub(super) fn store_pattern() -> String {
    let form = |scheme: &str| match scheme {
        MEMORY => format!("{MEMORY}:"),
        FILE => format!("{FILE}:.+"),
        server => format!("{}://.+", server.replace('+', r"\+")),
    };
    format!("^({})$", SCHEMES.map(form).join("|"))
}

fn check_problems(base: &str, at: Range<usize>, report: &mut Report<'_>) {
    let starts = ["/", "http://", "https://"]
        .iter()
        .any(|start| base.starts_with(start));
    if !starts || !base.ends_with('/') || !base.bytes().all(|byte| byte.is_ascii_graphic()) {
        let help = format!("write a path or URL with a slash at its end, such as \"{PROBLEMS}\"");
        report.push(
            at,
            format!("`{base}` is no base for the type of problems"),
            help,
        );
    }
}
