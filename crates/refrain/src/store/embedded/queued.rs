//! The writer's reply to one request.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::sync::oneshot;

use super::EmbeddedState;
use crate::{Result, record::Reply};

/// The writer's reply to one request; keeps what it needs alive.
#[derive(Debug)]
pub(crate) struct QueuedReply<T> {
    pub(super) reply: oneshot::Receiver<Result<Reply>>,
    /// Takes the expected kind of reply.
    pub(super) take: fn(Reply) -> Result<T>,
    pub(super) shared: Arc<EmbeddedState>,
}

impl<T> Future for QueuedReply<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        Poll::Ready(match ready!(Pin::new(&mut self.reply).poll(context)) {
            Ok(reply) => reply.and_then(self.take),
            Err(_) => Err(self.shared.closed()),
        })
    }
}
