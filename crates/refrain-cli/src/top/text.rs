//! Numbers, times and curves as short text.

use std::env;

/// Heights of a curve, in terminals with and without UTF-8.
const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const MARKS: [char; 8] = ['_', '.', ':', '-', '=', '+', '*', '#'];

/// Whether the locale is UTF-8: of these variables, the first that is set decides.
pub(super) fn is_utf8() -> bool {
    let set = ["LC_ALL", "LC_CTYPE", "LANG"]
        .iter()
        .filter_map(env::var_os);
    let locale = set.into_iter().find(|it| !it.is_empty());
    let locale = locale.unwrap_or_default().to_string_lossy().to_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

/// A curve of the last values, each one character wide.
pub(super) fn curve(values: &[f64], columns: usize, is_utf8: bool) -> String {
    let levels = if is_utf8 { BLOCKS } else { MARKS };
    let values = &values[values.len().saturating_sub(columns)..];
    let highest = values.iter().copied().fold(0.0, f64::max);
    let level = |value: &f64| match highest > 0.0 && *value > 0.0 {
        // Every value above zero differs from zero.
        true => levels[((value / highest * 7.0).ceil() as usize).clamp(1, 7)],
        false => levels[0],
    };
    values.iter().map(level).collect()
}

/// Cuts or pads to this number of characters.
pub(super) fn fit(text: &str, columns: usize) -> String {
    let len = text.chars().count();
    match len <= columns {
        true => format!("{text}{}", " ".repeat(columns - len)),
        false => cut(text, columns),
    }
}

/// Cuts to this number of characters, with a mark where something is missing.
pub(super) fn cut(text: &str, columns: usize) -> String {
    if text.chars().count() <= columns {
        return text.to_owned();
    }
    let kept: String = text.chars().take(columns.saturating_sub(1)).collect();
    let mark = if columns > 0 { "~" } else { "" };
    kept + mark
}

/// A count in at most six characters.
pub(super) fn count(count: u64) -> String {
    let thousands = |unit: f64, name: &str| format!("{:.1}{name}", count as f64 / unit);
    match count {
        0..100_000 => count.to_string(),
        100_000..10_000_000 => thousands(1e3, "k"),
        10_000_000..10_000_000_000 => thousands(1e6, "M"),
        _ => thousands(1e9, "G"),
    }
}

/// A rate, each second.
pub(super) fn rate(rate: f64) -> String {
    match rate < 100.0 {
        true => format!("{rate:.1}/s"),
        false => format!("{}/s", count(rate.round() as u64)),
    }
}

/// Microseconds.
pub(super) fn micros(micros: u64) -> String {
    match micros {
        0..1_000 => format!("{micros} us"),
        1_000..10_000 => format!("{:.1} ms", micros as f64 / 1e3),
        10_000..1_000_000 => format!("{} ms", micros / 1_000),
        _ => format!("{:.1} s", micros as f64 / 1e6),
    }
}

/// Seconds, in their two largest units.
pub(super) fn seconds(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{minutes}m {}s", seconds % 60),
        3_600..86_400 => format!("{hours}h {}m", minutes % 60),
        _ => format!("{days}d {}h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_enough_for_their_columns() {
        assert_eq!(count(99_999), "99999");
        assert_eq!(count(123_456), "123.5k");
        assert_eq!(count(123_456_789), "123.5M");
        assert_eq!(rate(0.25), "0.2/s");
        assert_eq!(rate(1_234.4), "1234/s");
        assert_eq!(micros(999), "999 us");
        assert_eq!(micros(1_500), "1.5 ms");
        assert_eq!(micros(12_999), "12 ms");
        assert_eq!(micros(2_500_000), "2.5 s");
        assert_eq!(seconds(59), "59s");
        assert_eq!(seconds(3_725), "1h 2m");
        assert_eq!(seconds(200_000), "2d 7h");
    }

    #[test]
    fn a_curve_shows_the_latest_values_and_marks_small_ones() {
        assert_eq!(curve(&[9.0, 0.0, 1.0, 100.0], 3, true), "▁▂█");
        assert_eq!(curve(&[9.0, 0.0, 1.0, 100.0], 3, false), "_.#");
        assert_eq!(curve(&[0.0, 0.0], 9, true), "▁▁");
        assert_eq!(curve(&[], 9, true), "");
    }

    #[test]
    fn text_is_cut_with_a_mark() {
        assert_eq!(fit("abc", 5), "abc  ");
        assert_eq!(fit("abcdef", 4), "abc~");
        assert_eq!(cut("äöü", 2), "ä~");
        assert_eq!(cut("abc", 0), "");
    }
}
