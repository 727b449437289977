//! One request and its answer, inside the future of who asks: there is no task for a connection.

use std::{
    future::poll_fn,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::timeout,
};

use super::{
    answer::Answer,
    flow::{Flow, Stuck},
    request::Asked,
    side::Side,
};
use crate::place::{Place, Stream};

const CONNECT_MAX: Duration = Duration::from_secs(5);

/// A connection to the upstream.
pub(super) type Upstream = Side<Box<dyn Stream>>;

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Failed {
    /// The connection took not a byte of the request, which may go over another one.
    Unsent,
    /// One of both sides broke off, or what came is no answer.
    Lost,
}

/// A new connection; `None` where nobody listens.
pub(super) async fn connect(place: &Place) -> Option<Upstream> {
    let connecting = timeout(CONNECT_MAX, place.connect());
    Some(Side::new(connecting.await.ok()?.ok()?))
}

/// Sends a request on, and reads the head of its answer. What is left of the request stays in it.
pub(super) async fn ask<C: AsyncRead + Unpin>(
    client: &mut Side<C>,
    upstream: &mut Upstream,
    request: &mut Flow,
    asked: Asked,
) -> Result<Answer, Failed> {
    poll_fn(|context| poll_ask(client, upstream, request, asked, context)).await
}

/// See [`ask`].
pub(super) fn poll_ask<C: AsyncRead + Unpin>(
    client: &mut Side<C>,
    upstream: &mut Upstream,
    request: &mut Flow,
    asked: Asked,
    context: &mut Context<'_>,
) -> Poll<Result<Answer, Failed>> {
    if !request.is_over() {
        match request.poll(client, &mut upstream.io, context) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(Stuck::To(_))) if !request.has_begun() => {
                return Poll::Ready(Err(Failed::Unsent));
            }
            // It may have said why it takes no more.
            Poll::Ready(Err(Stuck::To(_))) => request.give_up(),
            Poll::Ready(Err(Stuck::From(_) | Stuck::Cut)) => {
                return Poll::Ready(Err(Failed::Lost));
            }
            Poll::Pending if !request.has_begun() => return Poll::Pending,
            Poll::Pending => {}
        }
    }
    let polled = poll_head(upstream, asked, context);
    if polled.is_pending() && request.is_over() {
        return client.poll_broken(context).map(|_| Err(Failed::Lost));
    }
    polled
}

fn poll_head(
    upstream: &mut Upstream,
    asked: Asked,
    context: &mut Context<'_>,
) -> Poll<Result<Answer, Failed>> {
    loop {
        let input = &mut upstream.input.bytes;
        match upstream.heads.answer(input, asked) {
            Ok(Some(answer)) => return Poll::Ready(Ok(answer)),
            Ok(None) => {}
            Err(refused) => {
                tracing::debug!(?refused, "what the upstream said is no answer");
                return Poll::Ready(Err(Failed::Lost));
            }
        }
        if !matches!(ready!(upstream.poll_read(context)), Ok(1..)) {
            return Poll::Ready(Err(Failed::Lost));
        }
    }
}

/// Shows an answer to the client while the rest of its request goes on, if there is any.
pub(super) async fn relay<C: AsyncRead + AsyncWrite + Unpin>(
    client: &mut Side<C>,
    upstream: &mut Upstream,
    request: &mut Flow,
    answer: &mut Flow,
) -> Result<(), Stuck> {
    poll_fn(|context| {
        if !request.is_over()
            && let Poll::Ready(Err(_)) = request.poll(client, &mut upstream.io, context)
        {
            request.give_up();
        }
        answer.poll(upstream, &mut client.io, context)
    })
    .await
}

/// Lets the rest of a request go on that was answered before its end.
pub(super) async fn finish<C: AsyncRead + Unpin>(
    client: &mut Side<C>,
    upstream: &mut Upstream,
    request: &mut Flow,
) {
    if !request.is_over() {
        let sent = poll_fn(|context| request.poll(client, &mut upstream.io, context));
        // Who answered may take no more of it.
        let _ = sent.await;
    }
}
