//! Which answers are kept and which free the key again.

use std::{fmt, str::FromStr};

use super::invalid;
use crate::{Error, Guarantee, Result};

/// Answers with which a request was refused before it ran.
const REFUSED: [u16; 7] = [401, 403, 407, 408, 421, 425, 429];

/// What becomes of the key when the operation has answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The answer is the outcome, and is replayed.
    Keep,
    /// The key is free again.
    Release,
    /// The answer alone does not tell: under exactly-once it takes the receipt, and without one the record is in doubt.
    Doubt,
}

/// A run of statuses: `404`, `5xx` or `400-417`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statuses {
    low: u16,
    high: u16,
}

impl Statuses {
    /// Whether this status is one of them.
    #[must_use]
    pub fn contains(self, status: u16) -> bool {
        (self.low..=self.high).contains(&status)
    }

    /// A status that both have.
    pub(super) fn common(self, other: Self) -> Option<u16> {
        let low = self.low.max(other.low);
        (low <= self.high.min(other.high)).then_some(low)
    }
}

/// What the contract says about an answer with this status.
pub(super) fn ending(status: u16, guarantee: Guarantee) -> Ending {
    match status {
        ..=399 => Ending::Keep,
        _ if REFUSED.contains(&status) => Ending::Release,
        _ if guarantee == Guarantee::AtLeastOnce => Ending::Release,
        // Rolled back, or given up on by somebody in between: a retry is to run.
        500.. if guarantee == Guarantee::ExactlyOnce => Ending::Doubt,
        _ => Ending::Keep,
    }
}

impl FromStr for Statuses {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = || {
            invalid(format!(
                "`{text}` is no status; write 404, \"5xx\" or \"400-417\""
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
                "`{text}` is out of range; an answer ends with a status from 200 to 599"
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
