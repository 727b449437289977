//! For people: one page that needs nothing else.

use super::{CaseReport, Exchange, OperationReport, Report, Verdict, escaped};

const STYLE: &str = "
:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;width:100%}
th,td{text-align:left;vertical-align:top;padding:.3rem .6rem;border-bottom:1px solid #8884}
.v{font-weight:600;white-space:nowrap}
.fail .v{color:#c62828}.warn .v{color:#b26a00}.pass .v{color:#2e7d32}.skipped{opacity:.65}
section.case{border:1px solid #8886;border-radius:.5rem;padding:0 1rem 1rem;margin:1rem 0}
.pair{display:grid;grid-template-columns:1fr 1fr;gap:.6rem;margin:.6rem 0;break-inside:avoid}
.pair h4{grid-column:1/-1;margin:.2rem 0}
pre{background:#8881;padding:.5rem;margin:0;overflow:auto;white-space:pre-wrap;word-break:break-word;font-size:12px}
svg{width:100%;height:auto;font:11px system-ui,sans-serif}
svg text{fill:currentColor}
@media print{body{max-width:none;margin:0}details{display:block}}
@media(max-width:40rem){.pair{grid-template-columns:1fr}}
";

/// The report as one self-contained HTML page.
#[must_use]
pub fn html(report: &Report) -> String {
    let title = format!("refrain verify: {}", escaped(&report.target));
    let counts = [
        Verdict::Fail,
        Verdict::Warn,
        Verdict::Pass,
        Verdict::Skipped,
    ];
    let counts = counts.map(|verdict| format!("{} {}", report.count(verdict), class(verdict)));
    let operations: String = report.operations.iter().map(operation).collect();
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
         <title>{title}</title><style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n\
         <p>{}; seed {}; {}.{:03} s</p>\n{operations}</body></html>\n",
        counts.join(", "),
        report.seed,
        report.took_ms / 1000,
        report.took_ms % 1000
    )
}

fn operation(operation: &OperationReport) -> String {
    let rows: String = operation.cases.iter().map(row).collect();
    let is_told = |case: &&CaseReport| matches!(case.verdict, Verdict::Fail | Verdict::Warn);
    let told: String = operation
        .cases
        .iter()
        .filter(is_told)
        .map(section)
        .collect();
    format!(
        "<h2>{}</h2>\n<p>Effects are counted {}.</p>\n\
         <table><thead><tr><th>verdict</th><th>case</th><th>what was seen</th></tr></thead><tbody>\n{rows}</tbody></table>\n{told}",
        escaped(&operation.operation),
        escaped(&operation.counting)
    )
}

fn row(case: &CaseReport) -> String {
    let class = class(case.verdict);
    format!(
        "<tr class=\"{class}\"><td class=\"v\">{class}</td><td><b>{}</b><br>{}</td><td>{}</td></tr>\n",
        escaped(&case.id),
        escaped(&case.title),
        escaped(&case.findings.join("; "))
    )
}

fn section(case: &CaseReport) -> String {
    let class = class(case.verdict);
    let findings = case.findings.iter();
    let findings: String = findings
        .map(|it| format!("<li>{}</li>", escaped(it)))
        .collect();
    let pairs: String = case.exchanges.iter().map(pair).collect();
    format!(
        "<section class=\"case {class}\"><h3><span class=\"v\">{class}</span> {}: {}</h3>\n<ul>{findings}</ul>\n\
         <p>{}</p>\n<p><b>The hole:</b> {}</p>\n<p><b>The fix:</b> {}</p>\n{}{pairs}</section>\n",
        escaped(&case.id),
        escaped(&case.title),
        escaped(&case.explanation),
        escaped(&case.hole),
        escaped(&case.fix),
        timeline(&case.exchanges)
    )
}

fn pair(exchange: &Exchange) -> String {
    let side = |lines: &[String], body: &str| {
        let gap = if body.is_empty() { "" } else { "\n\n" };
        escaped(&format!("{}{gap}{body}", lines.join("\n")))
    };
    format!(
        "<div class=\"pair\"><h4>{} <small>at {} ms, {} ms long</small></h4><pre>{}</pre><pre>{}</pre></div>\n",
        escaped(&exchange.label),
        exchange.at_ms,
        exchange.took_ms,
        side(&exchange.request, &exchange.request_body),
        side(&exchange.response, &exchange.response_body)
    )
}

/// A bar for each exchange, from its request to its answer.
fn timeline(exchanges: &[Exchange]) -> String {
    const WIDTH: u64 = 720;
    const LABELS: u64 = 230;
    let end = exchanges.iter().map(|it| it.at_ms + it.took_ms).max();
    let Some(end) = end.map(|end| end.max(1)) else {
        return String::new();
    };
    let place = |ms: u64| LABELS + ms * (WIDTH - LABELS - 40) / end;
    let bars = exchanges.iter().enumerate().map(|(at, exchange)| {
        let (y, from) = (18 * at as u64 + 4, place(exchange.at_ms));
        let width = place(exchange.at_ms + exchange.took_ms).saturating_sub(from).max(2);
        let (colour, said) = match exchange.status {
            Some(status @ 200..300) => ("#2e7d32", status.to_string()),
            Some(status @ 500..) => ("#c62828", status.to_string()),
            Some(status) => ("#b26a00", status.to_string()),
            None if exchange.is_published() => ("#2e7d32", "sent".into()),
            None => ("#c62828", "lost".into()),
        };
        format!(
            "<text x=\"0\" y=\"{}\">{}</text><rect x=\"{from}\" y=\"{y}\" width=\"{width}\" height=\"12\" rx=\"2\" fill=\"{colour}\"/>\
             <text x=\"{}\" y=\"{}\">{said}</text>",
            y + 10,
            escaped(&exchange.label.chars().take(36).collect::<String>()),
            from + width + 4,
            y + 10
        )
    });
    let bars: String = bars.collect();
    let height = 18 * exchanges.len() + 22;
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"timeline\">{bars}\
         <text x=\"{LABELS}\" y=\"{0}\">0 ms</text><text x=\"{1}\" y=\"{0}\" text-anchor=\"end\">{end} ms</text></svg>\n",
        height - 4,
        WIDTH
    )
}

fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Pass => "pass",
        Verdict::Skipped => "skipped",
        Verdict::Warn => "warn",
        Verdict::Fail => "fail",
    }
}
