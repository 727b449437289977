//! Time, read in this one file.
//!
//! A wall clock can be set: forwards, and a sweep would drop what is not past its time.
//! So a store counts its own time with a steady clock that nobody can set, and looks at the wall once, when it is created.
//! Across restarts of the process the steady clock of the running machine carries on.
//! Across a reboot there is no proof of how long the machine was off, and none of it is counted: what is kept is kept longer, never shorter.

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
    /// How long until `self`, seen from `now`; zero once it has come.
    #[must_use]
    pub fn left(self, now: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(now.0))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        // Rounded up: a lease or a retention is never shorter than was asked for.
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

/// A reading of the steady clock: time since some start that `boot` names.
///
/// Two readings can be compared only while `boot` is the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Steady {
    /// Which run of the machine this is; `None` where the machine cannot tell.
    pub boot: Option<[u8; 16]>,
    /// Milliseconds since that start.
    pub millis: u64,
}

/// Where a store reads time from.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// What the wall clock shows, in milliseconds since 1970. It can be set by anybody at any time.
    fn wall(&self) -> Timestamp;
    /// Time that nobody can set.
    fn steady(&self) -> Steady;
}

/// The machine's clocks.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(
        clippy::disallowed_methods,
        reason = "the one file that reads the clock"
    )]
    fn wall(&self) -> Timestamp {
        let since = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap_or_default();
        Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    fn steady(&self) -> Steady {
        Steady {
            boot: boot_id(),
            millis: steady_millis(),
        }
    }
}

/// A store's own time: the wall clock's at its creation, and steady ever after.
#[derive(Debug, Clone)]
pub struct StoreClock {
    clock: Arc<dyn Clock>,
    /// What to add to the steady clock's reading to get the store's time.
    offset: i128,
}

/// What a store keeps of its clock to carry on from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockMark {
    /// The run of the machine in which the mark was made.
    pub boot: Option<[u8; 16]>,
    /// Store time minus steady time in that run, in milliseconds.
    pub offset: i64,
}

impl StoreClock {
    /// The clock of a new store.
    #[must_use]
    pub fn start(clock: Arc<dyn Clock>) -> Self {
        let offset = i128::from(clock.wall().0) - i128::from(clock.steady().millis);
        Self { clock, offset }
    }

    /// The clock of a store that was open before: `latest` is the last moment that it wrote down.
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

    /// Now, on the store's clock.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        let now = i128::from(self.clock.steady().millis) + self.offset;
        Timestamp(u64::try_from(now.max(0)).unwrap_or(u64::MAX))
    }

    /// What to write down so that the clock can be resumed.
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
    // Counts while the machine sleeps, too, and is the same for every process of one run of the machine.
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
