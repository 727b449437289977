//! Parses durations in source code.

const UNITS: [(&str, f64); 16] = [
    ("milli", 0.001),
    ("*millis", 0.001),
    ("second", 1.0),
    ("secs", 1.0),
    ("sec", 1.0),
    ("minute", 60.0),
    ("mins", 60.0),
    ("hour", 3_600.0),
    ("day", 86_400.0),
    ("week", 604_800.0),
    ("*minute", 60.0),
    ("*hour", 3_600.0),
    ("*day", 86_400.0),
    ("*week", 604_800.0),
    ("*second", 1.0),
    ("*secs", 1.0),
];

/// Whether the text has a unit.
pub(super) fn has_unit(text: &str) -> bool {
    unit(text).is_some()
        && text
            .chars()
            .any(|c| c.is_ascii_digit() || text.contains("time."))
}

fn unit(text: &str) -> Option<f64> {
    let found = UNITS.iter().find(|(word, _)| crate::names::has(text, word));
    found.map(|(_, seconds)| *seconds)
}

/// Product of the numbers in a text and its unit, in seconds:
/// `5 * time.Minute`, `60 * 60`, `Duration.ofHours(2)`, `10.minutes`.
pub(super) fn seconds(text: &str) -> Option<f64> {
    let plain = text.trim().replace('_', "");
    let plain = plain.trim_end_matches(['l', 'u']);
    let is_sum = plain
        .chars()
        .all(|c| c.is_ascii_digit() || " *().".contains(c));
    let unit = unit(text);
    if plain.len() > 90 || (!is_sum && unit.is_none()) {
        return None;
    }
    let numbers = plain
        .split(|c: char| !c.is_ascii_digit())
        .filter(|part| !part.is_empty());
    let numbers: Vec<f64> = numbers.filter_map(|part| part.parse().ok()).collect();
    if numbers.is_empty() && !plain.contains("time.") {
        return None;
    }
    Some(numbers.iter().product::<f64>() * unit.unwrap_or(1.0))
}

/// Unit in seconds that the name of a setting ends with: `ttl_ms`, `retryDelayMinutes`.
pub(super) fn unit_of_name(name: &str) -> Option<f64> {
    const ENDS: [(&str, f64); 11] = [
        ("milliseconds", 0.001),
        ("millis", 0.001),
        ("ms", 0.001),
        ("seconds", 1.0),
        ("secs", 1.0),
        ("sec", 1.0),
        ("minutes", 60.0),
        ("mins", 60.0),
        ("min", 60.0),
        ("hours", 3_600.0),
        ("days", 86_400.0),
    ];
    let end = ENDS.iter().find(|(end, _)| name.ends_with(end));
    end.map(|(_, unit)| *unit)
}

/// Name without the unit at its end.
pub(super) fn without_unit(name: &str) -> &str {
    let ends = [
        "inmilliseconds",
        "milliseconds",
        "millis",
        "ms",
        "inseconds",
        "seconds",
        "secs",
        "sec",
        "minutes",
        "mins",
        "hours",
        "days",
    ];
    let end = ends.iter().find_map(|end| name.strip_suffix(end));
    end.unwrap_or(name)
}
