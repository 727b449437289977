//! Waiting for a condition instead of for a time.
//!
//! A test that sleeps and hopes fails on a busy machine, and wastes time on an idle one.
//! These poll until the condition holds, and fail with its description after [`PATIENCE`].
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! use refrain_testkit::wait;
//!
//! let worker = tokio::spawn(async { 7 });
//! wait::until("the worker ends", async || worker.is_finished()).await;
//! # });
//! ```
//!
//! Not for a runtime whose clock is paused: there the minute passes as soon as no task is ready,
//! however little a thread or a server outside of the runtime has done.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// How long a condition may take before the test has failed: long enough for a machine that does much else.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// How often the condition is looked at.
const PAUSE: Duration = Duration::from_millis(5);

/// Waits until the condition holds.
///
/// # Panics
/// When it does not hold within [`PATIENCE`]; the message says `what` was waited for.
#[track_caller]
pub fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        let since = Instant::now();
        while !holds().await {
            check_patience(since, what, caller);
            sleep(PAUSE).await;
        }
    }
}

/// As [`until`], for a condition that needs no waiting itself; the future can be sent to another thread.
///
/// # Panics
/// When it does not hold within [`PATIENCE`]; the message says `what` was waited for.
#[track_caller]
pub fn until_true(what: &str, mut holds: impl FnMut() -> bool) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        let since = Instant::now();
        while !holds() {
            check_patience(since, what, caller);
            sleep(PAUSE).await;
        }
    }
}

/// As [`until`], for tests without a runtime.
///
/// # Panics
/// When the condition does not hold within [`PATIENCE`]; the message says `what` was waited for.
#[track_caller]
pub fn until_blocking(what: &str, mut holds: impl FnMut() -> bool) {
    let caller = std::panic::Location::caller();
    let since = Instant::now();
    while !holds() {
        check_patience(since, what, caller);
        std::thread::sleep(PAUSE);
    }
}

fn check_patience(since: Instant, what: &str, caller: &std::panic::Location<'_>) {
    let waited = since.elapsed();
    assert!(
        waited < PATIENCE,
        "{caller}: {what}: not within {waited:.0?}"
    );
}
