//! However HTTP/1 requests are split or pipelined, each must get exactly one response, in order.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use std::{
    io::{Read as _, Write as _},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use support::{AfterResponse, Client, Proxy, Upstream, answer, call, get, post, request, until};

/// Pipelined requests of several kinds.
fn several() -> Vec<u8> {
    let chunked = "PUT /chunked HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nx-sum: 1\r\n\r\n";
    [
        request("PUT /long", &[("X-Name", "1")], b"hello"),
        chunked.into(),
        get("/none"),
        b"DELETE /old HTTP/1.1\nhost: a\n\n".to_vec(),
        request("PUT /last", &[("connection", "close")], b"bye"),
    ]
    .concat()
}

#[test]
fn requests_are_the_same_wherever_they_are_cut() {
    let upstream = Upstream::echo();
    let proxy = Proxy::start(upstream.address, "[proxy]\nthreads = 1");
    let bytes = several();
    for cut in 0..bytes.len() {
        let before = upstream.count();
        let mut client = Client::connect(proxy.address);
        client.send(&bytes[..cut]);
        // Usually long enough for the proxy to read the first part alone.
        thread::sleep(Duration::from_micros(300));
        client.send(&bytes[cut..]);
        let mut bodies = Vec::new();
        while let Some(answer) = client.try_answer() {
            assert_eq!(answer.status, 200, "cut at {cut}");
            bodies.push(String::from_utf8(answer.body).unwrap());
        }
        assert_eq!(bodies, ["hello", "abcde", "", "", "bye"], "cut at {cut}");
        let seen = upstream.seen().split_off(before);
        let starts: Vec<_> = seen.iter().map(|seen| seen.start()).collect();
        let expected = [
            "PUT /long",
            "PUT /chunked",
            "GET /none",
            "DELETE /old",
            "PUT /last",
        ];
        assert_eq!(starts, expected, "cut at {cut}");
    }
}

#[test]
fn requests_that_come_byte_by_byte_are_answered_as_well() {
    let upstream = Upstream::echo();
    let proxy = Proxy::start(upstream.address, "");
    let mut client = Client::connect(proxy.address);
    let mut writer = client.stream.try_clone().unwrap();
    let writing = thread::spawn(move || {
        for byte in several() {
            writer.write_all(&[byte]).unwrap();
        }
    });
    for body in ["hello", "abcde", "", "", "bye"] {
        assert_eq!(client.answer().text(), body);
    }
    assert!(client.is_closed());
    writing.join().unwrap();
    assert_eq!(upstream.count(), 5);
}

#[test]
fn an_old_client_that_asks_to_be_kept_is_kept_and_never_gets_chunks() {
    let upstream = Upstream::start(|seen, stream| match seen.start() {
        "GET /chunked" => {
            let answer =
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n";
            stream.write_all(answer.as_bytes()).unwrap();
            AfterResponse::Keep
        }
        _ => answer(stream, "200 OK", &[], b"ok"),
    });
    let proxy = Proxy::start(upstream.address, "");
    let mut client = Client::connect(proxy.address);
    for _ in 0..3 {
        client.send("GET /a HTTP/1.0\r\nconnection: keep-alive\r\n\r\n");
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\nok") {
            answer.extend(client.exactly(1));
        }
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.starts_with("HTTP/1.0 200 OK\r\n"), "{answer}");
        assert!(answer.contains("connection: keep-alive\r\n"), "{answer}");
        assert!(answer.contains("content-length: 2\r\n"), "{answer}");
    }
    client.send("GET /chunked HTTP/1.0\r\nconnection: keep-alive\r\n\r\n");
    let mut rest = String::new();
    client.stream.read_to_string(&mut rest).unwrap();
    let (head, body) = rest.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.0 200 OK\r\n"), "{head}");
    assert!(!head.contains("transfer-encoding"), "{head}");
    assert_eq!(body, "ok");
}

#[test]
fn unread_short_body_keeps_the_connection_open() {
    let upstream = Upstream::echo();
    let settings = "[[operation]]\nmatch = \"POST /needs\"\nrequired = true";
    let proxy = Proxy::start(upstream.address, settings);
    let mut client = Client::connect(proxy.address);
    // The body is sent only after the response.
    client.send("POST /needs HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\n");
    let refused = client.answer();
    assert_eq!((refused.status, refused.header("connection")), (400, None));
    client.send("hello").send(get("/next"));
    assert_eq!(client.answer().status, 200);
    // An unread long body closes the connection, and the response says so.
    client.send("POST /needs HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\n");
    let refused = client.answer();
    let told = (refused.status, refused.header("connection"));
    assert_eq!(told, (400, Some("close")));
    assert!(client.is_closed());
    assert_eq!(upstream.count(), 1);
}

#[test]
fn closes_connection_rejected_before_its_body_was_sent() {
    let upstream = Upstream::echo();
    let proxy = Proxy::start(upstream.address, "");
    let mut client = Client::connect(proxy.address);
    client.send("POST /a HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\nidempotency-key: a b\r\ncontent-length: 5\r\n\r\n");
    let refused = client.head().unwrap();
    let told = (refused.status, refused.header("connection"));
    assert_eq!(told, (400, Some("close")));
    assert_eq!(upstream.count(), 0);
}

#[test]
fn rejects_malformed_body_guarded_or_not() {
    let upstream = Upstream::echo();
    let proxy = Proxy::start(upstream.address, "");
    for (more, detail) in [
        ("", "incomplete or malformed"),
        ("idempotency-key: k\r\n", "incomplete or malformed"),
    ] {
        let head =
            format!("POST /a HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n{more}\r\n");
        let mut client = Client::connect(proxy.address);
        let refused = client.send(format!("{head}x\r\n")).answer();
        assert_eq!(refused.status, 400, "{more}");
        let kind = refused.header("content-type");
        assert_eq!(kind, Some("application/problem+json"), "{more}");
        assert!(refused.text().contains(detail), "{more}");
        assert!(client.is_closed());
    }
    assert_eq!(upstream.count(), 0);
}

#[test]
fn malformed_request_is_rejected_with_the_reason() {
    let upstream = Upstream::echo();
    let proxy = Proxy::start(upstream.address, "[proxy]\nheaders_max = 20");
    let many = "x: y\r\n".repeat(30);
    for (bytes, status) in [
        (
            "GET / HTTP/1.1\r\nhost: a\r\nx y: z\r\n\r\n".to_owned(),
            400,
        ),
        ("GET / HTTP/9.9\r\nhost: a\r\n\r\n".to_owned(), 400),
        (format!("GET / HTTP/1.1\r\nhost: a\r\n{many}\r\n"), 431),
        // A large body that is still being sent when the response leaves.
        (
            format!("GET / HTTP/1.1\r\nhost: a\r\nx: {}", "x".repeat(200_000)),
            431,
        ),
        (
            format!("GET /{} HTTP/1.1\r\nhost: a\r\n\r\n", "x".repeat(70_000)),
            414,
        ),
    ] {
        let mut client = Client::connect(proxy.address);
        client.send(bytes);
        let refused = client.answer();
        assert_eq!(refused.status, status);
        assert_eq!(refused.header("connection"), Some("close"));
        assert_eq!(
            refused.header("content-type"),
            Some("application/problem+json")
        );
        assert!(refused.header("date").is_some());
        assert!(client.is_closed());
    }
    assert_eq!(upstream.count(), 0);
}

#[test]
fn a_client_that_hangs_up_is_noticed_while_it_is_answered() {
    let is_let_go = Arc::new(AtomicBool::new(false));
    let let_go = is_let_go.clone();
    let upstream = Upstream::start(move |seen, stream| {
        if seen.header("idempotency-key").is_some() {
            thread::sleep(Duration::from_millis(300));
            return answer(stream, "201 Created", &[], b"made");
        }
        // Sends no response, and ends when the proxy closes the connection.
        let read = stream.read(&mut [0]);
        let_go.store(matches!(read, Ok(0) | Err(_)), Relaxed);
        AfterResponse::Close
    });
    let proxy = Proxy::start(upstream.address, "");
    let mut gone = Client::connect(proxy.address);
    gone.send(get("/slow"));
    upstream.wait_for(1);
    drop(gone);
    until("the upstream connection is closed", || {
        is_let_go.load(Relaxed)
    });
    // A guarded request still completes, and its outcome is stored.
    let mut gone = Client::connect(proxy.address);
    gone.send(post("k", "x"));
    upstream.wait_for(2);
    drop(gone);
    let again = call(proxy.address, post("k", "x"));
    assert_eq!((again.status, again.text()), (201, "made"));
    assert_eq!(upstream.count(), 2);
}

/// The runtime interrupts a task that did much work at once, at any await point (cooperative budget).
#[test]
fn a_client_that_hangs_up_is_noticed_however_much_was_answered_before() {
    let let_go = Arc::new(AtomicUsize::new(0));
    let count = let_go.clone();
    let upstream = Upstream::start(move |_, stream| {
        // Sends no response, and ends when the proxy closes the connection.
        if let Ok(0) | Err(_) = stream.read(&mut [0]) {
            count.fetch_add(1, Relaxed);
        }
        AfterResponse::Close
    });
    let proxy = Proxy::start(upstream.address, "[proxy]\nthreads = 1");
    let counts = 100..160;
    for refused in counts.clone() {
        let mut gone = Client::connect(proxy.address);
        let mut bytes = post("no key", "x").repeat(refused);
        bytes.extend(get("/slow"));
        gone.send(bytes);
        for _ in 0..refused {
            assert_eq!(gone.answer().status, 400);
        }
        upstream.wait_for(1 + refused - counts.start);
    }
    until("every upstream connection is closed", || {
        let_go.load(Relaxed) == counts.len()
    });
}

/// The socket accepts less and less at a time, and then nothing.
#[test]
fn slowly_read_replays_arrive_whole_and_in_order() {
    const COUNT: usize = 8_000;
    let upstream = Upstream::start(|seen, stream| {
        let body = seen.header("idempotency-key").unwrap().repeat(3_000);
        answer(stream, "201 Created", &[], body.as_bytes())
    });
    let proxy = Proxy::start(upstream.address, "[proxy]\nthreads = 1");
    let keys = ["a", "b", "c"];
    for key in keys {
        call(proxy.address, post(key, "x"));
    }
    let mut client = Client::connect(proxy.address);
    let round: Vec<u8> = keys.iter().flat_map(|key| post(key, "x")).collect();
    let mut sender = client.sender();
    let sending = thread::spawn(move || sender.write_all(&round.repeat(COUNT / 3)));
    thread::sleep(Duration::from_millis(300));
    for at in 0..COUNT / 3 * 3 {
        let replay = client.answer();
        assert!(replay.is_replay());
        let is_whole = replay.text() == keys[at % 3].repeat(3_000);
        assert!(is_whole, "{at}");
    }
    sending.join().unwrap().unwrap();
    assert_eq!(upstream.count(), 3);
}

#[test]
fn malformed_body_closes_the_connection_after_the_response() {
    let upstream = Upstream::echo();
    let proxy = Proxy::start(upstream.address, "");
    for key in ["", "idempotency-key: k\r\n"] {
        let mut client = Client::connect(proxy.address);
        let head =
            format!("POST /a HTTP/1.1\r\nhost: a\r\n{key}transfer-encoding: chunked\r\n\r\n");
        client.send(head).send("2\r\nokk\r\n").send(get("/inner"));
        let refused = client.answer();
        assert_eq!(refused.status, 400);
        assert!(client.is_closed());
    }
    assert!(
        upstream
            .seen()
            .iter()
            .all(|seen| seen.start() != "GET /inner")
    );
}

/// A client may end its side of the connection with its request (half-close).
#[test]
fn a_client_that_sends_no_more_gets_answers_that_need_no_waiting() {
    let upstream = Upstream::echo();
    let proxy = Proxy::start(upstream.address, "");
    assert_eq!(call(proxy.address, post("k", "x")).status, 200);
    for _ in 0..20 {
        for (bytes, status, is_replay) in [
            (post("k", "x"), 200, true),
            (post("a b", "x"), 400, false),
            (b"GET / HTTP/1.1\r\n\r\n".to_vec(), 400, false),
        ] {
            let mut client = Client::connect(proxy.address);
            let told = client.send(bytes).say_no_more().answer();
            assert_eq!((told.status, told.is_replay()), (status, is_replay));
            assert!(client.is_closed());
        }
    }
    assert_eq!(upstream.count(), 1);
}
