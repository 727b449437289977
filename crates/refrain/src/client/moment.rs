//! A point in time on two clocks, so that setting the wall clock cannot extend a deadline.

use std::time::Duration;

use crate::{
    clock::{Clock, Steady, Timestamp},
    varint::Reader,
};

/// A point in time on the wall clock and on the monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Moment {
    pub(super) wall: Timestamp,
    pub(super) steady: Steady,
}

impl Moment {
    pub(super) fn now(clock: &dyn Clock) -> Self {
        Self {
            wall: clock.wall(),
            steady: clock.steady(),
        }
    }

    /// Elapsed time; if the clocks disagree, the longer one, so that nothing is sent past its deadline.
    pub(super) fn longest_until(self, now: Self) -> Duration {
        let wall = now.wall.left(self.wall);
        self.steady_until(now)
            .map_or(wall, |steady| steady.max(wall))
    }

    /// Elapsed time on the monotonic clock, or on the wall clock after a reboot, so that retention does not end early.
    pub(super) fn steadily_until(self, now: Self) -> Duration {
        self.steady_until(now)
            .unwrap_or_else(|| now.wall.left(self.wall))
    }

    fn steady_until(self, now: Self) -> Option<Duration> {
        let same = self.steady.boot.is_some() && self.steady.boot == now.steady.boot;
        let passed = now.steady.millis.saturating_sub(self.steady.millis);
        same.then_some(Duration::from_millis(passed))
    }

    pub(super) fn encode(self, out: &mut Vec<u8>) {
        out.extend(self.wall.0.to_le_bytes());
        out.push(self.steady.boot.is_some().into());
        out.extend(self.steady.boot.unwrap_or_default());
        out.extend(self.steady.millis.to_le_bytes());
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Option<Self> {
        let wall = Timestamp(reader.u64()?);
        let has_boot = match reader.u8()? {
            0 => false,
            1 => true,
            _ => return None,
        };
        let boot = reader.array()?;
        let steady = Steady {
            boot: has_boot.then_some(boot),
            millis: reader.u64()?,
        };
        Some(Self { wall, steady })
    }
}
