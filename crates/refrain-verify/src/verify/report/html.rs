//! HTML report: one self-contained page.

use super::{super::Exchange, CaseReport, CaseVerdict, OperationReport, Report, escaped};

mod card;
mod timeline;

const STYLE: &str = include_str!("html/page.css");
/// Order of the verdicts on the page: most important first.
const VERDICTS: [CaseVerdict; 4] = [
    CaseVerdict::Fail,
    CaseVerdict::Warn,
    CaseVerdict::Pass,
    CaseVerdict::Skipped,
];

/// Renders the report as one self-contained HTML page.
#[must_use]
pub fn html(report: &Report) -> String {
    let title = format!("refrain verify: {}", escaped(&report.target));
    let operations = report.operations.iter().enumerate();
    let operations: String = operations.map(|(at, it)| operation(at, it)).collect();
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
         <title>{title}</title><style>{STYLE}</style></head><body><main>\n{}{operations}\
         <footer>Seed {}. All cases and what each accepts: docs/verify.md.</footer>\n</main></body></html>\n",
        banner(report, &title),
        report.seed,
    )
}

/// The summary at the top.
fn banner(report: &Report, title: &str) -> String {
    let failed = report.count(CaseVerdict::Fail);
    let tested = report.operations.iter().filter(|it| it.left_out.is_none());
    let (tested, out) = (
        tested.clone().count(),
        report.operations.len() - tested.count(),
    );
    let (tone, said) = match failed {
        0 if report.count(CaseVerdict::Pass) == 0 => ("skipped", "Nothing was tested".into()),
        0 => ("pass", "No hole was found".into()),
        1 => ("fail", "1 case shows a hole".into()),
        many => ("fail", format!("{many} cases show a hole")),
    };
    let there = VERDICTS.iter().filter(|it| report.count(**it) > 0);
    let share: String = there.clone().map(|it| share(report, *it)).collect();
    let counts: String = there.map(|it| count(report, *it)).collect();
    let out = match out {
        0 => String::new(),
        out => format!(", {out} left out"),
    };
    format!(
        "<header class=\"banner {tone}\"><h1>{title}</h1>\n<p class=\"said\">{said}</p>\n\
         <p class=\"soft\">{tested} operation{} tested{out}, in {}.{:03} s</p>\n\
         <div class=\"share\">{share}</div>\n<ul class=\"counts\">{counts}</ul></header>\n",
        if tested == 1 { "" } else { "s" },
        report.took_ms / 1000,
        report.took_ms % 1000,
    )
}

fn share(report: &Report, verdict: CaseVerdict) -> String {
    let (class, many) = (class(verdict), report.count(verdict));
    format!("<i class=\"{class}\" style=\"flex:{many}\"></i>")
}

fn count(report: &Report, verdict: CaseVerdict) -> String {
    let class = class(verdict);
    let word = match verdict {
        CaseVerdict::Fail => "failed",
        CaseVerdict::Warn => "warned",
        CaseVerdict::Pass => "passed",
        CaseVerdict::Skipped => "skipped",
    };
    let many = report.count(verdict);
    format!("<li class=\"{class}\"><b>{many}</b> {word}</li>")
}

fn operation(at: usize, operation: &OperationReport) -> String {
    let name = escaped(&operation.operation);
    if let Some(why) = &operation.left_out {
        return format!(
            "<section class=\"operation skipped\"><header><h2>{name}</h2><p>\
             <span class=\"verdict\">left out</span> {}</p></header></section>\n",
            escaped(why)
        );
    }
    let rows: String = operation.cases.iter().map(|case| row(at, case)).collect();
    let told = operation.cases.iter().filter(|case| is_told(case));
    let told: String = told
        .map(|case| card::card(&anchor(at, case), case))
        .collect();
    format!(
        "<section class=\"operation\"><header><h2>{name}</h2>\n<p class=\"soft\">Effects are counted {}.</p></header>\n\
         <table><thead><tr><th scope=\"col\">verdict</th><th scope=\"col\">case</th><th scope=\"col\">what was seen</th></tr></thead>\
         <tbody>\n{rows}</tbody></table></section>\n{told}",
        escaped(&operation.counting)
    )
}

/// Whether the case gets a card with details.
fn is_told(case: &CaseReport) -> bool {
    matches!(case.verdict, CaseVerdict::Fail | CaseVerdict::Warn)
}

/// The anchor of a case.
fn anchor(at: usize, case: &CaseReport) -> String {
    let id = case
        .id
        .chars()
        .filter(|it| it.is_ascii_alphanumeric() || *it == '-');
    format!("o{at}-{}", id.collect::<String>())
}

fn row(at: usize, case: &CaseReport) -> String {
    let class = class(case.verdict);
    let title = escaped(&case.title);
    let title = match is_told(case) {
        true => format!("<a href=\"#{}\">{title}</a>", anchor(at, case)),
        false => title,
    };
    format!(
        "<tr class=\"{class}\"><td><span class=\"verdict\">{class}</span></td>\
         <td>{title}<code>{}</code></td><td>{}</td></tr>\n",
        escaped(&case.id),
        escaped(&case.findings.join("; "))
    )
}

fn class(verdict: CaseVerdict) -> &'static str {
    match verdict {
        CaseVerdict::Pass => "pass",
        CaseVerdict::Skipped => "skipped",
        CaseVerdict::Warn => "warn",
        CaseVerdict::Fail => "fail",
    }
}

/// Colour class and label of an exchange; no response and server errors are failures.
fn tone(exchange: &Exchange) -> (&'static str, String) {
    match exchange.status {
        Some(status @ 200..300) => ("pass", status.to_string()),
        Some(status @ 500..) => ("fail", status.to_string()),
        Some(status) => ("warn", status.to_string()),
        None if exchange.is_published() => ("pass", "sent".into()),
        None => ("fail", "no answer".into()),
    }
}
