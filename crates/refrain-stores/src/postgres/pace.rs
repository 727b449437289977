//! Checks the database's clock for jumps.
//!
//! If the database's clock is set forward, leases and retentions would end early: outcomes would be deleted, and a
//! request that ran once would run again. Each handle compares it with its own monotonic clock, and limits how fast the
//! database's clock may advance. A clock that is set back only makes everything last longer, and is accepted.
//!
//! Times that a handle writes are based on the time that the database shows, because all other handles see that time.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use refrain::{
    Settlement,
    clock::{Clock, SystemClock, Timestamp},
    record::{Command, Record, Reply, State, Stepped, Verdict, step},
};

/// A clock this far ahead of the expected time is accepted immediately: slow answers, small corrections.
const SLACK: Duration = Duration::from_secs(5);
/// Beyond that, the believed time advances at most one eighth faster than the monotonic clock. So a clock that was slow
/// and is then corrected is accepted in the end.
const CATCH_UP: u64 = 8;

/// Current time, as the database shows it and as far as it is believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Now {
    pub(super) shown: Timestamp,
    pub(super) believed: Timestamp,
}

impl Now {
    /// Runs [`step`]. Nothing ends before the believed time; leases start at the shown time, which other handles see.
    pub(super) fn step(self, record: Option<Record>, command: Command) -> Stepped {
        let may_end = matches!(
            command,
            Command::Claim(..)
                | Command::Erase
                | Command::Age
                | Command::Settle(_, Settlement::NeverHappened)
        );
        let now = if may_end { self.believed } else { self.shown };
        let mut stepped = step(record, command, now);
        let is_granted = matches!(stepped.reply, Reply::Verdict(Verdict::Granted(_)));
        if is_granted
            && let Some(record) = &mut stepped.record
            && let State::InFlight { hold, lease_ends } = &mut record.state
        {
            let ahead = self.shown.left(self.believed);
            *lease_ends = *lease_ends + ahead;
            hold.settles = hold.settles + ahead;
        }
        stepped
    }
}

/// Check of the database's clock against the handle's monotonic clock.
#[derive(Debug)]
pub(super) struct ClockCheck {
    clock: Arc<dyn Clock>,
    last: Mutex<Option<ClockReading>>,
}

/// Highest expected database time, in milliseconds, at a reading of the monotonic clock.
#[derive(Debug, Clone, Copy)]
struct ClockReading {
    expected: u64,
    steady: u64,
}

impl Default for ClockCheck {
    fn default() -> Self {
        Self::new(Arc::new(SystemClock))
    }
}

impl ClockCheck {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            last: Mutex::default(),
        }
    }

    /// Compares a database time with the expected one.
    pub(super) fn believe(&self, shown: Timestamp) -> Now {
        let steady = self.clock.steady().millis;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let expected = match *last {
            None => shown.0,
            Some(seen) => {
                let passed = steady.saturating_sub(seen.steady);
                let usual = seen.expected.saturating_add(passed);
                let at_most = usual.saturating_add(passed / CATCH_UP);
                shown.0.clamp(usual, at_most)
            }
        };
        // At most once a second: an eighth of a few milliseconds rounds to zero.
        if last.is_none_or(|seen| steady.saturating_sub(seen.steady) >= 1_000) {
            *last = Some(ClockReading { expected, steady });
        }
        let believed = shown.min(Timestamp(expected) + SLACK);
        if believed < shown {
            tracing::warn!(
                ahead_ms = shown.0 - believed.0,
                "the database server's clock jumped forward; no lease or retention ends early because of it"
            );
        }
        Now { shown, believed }
    }
}

#[cfg(test)]
mod tests {
    //! The clock of the database server is set forward by a year: no key may become free.

    use refrain_testkit::ManualClock;

    use super::*;

    const START: u64 = 1_700_000_000_000;
    const HOUR: u64 = 3_600_000;

    /// Each look: time passed, time shown and time believed, in milliseconds; the last two since `START`.
    fn check(looks: &[(u64, u64, u64)]) {
        let clock = ManualClock::new();
        let pace = ClockCheck::new(clock.shared());
        pace.believe(Timestamp(START));
        for (number, (passed, shown, believed)) in looks.iter().enumerate() {
            clock.advance(Duration::from_millis(*passed));
            let now = pace.believe(Timestamp(START + shown));
            let want = Timestamp(START + believed);
            assert_eq!(
                (now.shown.0, now.believed),
                (START + shown, want),
                "look {number} of {looks:?}"
            );
        }
    }

    #[test]
    fn correct_clock_is_accepted() {
        check(&[
            (0, 0, 0),
            (1_000, 1_000, 1_000),
            (HOUR, HOUR + 1_003, HOUR + 1_003),
        ]);
        // Slightly ahead, as after a slow answer.
        check(&[
            (10, 3_000, 3_000),
            (HOUR, HOUR + 10 + 4_000, HOUR + 10 + 4_000),
        ]);
    }

    #[test]
    fn a_clock_that_is_set_forward_gains_an_eighth_at_the_most() {
        let year = 8_760 * HOUR;
        check(&[
            (0, year, 5_000),
            (0, year, 5_000),
            (8_000, year + 8_000, 9_000 + 5_000),
            (8 * HOUR, year + 8 * HOUR, 9_000 + 9 * HOUR + 5_000),
        ]);
        // A correction of one hour is accepted within eight hours.
        check(&[(8 * HOUR, 9 * HOUR, 9 * HOUR), (HOUR, 10 * HOUR, 10 * HOUR)]);
    }

    #[test]
    fn a_clock_that_is_set_back_is_believed_and_may_be_set_right_again() {
        check(&[
            (HOUR, HOUR, HOUR),
            (0, 0, 0),
            (HOUR, HOUR, HOUR),
            (0, 2 * HOUR, 2 * HOUR),
        ]);
    }

    #[test]
    fn new_lease_counts_from_the_time_that_other_nodes_see() {
        let now = Now {
            shown: Timestamp(10 * HOUR),
            believed: Timestamp(HOUR),
        };
        let claim = refrain::Claim::new(Default::default(), Default::default());
        let fence = super::super::decide::NO_FENCE;
        let lease = claim.lease;
        let stepped = now.step(None, Command::Claim(claim, fence));
        let Some(State::InFlight { lease_ends, .. }) = stepped.record.map(|record| record.state)
        else {
            panic!("not granted");
        };
        assert_eq!(lease_ends, now.shown + lease);
    }
}
