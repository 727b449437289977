//! Records whose lifetime is shorter than the retry window.

use super::{Hit, claims};
use crate::{file::File, item::Role, names, project::Project};

mod duration;
mod policy;

use duration::seconds;

pub(super) fn shorter(project: &Project, file: usize) -> Vec<Hit> {
    let source = &project.files[file];
    let Some((window, who)) = policy::window(source) else {
        return Vec::new();
    };
    let mut hits: Vec<Hit> = Vec::new();
    for (at, ttl) in lifetimes(project, file) {
        if ttl < window && !hits.iter().any(|hit| hit.at == at) {
            let note = format!(
                "kept for {}, but {who} lasts for {}",
                describe_duration(ttl),
                describe_duration(window)
            );
            hits.push(Hit::new(at, note));
        }
    }
    hits
}

/// Lifetimes of keyed records, with their positions, in seconds.
fn lifetimes(project: &Project, file: usize) -> Vec<(usize, f64)> {
    let source = &project.files[file];
    let mut found = Vec::new();
    for call in source.of(Role::Call) {
        let item = &source.items[call];
        let tail = item.tail();
        let writes = names::fits_any(&item.name, &project.words.stores.sets)
            || [
                "setnx",
                "setifabsent",
                "expire",
                "add",
                "setex",
                "psetex",
                "put",
                "write",
            ]
            .contains(&tail);
        let is_lease = names::has_any(source.low(&item.value), &["*lease", "lock", "*lock:"])
            || is_begun(project, file, call);
        if !writes || item.args.len() < 2 || is_lease || !claims::is_keyed(project, file, call) {
            continue;
        }
        if let Some(found_here) = lifetime(project, file, call) {
            found.push(found_here);
        }
    }
    if found.is_empty() {
        found = settings(source);
    }
    found
}

/// Whether the write only records a start, and a later write in the same function records the outcome.
fn is_begun(project: &Project, file: usize, call: usize) -> bool {
    let source = &project.files[file];
    let begun = |at: usize| {
        let words = [
            "*in_progress",
            "*inprogress",
            "pending",
            "processing",
            "claimed",
            "begun",
        ];
        names::has_any(source.low(&source.items[at].value), &words)
    };
    let Some(function) = source.function(call).filter(|_| begun(call)) else {
        return false;
    };
    source.calls(&source.items[function].span).any(|at| {
        let item = &source.items[at];
        item.at() > source.items[call].at()
            && names::fits_any(&item.name, &project.words.stores.sets)
            && !begun(at)
            && claims::is_keyed(project, file, at)
    })
}

/// Lifetimes in settings: `IDEMPOTENCY_TTL = 60`, `idempotency: { ttl: 60 }`.
fn settings(file: &File) -> Vec<(usize, f64)> {
    let keyed =
        |name: &str| names::has_any(name, &["*idempot", "*dedup", "*processed", "*idemkey"]);
    let lasts = |name: &str| {
        names::has_any(
            name,
            &[
                "*ttl",
                "*expir",
                "*retention",
                "*lifetime",
                "*maxage",
                "*keepfor",
            ],
        )
    };
    let mut found = Vec::new();
    for (at, item) in file.items.iter().enumerate() {
        let named = matches!(item.role, Role::Assign | Role::Pair) && lasts(&item.name);
        let around = || {
            let outer = file.around(at).take(3).map(|outer| &file.items[outer]);
            outer
                .filter(|outer| matches!(outer.role, Role::Assign | Role::Pair | Role::Call))
                .any(|outer| keyed(&outer.name))
        };
        if named
            && (keyed(&item.name) || around())
            && let Some(value) = seconds(file.low(&item.value))
        {
            let unit = match duration::has_unit(file.low(&item.value)) {
                true => 1.0,
                false => duration::unit_of_name(&item.name).unwrap_or(1.0),
            };
            found.push((item.value.start, value * unit));
        }
    }
    found
}

fn lifetime(project: &Project, file: usize, call: usize) -> Option<(usize, f64)> {
    let source = &project.files[file];
    let item = &source.items[call];
    let tail = item.tail();
    for pair in source
        .within(&item.value)
        .filter(|at| source.items[*at].role == Role::Pair)
    {
        let pair = &source.items[pair];
        let unit = match pair.name.as_str() {
            "ex" | "ttl" | "expire" | "expiresin" | "timeout" | "expiry" | "exp" | "seconds" => 1.0,
            "px" => 0.001,
            _ => continue,
        };
        return value(project, file, &pair.value).map(|it| (pair.value.start, it * unit));
    }
    for (at, arg) in item.args.iter().enumerate().skip(1) {
        let text = source.low(&arg.span);
        let before = source
            .low(&item.args[at - 1].span)
            .trim_matches(['"', '\''])
            .to_string();
        let positional = matches!(
            (tail, at),
            ("setex" | "psetex", 1) | ("expire", 1) | ("setex", 2) | ("put" | "add" | "write", 2)
        ) || before == "ex"
            || before == "px";
        let unit = if tail == "psetex" || before == "px" {
            0.001
        } else {
            1.0
        };
        let spoken =
            duration::has_unit(text) || duration::has_unit(&resolved(project, file, &arg.span));
        if (positional || spoken)
            && let Some(it) = value(project, file, &arg.span)
        {
            return Some((arg.span.start, if spoken { it } else { it * unit }));
        }
    }
    None
}

/// Seconds in a byte range, directly or through a constant.
fn value(project: &Project, file: usize, span: &crate::item::Span) -> Option<f64> {
    let source = &project.files[file];
    seconds(source.low(span)).or_else(|| seconds(&resolved(project, file, span)))
}

fn resolved(project: &Project, file: usize, span: &crate::item::Span) -> String {
    let source: &File = &project.files[file];
    let plain = source.text[span.clone()]
        .chars()
        .all(|c| c.is_alphanumeric() || matches!(c, '_' | '.' | ':' | '$' | '-' | '>'));
    if !plain {
        return String::new();
    }
    let pieces = project.reach(file, span).pieces;
    let value = pieces.iter().skip(1).find(|piece| {
        piece.span.len() < 80 && seconds(project.files[piece.file].low(&piece.span)).is_some()
    });
    value
        .map(|piece| project.files[piece.file].low(&piece.span).to_string())
        .unwrap_or_default()
}

fn describe_duration(seconds: f64) -> String {
    match seconds {
        s if s >= 172_800.0 => format!("{:.0} days", s / 86_400.0),
        s if s >= 7_200.0 => format!("{:.0} hours", s / 3_600.0),
        s if s >= 120.0 => format!("{:.0} minutes", s / 60.0),
        s => format!("{s:.0} seconds"),
    }
}
