//! The reply of a store to one claim or one settlement.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::time::Instant;

use super::{Meter, Op, embedded::QueuedReply};
use crate::Result;

type Boxed<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// The reply of a store. Ready at the first poll if the store knew it at once.
///
/// # Cancellation
/// Dropped, the claim or settlement may still happen, as if its reply were lost.
pub struct StoreFuture<'a, T> {
    reply: ReplySource<'a, T>,
    /// Reports how long the reply took, and which operation it was.
    meter: Option<(Arc<dyn Meter>, Op, Instant)>,
}

enum ReplySource<'a, T> {
    /// Known at once; `None` once returned.
    Ready(Option<Result<T>>),
    /// From the writer of the embedded store.
    Queued(QueuedReply<T>),
    /// From any other store.
    Boxed(Boxed<'a, T>),
}

impl<'a, T> StoreFuture<'a, T> {
    /// A reply that is known.
    pub fn ready(reply: Result<T>) -> Self {
        Self::of(ReplySource::Ready(Some(reply)))
    }

    /// A reply that comes later.
    pub fn boxed(future: impl Future<Output = Result<T>> + Send + 'a) -> Self {
        Self::of(ReplySource::Boxed(Box::pin(future)))
    }

    /// A reply of the embedded store's writer.
    pub(super) fn queued(reply: QueuedReply<T>) -> Self {
        Self::of(ReplySource::Queued(reply))
    }

    fn of(reply: ReplySource<'a, T>) -> Self {
        Self { reply, meter: None }
    }

    /// Reports the time from now until the reply.
    pub(super) fn metered(mut self, op: Op, meter: Option<&Arc<dyn Meter>>) -> Self {
        self.meter = meter.map(|meter| (meter.clone(), op, Instant::now()));
        self
    }
}

impl<T: Unpin> Future for StoreFuture<'_, T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        let reply = ready!(match &mut self.reply {
            ReplySource::Ready(reply) => reply.take().map_or(Poll::Pending, Poll::Ready),
            ReplySource::Queued(reply) => Pin::new(reply).poll(context),
            ReplySource::Boxed(reply) => reply.as_mut().poll(context),
        });
        if let Some((meter, op, asked)) = &self.meter {
            meter.answered(*op, reply.is_ok(), asked.elapsed());
        }
        Poll::Ready(reply)
    }
}

impl<T> fmt::Debug for StoreFuture<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoreFuture")
    }
}
