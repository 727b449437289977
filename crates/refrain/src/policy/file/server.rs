//! Resolves the process settings.

use std::{net::SocketAddr, ops::Range, path::PathBuf};

use super::{
    Durability,
    draft::choice,
    given::{Given, check_address},
    problem::Report,
    table::Part,
    typed::{List, Server},
};
use crate::policy::{
    Address,
    schemes::{self, Backend, alternatives, store_schemes, store_usage},
    suggest,
};

const LISTEN: SocketAddr = loopback(8377);
const ADMIN: SocketAddr = loopback(8378);
const PROBLEMS: &str = "/.well-known/refrain/problems/";
const STORE: &str = "file:refrain-data";
/// A cache and the store of record.
const STORES_MAX: usize = 2;

/// Resolved process settings.
pub(super) struct Resolved {
    pub(super) listen: SocketAddr,
    pub(super) admin: SocketAddr,
    pub(super) admin_hosts: Vec<String>,
    pub(super) upstream: Option<String>,
    pub(super) store: Vec<Address>,
    pub(super) durability: Durability,
    pub(super) audit_log: Option<PathBuf>,
    pub(super) problems: String,
}

pub(super) fn resolve(part: &Part<Server>, report: &mut Report<'_>) -> Resolved {
    let Server {
        listen,
        admin,
        admin_hosts,
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
        admin_hosts: hosts(admin_hosts.as_ref(), &place("admin_hosts"), report),
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
        report.push(place("audit_log"), "`audit_log` is empty", help);
    }
    resolved
}

/// Checks that the proxy and its admin listener have different addresses.
pub(super) fn check_ports(part: &Part<Server>, resolved: &Resolved, report: &mut Report<'_>) {
    let place = |name: &str| part.places.get(name).cloned().unwrap_or_default();
    if resolved.listen == resolved.admin && resolved.listen.port() != 0 {
        // An override has no place in the file.
        let at = match place("admin") {
            at if at.is_empty() => place("listen"),
            at => at,
        };
        let message = format!(
            "`listen` and `admin` are the same address, {}",
            resolved.admin
        );
        report.push(at, message, "give one of them another port");
    }
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
        let message = format!("invalid listen address `{text}`");
        report.push(
            at,
            message,
            format!("write an IP address and a port, such as \"{default}\""),
        );
        default
    })
}

/// Host names in lower case.
fn hosts(list: Option<&List>, whole: &Range<usize>, report: &mut Report<'_>) -> Vec<String> {
    let members = list.map_or(&[][..], |list| &list.0);
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b".-".contains(&byte);
    for (host, at) in members {
        if host.is_empty() || !host.bytes().all(is_part) {
            let at = at.clone().unwrap_or_else(|| whole.clone());
            let message = format!("invalid host name `{host}` in `admin_hosts`");
            let help = "write only the name, without scheme and port, such as \"refrain.internal\"";
            report.push(at, message, help);
        }
    }
    let names = members.iter().map(|(host, _)| host.to_ascii_lowercase());
    names.collect()
}

fn upstream(url: &str, at: Range<usize>, report: &mut Report<'_>) -> Option<String> {
    let url = url.trim_end_matches('/');
    let rest = url
        .strip_prefix("http://")
        .or_else(|| url.strip_prefix("https://"));
    if rest.is_some_and(is_authority_and_path) {
        return Some(url.into());
    }
    let help = "write scheme, host, port and, if there is one, the base path, such as \"http://127.0.0.1:3000/shop\"";
    report.push(at, "invalid URL in `upstream`", help);
    None
}

/// Whether a text is a host, with a port or not, and a base path or none.
fn is_authority_and_path(text: &str) -> bool {
    let (host, path) = text.split_once('/').unwrap_or((text, ""));
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"?#@\\".contains(&byte);
    // A path with empty or dot segments would not be the one that the upstream sees.
    let is_segment = |segment: &str| !matches!(segment, "" | "." | "..");
    !host.is_empty()
        && text.bytes().all(is_plain)
        && (path.is_empty() || path.split('/').all(is_segment))
}

fn stores(part: &Part<Server>, report: &mut Report<'_>) -> Vec<Address> {
    let Server {
        store,
        store_env,
        store_file,
        ..
    } = &part.values;
    let text = match store {
        Some(List(members)) if store_env.is_none() && store_file.is_none() => {
            return checked_stores(members, part.places.get("store").cloned(), report);
        }
        Some(_) => Some(String::new()),
        None => None,
    };
    let given = Given {
        name: "store",
        text: &text,
        env: store_env,
        file: store_file,
    };
    let place = given.place(&part.places);
    match given.read(&part.places, report) {
        Some(text) => checked_stores(&[(text, None)], place, report),
        None => vec![Address::new(STORE)],
    }
}

fn checked_stores(
    members: &[(String, Option<Range<usize>>)],
    whole: Option<Range<usize>>,
    report: &mut Report<'_>,
) -> Vec<Address> {
    let whole = whole.unwrap_or_default();
    let place = |at: &Option<Range<usize>>| at.clone().unwrap_or_else(|| whole.clone());
    let members: Vec<_> = members
        .iter()
        .flat_map(|(text, at)| tiers(text).into_iter().map(|url| (url, place(at))))
        .collect();
    if members.is_empty() || members.len() > STORES_MAX {
        let message = format!("`store` lists {} stores", members.len());
        report.push(
            whole.clone(),
            message,
            "list one store, or a front cache and the main store",
        );
    }
    if let [(front, at), _] = &members[..]
        && !can_be_front(front)
    {
        let message = "the first of two stores is the front cache, and this store cannot be one";
        let fronts = schemes::stores().filter(|(_, it)| it.can_be_front);
        let help = format!(
            "write {} first, then the main store, which holds the records",
            alternatives(fronts.map(|(_, it)| it.usage()))
        );
        report.push(at.clone(), message, help);
    }
    let checked = members.into_iter().map(|(url, at)| {
        check_store(url, at, report);
        Address::new(url)
    });
    checked.collect()
}

fn can_be_front(url: &str) -> bool {
    let scheme = url.split_once(':').map_or(url, |(scheme, _)| scheme);
    let store = Backend::named(scheme).and_then(|it| it.store);
    store.is_some_and(|it| it.can_be_front)
}

/// Splits a text into store addresses, at commas that precede the scheme of a store.
///
/// Environment variables have no lists, and a comma also separates the hosts of one address.
fn tiers(text: &str) -> Vec<&str> {
    let mut tiers = Vec::new();
    let (mut start, mut from) = (0, 0);
    while let Some(at) = text[from..].find(',').map(|at| from + at) {
        from = at + 1;
        let scheme = text[from..].trim_start().split_once(':');
        if scheme.is_some_and(|(scheme, _)| store_schemes().any(|it| it == scheme)) {
            tiers.push(text[start..at].trim());
            start = from;
        }
    }
    tiers.push(text[start..].trim());
    tiers
}

fn check_store(url: &str, at: Range<usize>, report: &mut Report<'_>) {
    let address = Address::new(url);
    if Backend::of_store(url).is_some() {
        check_address(address, at, report);
        return;
    }
    let scheme = url.split_once(':').map_or(url, |(scheme, _)| scheme);
    let help = match suggest::nearest(scheme, store_schemes()) {
        Some(meant) if store_schemes().all(|it| it != scheme) => {
            format!("did you mean `{meant}:`?")
        }
        _ => format!("write {}", store_usage()),
    };
    report.push(at, format!("invalid store address `{address}`"), help);
}

fn check_problems(base: &str, at: Range<usize>, report: &mut Report<'_>) {
    let starts = ["/", "http://", "https://"]
        .iter()
        .any(|start| base.starts_with(start));
    if !starts || !base.ends_with('/') || !base.bytes().all(|byte| byte.is_ascii_graphic()) {
        let help = format!("write a path or URL that ends with a slash, such as \"{PROBLEMS}\"");
        report.push(
            at,
            format!("invalid URL prefix `{base}` in `problems`"),
            help,
        );
    }
}
