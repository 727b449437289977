//! Durations and sizes with units: `10s`, `1h30m`, `8MiB`.

use std::{fmt, time::Duration};

use super::invalid;
use crate::Result;

/// Units of time in milliseconds, the longest first.
const TIMES: [(&str, u64); 5] = [
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1_000),
    ("ms", 1),
];
/// Units of size in bytes, the largest first.
const SIZES: [(&str, u64); 5] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("bytes", 1),
    ("B", 1),
];

/// Parses a duration: whole numbers with units `d`, `h`, `m`, `s`, `ms`, the longest first.
///
/// ```
/// use std::time::Duration;
/// use refrain::policy::units;
/// assert_eq!(units::duration("1h30m")?, Duration::from_secs(5400));
/// # Ok::<(), refrain::Error>(())
/// ```
///
/// # Errors
/// If the text is not a duration.
pub fn duration(text: &str) -> Result<Duration> {
    let bad = || {
        invalid(format!(
            "invalid duration `{text}`; write it like 500ms, 10s, 1h30m or 7d"
        ))
    };
    let mut units = TIMES.as_slice();
    let mut millis = 0_u64;
    let mut rest = text;
    while !rest.is_empty() || text.is_empty() {
        let (number, unit, behind) = quantity(rest).ok_or_else(bad)?;
        let at = units
            .iter()
            .position(|(name, _)| *name == unit)
            .ok_or_else(bad)?;
        let part = number.checked_mul(units[at].1).ok_or_else(bad)?;
        millis = millis.checked_add(part).ok_or_else(bad)?;
        units = &units[at + 1..];
        rest = behind;
    }
    Ok(Duration::from_millis(millis))
}

/// Parses a size in bytes: a whole number, alone or with `B`, `bytes`, `KiB`, `MiB` or `GiB`.
///
/// # Errors
/// If the text is not a size.
pub fn size(text: &str) -> Result<usize> {
    let bad = || {
        let message = format!("invalid size `{text}`; write it like 65536, 64KiB or 8MiB");
        invalid(message)
    };
    if let Ok(bytes) = text.parse() {
        return Ok(bytes);
    }
    let (number, unit, rest) = quantity(text).ok_or_else(bad)?;
    let found = SIZES
        .iter()
        .find(|(name, _)| *name == unit && rest.is_empty());
    let bytes = found.and_then(|(_, bytes)| number.checked_mul(*bytes));
    bytes
        .and_then(|bytes| usize::try_from(bytes).ok())
        .ok_or_else(bad)
}

/// A duration that prints in the syntax of `refrain.toml`.
#[derive(Debug, Clone, Copy)]
pub struct Span(pub Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut left = u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX);
        if left == 0 {
            return f.write_str("0s");
        }
        for (unit, millis) in TIMES {
            if left >= millis {
                write!(f, "{}{unit}", left / millis)?;
                left %= millis;
            }
        }
        Ok(())
    }
}

/// A size that prints in the syntax of `refrain.toml`.
#[derive(Debug, Clone, Copy)]
pub struct Size(pub usize);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0 as u64;
        let fits = |(_, unit): &&(&str, u64)| bytes >= *unit && bytes.is_multiple_of(*unit);
        let (name, unit) = SIZES.iter().find(fits).unwrap_or(&("B", 1));
        write!(f, "{}{}", bytes / unit, if *unit == 1 { "B" } else { name })
    }
}

pub(super) const fn days(count: u64) -> Duration {
    Duration::from_secs(count * 86_400)
}

/// Splits off the leading number and unit.
fn quantity(text: &str) -> Option<(u64, &str, &str)> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, rest) = text.split_at(digits);
    let letters = rest
        .find(|c: char| !c.is_ascii_alphabetic())
        .unwrap_or(rest.len());
    let (unit, behind) = rest.split_at(letters);
    Some((number.parse().ok()?, unit, behind))
}
