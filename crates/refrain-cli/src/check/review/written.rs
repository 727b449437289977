//! The review as Markdown, HTML and JSON.

use serde_json::json;

use super::{Line, Review, State};

const STYLE: &str = "
:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;width:100%}
th,td{text-align:left;vertical-align:top;padding:.3rem .6rem;border-bottom:1px solid #8884}
.s{font-weight:600;white-space:nowrap}
.open .s{color:#c62828}.advice .s{color:#b26a00}.done .s{color:#2e7d32}.not-applicable{opacity:.65}
@media print{body{max-width:none;margin:0}}
";

/// The name of a line's state; an open line may be required or not.
fn name(line: &Line) -> &'static str {
    match (line.state, line.required) {
        (State::Done, _) => "done",
        (State::NotApplicable, _) => "not applicable",
        (State::Open, true) => "open",
        (State::Open, false) => "open, not required",
    }
}

fn summed(review: &Review) -> String {
    let lines = || review.items.iter().flat_map(|item| &item.lines);
    let names = ["open", "open, not required", "done", "not applicable"];
    let counts =
        names.map(|it| format!("{} {it}", lines().filter(|line| name(line) == it).count()));
    counts.join("; ")
}

pub(super) fn markdown(review: &Review) -> String {
    let mut text = format!("# Review of {}\n\n{}.\n", review.file, summed(review));
    for item in &review.items {
        text += &format!(
            "\n## {}\n\n| state | where | why | what to do |\n|---|---|---|---|\n",
            item.title
        );
        for line in &item.lines {
            let fix = line.fix.as_deref().unwrap_or_default();
            let cells = [name(line), &line.place, &line.why, fix].map(cell);
            text += &format!("| {} |\n", cells.join(" | ").trim_end());
        }
    }
    text
}

/// Escapes text for a Markdown table cell, on one line.
fn cell(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    text.replace('|', "\\|")
}

pub(super) fn html(review: &Review) -> String {
    let title = format!("Review of {}", escaped(&review.file));
    let items = review.items.iter().map(|item| {
        let rows: String = item.lines.iter().map(row).collect();
        format!(
            "<h2>{}</h2>\n<table><thead><tr><th>state</th><th>where</th><th>why</th><th>what to do</th></tr></thead><tbody>\n{rows}</tbody></table>\n",
            escaped(item.title)
        )
    });
    let items: String = items.collect();
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
         <title>{title}</title><style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n<p>{}.</p>\n{items}</body></html>\n",
        summed(review)
    )
}

fn row(line: &Line) -> String {
    let class = match (line.state, line.required) {
        (State::Open, false) => "advice",
        (State::Open, true) => "open",
        (State::Done, _) => "done",
        (State::NotApplicable, _) => "not-applicable",
    };
    let fix = line.fix.as_deref().unwrap_or_default();
    let [place, why, fix] = [&line.place, &line.why, fix].map(escaped);
    format!(
        "<tr class=\"{class}\"><td class=\"s\">{}</td><td>{place}</td><td>{why}</td><td>{fix}</td></tr>\n",
        name(line)
    )
}

fn escaped(text: &str) -> String {
    let text = text
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    text.replace('"', "&quot;").replace('\'', "&#39;")
}

pub(super) fn json(review: &Review) -> String {
    let mut value = json!(review);
    value["open"] = review.is_open().into();
    format!("{value:#}\n")
}
