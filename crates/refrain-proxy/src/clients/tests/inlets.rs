//! Bodies that come in pieces, are unwanted or are malformed: which bytes belong to which request.

use std::future::poll_fn;

use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpListener, TcpStream},
};

use crate::{
    clients::inlet::{GoOn, Inlet, Serving},
    http1::{Framing, Input, Limits, Step},
};

const LIMITS: Limits = Limits {
    bytes_max: 1 << 10,
    fields_max: 8,
};

/// A client, and the proxy's read half of its connection. The write half is returned to keep the connection open.
async fn pair() -> (TcpStream, Inlet, tokio::net::tcp::OwnedWriteHalf) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap())
        .await
        .unwrap();
    client.set_nodelay(true).unwrap();
    let (read, write) = listener.accept().await.unwrap().0.into_split();
    (client, Inlet::new(read, Input::default()), write)
}

/// Reads the lent body; `None` if it is malformed or truncated.
async fn body(inlet: &Inlet) -> Option<Vec<u8>> {
    let mut read = Vec::new();
    loop {
        let step = poll_fn(|context| inlet.poll_step(context)).await;
        let (step, is_last) = step.ok()?;
        if let Step::Data(data) = step {
            read.extend_from_slice(&data);
        }
        if is_last {
            inlet.let_go();
            return Some(read);
        }
    }
}

/// Whether the connection can be reused once the body is let go.
async fn drained(inlet: &Inlet) -> bool {
    let mut drained = 0;
    poll_fn(|context| inlet.lock().poll_let_go(context)).await;
    poll_fn(|context| inlet.lock().poll_drain(&mut drained, context)).await
}

/// The target of the next request.
async fn next(inlet: &Inlet) -> String {
    loop {
        if let Some(head) = inlet.lock().take_head(LIMITS).unwrap() {
            return head.parts.uri.to_string();
        }
        let read = poll_fn(|context| inlet.lock().poll_read(context)).await;
        assert_ne!(read.unwrap(), 0);
    }
}

const NEXT: &str = "GET /next HTTP/1.1\r\n\r\n";

#[tokio::test]
async fn a_body_takes_its_own_bytes_and_no_more() {
    for (framing, bytes) in [
        (Framing::Length(5), "hello"),
        (
            Framing::chunked(),
            "2\r\nhe\r\n3;x\r\nllo\r\n0\r\nx: y\r\n\r\n",
        ),
    ] {
        for cut in 0..bytes.len() {
            let (mut client, inlet, _write) = pair().await;
            inlet.lock().lend(framing, false);
            let all = format!("{bytes}{NEXT}");
            let writing = async {
                client.write_all(&all.as_bytes()[..cut]).await.unwrap();
                tokio::task::yield_now().await;
                client.write_all(&all.as_bytes()[cut..]).await.unwrap();
            };
            let (read, ()) = tokio::join!(body(&inlet), writing);
            assert_eq!(read.unwrap(), b"hello", "cut at {cut}");
            assert!(inlet.lock().is_over());
            assert_eq!(next(&inlet).await, "/next", "cut at {cut}");
        }
    }
}

#[tokio::test]
async fn unread_body_is_drained_up_to_a_limit() {
    for (len, is_drained) in [(100, true), (60 << 10, true), (1 << 20, false)] {
        let (mut client, inlet, _write) = pair().await;
        inlet.lock().lend(Framing::Length(len), false);
        inlet.let_go();
        assert_eq!(inlet.lock().can_go_on(), is_drained, "{len}");
        let writing = async {
            let _ = client.write_all(&vec![b'x'; len as usize]).await;
            let _ = client.write_all(NEXT.as_bytes()).await;
        };
        let draining = async {
            assert_eq!(drained(&inlet).await, is_drained, "{len}");
            if is_drained {
                assert_eq!(next(&inlet).await, "/next");
            }
        };
        // A client that is not drained cannot write everything.
        tokio::select! {
            () = draining => {}
            () = async { writing.await; std::future::pending().await } => {}
        }
    }
}

#[tokio::test]
async fn waits_for_a_handler_that_still_reads_the_body() {
    let (mut client, inlet, _write) = pair().await;
    inlet.lock().lend(Framing::Length(5), false);
    let wanting = async {
        tokio::task::yield_now().await;
        assert_eq!(body(&inlet).await.unwrap(), b"hello");
    };
    let writing = async { client.write_all(b"hello").await.unwrap() };
    let (is_drained, (), ()) = tokio::join!(drained(&inlet), wanting, writing);
    assert!(is_drained);
}

#[tokio::test]
async fn malformed_or_truncated_body_closes_the_connection() {
    for (framing, bytes) in [
        (Framing::chunked(), "x\r\n"),
        (Framing::chunked(), "2\r\nok\r\n"),
        (Framing::Length(3), "ok"),
    ] {
        let (mut client, inlet, _write) = pair().await;
        inlet.lock().lend(framing, false);
        client.write_all(bytes.as_bytes()).await.unwrap();
        client.shutdown().await.unwrap();
        assert_eq!(body(&inlet).await, None, "{bytes:?}");
        inlet.let_go();
        assert!(!inlet.lock().can_go_on(), "{bytes:?}");
        assert!(!drained(&inlet).await, "{bytes:?}");
        // The error is permanent.
        assert_eq!(body(&inlet).await, None, "{bytes:?}");
    }
}

#[tokio::test]
async fn a_body_does_not_outlive_its_connection() {
    let (mut client, inlet, _write) = pair().await;
    let serving = Serving(inlet.clone());
    inlet.lock().lend(Framing::Length(5), false);
    client.write_all(b"he").await.unwrap();
    let ending = async {
        tokio::task::yield_now().await;
        drop(serving);
    };
    let (read, ()) = tokio::join!(body(&inlet), ending);
    assert_eq!(read, None);
}

#[tokio::test]
async fn sends_100_continue_when_the_body_is_read() {
    let (mut client, inlet, _write) = pair().await;
    inlet.lock().lend(Framing::Length(2), true);
    assert_eq!(inlet.lock().go_on, GoOn::Unsaid);
    let telling = async {
        while inlet.lock().go_on != GoOn::Wanted {
            tokio::task::yield_now().await;
        }
        client.write_all(b"ok").await.unwrap();
    };
    let (read, ()) = tokio::join!(body(&inlet), telling);
    assert_eq!(read.unwrap(), b"ok");
    // Without `100 Continue` the client does not send the body, and the meaning of its next bytes is unknown.
    let (_client, inlet, _write) = pair().await;
    inlet.lock().lend(Framing::Length(2), true);
    inlet.let_go();
    assert!(!inlet.lock().can_go_on());
    assert!(!drained(&inlet).await);
}
