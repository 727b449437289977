//! One request and its response, polled inside the client connection's task: the upstream connection has no task.

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
    answer::UnreadResponse,
    flow::{Flow, Stuck},
    request::RequestFlags,
    side::Side,
};
use crate::place::{Endpoint, Stream};

const CONNECT_MAX: Duration = Duration::from_secs(5);

/// A connection to the upstream.
pub(super) type Upstream = Side<Box<dyn Stream>>;

/// Why there is no response.
#[derive(Debug)]
pub(super) enum Failed {
    /// No byte of the request was sent, so it may be sent over another connection.
    Unsent,
    /// The client or the upstream closed the connection, or the response is malformed.
    Lost,
}

/// Opens a new connection; `None` if that fails.
pub(super) async fn connect(place: &Endpoint) -> Option<Upstream> {
    let connecting = timeout(CONNECT_MAX, place.connect());
    Some(Side::new(connecting.await.ok()?.ok()?))
}

/// Sends a request and reads the head of its response. An unsent rest of the request stays in `request`.
pub(super) async fn send_request<C: AsyncRead + Unpin>(
    client: &mut Side<C>,
    upstream: &mut Upstream,
    request: &mut Flow,
    asked: RequestFlags,
) -> Result<UnreadResponse, Failed> {
    poll_fn(|context| poll_send_request(client, upstream, request, asked, context)).await
}

/// See [`send_request`].
pub(super) fn poll_send_request<C: AsyncRead + Unpin>(
    client: &mut Side<C>,
    upstream: &mut Upstream,
    request: &mut Flow,
    asked: RequestFlags,
    context: &mut Context<'_>,
) -> Poll<Result<UnreadResponse, Failed>> {
    if !request.is_over() {
        match request.poll(client, &mut upstream.io, context) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(Stuck::To(_))) if !request.has_begun() => {
                return Poll::Ready(Err(Failed::Unsent));
            }
            // The upstream takes no more of the request; it may have sent a response that says why.
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
    asked: RequestFlags,
    context: &mut Context<'_>,
) -> Poll<Result<UnreadResponse, Failed>> {
    loop {
        let input = &mut upstream.input.bytes;
        match upstream.heads.answer(input, asked) {
            Ok(Some(answer)) => return Poll::Ready(Ok(answer)),
            Ok(None) => {}
            Err(refused) => {
                tracing::debug!(?refused, "the upstream sent an invalid response");
                return Poll::Ready(Err(Failed::Lost));
            }
        }
        if !matches!(ready!(upstream.poll_read(context)), Ok(1..)) {
            return Poll::Ready(Err(Failed::Lost));
        }
    }
}

/// Sends a response to the client, and meanwhile the unsent rest of the request to the upstream.
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

/// Sends the rest of a request whose response came early.
pub(super) async fn finish<C: AsyncRead + Unpin>(
    client: &mut Side<C>,
    upstream: &mut Upstream,
    request: &mut Flow,
) {
    if !request.is_over() {
        let sent = poll_fn(|context| request.poll(client, &mut upstream.io, context));
        // The upstream may stop reading after its response.
        let _ = sent.await;
    }
}
