//! A clock that stands still until a test turns it.
//!
//! ```
//! use std::time::Duration;
//! use refrain::clock::{Clock, StoreClock};
//! use refrain_testkit::ManualClock;
//!
//! let clock = ManualClock::new();
//! let store_time = StoreClock::start(clock.shared());
//! let start = store_time.now();
//! clock.jump(Duration::from_secs(86_400)); // somebody sets the wall clock
//! assert_eq!(store_time.now(), start);
//! clock.advance(Duration::from_secs(5));
//! assert_eq!(store_time.now(), start + Duration::from_secs(5));
//! ```

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use refrain::clock::{Clock, Steady, Timestamp};

/// Where the wall clock starts: the beginning of 2026.
const WALL_START: Duration = Duration::from_secs(1_767_225_600);
/// Where the steady clock starts: the machine has been up for a while.
const STEADY_START: Duration = Duration::from_secs(1_000);

/// A clock that a test turns by hand. Clones show the same time.
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<Mutex<Hands>>);

#[derive(Debug)]
struct Hands {
    /// Since 1970, as the wall clock has it.
    wall: Duration,
    /// Since the machine came up.
    steady: Duration,
    /// Which run of the machine this is.
    boot: u128,
}

impl ManualClock {
    /// A clock that stands still.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(Hands {
            wall: WALL_START,
            steady: STEADY_START,
            boot: 1,
        })))
    }

    /// The same clock, as a store takes it.
    #[must_use]
    pub fn shared(&self) -> Arc<dyn Clock> {
        Arc::new(self.clone())
    }

    /// Lets time pass: on the wall and on the steady clock.
    pub fn advance(&self, span: Duration) {
        let mut hands = self.hands();
        hands.wall = hands.wall.saturating_add(span);
        hands.steady = hands.steady.saturating_add(span);
    }

    /// Sets the wall clock forward. No time passes.
    pub fn jump(&self, span: Duration) {
        let mut hands = self.hands();
        hands.wall = hands.wall.saturating_add(span);
    }

    /// Sets the wall clock back. No time passes.
    pub fn jump_back(&self, span: Duration) {
        let mut hands = self.hands();
        hands.wall = hands.wall.saturating_sub(span);
    }

    /// Sets the wall clock. No time passes.
    pub fn set_wall(&self, wall: Timestamp) {
        self.hands().wall = Duration::from_millis(wall.0);
    }

    /// Starts the machine anew: the steady clock begins at zero under another boot id.
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
