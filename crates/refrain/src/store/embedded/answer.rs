//! An answer of the writer, on its way to who asked.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::sync::oneshot;

use super::Shared;
use crate::{Result, record::Reply};

/// The answer to what was asked; it needs nobody else to live on.
#[derive(Debug)]
pub(crate) enum Answer<T> {
    /// It was known already; `None` once it is told.
    Known(Option<T>),
    /// The writer decides.
    Waiting {
        answer: oneshot::Receiver<Result<Reply>>,
        take: fn(Reply) -> Result<T>,
        shared: Arc<Shared>,
    },
}

impl<T: Unpin> Future for Answer<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        match &mut *self {
            Self::Known(known) => known.take().map_or(Poll::Pending, |it| Poll::Ready(Ok(it))),
            Self::Waiting {
                answer,
                take,
                shared,
            } => Poll::Ready(match ready!(Pin::new(answer).poll(context)) {
                Ok(reply) => reply.and_then(*take),
                Err(_) => Err(shared.closed()),
            }),
        }
    }
}
