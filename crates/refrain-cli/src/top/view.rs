//! The state as lines of text: a frame of the screen, or of plain text.

use std::fmt;

use super::{
    data::Sample,
    state::State,
    text::{count, curve, cut, fit, micros, rate, seconds},
};
use crate::output::harmless;

mod tables;

/// With fewer free lines than this, the rates are one line.
const ROWS_FOR_RATES: usize = 24;
/// Most operations and unknown outcomes in a frame without a limit.
const LISTED_MAX: usize = 20;
const LABEL: usize = 15;
const RATE: usize = 18;
/// The size of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) columns: usize,
    /// `None` for all that is listed.
    pub(super) rows: Option<usize>,
}

impl Size {
    pub(super) fn unlimited(columns: usize) -> Self {
        Self {
            columns,
            rows: None,
        }
    }
}

/// How text looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    Plain,
    Bold,
    Dim,
    Good,
    Info,
    Warning,
    Bad,
}

/// A line: texts with their styles.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Line(pub(super) Vec<(Style, String)>);

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text: String = self.0.iter().map(|(_, text)| text.as_str()).collect();
        f.write_str(text.trim_end())
    }
}

/// The lines of a frame, none longer than its columns.
struct Frame {
    lines: Vec<Line>,
    size: Size,
    is_utf8: bool,
}

impl Frame {
    /// Adds a line of these texts, which may come from a server.
    fn push<T: AsRef<str>>(&mut self, parts: impl IntoIterator<Item = (Style, T)>) {
        let mut left = self.size.columns;
        let mut line = Line::default();
        for (style, text) in parts {
            let text = cut(&harmless(text.as_ref(), &[]), left);
            left -= text.chars().count();
            line.0.push((style, text));
        }
        self.lines.push(line);
    }

    fn title(&mut self, text: &str) {
        self.push([(Style::Plain, "")]);
        self.push([(Style::Bold, text)]);
    }

    /// Lines that are left above the footer.
    fn left(&self) -> usize {
        let rows = self
            .size
            .rows
            .map_or(usize::MAX, |rows| rows.saturating_sub(1));
        rows.saturating_sub(self.lines.len())
    }
}

/// The frame of this state.
pub(super) fn frame(state: &State, size: Size, is_utf8: bool) -> Vec<Line> {
    let mut frame = Frame {
        lines: Vec::new(),
        size,
        is_utf8,
    };
    header(&mut frame, state);
    match state.is_unknown_only {
        true => unknown(&mut frame, state, usize::MAX),
        false => {
            match frame.left() >= ROWS_FOR_RATES {
                true => rates(&mut frame, state),
                false => summary(&mut frame, state),
            }
            if !state.overview.operations.is_empty() {
                tables::operations(&mut frame, state);
            }
            if !state.workers.is_empty() {
                tables::workers(&mut frame, state);
            }
            if state.unknown.as_ref().is_none_or(|it| !it.is_empty()) {
                let rows = frame.left() / 3;
                unknown(&mut frame, state, rows.saturating_sub(2).max(1));
            }
            requests(&mut frame, state);
        }
    }
    if let Some(rows) = size.rows {
        frame.lines.resize(rows.saturating_sub(1), Line::default());
        footer(&mut frame, state);
        frame.lines.truncate(rows);
    }
    frame.lines
}

fn header(frame: &mut Frame, state: &State) {
    let overview = &state.overview;
    let (style, ready) = match (state.silent(), overview.ready) {
        (Some(silent), _) => {
            let silent = silent.as_secs();
            (Style::Bad, format!("no answer for {silent} s"))
        }
        (None, true) => (Style::Good, "ready".to_owned()),
        (None, false) => {
            let reason = overview.reason.as_deref().unwrap_or_default();
            (Style::Bad, format!("NOT READY: {reason}"))
        }
    };
    let up = format!("  up {}", seconds(overview.uptime_seconds));
    let version = overview.version.as_deref().unwrap_or_default();
    frame.push([
        (Style::Bold, format!("Refrain {version}  ")),
        (style, ready),
        (Style::Plain, up),
        (Style::Dim, format!("  {}", state.address)),
    ]);
    if let Some(trouble) = &state.trouble {
        frame.push([(Style::Bad, format!("reconnecting: {trouble}"))]);
    } else if let Some(detail) = overview.detail.as_ref().filter(|_| !overview.ready) {
        frame.push([(Style::Bad, detail)]);
    }
    let store = overview.store.as_deref().unwrap_or_default().join(", ");
    let records = match &overview.records {
        None => "did not respond".into(),
        Some(records) => {
            let of = |state: &str| count(records.get(state).copied().unwrap_or_default());
            let (completed, in_flight) = (of("completed"), of("in-flight"));
            format!(
                "{completed} completed, {in_flight} in flight, {} waiting",
                overview.waiting_now
            )
        }
    };
    frame.push([
        (Style::Plain, format!("store {store}  ")),
        (Style::Plain, records),
    ]);
    frame.push([unknown_count(state)]);
}

/// How many outcomes are unknown, and since when.
fn unknown_count(state: &State) -> (Style, String) {
    let records = state.overview.records.as_ref();
    match records.and_then(|it| it.get("indeterminate").copied()) {
        None => (Style::Warning, "unknown outcomes: not known now".into()),
        Some(0) => (Style::Good, "no unknown outcomes".into()),
        Some(number) => {
            let oldest = state.overview.unknown.as_ref();
            let oldest = oldest.map(|it| format!(", oldest {}", seconds(it.oldest_seconds)));
            let oldest = oldest.unwrap_or_default();
            (Style::Bad, format!("UNKNOWN OUTCOMES: {number}{oldest}"))
        }
    }
}

/// A rate of the latest sample, and its curve.
type Curve = (&'static str, Style, fn(&Sample) -> u64);

const CURVES: [Curve; 6] = [
    ("executed", Style::Good, |it| it.executed),
    ("replayed", Style::Info, |it| it.replayed),
    ("waited", Style::Info, |it| it.waited),
    ("refused", Style::Warning, |it| it.refused),
    ("unknown", Style::Bad, |it| it.unknown),
    ("unguarded", Style::Dim, |it| it.passed),
];

fn per_second(sample: &Sample, value: fn(&Sample) -> u64) -> f64 {
    value(sample) as f64 / sample.seconds.max(0.001)
}

fn rates(frame: &mut Frame, state: &State) {
    let samples = &state.overview.samples;
    let columns = frame.size.columns.saturating_sub(LABEL + RATE + 1);
    let shown = samples.len().min(columns);
    let span: f64 = samples[samples.len() - shown..]
        .iter()
        .map(|it| it.seconds)
        .sum();
    let title = match shown {
        0 => "RATES (after the first 10 s)".into(),
        _ => format!("RATES of the last {}", seconds(span.round() as u64)),
    };
    frame.title(&title);
    for (label, style, value) in CURVES {
        let values: Vec<_> = samples.iter().map(|it| per_second(it, value)).collect();
        let now = values.last().map_or("-".into(), |now| rate(*now));
        row(frame, label, style, &now, &values);
    }
    let values = |part: fn(&Sample) -> Option<u64>| -> Vec<f64> {
        let values = samples.iter().map(part);
        values.map(|it| it.unwrap_or_default() as f64).collect()
    };
    let last = samples.last();
    let shown = |value: Option<u64>| value.map_or("-".into(), micros);
    let median = shown(last.and_then(|it| it.executed_p50_us));
    let p99 = shown(last.and_then(|it| it.executed_p99_us));
    let executed = values(|it| it.executed_p99_us);
    row(
        frame,
        "p50, p99",
        Style::Plain,
        &format!("{median}, {p99}"),
        &executed,
    );
    let p99 = shown(last.and_then(|it| it.replayed_p99_us));
    let replayed = values(|it| it.replayed_p99_us);
    row(frame, "p99 of replays", Style::Plain, &p99, &replayed);
}

fn row(frame: &mut Frame, label: &str, style: Style, now: &str, values: &[f64]) {
    let columns = frame.size.columns.saturating_sub(LABEL + RATE + 1);
    let curve = curve(values, columns, frame.is_utf8);
    frame.push([
        (Style::Plain, fit(label, LABEL)),
        (Style::Plain, format!("{now:>RATE$} ")),
        (style, curve),
    ]);
}

/// The rates in one line, for few rows.
fn summary(frame: &mut Frame, state: &State) {
    let last = state.overview.samples.last();
    let now = |value: fn(&Sample) -> u64| last.map_or("-".into(), |it| rate(per_second(it, value)));
    let p99 = last
        .and_then(|it| it.executed_p99_us)
        .map_or("-".into(), micros);
    frame.push([
        (Style::Good, format!("executed {}  ", now(|it| it.executed))),
        (Style::Info, format!("replayed {}  ", now(|it| it.replayed))),
        (
            Style::Warning,
            format!("refused {}  ", now(|it| it.refused)),
        ),
        (Style::Plain, format!("p99 {p99}")),
    ]);
}

fn unknown(frame: &mut Frame, state: &State, rows: usize) {
    let Some(records) = &state.unknown else {
        frame.title("UNKNOWN OUTCOMES: the store did not list them");
        return;
    };
    let all = state.overview.records.as_ref();
    let all = all
        .and_then(|it| it.get("indeterminate").copied())
        .unwrap_or_default();
    let part = match records.len() as u64 {
        listed if listed < all => format!(" ({listed} of {all}, not the oldest)"),
        _ => String::new(),
    };
    frame.title(&format!(
        "UNKNOWN OUTCOMES{part}: refrain records show ID, then refrain records resolve ID"
    ));
    let skipped = if state.is_unknown_only {
        state.scrolled
    } else {
        0
    };
    let rows = rows.min(frame.left());
    let rows = if frame.size.rows.is_none() {
        LISTED_MAX
    } else {
        rows
    };
    for record in records.iter().skip(skipped).take(rows) {
        let text = |text: &Option<String>| text.as_deref().unwrap_or("-").to_owned();
        let first_seen = text(&record.first_seen).replace('T', " ");
        frame.push([
            (Style::Bad, format!("{}  ", fit(&record.id, 32))),
            (Style::Plain, format!("{}  ", fit(&text(&record.reason), 9))),
            (
                Style::Plain,
                format!("{}  ", cut(&first_seen, 20).replace('~', "")),
            ),
            (Style::Plain, text(&record.operation)),
            (Style::Dim, format!("  {}", text(&record.node))),
        ]);
    }
    if records.is_empty() {
        frame.push([(Style::Good, "none")]);
    }
}

fn style_of(outcome: &str) -> Style {
    match outcome {
        "executed" => Style::Good,
        "replayed" | "waited" => Style::Info,
        "refused" => Style::Warning,
        "unknown" => Style::Bad,
        _ => Style::Dim,
    }
}

fn requests(frame: &mut Frame, state: &State) {
    frame.title("LATEST REQUESTS: those with a problem, and a sample of the others");
    let rows = match frame.size.rows {
        None => LISTED_MAX,
        Some(_) => frame.left(),
    };
    for request in state.requests.iter().skip(state.scrolled).take(rows) {
        let time = request.time.split('T').nth(1).unwrap_or(&request.time);
        let status = request.status.map_or("-".into(), |it| it.to_string());
        let target = format!("{} {}", request.method, request.path);
        let what = request.operation.clone().unwrap_or(target);
        let code = request.code.as_ref().map(|it| format!("  {it}"));
        let record = request.record.as_ref().map(|it| format!("  {it}"));
        frame.push([
            (
                Style::Dim,
                format!("{}  ", fit(time.trim_end_matches('Z'), 12)),
            ),
            (style_of(&request.outcome), fit(&request.outcome, 9)),
            (
                Style::Plain,
                format!("{status:>4} {:>8}  ", micros(request.total_us)),
            ),
            (Style::Plain, what),
            (Style::Warning, code.unwrap_or_default()),
            (Style::Dim, record.unwrap_or_default()),
        ]);
    }
}

fn footer(frame: &mut Frame, state: &State) {
    let (style, pause) = match state.is_paused {
        true => (Style::Warning, "p continue (PAUSED)"),
        false => (Style::Dim, "p pause"),
    };
    let unknown = match state.is_unknown_only {
        true => "u everything",
        false => "u unknown only",
    };
    frame.push([
        (Style::Dim, "q quit  ".to_owned()),
        (style, pause.to_owned()),
        (Style::Dim, format!("  {unknown}  up/down scroll")),
    ]);
}

#[cfg(test)]
mod tests;
