//! The last report of `refrain verify`: whether there is one, whether it is about this, and what it says.

use std::{
    fs::{self, File},
    io::Read as _,
    path::{Path, PathBuf},
};

use refrain::policy::Operation;
use refrain_verify::verify::{OperationReport, Report, Verdict};

use super::{Facts, Line, or_done};

/// The largest report that is read.
const BYTES_MAX: u64 = 64 << 20;
/// Where a report is looked for, beside the policy.
const USUAL: &str = "verify.json";
/// What has to be tried for duplicates to count as tested.
const CORE: [&str; 3] = [
    "sequential-duplicate",
    "concurrent-duplicates",
    "lost-answer",
];

/// What is known of tests.
pub(super) struct Tested(Option<Found>);

struct Found {
    name: String,
    report: Report,
    /// Whether the policy was changed behind it.
    is_older: bool,
}

impl Tested {
    /// Reads the report that was named, or the usual one where there is one.
    pub(super) fn find(policy: &Path, named: Option<&Path>) -> Result<Self, String> {
        let usual = policy.with_file_name(USUAL);
        let path: PathBuf = match named {
            Some(path) => path.into(),
            None if usual.exists() => usual,
            None => return Ok(Self(None)),
        };
        let name = path.display().to_string();
        let mut text = String::new();
        let read = File::open(&path);
        let read = read.and_then(|file| file.take(BYTES_MAX).read_to_string(&mut text));
        read.map_err(|error| format!("{name}: cannot be read: {error}"))?;
        let report = serde_json::from_str(&text)
            .map_err(|error| format!("{name}: is no report of refrain verify --json: {error}"))?;
        let changed = |path: &Path| fs::metadata(path).and_then(|it| it.modified()).ok();
        let is_older = changed(&path) < changed(policy);
        Ok(Self(Some(Found {
            name,
            report,
            is_older,
        })))
    }
}

pub(super) fn tests(facts: &Facts) -> Vec<Line> {
    let wanted = || facts.guarded().filter(|it| !facts.is_catch_all(it));
    let Tested(Some(found)) = &facts.tested else {
        return vec![
            match wanted().next().is_none() && !facts.settings.workers.is_empty() {
                true => {
                    let why = "the file names workers alone, and no request to test";
                    Line::not_applicable(facts.whole(), why)
                }
                false => absent(facts),
            },
        ];
    };
    let Found { name, report, .. } = found;
    let mut open = Vec::new();
    if found.is_older {
        let why = "the report is older than the policy";
        let fix = format!("run refrain verify again, with --json {name}");
        open.push(Line::open(name, why, fix));
    }
    open.extend(elsewhere(facts, found));
    let tried = report.operations.iter().filter(|it| it.left_out.is_none());
    open.extend(tried.flat_map(|it| failed(name, it)));
    open.extend(wanted().filter_map(|it| untried(facts, report, it)));
    let passed = report.count(Verdict::Pass);
    let why = format!("{passed} cases passed at {}, none failed", report.target);
    or_done(open, name.clone(), why)
}

fn absent(facts: &Facts) -> Line {
    Line::open(
        facts.whole(),
        format!("there is no report: neither {USUAL} beside the file nor --verify-report"),
        format!(
            "run refrain verify http://{} --config verify.toml --json {USUAL}",
            facts.settings.listen
        ),
    )
}

/// An operation of the file of which the report says nothing, or that it was left out.
fn untried(facts: &Facts, report: &Report, operation: &Operation) -> Option<Line> {
    let (name, place) = (&operation.name, facts.place(&operation.name));
    if operation.signature.is_some() {
        let why = format!("{name} takes signed deliveries, which refrain verify does not send");
        return Some(Line::not_applicable(place, why));
    }
    let is_it = |tested: &&OperationReport| {
        let (method, path) = tested.operation.split_once(' ').unwrap_or_default();
        let path = path.split('?').next().unwrap_or_default();
        let (_, prefix) = host_and_prefix(&report.target);
        let found = facts
            .settings
            .policy
            .find(method, &format!("{prefix}{path}"));
        found.is_some_and(|it| it.operation.name == *name)
    };
    let found = || report.operations.iter().filter(is_it);
    if found().any(|it| it.left_out.is_none()) {
        return None;
    }
    let why = match found().find_map(|it| it.left_out.as_deref()) {
        Some(why) => format!("{name} was left out of the test: {why}"),
        None => format!("{name} is not in the report"),
    };
    let fix = "add it to verify.toml and run refrain verify again";
    Some(Line::open(place, why, fix))
}

/// A report about something else proves nothing about this.
fn elsewhere(facts: &Facts, found: &Found) -> Option<Line> {
    let target = &found.report.target;
    let (host, _) = host_and_prefix(target);
    let listen = facts.settings.listen;
    let port = format!(":{}", listen.port());
    let is_any = listen.ip().is_unspecified() && host.ends_with(&port);
    let is_local = listen.ip().is_loopback() && host == format!("localhost{port}");
    if is_any || is_local || host == listen.to_string() {
        return None;
    }
    let upstream = facts.settings.upstream.as_deref().map(host_and_prefix);
    if upstream.is_some_and(|(upstream, _)| upstream == host) {
        let why = format!("the report is about {target}, the service behind the proxy");
        let fix = format!("run refrain verify http://{listen}");
        return Some(Line::open(&found.name, why, fix));
    }
    let why = format!("the report is about {target}; the file listens on {listen}");
    let fix = "see to it that the same policy was in force there";
    Some(Line::advice(&found.name, why, fix))
}

/// `host:port`, and what goes before every path.
fn host_and_prefix(target: &str) -> (&str, &str) {
    let rest = target.split_once("://").map_or(target, |(_, rest)| rest);
    let (host, prefix) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    (host, prefix.trim_end_matches('/'))
}

fn failed(name: &str, operation: &OperationReport) -> Vec<Line> {
    let tested = &operation.operation;
    let cases = operation.cases.iter();
    let mut open: Vec<_> = cases
        .filter(|case| case.verdict == Verdict::Fail)
        .map(|case| {
            let why = format!("{tested}: {} failed: {}", case.id, case.findings.join("; "));
            Line::open(name, why, case.fix.clone())
        })
        .collect();
    for core in CORE {
        let case = operation.cases.iter().find(|case| case.id == core);
        if case.is_none_or(|case| case.verdict == Verdict::Skipped) {
            let why = format!("{tested}: {core} was not tried");
            open.push(Line::open(
                name,
                why,
                "run refrain verify without --case, and heed why it skips",
            ));
        }
    }
    if operation.is_weak {
        let why = format!("{tested}: effects were seen in answers alone");
        let fix = "count them with --effects-url or --effects-sql";
        open.push(Line::advice(name, why, fix));
    }
    open
}
