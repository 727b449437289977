//! Upgrades: after `101` the two connections are joined, and bytes are copied both ways without inspection.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
};

use http::{HeaderValue, Method, Response, header, request};
use tokio::{
    io::{AsyncWriteExt as _, copy_bidirectional},
    sync::oneshot,
};

use crate::{headers, stream::Io, upstream::UpstreamConnection, upstream_body::UpstreamBody};

/// A client's connection after `101` was sent over it, and the bytes read after the request.
pub(crate) struct OpenedTunnel {
    pub(crate) stream: Io,
    pub(crate) read: Vec<u8>,
}

/// Receives the client's connection.
pub(crate) type TunnelClient = oneshot::Receiver<OpenedTunnel>;

/// Request extension of an upgrade request: the receiver of the client's connection.
#[derive(Clone)]
struct Offer(Arc<Mutex<Option<TunnelClient>>>);

/// Offers the connection of a request to the handler that answers with `101`; send it to the channel after that response.
pub(crate) fn offer(head: &mut request::Parts) -> oneshot::Sender<OpenedTunnel> {
    let (opened, client) = oneshot::channel();
    let offer = Offer(Arc::new(Mutex::new(Some(client))));
    head.extensions.insert(offer);
    opened
}

/// The protocol that a request wants to upgrade to, and the client's side. Upgrades to HTTP/2 (`h2c`) are not supported.
pub(crate) fn take_upgrade(head: &mut request::Parts) -> Option<(HeaderValue, TunnelClient)> {
    if head.method != Method::GET || !head.headers.contains_key(header::UPGRADE) {
        return None;
    }
    let is_asked = headers::tokens(&head.headers, &header::CONNECTION)
        .any(|token| token.eq_ignore_ascii_case("upgrade"));
    let token = head.headers.get(header::UPGRADE)?.clone();
    if !is_asked || token.as_bytes().eq_ignore_ascii_case(b"h2c") {
        return None;
    }
    let Offer(client) = head.extensions.remove()?;
    let client = client.lock().unwrap_or_else(PoisonError::into_inner).take();
    Some((token, client?))
}

/// Returns the `101` response, and joins both sides once it is sent.
pub(crate) fn open(
    client: TunnelClient,
    mut response: Response<()>,
    connection: UpstreamConnection,
) -> Response<UpstreamBody> {
    tokio::spawn(async move {
        if let Err(error) = join(client, connection).await {
            tracing::debug!(%error, "a tunnel failed");
        }
    });
    let token = response.headers().get(header::UPGRADE).cloned();
    headers::to_client(response.headers_mut());
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    if let Some(token) = token {
        headers.insert(header::UPGRADE, token);
    }
    response.map(|()| UpstreamBody::empty())
}

async fn join(client: TunnelClient, connection: UpstreamConnection) -> io::Result<()> {
    let mut client = client.await.map_err(io::Error::other)?;
    let parts = connection.into_parts();
    let (mut upstream, read, _permit) = parts.ok_or(io::ErrorKind::NotConnected)?;
    // The bytes read after each head are the first bytes of the tunnel.
    upstream.write_all(&client.read).await?;
    client.stream.write_all(&read).await?;
    copy_bidirectional(&mut client.stream, &mut upstream).await?;
    Ok(())
}
