//! Requests: every byte is sent once and in order, and a broken request is never made to look complete.

use std::future::poll_fn;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use refrain::http::Body;
use tokio::io::{AsyncReadExt as _, duplex};

use crate::{
    clients::ClientBody,
    http1::{Length, SendError, Sending},
    outgoing::Outgoing,
};

const HEAD: &[u8] = b"POST / HTTP/1.1\r\n\r\n";

/// Sends a request over a connection with `room` bytes of buffer; returns the received bytes, and whether sending
/// succeeded.
async fn sent(length: Length, body: Body<ClientBody>, room: usize) -> (Vec<u8>, bool) {
    let (mut ours, mut theirs) = duplex(room);
    let sending = async move {
        let mut sending = Sending::new(HEAD.to_vec(), length, Outgoing::from(body));
        assert!(!sending.has_begun());
        let sent = poll_fn(|context| sending.poll(&mut ours, context)).await;
        assert!(!matches!(sent, Err(SendError::Io(_))), "{sent:?}");
        sent.is_ok()
    };
    let mut received = Vec::new();
    let (is_whole, read) = tokio::join!(sending, theirs.read_to_end(&mut received));
    read.unwrap();
    (received, is_whole)
}

fn full(len: usize) -> (Bytes, Body<ClientBody>) {
    let bytes: Bytes = (0..=255).cycle().take(len).collect();
    (bytes.clone(), Body::full(bytes))
}

#[tokio::test]
async fn a_body_of_known_length_goes_as_it_is() {
    for len in [0, 1, 300, 4_096, 4_097, 100_000] {
        for room in [1, 7, 1 << 10, 1 << 20] {
            let (bytes, body) = full(len);
            let (received, is_whole) = sent(Length::Left(len as u64), body, room).await;
            assert!(is_whole, "{len} bytes by {room}");
            assert!(received == [HEAD, &bytes].concat(), "{len} bytes by {room}");
        }
    }
}

#[tokio::test]
async fn a_body_that_is_not_as_long_as_was_said_is_never_made_whole() {
    for (said, is) in [(10, 9), (10, 0), (10, 11), (5_000, 6_000), (6_000, 5_000)] {
        let (bytes, body) = full(is);
        let (received, is_whole) = sent(Length::Left(said), body, 1 << 20).await;
        assert!(!is_whole, "{said} said, {is} came");
        assert!(
            [HEAD, &bytes].concat().starts_with(&received),
            "{said} said, {is} came"
        );
        assert!(
            received.len() < HEAD.len() + said as usize,
            "{said} said, {is} came"
        );
    }
}

#[tokio::test]
async fn chunks_end_with_the_trailers_that_change_nothing() {
    let mut trailers = HeaderMap::new();
    for name in [
        "x-sum",
        "content-length",
        "x-forwarded-for",
        "refrain-record",
    ] {
        trailers.insert(name, HeaderValue::from_static("7"));
    }
    for (len, room) in [(3, 1), (3, 1 << 10), (5_000, 9), (5_000, 1 << 20)] {
        let (bytes, _) = full(len);
        let body = Body::with_trailers(bytes.clone(), Some(Box::new(trailers.clone())));
        let (received, is_whole) = sent(Length::Chunked, body, room).await;
        let size = format!("{len:x}\r\n");
        let expected = [HEAD, size.as_bytes(), &bytes, b"\r\n0\r\nx-sum: 7\r\n\r\n"].concat();
        assert!(is_whole && received == expected, "{len} bytes by {room}");
    }
}
