//! Details of a case: findings, bug, fix and exchanges.

use super::{class, escaped, timeline, tone};
use crate::verify::report::{CaseReport, Exchange};

/// Number of exchanges shown before the rest is folded.
const OPEN_MAX: usize = 4;

pub(super) fn card(place: &str, case: &CaseReport) -> String {
    let class = class(case.verdict);
    let findings = case.findings.iter();
    let findings: String = findings
        .map(|it| format!("<li>{}</li>", escaped(it)))
        .collect();
    format!(
        "<section class=\"case {class}\" id=\"{place}\"><h3><span class=\"verdict\">{class}</span> {} <code class=\"soft\">{}</code></h3>\n\
         <ul class=\"seen\">{findings}</ul>\n<p>{}</p>\n\
         <dl class=\"advice\"><div><dt>The hole</dt><dd>{}</dd></div><div><dt>The fix</dt><dd>{}</dd></div></dl>\n{}{}</section>\n",
        escaped(&case.title),
        escaped(&case.id),
        escaped(&case.explanation),
        escaped(&case.hole),
        escaped(&case.fix),
        timeline::timeline(&case.exchanges),
        pairs(&case.exchanges)
    )
}

fn pairs(exchanges: &[Exchange]) -> String {
    let (open, more) = exchanges.split_at(exchanges.len().min(OPEN_MAX));
    let open: String = open.iter().map(pair).collect();
    if more.is_empty() {
        return open;
    }
    let inner: String = more.iter().map(pair).collect();
    format!(
        "{open}<details><summary>{} more requests and answers</summary>{inner}</details>\n",
        more.len()
    )
}

fn pair(exchange: &Exchange) -> String {
    let (tone, said) = tone(exchange);
    format!(
        "<div class=\"pair {tone}\"><h4>{} <span class=\"verdict\">{said}</span> \
         <span class=\"soft\">sent at {} ms, {} ms long</span></h4><pre>{}</pre><pre>{}</pre></div>\n",
        escaped(&exchange.label),
        exchange.at_ms,
        exchange.took_ms,
        side(&exchange.request, &exchange.request_body),
        side(&exchange.response, &exchange.response_body)
    )
}

fn side(lines: &[String], body: &str) -> String {
    let (first, rest) = lines
        .split_first()
        .map_or(("", &[][..]), |(first, rest)| (first, rest));
    let rest: String = rest.iter().map(|line| format!("\n{line}")).collect();
    let gap = if body.is_empty() { "" } else { "\n\n" };
    format!(
        "<b>{}</b>{}",
        escaped(first),
        escaped(&format!("{rest}{gap}{body}"))
    )
}
