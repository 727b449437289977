//! Wall clock timestamps as text: RFC 3339, in UTC.

use super::Timestamp;
use crate::{Error, ErrorKind, Result};

const DAY_MILLIS: u64 = 86_400_000;
/// The last millisecond of the year 9999, the end of the range of RFC 3339.
const LAST: u64 = 253_402_300_799_999;
const FIRST_YEAR: u64 = 1970;

impl Timestamp {
    /// Formats the timestamp as RFC 3339 in UTC, with milliseconds.
    ///
    /// Only meaningful for timestamps that count from 1970, as those of the wall clock do.
    ///
    /// ```
    /// use refrain::clock::Timestamp;
    /// assert_eq!(Timestamp(1_709_210_096_007).rfc3339(), "2024-02-29T12:34:56.007Z");
    /// ```
    #[must_use]
    pub fn rfc3339(self) -> String {
        let millis = self.0.min(LAST);
        let (mut days, rest) = (millis / DAY_MILLIS, millis % DAY_MILLIS);
        let mut year = FIRST_YEAR;
        while days >= days_of_year(year) {
            days -= days_of_year(year);
            year += 1;
        }
        let mut month = 1;
        while days >= days_of_month(year, month) {
            days -= days_of_month(year, month);
            month += 1;
        }
        let (hour, minute) = (rest / 3_600_000, rest / 60_000 % 60);
        let (second, milli) = (rest / 1_000 % 60, rest % 1_000);
        let day = days + 1;
        format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
    }

    /// Parses a date (`2024-02-29`: midnight in UTC) or a timestamp (`2024-02-29T12:34:56.007Z`, `…+01:00`).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for any other text, and for times before 1970.
    pub fn from_rfc3339(text: &str) -> Result<Self> {
        let read = || {
            let (date, time) = match text.split_once(['T', 't', ' ']) {
                Some((date, time)) => (date, Some(time)),
                None => (text, None),
            };
            let days = days_until(date)?;
            let (millis, ahead) = time.map_or(Some((0, 0)), time_of_day)?;
            let moment = i128::from(days * DAY_MILLIS + millis) - ahead;
            u64::try_from(moment).ok().map(Self)
        };
        read().ok_or_else(|| {
            let message = format!(
                "invalid time `{text}`; write a date such as 2024-02-29, or a timestamp such as 2024-02-29T12:34:56Z"
            );
            Error::new(ErrorKind::Invalid, message)
        })
    }
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400)
}

fn days_of_year(year: u64) -> u64 {
    365 + u64::from(is_leap(year))
}

fn days_of_month(year: u64, month: u64) -> u64 {
    match month {
        2 => 28 + u64::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Parses exactly `count` ASCII digits.
fn digits(text: &str, count: usize) -> Option<u64> {
    let is_whole = text.len() == count && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_whole)
}

/// Days from 1970-01-01 to a `YYYY-MM-DD` date.
fn days_until(date: &str) -> Option<u64> {
    let mut parts = date.split('-');
    let year = digits(parts.next()?, 4)?;
    let month = digits(parts.next()?, 2)?;
    let day = digits(parts.next()?, 2)?;
    let is_date = (1..=12).contains(&month)
        && (1..=days_of_month(year, month)).contains(&day)
        && year >= FIRST_YEAR
        && parts.next().is_none();
    is_date.then(|| {
        let years: u64 = (FIRST_YEAR..year).map(days_of_year).sum();
        let months: u64 = (1..month).map(|month| days_of_month(year, month)).sum();
        years + months + day - 1
    })
}

/// Milliseconds since midnight, and the UTC offset in milliseconds (positive: ahead of UTC).
fn time_of_day(text: &str) -> Option<(u64, i128)> {
    let (clock, ahead) = match text.find(['Z', 'z', '+', '-']) {
        Some(at) if text[at..].eq_ignore_ascii_case("z") => (&text[..at], 0),
        Some(at) => {
            let (hours, minutes) = text[at + 1..].split_once(':')?;
            let ahead = hour_and_minute(hours, minutes)?;
            let is_behind = text.as_bytes()[at] == b'-';
            let ahead = i128::from(ahead);
            (&text[..at], if is_behind { -ahead } else { ahead })
        }
        None => return None,
    };
    let mut parts = clock.split(':');
    let minutes = hour_and_minute(parts.next()?, parts.next()?)?;
    let (seconds, fraction) = match parts.next()?.split_once('.') {
        Some((seconds, fraction)) => (seconds, fraction),
        None => (clock.rsplit(':').next()?, "0"),
    };
    let seconds = digits(seconds, 2).filter(|it| *it <= 60)?;
    let is_fraction = (1..=9).contains(&fraction.len());
    digits(fraction, fraction.len()).filter(|_| is_fraction)?;
    let millis = digits(&format!("{fraction:0<3}")[..3], 3)?;
    let is_over = parts.next().is_none();
    is_over.then_some((minutes + seconds * 1_000 + millis, ahead))
}

/// Hours and minutes together, in milliseconds.
fn hour_and_minute(hours: &str, minutes: &str) -> Option<u64> {
    let hours = digits(hours, 2).filter(|it| *it < 24)?;
    let minutes = digits(minutes, 2).filter(|it| *it < 60)?;
    Some((hours * 60 + minutes) * 60_000)
}

#[cfg(test)]
mod tests {
    //! Operators read these dates in the audit log, so a date that is off by one day is a defect.

    use super::*;

    #[test]
    fn known_moments_are_written_and_read() {
        let known = [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_709_210_096_007, "2024-02-29T12:34:56.007Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (LAST, "9999-12-31T23:59:59.999Z"),
        ];
        for (millis, text) in known {
            assert_eq!(Timestamp(millis).rfc3339(), text);
            assert_eq!(Timestamp::from_rfc3339(text).unwrap().0, millis, "{text}");
        }
        assert_eq!(Timestamp(u64::MAX).rfc3339(), "9999-12-31T23:59:59.999Z");
    }

    #[test]
    fn days_and_offsets_are_read() {
        let read = |text| Timestamp::from_rfc3339(text).unwrap().rfc3339();
        assert_eq!(read("2024-03-01"), "2024-03-01T00:00:00.000Z");
        assert_eq!(
            read("2024-03-01T00:30:00+01:00"),
            "2024-02-29T23:30:00.000Z"
        );
        assert_eq!(
            read("2024-02-29 23:30:00.5-00:30"),
            "2024-03-01T00:00:00.500Z"
        );
        for bad in [
            "",
            "yesterday",
            "2023-02-29",
            "2024-13-01",
            "1969-12-31",
            "2024-02-29T12:00:00",
            "2024-02-29T24:00:00Z",
            "2024-02-29T12:00Z",
            "2024-02-29T12:00:00.Z",
            "2024-02-29T12:00:00:00Z",
            "1970-01-01T00:00:00+00:01",
        ] {
            assert!(Timestamp::from_rfc3339(bad).is_err(), "{bad}");
        }
    }
}
