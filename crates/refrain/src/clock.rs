//! Clocks. This is the only file that reads the system time.
//!
//! A wall clock can be set at any time. If it jumped forwards, a sweep would remove records too early.
//! So a store keeps its own time: it reads the wall clock once, when the store is created, and then counts with
//! a monotonic (steady) clock that cannot be set.
//! After a restart of the process, the store continues from the monotonic clock of the same boot.
//! After a reboot, the time that the machine was off is unknown and is not counted:
//! records may be kept longer than their retention, never shorter.

use std::{
    fmt,
    ops::{Add, Sub},
    sync::Arc,
    time::Duration,
};

mod civil;

/// A moment on a store's own clock, in milliseconds.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// Returns the time left until `self`, seen from `now`; zero once `self` has passed.
    #[must_use]
    pub fn left(self, now: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(now.0))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        // Round up: a lease or a retention is never shorter than requested.
        let millis = span.as_nanos().div_ceil(1_000_000);
        Self(
            self.0
                .saturating_add(u64::try_from(millis).unwrap_or(u64::MAX)),
        )
    }
}

impl Sub<Duration> for Timestamp {
    type Output = Self;

    fn sub(self, span: Duration) -> Self {
        let millis = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        Self(self.0.saturating_sub(millis))
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ms", self.0)
    }
}

/// A reading of the monotonic clock: milliseconds since the start of the boot that `boot` names.
///
/// Two readings can be compared only while `boot` is the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Steady {
    /// Identifies the boot of the machine; `None` if the platform has no boot id.
    pub boot: Option<[u8; 16]>,
    /// Milliseconds since the start of that clock.
    pub millis: u64,
}

/// The source of time for a store.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Reads the wall clock, in milliseconds since 1970. The wall clock can be set at any time.
    fn wall(&self) -> Timestamp;
    /// Reads the monotonic clock, which cannot be set.
    fn steady(&self) -> Steady;
}

/// The system's clocks.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

/// Reads the system's wall clock, as the time since 1970. The wall clock can be set at any time.
#[expect(
    clippy::disallowed_methods,
    reason = "the one file that reads the clock"
)]
#[must_use]
pub fn wall_time() -> Duration {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default()
}

impl Clock for SystemClock {
    fn wall(&self) -> Timestamp {
        let since = wall_time();
        Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    fn steady(&self) -> Steady {
        Steady {
            boot: boot_id(),
            millis: steady_millis(),
        }
    }
}

/// A store's own time: starts at the wall clock when the store is created, then advances with the monotonic clock.
#[derive(Debug, Clone)]
pub struct StoreClock {
    clock: Arc<dyn Clock>,
    /// Store time minus monotonic time, in milliseconds.
    offset: i128,
}

/// The persisted state of a [`StoreClock`], from which a later process resumes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockMark {
    /// The boot in which the mark was made.
    pub boot: Option<[u8; 16]>,
    /// Store time minus monotonic time in that boot, in milliseconds.
    pub offset: i64,
}

impl StoreClock {
    /// Starts the clock of a new store.
    #[must_use]
    pub fn start(clock: Arc<dyn Clock>) -> Self {
        let offset = i128::from(clock.wall().0) - i128::from(clock.steady().millis);
        Self { clock, offset }
    }

    /// Resumes the clock of an existing store; `latest` is the last timestamp that the store wrote.
    #[must_use]
    pub fn resume(clock: Arc<dyn Clock>, mark: ClockMark, latest: Timestamp) -> Self {
        let steady = clock.steady();
        let same_boot = mark.boot.is_some() && mark.boot == steady.boot;
        let stopped = i128::from(latest.0) - i128::from(steady.millis);
        let offset = match same_boot {
            true => stopped.max(i128::from(mark.offset)),
            false => stopped,
        };
        Self { clock, offset }
    }

    /// The current time on the store's clock.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        let now = i128::from(self.clock.steady().millis) + self.offset;
        Timestamp(u64::try_from(now.max(0)).unwrap_or(u64::MAX))
    }

    /// The mark to persist, so that the clock can be resumed.
    #[must_use]
    pub fn mark(&self) -> ClockMark {
        ClockMark {
            boot: self.clock.steady().boot,
            offset: i64::try_from(self.offset).unwrap_or(i64::MAX),
        }
    }
}

#[cfg(target_os = "linux")]
fn steady_millis() -> u64 {
    // CLOCK_BOOTTIME also counts while the machine is suspended, and is the same for every process of one boot.
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds * 1_000 + nanos / 1_000_000
}

#[cfg(not(target_os = "linux"))]
#[expect(
    clippy::disallowed_methods,
    reason = "the one file that reads the clock"
)]
fn steady_millis() -> u64 {
    use std::{sync::OnceLock, time::Instant};
    static START: OnceLock<Instant> = OnceLock::new();
    let elapsed = START.get_or_init(Instant::now).elapsed();
    u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)
}

fn boot_id() -> Option<[u8; 16]> {
    use std::sync::OnceLock;
    static BOOT: OnceLock<Option<[u8; 16]>> = OnceLock::new();
    *BOOT.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
        u128::from_str_radix(&digits, 16)
            .ok()
            .map(u128::to_be_bytes)
    })
}
