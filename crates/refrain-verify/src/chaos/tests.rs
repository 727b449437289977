//! Messages pass unchanged however the network splits them, and end at the right byte.
//!
//! A wrong message end would take bytes of the next message, or leave bytes to it.

use std::{
    collections::VecDeque,
    io,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::BytesMut;
use refrain_http1::{Framing, Step};
use tokio::io::{AsyncRead, ReadBuf};

use super::{
    flow::{Manner, Stuck},
    head::Refused,
    request::RequestFlags,
    side::Side,
};

/// A connection that delivers these pieces and then ends.
struct Pieces(VecDeque<Vec<u8>>);

impl AsyncRead for Pieces {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.0.pop_front() {
            // An empty piece simulates a read that is not ready.
            Some(piece) if piece.is_empty() => {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            Some(mut piece) => {
                let rest = piece.split_off(piece.len().min(buffer.remaining()));
                buffer.put_slice(&piece);
                if !rest.is_empty() {
                    self.0.push_front(rest);
                }
            }
            None => {}
        }
        Poll::Ready(Ok(()))
    }
}

/// Every split of `bytes` in two, the split into single bytes, and the whole.
fn cuts(bytes: &[u8]) -> Vec<Vec<Vec<u8>>> {
    let two = |at: usize| vec![bytes[..at].to_vec(), Vec::new(), bytes[at..].to_vec()];
    let each = bytes.iter().flat_map(|byte| [vec![*byte], Vec::new()]);
    let mut all: Vec<_> = (1..bytes.len()).map(two).collect();
    all.push(each.collect());
    all.push(vec![bytes.to_vec()]);
    all
}

/// The sender of the messages.
#[derive(Debug, Clone, Copy)]
enum From {
    Client,
    Upstream(RequestFlags),
}

/// Returns all messages as forwarded, one after the other, and how the connection ended.
async fn passed(pieces: Vec<Vec<u8>>, from: From) -> (String, &'static str) {
    let mut side = Side::new(Pieces(pieces.into()));
    let mut out = Vec::new();
    let end = loop {
        let input = &mut side.input.bytes;
        let next = match from {
            From::Client => (side.heads.request(input)).map(|it| it.map(|request| request.onward)),
            From::Upstream(asked) => (side.heads.answer(input, asked))
                .map(|it| it.map(|answer| answer.into_flow(true, Manner::AsItComes))),
        };
        match next {
            Err(Refused { why, .. }) => break why,
            Ok(Some(mut flow)) => {
                let passing =
                    std::future::poll_fn(|context| flow.poll(&mut side, &mut out, context));
                match passing.await {
                    Ok(()) => out.extend_from_slice(b"|"),
                    Err(Stuck::From(_)) => break "broke off",
                    Err(stuck) => panic!("{stuck}"),
                }
            }
            Ok(None) if side.read().await.unwrap() == 0 => break "end",
            Ok(None) => {}
        }
    };
    (String::from_utf8(out).unwrap(), end)
}

/// The message with its chunks joined, because the chunk boundaries depend on the reads: the data, trailers and end.
fn plain(message: &str) -> String {
    let Some((head, body)) = message.split_once("chunked\r\n\r\n") else {
        return message.to_owned();
    };
    let (mut framing, mut body) = (Framing::chunked(), BytesMut::from(body));
    let mut text = format!("{head}chunked\r\n\r\n");
    loop {
        match framing.next(&mut body).unwrap() {
            Step::Data(data) => text.push_str(str::from_utf8(&data).unwrap()),
            Step::Trailers(trailers) => text.push_str(&format!("+{trailers:?}")),
            Step::More => return text,
            Step::End => return text + "." + str::from_utf8(&body).unwrap(),
        }
    }
}

async fn check(from: From, sent: &str, goes_on: &str, end: &str) {
    for pieces in cuts(sent.as_bytes()) {
        let (out, ended) = passed(pieces.clone(), from).await;
        let out: Vec<_> = out.split('|').map(plain).collect();
        let out = out.join("|");
        // How much of a malformed message is forwarded before the error depends on the pieces.
        let is_right = match end {
            "broke off" => goes_on.starts_with(&out),
            _ => goes_on == out,
        };
        assert!(is_right, "{sent:?} as {pieces:?}: {out:?}");
        assert_eq!(ended, end, "{sent:?} as {pieces:?}");
    }
}

#[tokio::test]
async fn requests_pass_whole_wherever_they_are_cut() {
    for (sent, goes_on, end) in [
        // Pipelined, with every kind of message end; fields unchanged except hop-by-hop ones.
        (
            "GET /a?b=c HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\nX-Odd-CASE:  v \r\n\r\n\
             POST /b HTTP/1.1\r\nContent-Length: 3\r\nhost: x\r\n\r\nabc\
             PUT /c HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\ntrailer: t\r\n\r\n2;x=y\r\nab\r\n1\r\nc\r\n0\r\nt: 1\r\n\r\n\
             HEAD /d HTTP/1.0\r\n\r\n",
            "GET /a?b=c HTTP/1.1\r\nHost: x\r\nX-Odd-CASE: v\r\n\r\n|\
             POST /b HTTP/1.1\r\nhost: x\r\nContent-Length: 3\r\n\r\nabc|\
             PUT /c HTTP/1.1\r\nhost: x\r\ntrailer: t\r\ntransfer-encoding: chunked\r\n\r\nabc+{\"t\": \"1\"}.|\
             HEAD /d HTTP/1.1\r\n\r\n|",
            "end",
        ),
        // Both a length and chunks: the chunks count, and the length is removed.
        (
            "POST / HTTP/1.1\r\ncontent-length: 9\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\na.|",
            "end",
        ),
        (
            "POST / HTTP/1.1\r\ncontent-length: 4\r\n\r\nabc",
            "POST / HTTP/1.1\r\ncontent-length: 4\r\n\r\nabc",
            "broke off",
        ),
        (
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\na",
            "broke off",
        ),
        (
            "POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
            "",
            "Content-Length is sent twice; send it once.",
        ),
        (
            "\r\nGET / HTTP/1.1\r\n\r\n",
            "",
            "The request starts with an empty line; remove it.",
        ),
        (
            "POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            "",
            "HTTP/1.0 does not support chunked bodies; send Content-Length.",
        ),
        (
            "CONNECT x:1 HTTP/1.1\r\n\r\n",
            "",
            "CONNECT is not supported.",
        ),
        (
            "GET / HTTP/2.0\r\n\r\n",
            "",
            "Unsupported HTTP version; send HTTP/1.1.",
        ),
        (
            "GET / HTTP/1.1\r\na b: c\r\n\r\n",
            "",
            "Malformed header name.",
        ),
    ] {
        check(From::Client, sent, goes_on, end).await;
    }
}

#[tokio::test]
async fn answers_pass_whole_wherever_they_are_cut() {
    let new = RequestFlags {
        keeps_alive: true,
        ..RequestFlags::NOTHING
    };
    let (old, to_head) = (
        RequestFlags {
            is_new: false,
            ..new
        },
        RequestFlags {
            is_to_head: true,
            ..new
        },
    );
    let chunked =
        "HTTP/1.1 200 Fine\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n";
    let open = "HTTP/1.1 200 OK\r\n\r\nabc";
    let lengths = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nDate: now\r\n\r\nabcHTTP/1.1 204 None\r\nKeep-Alive: x\r\n\r\n\
                   HTTP/1.1 304 Same\r\ncontent-length: 7\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
    for (asked, sent, goes_on, end) in [
        (
            new,
            lengths,
            "HTTP/1.1 200 OK\r\nDate: now\r\nContent-Length: 3\r\n\r\nabc|HTTP/1.1 204 None\r\n\r\n|\
             HTTP/1.1 304 Same\r\ncontent-length: 7\r\n\r\n|HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n|",
            "end",
        ),
        (
            new,
            chunked,
            "HTTP/1.1 200 Fine\r\ntransfer-encoding: chunked\r\n\r\nabc.|",
            "end",
        ),
        // An HTTP/1.0 client gets no chunks.
        (
            old,
            chunked,
            "HTTP/1.0 200 Fine\r\nconnection: keep-alive\r\n\r\nabc|",
            "end",
        ),
        // An HTTP/1.1 client gets chunks, so that it can tell where the body ends.
        (
            new,
            open,
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nabc.|",
            "end",
        ),
        // Interim responses are not forwarded; bytes after a response to HEAD belong to the next response.
        (
            to_head,
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n\
             HTTP/1.1 404 No\r\ncontent-length: 3\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n|HTTP/1.1 404 No\r\ncontent-length: 3\r\n\r\n|",
            "end",
        ),
        (
            new,
            "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nabc",
            "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nabc",
            "broke off",
        ),
        (
            new,
            "HTTP/1.1 101 Switching\r\nupgrade: x\r\n\r\n",
            "",
            "The upstream switched protocols without an Upgrade request.",
        ),
        (
            new,
            "ICY 200 OK\r\n\r\n",
            "",
            "Unsupported HTTP version; send HTTP/1.1.",
        ),
    ] {
        check(From::Upstream(asked), sent, goes_on, end).await;
    }
}

/// Forwards a response in this manner; returns the body as sent, and whether it was complete.
async fn harmed(answer: &str, manner: Manner) -> (String, bool) {
    let mut side = Side::new(Pieces(VecDeque::from([answer.as_bytes().to_vec()])));
    side.read().await.unwrap();
    let head = side
        .heads
        .answer(&mut side.input.bytes, RequestFlags::NOTHING);
    let mut flow = head.unwrap().unwrap().into_flow(true, manner);
    let mut out = Vec::new();
    let passing = std::future::poll_fn(|context| flow.poll(&mut side, &mut out, context));
    let is_whole = passing.await.is_ok();
    let text = String::from_utf8(out).unwrap();
    (text.split_once("\r\n\r\n").unwrap().1.to_owned(), is_whole)
}

#[tokio::test(start_paused = true)]
async fn a_cut_is_at_its_byte_and_never_looks_like_an_end() {
    let length = "HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nabcdef";
    let chunked =
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n4\r\ncdef\r\n0\r\n\r\n";
    let open = "HTTP/1.1 200 OK\r\n\r\nabcdef";
    for (answer, at, body, is_whole) in [
        (length, 0, "", false),
        (length, 5, "abcde", false),
        (length, 6, "abcdef", true),
        (length, 7, "abcdef", true),
        (chunked, 0, "", false),
        (chunked, 2, "2\r\nab\r\n", false),
        (chunked, 3, "2\r\nab\r\n1\r\nc\r\n", false),
        (chunked, 6, "2\r\nab\r\n4\r\ncdef\r\n", false),
        (chunked, 7, "2\r\nab\r\n4\r\ncdef\r\n0\r\n\r\n", true),
        (open, 4, "4\r\nabcd\r\n", false),
        (open, 7, "6\r\nabcdef\r\n0\r\n\r\n", true),
    ] {
        let expected = (body.to_owned(), is_whole);
        assert_eq!(
            harmed(answer, Manner::Cut(at)).await,
            expected,
            "{answer:?} at {at}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_body_comes_in_pieces_at_its_rate() {
    let since = tokio::time::Instant::now();
    let answer =
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n3\r\ncde\r\n0\r\n\r\n";
    // Two bytes every 50 ms.
    let (body, is_whole) = harmed(answer, Manner::slow(40)).await;
    assert_eq!(body, "2\r\nab\r\n2\r\ncd\r\n1\r\ne\r\n0\r\n\r\n");
    assert!(is_whole);
    assert!(since.elapsed().as_millis() >= 100, "{:?}", since.elapsed());
}
