//! Response statuses that are kept, and those that free the key.

use std::{fmt, str::FromStr};

use super::invalid;
use crate::{Error, Guarantee, Result};

/// Statuses of requests that were rejected before they ran.
const REFUSED: [u16; 7] = [401, 403, 407, 408, 421, 425, 429];

/// What happens to the key after the operation responded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The response is the outcome, and is replayed.
    Keep,
    /// The key is free for a new attempt.
    Release,
    /// The status is not enough: under exactly-once the receipt decides; without one the outcome is unknown.
    Doubt,
}

/// A range of statuses: `404`, `5xx` or `400-417`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statuses {
    low: u16,
    high: u16,
}

impl Statuses {
    /// Whether the range contains this status.
    #[must_use]
    pub fn contains(self, status: u16) -> bool {
        (self.low..=self.high).contains(&status)
    }

    /// Returns a status that both ranges contain.
    pub(super) fn common(self, other: Self) -> Option<u16> {
        let low = self.low.max(other.low);
        (low <= self.high.min(other.high)).then_some(low)
    }
}

/// Default table: what happens to the key after this status.
pub(super) fn ending(status: u16, guarantee: Guarantee) -> Ending {
    match status {
        ..=399 => Ending::Keep,
        _ if REFUSED.contains(&status) => Ending::Release,
        _ if guarantee == Guarantee::AtLeastOnce => Ending::Release,
        // The transaction may have rolled back, or a gateway may have given up: the receipt decides.
        500.. if guarantee == Guarantee::ExactlyOnce => Ending::Doubt,
        _ => Ending::Keep,
    }
}

impl FromStr for Statuses {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = || {
            invalid(format!(
                "invalid status `{text}`; write 404, \"5xx\" or \"400-417\""
            ))
        };
        let number = |text: &str| match text.len() {
            3 => text.parse::<u16>().map_err(|_| bad()),
            _ => Err(bad()),
        };
        let (low, high) = if let Some((low, high)) = text.split_once('-') {
            (number(low)?, number(high)?)
        } else if let Some(class) = text.strip_suffix("xx") {
            let low = number(&format!("{class}00"))?;
            (low, low + 99)
        } else {
            (number(text)?, number(text)?)
        };
        match (200..=599).contains(&low) && low <= high && high <= 599 {
            true => Ok(Self { low, high }),
            false => Err(invalid(format!(
                "`{text}` is out of range; write a status from 200 to 599"
            ))),
        }
    }
}

impl fmt::Display for Statuses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.low, self.high) {
            (low, high) if low == high => write!(f, "{low}"),
            (low, high) if low % 100 == 0 && high == low + 99 => write!(f, "{}xx", low / 100),
            (low, high) => write!(f, "{low}-{high}"),
        }
    }
}
