//! The reports of `refrain verify`: whether they exist, cover this policy, and passed.

use std::{
    fs::{self, File},
    io::Read as _,
    path::{Path, PathBuf},
};

use refrain::policy::Operation;
use refrain_verify::verify::{CaseVerdict, OperationReport, Report};

use super::{Line, ReviewInput, host_and_path, or_done};
use crate::plan::VERIFY;

/// The most bytes of a report that are read.
const BYTES_MAX: u64 = 64 << 20;
/// The default name of a report, beside the policy.
const USUAL: &str = "verify.json";
/// Cases that must have run for an operation to count as tested.
const CORE: [&str; 3] = [
    "sequential-duplicate",
    "concurrent-duplicates",
    "lost-answer",
];
/// Cases that must have run for a queue to count as tested.
const CORE_OF_MESSAGES: [&str; 2] = ["duplicate-message", "duplicate-in-flight"];

/// The reports that were read.
pub(super) struct Tested(Vec<Found>);

struct Found {
    name: String,
    report: Report,
    /// Whether the policy file changed after the report.
    is_older: bool,
}

impl Tested {
    /// Reads the reports that were named, or the default one if it exists.
    pub(super) fn find(policy: &Path, named: &[PathBuf]) -> Result<Self, String> {
        let usual = policy.with_file_name(USUAL);
        let paths = match named.is_empty() && usual.exists() {
            true => std::slice::from_ref(&usual),
            false => named,
        };
        let found = paths.iter().map(|path| Found::read(policy, path));
        found.collect::<Result<_, _>>().map(Self)
    }
}

impl Found {
    fn read(policy: &Path, path: &Path) -> Result<Self, String> {
        let name = path.display().to_string();
        let mut text = String::new();
        let read = File::open(path);
        let read = read.and_then(|file| file.take(BYTES_MAX).read_to_string(&mut text));
        read.map_err(|error| format!("{name}: cannot be read: {error}"))?;
        let report = serde_json::from_str(&text)
            .map_err(|error| format!("{name}: not a report of refrain verify --json: {error}"))?;
        let changed = |path: &Path| fs::metadata(path).and_then(|it| it.modified()).ok();
        let is_older = changed(path) < changed(policy);
        Ok(Self {
            name,
            report,
            is_older,
        })
    }

    /// The queue, if the report is about messages.
    fn queue(&self) -> Option<&str> {
        let (queue, _) = self.report.target.split_once(" at ")?;
        Some(queue)
    }
}

pub(super) fn tests(facts: &ReviewInput) -> Vec<Line> {
    let Tested(found) = &facts.tested;
    let Some(first) = found.first() else {
        return vec![absent(facts)];
    };
    let mut open = Vec::new();
    for it in found {
        open.extend(stale(it));
        open.extend(foreign_report(facts, it));
        let tried = it.report.operations.iter();
        let tried = tried.filter(|it| it.left_out.is_none());
        open.extend(tried.flat_map(|operation| failed(it, operation)));
    }
    let wanted = facts.guarded().filter(|it| !facts.is_catch_all(it));
    open.extend(wanted.filter_map(|it| untried(facts, found, it)));
    open.extend(untested_workers(facts, found));
    let said = found.iter().map(|Found { report, .. }| {
        let passed = report.count(CaseVerdict::Pass);
        format!("{passed} cases passed at {}, none failed", report.target)
    });
    or_done(
        open,
        first.name.clone(),
        said.collect::<Vec<_>>().join("; "),
    )
}

fn absent(facts: &ReviewInput) -> Line {
    let has_requests = facts.guarded().any(|it| !facts.is_catch_all(it));
    let fix = match facts.settings.workers.first().filter(|_| !has_requests) {
        Some(it) => format!(
            "run refrain verify --worker --broker {} --queue {} … --json {USUAL}",
            it.source, it.queue
        ),
        None => {
            let is_planned = facts.file.with_file_name(VERIFY).exists();
            let what = match is_planned {
                true => format!("--config {VERIFY}"),
                false => "--op 'POST /…' --body @FILE".into(),
            };
            let listen = facts.settings.listen;
            format!("run refrain verify http://{listen} {what} --json {USUAL}")
        }
    };
    let why = format!("no test report: neither {USUAL} beside the file nor --verify-report");
    Line::open(facts.whole(), why, fix)
}

fn stale(found: &Found) -> Option<Line> {
    let Found { name, .. } = found.is_older.then_some(found)?;
    let fix = format!("run refrain verify again, with --json {name}");
    Some(Line::open(name, "the report is older than the policy", fix))
}

/// A line for an operation of the file that no report covers, or that was left out.
fn untried(facts: &ReviewInput, found: &[Found], operation: &Operation) -> Option<Line> {
    let (name, place) = (&operation.name, facts.location(&operation.name));
    if operation.signature.is_some() {
        let why = format!("{name} takes signed deliveries, which refrain verify does not send");
        return Some(Line::not_applicable(place, why));
    }
    let is_it = |target: &str, tested: &OperationReport| {
        let (method, path) = tested.operation.split_once(' ').unwrap_or_default();
        let path = path.split('?').next().unwrap_or_default();
        let prefix = host_and_path(target).1.trim_end_matches('/');
        let found = facts
            .settings
            .policy
            .find(method, &format!("{prefix}{path}"));
        found.is_some_and(|it| it.operation.name == *name)
    };
    let requests = || {
        found
            .iter()
            .filter(|it| it.queue().is_none())
            .map(|it| &it.report)
    };
    let told = || {
        requests().flat_map(|report| {
            let operations = report.operations.iter();
            operations.filter(|it| is_it(&report.target, it))
        })
    };
    if told().any(|it| it.left_out.is_none()) {
        return None;
    }
    let why = match told().find_map(|it| it.left_out.as_deref()) {
        Some(why) => format!("{name} was left out of the test: {why}"),
        None => format!("{name} is not in the report"),
    };
    let fix = "add it to verify.toml and run refrain verify again";
    Some(Line::open(place, why, fix))
}

/// Lines for workers whose queues no report covers.
fn untested_workers(facts: &ReviewInput, found: &[Found]) -> Vec<Line> {
    let is_tested = |queue: &str| found.iter().any(|it| it.queue() == Some(queue));
    let workers = facts.settings.workers.iter();
    let unheard = workers.filter(|worker| !is_tested(&worker.queue));
    let lines = unheard.map(|worker| {
        let why = format!("no report covers the messages of worker {}", worker.name);
        let fix = format!(
            "run refrain verify --worker --broker {} --queue {} … --json FILE, and also pass --verify-report FILE",
            worker.source, worker.queue
        );
        Line::open(facts.location(&worker.name), why, fix)
    });
    lines.collect()
}

/// A line for a report about another address, which proves nothing about this policy.
fn foreign_report(facts: &ReviewInput, found: &Found) -> Option<Line> {
    if found.queue().is_some() {
        return None;
    }
    let target = &found.report.target;
    let (host, listen) = (host_and_path(target).0, facts.settings.listen);
    if facts.is_proxy(host) {
        return None;
    }
    if facts.is_upstream(host) {
        let why = format!("the report covers {target}, the service behind the proxy");
        let fix = format!("run refrain verify http://{listen}");
        return Some(Line::open(&found.name, why, fix));
    }
    let why = format!("the report covers {target}, but the file listens on {listen}");
    let fix = "make sure that the same policy was active there";
    Some(Line::advice(&found.name, why, fix))
}

fn failed(found: &Found, operation: &OperationReport) -> Vec<Line> {
    let name = &found.name;
    let core: &[&str] = match found.queue() {
        Some(_) => &CORE_OF_MESSAGES,
        None => &CORE,
    };
    let tested = &operation.operation;
    let cases = operation.cases.iter();
    let mut open: Vec<_> = cases
        .filter(|case| case.verdict == CaseVerdict::Fail)
        .map(|case| {
            let why = format!("{tested}: {} failed: {}", case.id, case.findings.join("; "));
            Line::open(name, why, case.fix.clone())
        })
        .collect();
    for core in core {
        let case = operation.cases.iter().find(|case| case.id == *core);
        if case.is_none_or(|case| case.verdict == CaseVerdict::Skipped) {
            let why = format!("{tested}: {core} was not tested");
            open.push(Line::open(
                name,
                why,
                "run refrain verify without --case, and fix the reason for the skip",
            ));
        }
    }
    if operation.is_weak {
        let why = format!("{tested}: effects were counted only from responses");
        let fix = "count them with --effects-url or --effects-sql";
        open.push(Line::advice(name, why, fix));
    }
    open
}
