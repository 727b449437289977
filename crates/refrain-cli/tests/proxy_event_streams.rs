//! Responses of the type `text/event-stream`: sent while they arrive, unless the policy says otherwise.

mod support;

use std::{
    io::Write as _,
    sync::{Mutex, mpsc},
};

use support::{AfterResponse, Client, Proxy, Upstream, post};

const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";

fn event(text: &str) -> String {
    let event = format!("data: {text}\n\n");
    format!("{:x}\r\n{event}\r\n", event.len())
}

/// An upstream that sends the first event at once, and the last one when it is told to.
fn streaming() -> (Upstream, mpsc::Sender<()>) {
    let (go, may_go) = mpsc::channel();
    let may_go = Mutex::new(may_go);
    let upstream = Upstream::start(move |_, stream| {
        let first = format!("{HEAD}{}", event("one"));
        stream.write_all(first.as_bytes()).unwrap();
        may_go.lock().unwrap().recv().unwrap();
        let rest = format!("{}0\r\n\r\n", event("two"));
        stream.write_all(rest.as_bytes()).unwrap();
        AfterResponse::Keep
    });
    (upstream, go)
}

#[test]
fn an_event_stream_is_sent_while_it_arrives_and_then_replayed() {
    let (upstream, go) = streaming();
    let proxy = Proxy::start(upstream.address, "");
    let mut first = Client::connect(proxy.address);
    first.send(post("k", "{}"));
    let head = first.head().unwrap();
    assert_eq!(head.status, 200, "{}", head.head);
    assert_eq!(first.chunk().unwrap(), b"data: one\n\n");
    // A duplicate follows the live stream.
    let mut duplicate = Client::connect(proxy.address);
    duplicate.send(post("k", "{}"));
    assert_eq!(
        duplicate.head().unwrap().header("idempotent-replayed"),
        Some("true")
    );
    assert_eq!(duplicate.chunk().unwrap(), b"data: one\n\n");
    go.send(()).unwrap();
    assert_eq!(first.chunk().unwrap(), b"data: two\n\n");
    assert_eq!(first.chunk(), None);
    assert_eq!(duplicate.chunk().unwrap(), b"data: two\n\n");
    let replay = support::call(proxy.address, post("k", "{}"));
    assert_eq!(replay.body, b"data: one\n\ndata: two\n\n");
    assert_eq!(upstream.count(), 1);
}

#[test]
fn a_policy_can_have_event_streams_stored_first() {
    let (upstream, go) = streaming();
    let proxy = Proxy::start(upstream.address, "[policy]\nreply = \"stored\"\n");
    let mut client = Client::connect(proxy.address);
    client.send(post("k", "{}"));
    upstream.wait_for(1);
    go.send(()).unwrap();
    let shown = client.answer();
    // The whole stream is known when the response begins.
    assert_eq!(shown.header("content-length"), Some("22"), "{}", shown.head);
    assert_eq!(shown.body, b"data: one\n\ndata: two\n\n");
}
