//! [`ManualClock`]: a clock that moves only when a test moves it.
//!
//! ```
//! use std::time::Duration;
//! use refrain::clock::{Clock, StoreClock};
//! use refrain_testkit::ManualClock;
//!
//! let clock = ManualClock::new();
//! let store_time = StoreClock::start(clock.shared());
//! let start = store_time.now();
//! clock.jump(Duration::from_secs(86_400)); // an operator sets the wall clock
//! assert_eq!(store_time.now(), start);
//! clock.advance(Duration::from_secs(5));
//! assert_eq!(store_time.now(), start + Duration::from_secs(5));
//! ```

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use refrain::clock::{Clock, Steady, Timestamp};

/// Initial wall-clock time: 2026-01-01T00:00:00Z.
const WALL_START: Duration = Duration::from_secs(1_767_225_600);
/// Initial steady-clock time: 1,000 seconds since boot.
const STEADY_START: Duration = Duration::from_secs(1_000);

/// A clock that a test sets by hand. Clones share the same time.
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<Mutex<Hands>>);

#[derive(Debug)]
struct Hands {
    /// Wall-clock time since 1970-01-01.
    wall: Duration,
    /// Time since the machine booted.
    steady: Duration,
    /// Boot id: identifies the current boot of the machine.
    boot: u128,
}

impl ManualClock {
    /// Returns a clock that stands still.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(Hands {
            wall: WALL_START,
            steady: STEADY_START,
            boot: 1,
        })))
    }

    /// Returns the same clock as an `Arc<dyn Clock>`, the type that stores accept.
    #[must_use]
    pub fn shared(&self) -> Arc<dyn Clock> {
        Arc::new(self.clone())
    }

    /// Advances the wall clock and the steady clock by `span`.
    pub fn advance(&self, span: Duration) {
        let mut hands = self.hands();
        hands.wall = hands.wall.saturating_add(span);
        hands.steady = hands.steady.saturating_add(span);
    }

    /// Sets the wall clock forward by `span`. The steady clock does not move.
    pub fn jump(&self, span: Duration) {
        let mut hands = self.hands();
        hands.wall = hands.wall.saturating_add(span);
    }

    /// Sets the wall clock back by `span`. The steady clock does not move.
    pub fn jump_back(&self, span: Duration) {
        let mut hands = self.hands();
        hands.wall = hands.wall.saturating_sub(span);
    }

    /// Sets the wall clock to `wall`. The steady clock does not move.
    pub fn set_wall(&self, wall: Timestamp) {
        self.hands().wall = Duration::from_millis(wall.0);
    }

    /// Simulates a reboot: the steady clock restarts at zero, with a new boot id.
    pub fn reboot(&self) {
        let mut hands = self.hands();
        hands.steady = Duration::ZERO;
        hands.boot += 1;
    }

    fn hands(&self) -> MutexGuard<'_, Hands> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for ManualClock {
    fn wall(&self) -> Timestamp {
        Timestamp(millis(self.hands().wall))
    }

    fn steady(&self) -> Steady {
        let hands = self.hands();
        Steady {
            boot: Some(hands.boot.to_be_bytes()),
            millis: millis(hands.steady),
        }
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
