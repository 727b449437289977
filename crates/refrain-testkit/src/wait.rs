//! Polls a condition instead of sleeping for a fixed time.
//!
//! A test that sleeps for a fixed time fails on a busy machine, and wastes time on an idle one.
//! These functions poll until the condition holds, and panic with its description after [`PATIENCE`].
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
//! Do not use on a runtime whose clock is paused: such a clock skips the whole of [`PATIENCE`] as soon as no task is
//! ready, even if a thread or a server outside the runtime is still working.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Timeout of a condition: 60 seconds, long enough for a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Polling interval.
const PAUSE: Duration = Duration::from_millis(5);

/// Waits until the condition holds.
///
/// # Panics
/// When the condition does not hold within [`PATIENCE`]; the panic message contains `what`.
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

/// Like [`until`], for a synchronous condition; the future is `Send` if the condition is.
///
/// # Panics
/// When the condition does not hold within [`PATIENCE`]; the panic message contains `what`.
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

/// Waits until `count` is `wanted` or more, however long that takes, as long as it grows.
///
/// # Panics
/// When it does not grow within [`PATIENCE`]; the panic message contains `what`.
#[track_caller]
pub fn until_counted(
    what: &str,
    mut count: impl FnMut() -> usize,
    wanted: usize,
) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        let (mut since, mut last) = (Instant::now(), count());
        while last < wanted {
            let what = format!("{what}, {last} of {wanted}");
            check_patience(since, &what, caller);
            sleep(PAUSE).await;
            let now = count();
            if now > last {
                (since, last) = (Instant::now(), now);
            }
        }
    }
}

/// Like [`until`], for tests without a runtime: blocks the thread.
///
/// # Panics
/// When the condition does not hold within [`PATIENCE`]; the panic message contains `what`.
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
