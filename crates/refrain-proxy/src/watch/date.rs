//! The `Date` header of responses, formatted once per tick of the clock.

use std::time::{Duration, SystemTime};

use refrain::clock::{Clock as _, SystemClock};

/// Length of every HTTP date.
const LEN: usize = 29;

/// An HTTP date, as in the `Date` header.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Date([u8; LEN]);

impl Date {
    /// Placeholder before the first date.
    pub(crate) fn none() -> Self {
        Self([b' '; LEN])
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The current date.
impl Default for Date {
    fn default() -> Self {
        let since_epoch = Duration::from_millis(SystemClock.wall().0);
        let text = httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + since_epoch);
        let mut date = [b' '; LEN];
        for (byte, from) in date.iter_mut().zip(text.bytes()) {
            *byte = from;
        }
        Self(date)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_can_be_read_back() {
        let seconds = || SystemClock.wall().0 / 1_000;
        let before = seconds();
        let date = Date::default();
        let after = seconds();
        let text = std::str::from_utf8(date.as_bytes()).unwrap();
        let read = httpdate::parse_http_date(text).unwrap();
        let since_epoch = read.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let written = before..=after;
        assert!(written.contains(&since_epoch.as_secs()), "{text}");
    }
}
