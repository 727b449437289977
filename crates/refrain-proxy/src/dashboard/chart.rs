//! Charts as SVG, from the samples of the last hour, with the same figures as a table.
//!
//! Shapes are stretched to the width of the page; texts are beside them, so that they keep their size.

use std::fmt::Write as _;

use maud::{Markup, html};
use refrain::clock::Timestamp;

use super::{frame::readable, record::micros};
use crate::{
    admin::{BucketCounts, LAST_BOUND_MICROS, quantile},
    telemetry::RateSample,
};

/// Most columns of a chart.
const COLUMNS_MAX: usize = 90;
/// Rows of the table.
const ROWS: usize = 12;
const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 150.0;

/// The figures of several samples in a row.
#[derive(Debug, Default)]
struct Column {
    at_ms: u64,
    seconds: f64,
    counts: [u64; SERIES.len()],
    executed: BucketCounts,
    replayed: BucketCounts,
    /// 99th percentile and median of executed requests, and median of replays, in microseconds.
    latencies: [Option<u64>; LATENCIES.len()],
}

/// Name and class of each part of the chart of rates, from the bottom up.
const SERIES: [(&str, &str); 6] = [
    ("executed", "s-executed"),
    ("replayed", "s-replayed"),
    ("refused", "s-refused"),
    ("unknown", "s-unknown"),
    ("passed unguarded", "s-passed"),
    ("looked up", "s-looked-up"),
];

const LATENCIES: [(&str, &str); 3] = [
    ("executed, p99", "l-p99"),
    ("executed, median", "l-p50"),
    ("replayed, median", "l-replayed"),
];

impl Column {
    fn of(samples: &[RateSample]) -> Self {
        let mut column = Self::default();
        for it in samples {
            column.at_ms = it.at_ms;
            column.seconds += it.seconds;
            let passed = [it.passed, it.looked_up];
            let guarded = [it.executed, it.replayed, it.refused, it.unknown];
            add(&mut column.counts, guarded.into_iter().chain(passed));
            add(&mut column.executed, it.executed_durations);
            add(&mut column.replayed, it.replayed_durations);
        }
        // Quantiles of parts cannot be combined; their counts can.
        let of = |counts, part| quantile(&BucketCounts::default(), counts, part);
        let (executed, replayed) = (&column.executed, &column.replayed);
        column.latencies = [of(executed, 0.99), of(executed, 0.5), of(replayed, 0.5)];
        column
    }

    fn rate(&self, series: usize) -> f64 {
        self.counts[series] as f64 / self.seconds.max(0.001)
    }

    fn total_rate(&self) -> f64 {
        (0..SERIES.len()).map(|series| self.rate(series)).sum()
    }

    /// Replays among the requests that executed or were replayed, in percent.
    fn share(&self) -> Option<f64> {
        let [executed, replayed, ..] = self.counts;
        let all = executed + replayed;
        (all > 0).then(|| replayed as f64 * 100.0 / all as f64)
    }
}

fn add(sums: &mut [u64], counts: impl IntoIterator<Item = u64>) {
    let sums = sums.iter_mut().zip(counts);
    sums.for_each(|(sum, count)| *sum += count);
}

/// A latency in words. Those over the last bound of the histogram are known only to be longer.
fn latency(value: u64) -> String {
    match value > LAST_BOUND_MICROS {
        true => format!("> {} s", LAST_BOUND_MICROS / 1_000_000),
        false => micros(value),
    }
}

fn columns(samples: &[RateSample], at_most: usize) -> Vec<Column> {
    let each = samples.len().div_ceil(at_most).max(1);
    samples.chunks(each).map(Column::of).collect()
}

/// All charts.
pub(super) fn charts(samples: &[RateSample]) -> Markup {
    let columns = columns(samples, COLUMNS_MAX);
    html! {
        @if columns.is_empty() {
            p.soft { "No figures yet: the first sample is taken after 5 seconds." }
        } @else {
            div.charts { (rates(&columns)) (latencies(&columns)) (shares(&columns)) }
            (table(samples))
        }
    }
}

/// A chart with its title, the largest value, the legend, and the times below.
fn figure(
    id: &str,
    title: &str,
    about: &str,
    top: &str,
    columns: &[Column],
    shapes: &Markup,
    legend: &Markup,
) -> Markup {
    let time = |column: Option<&Column>| {
        let text = column.map(|it| readable(&Timestamp(it.at_ms).rfc3339()));
        text.and_then(|it| it.get(11..16).map(str::to_owned))
            .unwrap_or_default()
    };
    html! {
        figure {
            figcaption { (title) }
            div.top-line { (legend) span.soft.number { "top: " (top) } }
            svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } preserveAspectRatio="none" role="img" aria-labelledby={ (id) "-title " (id) "-about" } {
                title id={ (id) "-title" } { (title) }
                desc id={ (id) "-about" } { (about) }
                @for line in [0.25, 0.5, 0.75] { line.grid x1="0" x2=(WIDTH) y1=(HEIGHT * line) y2=(HEIGHT * line) {} }
                (shapes)
            }
            div.times.soft aria-hidden="true" { span { (time(columns.first())) } span { (time(columns.last())) " UTC" } }
        }
    }
}

fn legend<'a>(parts: impl Iterator<Item = (&'a str, &'a str, String)>) -> Markup {
    html! {
        ul.legend {
            @for (name, class, value) in parts {
                li {
                    svg.swatch viewBox="0 0 18 10" aria-hidden="true" {
                        @if class.starts_with('l') { line class=(class) x1="0" x2="18" y1="5" y2="5" {} }
                        @else { rect class=(class) width="18" height="10" {} }
                    }
                    (name) " " span.number.soft { (value) }
                }
            }
        }
    }
}

/// The smallest round number that is not below the value.
fn rounded_up(value: f64) -> f64 {
    let power = 10_f64.powf(value.max(0.001).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
    steps
        .into_iter()
        .find(|step| *step >= value)
        .unwrap_or(value)
}

fn rates(columns: &[Column]) -> Markup {
    let highest = columns.iter().map(Column::total_rate).fold(0.0, f64::max);
    let top = rounded_up(highest.max(1.0));
    let width = WIDTH / columns.len() as f64;
    let bars = html! {
        @for (at, column) in columns.iter().enumerate() {
            @for (series, low, high) in stacked(column) {
                rect class=(SERIES[series].1) x=(at as f64 * width) width=(width * 0.9)
                    y=(HEIGHT - high / top * HEIGHT) height=((high - low) / top * HEIGHT) {}
            }
        }
    };
    let last = columns.last();
    let now = |series| last.map_or(0.0, |it| it.rate(series));
    let parts = SERIES.iter().enumerate();
    let legend = legend(parts.map(|(at, (name, class))| (*name, *class, per_second(now(at)))));
    let about = format!(
        "Requests per second by result, up to {} in the time shown.",
        per_second(highest)
    );
    figure(
        "rates",
        "Requests per second",
        &about,
        &per_second(top),
        columns,
        &bars,
        &legend,
    )
}

/// The parts of a column that are not empty: series, lower and upper end.
fn stacked(column: &Column) -> Vec<(usize, f64, f64)> {
    let mut low = 0.0;
    let mut parts = Vec::new();
    for series in 0..SERIES.len() {
        let high = low + column.rate(series);
        if high > low {
            parts.push((series, low, high));
        }
        low = high;
    }
    parts
}

fn per_second(rate: f64) -> String {
    match rate {
        0.0 => "0/s".into(),
        rate if rate < 10.0 => format!("{rate:.1}/s"),
        rate => format!("{rate:.0}/s"),
    }
}

fn latencies(columns: &[Column]) -> Markup {
    let all = columns.iter().flat_map(|it| it.latencies).flatten();
    let highest = all.max().unwrap_or(0);
    let top = rounded_up(highest.max(100) as f64);
    let lines = html! {
        @for (line, (_, class)) in LATENCIES.iter().enumerate() {
            @let values = columns.iter().map(|it| it.latencies[line].map(|it| it as f64 / top));
            path class=(class) d=(path(values, columns.len())) {}
        }
    };
    let latest = |line: usize| {
        let mut values = columns.iter().rev().filter_map(|it| it.latencies[line]);
        values.next().map_or("none".into(), latency)
    };
    let parts = LATENCIES.iter().enumerate();
    let legend = legend(parts.map(|(at, (name, class))| (*name, *class, latest(at))));
    let about = format!(
        "Time until the response: 99th percentile and median of executed requests, and median of replays; at most {}.",
        latency(highest)
    );
    figure(
        "latencies",
        "Time until the response",
        &about,
        &micros(top as u64),
        columns,
        &lines,
        &legend,
    )
}

/// A line through values from 0 to 1, with gaps where there is none.
fn path(values: impl Iterator<Item = Option<f64>>, count: usize) -> String {
    let width = WIDTH / count as f64;
    let mut path = String::new();
    let mut is_drawing = false;
    for (at, value) in values.enumerate() {
        let Some(value) = value else {
            is_drawing = false;
            continue;
        };
        let (left, y) = (at as f64 * width, HEIGHT - value * HEIGHT);
        let command = if is_drawing { 'L' } else { 'M' };
        // Each value is a step as wide as its column, so that a single one can be seen too.
        let _ = write!(path, "{command}{left:.1} {y:.1}H{:.1}", left + width);
        is_drawing = true;
    }
    path
}

fn shares(columns: &[Column]) -> Markup {
    let line = html! {
        path.l-share d=(path(columns.iter().map(|it| it.share().map(|it| it / 100.0)), columns.len())) {}
    };
    let mut known = columns.iter().rev().filter_map(Column::share);
    let latest = known.next().map_or("none".into(), |it| format!("{it:.0}%"));
    let legend = legend(
        [(
            "replayed of executed and replayed",
            "l-share",
            latest.clone(),
        )]
        .into_iter(),
    );
    let about =
        format!("Share of replays among executed and replayed requests; the latest is {latest}.");
    figure(
        "shares",
        "Share of replays",
        &about,
        "100%",
        columns,
        &line,
        &legend,
    )
}

fn table(samples: &[RateSample]) -> Markup {
    let rows = columns(samples, ROWS);
    let value = |value: Option<u64>| value.map_or("–".into(), self::latency);
    html! {
        details {
            summary { "The charts as a table" }
            table.list {
                caption.unseen { "Requests per second, time until the response, and share of replays" }
                thead { tr {
                    th scope="col" { "Until (UTC)" }
                    @for (name, _) in SERIES { th.number scope="col" { (name) } }
                    @for (name, _) in LATENCIES { th.number scope="col" { (name) } }
                    th.number scope="col" { "replays" }
                } }
                tbody { @for column in rows.iter().rev() { tr {
                    td data-name="Until (UTC)" { (readable(&Timestamp(column.at_ms).rfc3339()).get(11..19).unwrap_or_default()) }
                    @for (at, (name, _)) in SERIES.iter().enumerate() { td.number data-name=(name) { (per_second(column.rate(at))) } }
                    @for (at, (name, _)) in LATENCIES.iter().enumerate() { td.number data-name=(name) { (value(column.latencies[at])) } }
                    td.number data-name="replays" { @match column.share() { Some(share) => { (format!("{share:.0}%")) } None => "–" } }
                } } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_ends_with_a_round_number() {
        for (value, expected) in [
            (0.3, 0.5),
            (1.0, 1.0),
            (1.1, 2.0),
            (37.0, 50.0),
            (6_000.0, 10_000.0),
        ] {
            assert!((rounded_up(value) - expected).abs() < 1e-6, "{value}");
        }
    }

    #[test]
    fn a_column_has_the_quantiles_of_all_its_requests() {
        use crate::telemetry::{RateHistory, Totals};
        let (history, mut totals) = (RateHistory::default(), Totals::default());
        history.push(totals.clone());
        // 99 fast requests, then a slow one.
        totals.executed[3] = 99;
        history.push(totals.clone());
        totals.executed[15] = 1;
        history.push(totals.clone());
        let column = Column::of(&history.samples());
        let [_, median, _] = column.latencies;
        assert!(median < Some(1_000), "{median:?}");
        totals.executed[20] = 10;
        history.push(totals);
        let [p99, ..] = Column::of(&history.samples()).latencies;
        assert_eq!(p99.map(latency).as_deref(), Some("> 52 s"));
    }

    #[test]
    fn a_line_has_gaps_where_nothing_is_known() {
        let values = [Some(1.0), None, Some(0.0)];
        let drawn = path(values.into_iter(), 3);
        assert_eq!(drawn, "M0.0 0.0H300.0M600.0 150.0H900.0");
    }
}
