//! Timeline of concurrent exchanges: a bar for each, from request to response.

use super::{escaped, tone};
use crate::verify::report::Exchange;

/// Maximum number of exchanges in a timeline.
const LANES_MAX: usize = 16;
const LABEL_CHARS_MAX: usize = 28;
const LANE: usize = 34;
const TOP: usize = 8;
/// Margin beside the scale, in percent of the width.
const MARGIN: f64 = 3.0;

pub(super) fn timeline(exchanges: &[Exchange]) -> String {
    let shown = &exchanges[..exchanges.len().min(LANES_MAX)];
    let end = shown.iter().map(|it| it.at_ms + it.took_ms).max();
    let Some(end) = end.map(|end| end.max(1)) else {
        return String::new();
    };
    let bottom = TOP + LANE * shown.len();
    let ticks: String = (0..=4).map(|quarter| tick(quarter, end, bottom)).collect();
    let lanes: String = shown.iter().enumerate().map(|it| lane(it, end)).collect();
    let more = match exchanges.len() - shown.len() {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    format!(
        "<figure><figcaption>When each request was sent, and how long its answer took{more}</figcaption>\
         <svg height=\"{}\" role=\"img\" aria-label=\"timeline of {} requests over {end} ms\">{ticks}{lanes}</svg></figure>\n",
        bottom + 22,
        shown.len()
    )
}

/// Horizontal position of a time, in percent of the width.
fn position(ms: u64, end: u64) -> f64 {
    MARGIN + ms as f64 / end as f64 * (100.0 - 2.0 * MARGIN)
}

fn tick(quarter: u64, end: u64, bottom: usize) -> String {
    let ms = end * quarter / 4;
    let x = position(ms, end);
    let anchor = match quarter {
        0 => "start",
        4 => "end",
        _ => "middle",
    };
    // A label at the very edge would be clipped.
    let label = match quarter {
        0 => 1.0,
        4 => 99.0,
        _ => x,
    };
    format!(
        "<line x1=\"{x:.2}%\" x2=\"{x:.2}%\" y1=\"0\" y2=\"{bottom}\"/>\
         <text class=\"tick\" x=\"{label:.2}%\" y=\"{}\" text-anchor=\"{anchor}\">{ms} ms</text>",
        bottom + 15
    )
}

fn lane((at, exchange): (usize, &Exchange), end: u64) -> String {
    let top = TOP + LANE * at;
    let (from, to) = (
        position(exchange.at_ms, end),
        position(exchange.at_ms + exchange.took_ms, end),
    );
    let (tone, said) = tone(exchange);
    let label: String = exchange.label.chars().take(LABEL_CHARS_MAX).collect();
    // Aligned with its bar, on the side that has room on a small screen.
    let (x, anchor) = match (from, to) {
        (from, _) if from <= 30.0 => (from, "start"),
        (_, to) if to >= 70.0 => (to, "end"),
        (from, to) => (f64::midpoint(from, to), "middle"),
    };
    format!(
        "<g class=\"{tone}\"><text x=\"{x:.2}%\" y=\"{}\" text-anchor=\"{anchor}\">{}: {said}</text>\
         <rect x=\"{from:.2}%\" y=\"{}\" width=\"{:.2}%\" height=\"8\" rx=\"3\"/></g>",
        top + 13,
        escaped(&label),
        top + 19,
        (to - from).max(0.6)
    )
}
