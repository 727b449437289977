//! Interim responses (1xx) of the upstream: passed on live to clients over HTTP/1.1, and never stored or replayed.

mod support;

use std::io::{Read as _, Write as _};

use support::{Client, Proxy, Seen, Upstream, answer, call, get, http2, post, until};

const HINTS: &str = "HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\nConnection: x-hop\r\nX-Hop: 1\r\nRefrain-Outcome: keep\r\n\r\n";
const PROCESSING: &str = "HTTP/1.1 102 Processing\r\n\r\n";

/// Sends interim responses, and the response only after `may_answer`.
fn hinting(may_answer: impl Fn(&Seen) + Send + Sync + 'static) -> Upstream {
    Upstream::start(move |seen, stream| {
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").unwrap();
        stream.write_all(PROCESSING.as_bytes()).unwrap();
        // In two pieces, so that the proxy may see half a head.
        let (start, rest) = HINTS.split_at(40);
        stream.write_all(start.as_bytes()).unwrap();
        stream.flush().unwrap();
        stream.write_all(rest.as_bytes()).unwrap();
        may_answer(seen);
        answer(stream, "200 OK", &[], b"done")
    })
}

/// The next heads are the two interim ones.
fn take_hints(client: &mut Client) {
    let processing = client.head().unwrap();
    assert_eq!(processing.status, 102, "{}", processing.head);
    let hints = client.head().unwrap();
    assert_eq!(hints.status, 103, "{}", hints.head);
    assert_eq!(hints.header("link"), Some("</a.css>; rel=preload"));
    assert_eq!(hints.header("x-hop"), None, "{}", hints.head);
    assert_eq!(hints.header("connection"), None, "{}", hints.head);
    assert_eq!(hints.header("refrain-outcome"), None, "{}", hints.head);
}

#[test]
fn interim_responses_arrive_before_the_response_is_known() {
    let (go, may_go) = std::sync::mpsc::channel();
    let may_go = std::sync::Mutex::new(may_go);
    let upstream = hinting(move |_| may_go.lock().unwrap().recv().unwrap());
    let proxy = Proxy::start(upstream.address, "");
    let mut client = Client::connect(proxy.address);
    for (request, is_guarded) in [(get("/page"), false), (post("k", "{}"), true)] {
        client.send(&request);
        take_hints(&mut client);
        go.send(()).unwrap();
        let shown = client.answer();
        assert_eq!((shown.status, &*shown.body), (200, &b"done"[..]));
        assert_eq!(shown.header("refrain-record").is_some(), is_guarded);
    }
    // A replay has none.
    client.send(post("k", "{}"));
    let replay = client.head().unwrap();
    assert_eq!(replay.status, 200, "{}", replay.head);
    assert_eq!(replay.header("idempotent-replayed"), Some("true"));
    assert_eq!(upstream.count(), 2);
}

#[test]
fn clients_without_interim_responses_get_the_response_alone() {
    let upstream = hinting(|_| {});
    let proxy = Proxy::start(upstream.address, "");
    let mut old = std::net::TcpStream::connect(proxy.address).unwrap();
    old.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let mut shown = String::new();
    old.read_to_string(&mut shown).unwrap();
    assert!(shown.starts_with("HTTP/1.0 200"), "{shown}");
    assert!(!shown.contains("Early Hints"), "{shown}");
    let fields = [
        (":method", "GET"),
        (":scheme", "http"),
        (":authority", "shop.test"),
        (":path", "/"),
    ];
    assert_eq!(http2::call(proxy.address, &fields, None), Some(200));
}

#[test]
fn interim_responses_never_reach_the_next_request() {
    // The first request is answered with a timeout; its interim responses arrive during the second one.
    let (go, may_go) = std::sync::mpsc::channel();
    let may_go = std::sync::Mutex::new(may_go);
    let upstream = Upstream::start(move |seen, stream| {
        if seen.start() == "POST /pay" {
            may_go.lock().unwrap().recv().unwrap();
            stream.write_all(HINTS.as_bytes()).unwrap();
            return answer(stream, "201 Created", &[], b"late");
        }
        answer(stream, "200 OK", &[], b"next")
    });
    let settings = "[[operation]]\nmatch = \"POST /pay\"\ntimeout = \"50ms\"\n";
    let proxy = Proxy::start(upstream.address, settings);
    let mut client = Client::connect(proxy.address);
    let pay = support::request("POST /pay", &[("idempotency-key", "late")], b"{}");
    client.send(&pay);
    let first = client.head().unwrap();
    assert_eq!(first.status, 504, "{}", first.head);
    let len = first.header("content-length").unwrap().parse().unwrap();
    client.exactly(len);
    go.send(()).unwrap();
    until("the late response is stored", || {
        call(proxy.address, pay.clone()).status == 201
    });
    client.send(get("/next"));
    let next = client.head().unwrap();
    assert_eq!(next.status, 200, "{}", next.head);
}

#[test]
fn interim_responses_stay_in_order_between_large_responses() {
    let upstream = Upstream::start(|seen, stream| {
        stream.write_all(HINTS.as_bytes()).unwrap();
        answer(
            stream,
            "200 OK",
            &[],
            &vec![b'a' + (seen.at % 26) as u8; 300_000],
        )
    });
    let proxy = Proxy::start(upstream.address, "");
    // Pipelined, and the client reads late and little.
    let mut client = Client::connect_narrow(proxy.address);
    for _ in 0..20 {
        client.send(get("/"));
    }
    for at in 0..20_u8 {
        let hints = client.head().unwrap();
        assert_eq!(hints.status, 103, "{at}: {}", hints.head);
        let head = client.head().unwrap();
        assert_eq!(head.status, 200, "{at}: {}", head.head);
        let body = client.exactly(300_000);
        assert!(body.iter().all(|byte| *byte == b'a' + at), "{at}");
    }
}

#[test]
fn an_upstream_that_sends_hints_for_ever_is_given_up() {
    let address = Upstream::raw(|mut stream| {
        let mut head = [0; 4096];
        let _ = stream.read(&mut head);
        // Until the proxy closes the connection.
        while stream.write_all(HINTS.as_bytes()).is_ok() {}
    });
    let proxy = Proxy::start(address, "");
    let mut client = Client::connect(proxy.address);
    client.send(get("/"));
    let last = loop {
        let head = client.head().unwrap();
        if head.status != 103 {
            break head;
        }
    };
    assert_eq!(last.status, 502, "{}", last.head);
}
