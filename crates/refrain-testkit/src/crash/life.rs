//! Simulates one life of a process: a runtime that is dropped with all its tasks.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    task::Poll,
    time::Duration,
};

use tokio::{runtime::Builder, sync::oneshot, time::timeout};

use crate::{Ledger, door::Going};

/// When the simulated process dies.
#[derive(Debug, Clone)]
pub(super) enum Death {
    /// After the work was polled this many times without completing.
    AtAwait(usize),
    /// At the crash point at which the ledger is armed.
    AtPoint(Ledger),
}

/// Maximum duration of a life.
const LIFE_MAX: Duration = Duration::from_secs(30);

/// Runs `work` in a new runtime; returns its result, or `None` if it died first, at the latest after [`LIFE_MAX`].
///
/// It runs on its own thread, because a runtime must not be dropped within another runtime, and because the clock of
/// the test's runtime may be paused.
pub(super) async fn live<T: Send + 'static>(
    work: impl FnOnce() -> Going<T> + Send + 'static,
    death: Death,
) -> Option<T> {
    let (tell, told) = oneshot::channel();
    std::thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime =
            runtime.unwrap_or_else(|error| panic!("cannot create a Tokio runtime: {error}"));
        let ended = runtime.block_on(async { timeout(LIFE_MAX, until(work(), death)).await });
        drop(runtime);
        // The receiver may be gone.
        let _ = tell.send(ended.ok().flatten());
    });
    told.await.ok().flatten()
}

async fn until<T>(work: Going<T>, death: Death) -> Option<T> {
    match death {
        Death::AtAwait(times) => cut(work, times).await,
        Death::AtPoint(ledger) => tokio::select! {
            biased;
            ended = work => Some(ended),
            () = ledger.fell() => None,
        },
    }
}

/// Polls up to `times` times, then drops the future; returns its result if it completed before that.
pub(super) async fn cut<T>(work: Going<T>, times: usize) -> Option<T> {
    let (mut work, mut left) = (pin!(work), times);
    poll_fn(|context| match Pin::new(&mut *work).poll(context) {
        Poll::Ready(ended) => Poll::Ready(Some(ended)),
        Poll::Pending => {
            left = left.saturating_sub(1);
            match left {
                0 => Poll::Ready(None),
                _ => Poll::Pending,
            }
        }
    })
    .await
}
