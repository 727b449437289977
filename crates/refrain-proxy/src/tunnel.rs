//! Upgrades: after `101` the two connections are joined, and what passes is nobody's business.

use std::io;

use http::{HeaderValue, Method, Response, header, request};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncWriteExt as _, copy_bidirectional};

use crate::{headers, upstream::Line, upstream_body::UpstreamBody};

/// What a request wants to upgrade to, and the client's side of it. HTTP/2 in the clear is not switched to.
pub(crate) fn wanted(head: &mut request::Parts) -> Option<(HeaderValue, OnUpgrade)> {
    if head.method != Method::GET || !head.headers.contains_key(header::UPGRADE) {
        return None;
    }
    let is_asked = headers::tokens(&head.headers, &header::CONNECTION)
        .any(|token| token.eq_ignore_ascii_case("upgrade"));
    let token = head.headers.get(header::UPGRADE)?.clone();
    if !is_asked || token.as_bytes().eq_ignore_ascii_case(b"h2c") {
        return None;
    }
    let client = head.extensions.remove::<OnUpgrade>()?;
    Some((token, client))
}

/// Answers `101` and joins both sides once it is sent.
pub(crate) fn open(
    client: OnUpgrade,
    mut response: Response<()>,
    line: Line,
) -> Response<UpstreamBody> {
    tokio::spawn(async move {
        if let Err(error) = join(client, line).await {
            tracing::debug!(%error, "a tunnel ended");
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

async fn join(client: OnUpgrade, line: Line) -> io::Result<()> {
    let mut client = TokioIo::new(client.await.map_err(io::Error::other)?);
    let (mut upstream, read) = line.into_parts();
    // What came right behind the answer is the first of what comes through.
    client.write_all(&read).await?;
    copy_bidirectional(&mut client, &mut upstream).await?;
    Ok(())
}
