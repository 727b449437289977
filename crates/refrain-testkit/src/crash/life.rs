//! One life of a process: a runtime that dies with all that it runs.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    task::Poll,
    time::Duration,
};

use tokio::{runtime::Builder, sync::oneshot, time::timeout};

use crate::{Ledger, door::Going};

/// When a life ends early.
#[derive(Debug, Clone)]
pub(super) enum Death {
    /// Once the work has waited so many times.
    AtAwait(usize),
    /// At the point at which the ledger is armed.
    AtPoint(Ledger),
}

/// How long a life may take.
const LIFE_MAX: Duration = Duration::from_secs(30);

/// What the work came to; nothing if it died before, which it does after [`LIFE_MAX`] at the latest.
///
/// On a thread of its own, because a runtime may not be dropped within another one; and on time of its own,
/// because the test's may be paused.
pub(super) async fn live<T: Send + 'static>(
    work: impl FnOnce() -> Going<T> + Send + 'static,
    death: Death,
) -> Option<T> {
    let (tell, told) = oneshot::channel();
    std::thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.unwrap_or_else(|error| panic!("no runtime can be made: {error}"));
        let ended = runtime.block_on(async { timeout(LIFE_MAX, until(work(), death)).await });
        drop(runtime);
        // Nobody may be waiting any more.
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

/// Polls so many times, then drops; what it came to, if it did before.
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
