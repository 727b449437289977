//! The database's clock, believed as far as it can be.
//!
//! Clocks are set. Set forward, one would end leases and retentions that have not ended: outcomes would be forgotten, and
//! what ran once would run again. A handle has a clock of its own that nobody can set, and lets the database's run no
//! faster than that one, but for a little. Set back, it only makes everything last longer, and is believed.
//!
//! What a handle writes down is counted from what the database shows, which is what all others see.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use refrain::{
    Settlement,
    clock::{Clock, SystemClock, Timestamp},
    record::{Command, Record, Reply, State, Stepped, Verdict, step},
};

/// So far ahead of what is expected it is believed at once: slow answers, small corrections.
const SLACK: Duration = Duration::from_secs(5);
/// What is left is caught up with by an eighth: a clock that was wrong and is right now is believed in the end.
const CATCH_UP: u64 = 8;

/// Now, as the database shows it and as far as it is believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Now {
    pub(super) shown: Timestamp,
    pub(super) believed: Timestamp,
}

impl Now {
    /// [`step`], in which nothing ends before that is believed, and everything begins when the others see it begin.
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

/// What a handle makes of the database's clock.
#[derive(Debug)]
pub(super) struct Pace {
    clock: Arc<dyn Clock>,
    last: Mutex<Option<Seen>>,
}

/// The most that was to be expected at some moment of the handle's own clock.
#[derive(Debug, Clone, Copy)]
struct Seen {
    expected: u64,
    steady: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self::new(Arc::new(SystemClock))
    }
}

impl Pace {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            last: Mutex::default(),
        }
    }

    /// What to make of this.
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
        // Not at every look: what an eighth of a few milliseconds rounds to is nothing.
        if last.is_none_or(|seen| steady.saturating_sub(seen.steady) >= 1_000) {
            *last = Some(Seen { expected, steady });
        }
        let believed = shown.min(Timestamp(expected) + SLACK);
        if believed < shown {
            tracing::warn!(
                ahead_ms = shown.0 - believed.0,
                "the database's clock was set forward; nothing is ended early for it"
            );
        }
        Now { shown, believed }
    }
}

#[cfg(test)]
mod tests {
    //! Somebody sets the clock of the database server forward by a year, and every key is free again.

    use refrain_testkit::ManualClock;

    use super::*;

    const START: u64 = 1_700_000_000_000;
    const HOUR: u64 = 3_600_000;

    /// Shows the clock so far from its start after each span, and checks how far it is believed.
    fn check(looks: &[(u64, u64, u64)]) {
        let clock = ManualClock::new();
        let pace = Pace::new(clock.shared());
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
    fn a_clock_that_is_right_is_believed() {
        check(&[
            (0, 0, 0),
            (1_000, 1_000, 1_000),
            (HOUR, HOUR + 1_003, HOUR + 1_003),
        ]);
        // A little ahead, and a slow answer.
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
        // An hour that was missing is caught up with in eight.
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
    fn what_is_granted_counts_from_what_others_see() {
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
