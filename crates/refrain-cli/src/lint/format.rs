//! Findings as text, SARIF and GitHub annotations.

use refrain_lint::{Finding, Report, Rule, Rules, Severity};
use refrain_verify::verify::sarif_log;
use serde_json::{Value, json};

use crate::output::{counted, say};

/// Prints findings as text.
pub(super) fn text(report: &Report) {
    for finding in &report.findings {
        say(one(finding));
    }
    for note in &report.notes {
        say(format_args!("note: {note}"));
    }
    let exactly = |severity| {
        report
            .findings
            .iter()
            .filter(|it| it.severity == severity)
            .count()
    };
    let mut more = String::new();
    for (count, what) in [
        (report.allowed, "allowed by comments"),
        (report.test_files, "test files skipped (--tests lints them)"),
        (report.other_files, "in other languages"),
    ] {
        if count > 0 {
            more.push_str(&format!(", {count} {what}"));
        }
    }
    say(format_args!(
        "{}, {}, {} in {}, {}{more}",
        counted(exactly(Severity::Error), "error"),
        counted(exactly(Severity::Warning), "warning"),
        counted(exactly(Severity::Hint), "hint"),
        counted(report.files, "file"),
        counted(report.lines, "line")
    ));
}

fn one(finding: &Finding) -> String {
    let Finding {
        path,
        line,
        column,
        rule,
        severity,
        title,
        why,
        fix,
        link,
        source,
        ..
    } = finding;
    let number = line.to_string();
    let gap = " ".repeat(number.len());
    let seen = match finding.note.as_str() {
        "" => String::new(),
        note => format!("\n {gap} | seen: {note}"),
    };
    format!(
        "{path}:{line}:{column}: {severity}: {title} [{rule}]\n {number} | {}{seen}\n {gap} | why:  {why}\n {gap} | fix:  {fix}\n {gap} | more: {link}\n",
        source.trim_end()
    )
}

/// A finding in one paragraph.
fn message(finding: &Finding) -> String {
    let Finding {
        title,
        note,
        why,
        fix,
        ..
    } = finding;
    let seen = if note.is_empty() {
        String::new()
    } else {
        format!(" ({note})")
    };
    format!("{title}{seen}. {why} {fix}")
}

/// A rule as JSON.
pub(super) fn rule(rule: &Rule) -> Value {
    json!({
        "id": rule.id, "severity": rule.severity, "title": rule.title,
        "why": rule.why, "fix": rule.fix, "link": rule.link,
    })
}

/// Findings as SARIF, for code scanners.
pub(super) fn sarif(rules: &Rules, report: &Report) -> Value {
    let rules = rules.rules.iter().map(|rule| {
        json!({
            "id": rule.id,
            "shortDescription": { "text": rule.title },
            "fullDescription": { "text": rule.why },
            "help": { "text": format!("{} See {}.", rule.fix, rule.link) },
            "defaultConfiguration": { "level": level(rule.severity) },
        })
    });
    let results = report.findings.iter().map(|finding| {
        json!({
            "ruleId": finding.rule,
            "level": level(finding.severity),
            "message": { "text": message(finding) },
            "locations": [{ "physicalLocation": {
                "artifactLocation": { "uri": uri(&finding.path) },
                "region": { "startLine": finding.line, "startColumn": finding.column, "snippet": { "text": finding.source } },
            }}],
            "partialFingerprints": { "line": format!("{} {} {}", finding.path, finding.rule, finding.source.trim()) },
        })
    });
    let mut log = sarif_log("refrain lint", rules.collect(), results.collect());
    log["runs"][0]["columnKind"] = json!("unicodeCodePoints");
    log
}

/// A path as a URI reference: special bytes are percent-encoded.
fn uri(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' | b'~' => {
                out.push(char::from(byte));
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

fn level(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Hint => "note",
    }
}

/// Prints findings as GitHub workflow commands, which annotate pull requests.
pub(super) fn github(report: &Report) {
    for finding in &report.findings {
        let kind = match finding.severity {
            Severity::Hint => "notice",
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        let property = |text: &str| escaped(text).replace(':', "%3A").replace(',', "%2C");
        say(format_args!(
            "::{kind} file={},line={},col={},title={}::{}",
            property(&finding.path),
            finding.line,
            finding.column,
            property(&finding.rule),
            escaped(&message(finding))
        ));
    }
}

fn escaped(text: &str) -> String {
    text.replace('%', "%25")
        .replace('\r', "%0D")
        .replace('\n', "%0A")
}
