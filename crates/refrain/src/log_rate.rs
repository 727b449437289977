//! Rate limit for log messages that can repeat with every request: a dependency that fails under load must not fill the disk
//! with lines.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{runtime::Handle, time::Instant};
use tracing::Level;

/// At most one line of a kind is logged in this time.
const PAUSE: Duration = Duration::from_secs(10);
/// Maximum number of names that one place in the code tells apart; further ones share a limit.
const NAMES_MAX: usize = 64;
/// Stands for all names above the maximum.
const OTHERS: &str = "others";

/// Rate limit for one place in the code. For each name it passes the first line, then one every ten seconds, and counts
/// the others; what is still counted when the lines stop is logged as one line more.
#[doc(hidden)]
#[derive(Debug)]
pub struct LogRate {
    level: Level,
    message: &'static str,
    /// By the cause of the lines, such as the operation or the consumer.
    names: Mutex<BTreeMap<String, RateState>>,
}

#[derive(Debug)]
struct RateState {
    /// When the last line passed.
    last: Instant,
    suppressed: u64,
}

impl LogRate {
    /// A limit that has passed nothing yet, for lines with this level and message.
    #[must_use]
    pub const fn new(level: Level, message: &'static str) -> Self {
        Self {
            level,
            message,
            names: Mutex::new(BTreeMap::new()),
        }
    }

    /// If a line about this name may be written now, returns the number of lines suppressed since the last one.
    pub fn pass(&'static self, name: &str) -> Option<u64> {
        let mut names = self.names();
        let now = Instant::now();
        let name = with_room(&mut names, name, now);
        let Some(state) = names.get_mut(name) else {
            names.insert(name.to_owned(), RateState::passed(now));
            return Some(0);
        };
        if now - state.last < PAUSE {
            state.suppressed += 1;
            if state.suppressed == 1 {
                self.start_summary(name, state.last + PAUSE);
            }
            return None;
        }
        Some(std::mem::replace(state, RateState::passed(now)).suppressed)
    }

    /// Logs in the background what was suppressed until then. Without a runtime, the next line has the number.
    fn start_summary(&'static self, name: &str, due: Instant) {
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let name = name.to_owned();
        runtime.spawn(async move {
            tokio::time::sleep_until(due).await;
            if let Some(suppressed) = self.take_suppressed(&name) {
                self.log_summary(&name, suppressed);
            }
        });
    }

    /// The number of lines suppressed since the last one, if no line has passed meanwhile.
    fn take_suppressed(&self, name: &str) -> Option<u64> {
        let mut names = self.names();
        let state = names.get_mut(name)?;
        let now = Instant::now();
        if state.suppressed == 0 || now - state.last < PAUSE {
            return None;
        }
        Some(std::mem::replace(state, RateState::passed(now)).suppressed)
    }

    fn log_summary(&self, name: &str, suppressed: u64) {
        let message = self.message;
        match self.level {
            Level::ERROR => tracing::error!(suppressed, name, "more lines like this: {message}"),
            _ => tracing::warn!(suppressed, name, "more lines like this: {message}"),
        }
    }

    fn names(&self) -> MutexGuard<'_, BTreeMap<String, RateState>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RateState {
    fn passed(now: Instant) -> Self {
        Self {
            last: now,
            suppressed: 0,
        }
    }
}

/// The name to count a line under, once old names were forgotten.
fn with_room<'n>(names: &mut BTreeMap<String, RateState>, name: &'n str, now: Instant) -> &'n str {
    if names.contains_key(name) || names.len() < NAMES_MAX {
        return name;
    }
    names.retain(|_, state| state.suppressed > 0 || now - state.last < PAUSE);
    match names.len() < NAMES_MAX {
        true => name,
        false => OTHERS,
    }
}

/// Logs a line as `tracing::LEVEL!` would, at most once every ten seconds for this place in the code and this name.
///
/// `by` is what has an error of its own, such as the operation, so that the first error of each is logged. The field
/// `suppressed` is the number of lines that were left out since the last one.
/// For errors that repeat while a dependency fails; not for facts that an operator has to act on one by one,
/// such as unknown outcomes.
#[doc(hidden)]
#[macro_export]
macro_rules! log_rarely {
    ($level:ident, by = $by:expr, $($line:tt)+) => {{
        static RATE: $crate::LogRate = $crate::LogRate::new(
            $crate::log_level!($level),
            $crate::log_message!($($line)+),
        );
        if let Some(suppressed) = RATE.pass(&$by.to_string()) {
            tracing::$level!(suppressed, $($line)+);
        }
    }};
    ($level:ident, $($line:tt)+) => {
        $crate::log_rarely!($level, by = "", $($line)+)
    };
}

/// The level of a line.
#[doc(hidden)]
#[macro_export]
macro_rules! log_level {
    (error) => {
        tracing::Level::ERROR
    };
    (warn) => {
        tracing::Level::WARN
    };
}

/// The message of a line: its first literal.
#[doc(hidden)]
#[macro_export]
macro_rules! log_message {
    ($message:literal $($rest:tt)*) => {
        $message
    };
    ($first:tt $($rest:tt)+) => {
        $crate::log_message!($($rest)+)
    };
}

#[cfg(test)]
mod tests {
    //! One lost database connection wrote a line for every request, until the disk of the logs was full. Later the limit
    //! hid the first error of another operation, and the number of suppressed lines was never written.

    use std::{io, sync::Arc};

    use tokio::time::{advance, sleep};

    use super::*;

    fn rate() -> &'static LogRate {
        Box::leak(Box::new(LogRate::new(Level::WARN, "it failed")))
    }

    #[tokio::test(start_paused = true)]
    async fn one_line_passes_in_each_pause_and_the_others_are_counted() {
        let rate = rate();
        assert_eq!(rate.pass("a"), Some(0));
        for _ in 0..5 {
            assert_eq!(rate.pass("a"), None);
        }
        // The time passes without the task that would log the number.
        advance(PAUSE).await;
        assert_eq!(rate.pass("a"), Some(5));
        assert_eq!(rate.pass("a"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_line_of_each_name_passes() {
        let rate = rate();
        for name in ["a", "b"] {
            assert_eq!((rate.pass(name), rate.pass(name)), (Some(0), None));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_names_is_bounded() {
        let rate = rate();
        let passed = |at: usize| rate.pass(&at.to_string()).is_some();
        assert_eq!((0..1_000).filter(|at| passed(*at)).count(), NAMES_MAX + 1);
        assert_eq!(rate.names().len(), NAMES_MAX + 1);
        advance(PAUSE).await;
        assert!(passed(1_000));
    }

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_is_logged_once_when_the_lines_stop() {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        let _default = tracing::subscriber::set_default(subscriber);
        let why = "it is down";
        for _ in 0..18_001 {
            log_rarely!(error, by = "POST /pay", why, "a claim failed");
        }
        let log = || String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert_eq!(log().lines().count(), 1, "{}", log());
        sleep(PAUSE * 10).await;
        let log = log();
        assert_eq!(log.lines().count(), 2, "{log}");
        let last = log.lines().last().unwrap();
        for part in ["ERROR", "suppressed=18000", "POST /pay", "a claim failed"] {
            assert!(last.contains(part), "no {part} in {last}");
        }
    }
}
