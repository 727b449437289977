//! Unguarded requests must pass unchanged: bodies of any size and framing, trailers, upgrades, HTTP/1 and HTTP/2.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, TcpStream},
    sync::Mutex,
    thread,
};

use support::{AfterResponse, Client, Proxy, Upstream, answer, call, find, get, request, until};

/// Reads up to the end of a head, byte by byte, so that no later byte is consumed.
fn head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.extend(byte);
    }
    String::from_utf8(head).unwrap()
}

/// Reads exactly these bytes.
fn expect(stream: &mut TcpStream, bytes: &[u8]) {
    let mut read = vec![0; bytes.len()];
    stream.read_exact(&mut read).unwrap();
    assert_eq!(
        String::from_utf8_lossy(&read),
        String::from_utf8_lossy(bytes)
    );
}

const UPGRADE: [(&str, &str); 3] = [
    ("connection", "keep-alive, Upgrade"),
    ("upgrade", "websocket"),
    ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
];

#[test]
fn an_upgrade_joins_both_sides_byte_for_byte() {
    let upstream = Upstream::raw(|mut stream| {
        let head = head(&mut stream).to_lowercase();
        assert!(head.contains("upgrade: websocket\r\n"), "{head}");
        assert!(head.contains("connection: upgrade\r\n"), "{head}");
        assert!(head.contains("sec-websocket-key: "), "{head}");
        let switched = "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-accept: yes\r\n\r\nat once";
        stream.write_all(switched.as_bytes()).unwrap();
        let mut bytes = [0; 1 << 16];
        loop {
            match stream.read(&mut bytes).unwrap() {
                0 => break,
                len => stream.write_all(&bytes[..len]).unwrap(),
            }
        }
        stream.write_all(b"last words").unwrap();
    });
    let proxy = Proxy::start(upstream, "");
    let mut client = Client::connect(proxy.address);
    client.send(request("GET /ws", &UPGRADE, b""));
    let switched = client.answer();
    assert_eq!(switched.status, 101);
    assert_eq!(switched.header("upgrade"), Some("websocket"));
    assert_eq!(switched.header("connection"), Some("upgrade"));
    assert_eq!(switched.header("sec-websocket-accept"), Some("yes"));
    assert_eq!(client.exactly(7), b"at once");
    let all: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
    for piece in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"\0\xff", &all] {
        let mut writer = client.stream.try_clone().unwrap();
        let sent = piece.to_vec();
        let writing = thread::spawn(move || writer.write_all(&sent).unwrap());
        assert!(client.exactly(piece.len()) == piece);
        writing.join().unwrap();
    }
    client.say_no_more();
    assert_eq!(client.exactly(10), b"last words");
    assert!(client.is_closed());
}

#[test]
fn rejected_upgrade_gets_a_normal_response_and_guarded_requests_are_not_upgraded() {
    let upstream = Upstream::start(|_, stream| answer(stream, "426 Upgrade Required", &[], b"no"));
    let proxy = Proxy::start(upstream.address, "");
    let mut client = Client::connect(proxy.address);
    for _ in 0..2 {
        let answer = client.send(request("GET /ws", &UPGRADE, b"")).answer();
        assert_eq!((answer.status, answer.text()), (426, "no"));
    }
    let key = ("idempotency-key", "k");
    let guarded = request("POST /ws", &[&UPGRADE[..], &[key]].concat(), b"x");
    assert_eq!(call(proxy.address, guarded).status, 426);
    let seen = upstream.seen();
    assert_eq!(seen[0].header("upgrade"), Some("websocket"));
    assert_eq!(seen[2].header("upgrade"), None);
    assert_eq!(seen[2].header("connection"), None);
}

#[test]
fn trailers_pass_both_ways_and_are_replayed() {
    let upstream = Upstream::start(|_, stream| {
        let answer = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n5\r\nhello\r\n0\r\nx-sum: 7\r\n\r\n";
        stream.write_all(answer.as_bytes()).unwrap();
        AfterResponse::Keep
    });
    let proxy = Proxy::start(upstream.address, "");
    let head = "POST /a HTTP/1.1\r\nhost: a\r\nte: trailers\r\ntrailer: x-mine\r\ntransfer-encoding: chunked\r\n";
    let body = "3\r\nabc\r\n0\r\nx-mine: 9\r\n\r\n";
    let keyless = format!("{head}\r\n{body}");
    let keyed = format!("{head}idempotency-key: k\r\n\r\n{body}");
    for (bytes, is_replay) in [(&keyless, false), (&keyed, false), (&keyed, true)] {
        let answer = call(proxy.address, bytes);
        assert_eq!((answer.status, answer.text()), (200, "hello"));
        assert_eq!(answer.trailers, "x-sum: 7\r\n");
        assert_eq!(answer.is_replay(), is_replay);
    }
    let seen = upstream.seen();
    assert_eq!(seen.len(), 2);
    for seen in seen {
        assert_eq!(
            (&*seen.body, &*seen.trailers),
            (&b"abc"[..], "x-mine: 9\r\n")
        );
        assert_eq!(seen.header("te"), Some("trailers"));
    }
}

/// The body is complete without them; see docs/framing.md.
#[test]
fn trailers_that_nobody_announced_or_requested_are_dropped() {
    let upstream = Upstream::start(|_, stream| {
        let answer = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nx-sum: 7\r\n\r\n";
        stream.write_all(answer.as_bytes()).unwrap();
        AfterResponse::Keep
    });
    let proxy = Proxy::start(upstream.address, "");
    let head = "POST /a HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n";
    let body = "3\r\nabc\r\n0\r\nx-mine: 9\r\n\r\n";
    let keyless = format!("{head}\r\n{body}");
    let keyed = format!("{head}idempotency-key: k\r\n\r\n{body}");
    for bytes in [&keyless, &keyed, &keyed] {
        let answer = call(proxy.address, bytes);
        assert_eq!((answer.text(), &*answer.trailers), ("hello", ""));
    }
    for seen in upstream.seen() {
        assert_eq!((&*seen.body, &*seen.trailers), (&b"abc"[..], ""));
    }
}

/// A recipient may merge trailers into the head, where these names decide how the message is read, or who sent it.
#[test]
fn trailers_that_only_a_head_may_carry_are_dropped() {
    const TRAILERS: &str =
        "Connection: close\r\nCookie: a=b\r\nRefrain-Record: forged\r\nx-sum: 7\r\n";
    const NAMES: &str = "connection, cookie, refrain-record, x-sum";
    let upstream = Upstream::start(|_, stream| {
        let answer = format!(
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: {NAMES}\r\n\r\n5\r\nhello\r\n0\r\n{TRAILERS}\r\n"
        );
        stream.write_all(answer.as_bytes()).unwrap();
        AfterResponse::Keep
    });
    let proxy = Proxy::start(upstream.address, "");
    let head = format!(
        "POST /a HTTP/1.1\r\nhost: a\r\nte: trailers\r\ntrailer: {NAMES}\r\ntransfer-encoding: chunked\r\n"
    );
    let body = format!("3\r\nabc\r\n0\r\n{TRAILERS}\r\n");
    let keyless = format!("{head}\r\n{body}");
    let keyed = format!("{head}idempotency-key: k\r\n\r\n{body}");
    for bytes in [&keyless, &keyed, &keyed] {
        let answer = call(proxy.address, bytes);
        assert_eq!((answer.status, answer.text()), (200, "hello"));
        assert_eq!(answer.trailers, "x-sum: 7\r\n");
    }
    let seen = upstream.seen();
    assert_eq!(seen.len(), 2);
    for seen in seen {
        assert_eq!(
            (&*seen.body, &*seen.trailers),
            (&b"abc"[..], "x-sum: 7\r\n")
        );
    }
}

#[test]
fn expect_continue_gets_100_or_the_final_response() {
    let upstream = Upstream::echo();
    let proxy = Proxy::start(upstream.address, "");
    let head = |more: &str| {
        format!(
            "POST /a HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 5\r\n{more}\r\n"
        )
    };
    let mut client = Client::connect(proxy.address);
    for more in ["", "idempotency-key: k\r\n", "idempotency-key: k\r\n"] {
        client.send(head(more));
        assert_eq!(client.head().unwrap().status, 100);
        let answer = client.send("hello").answer();
        assert_eq!((answer.status, answer.text()), (200, "hello"));
    }
    // A request that will be rejected gets its response before it sends the body.
    let refused = client
        .send(head("idempotency-key: a b\r\n"))
        .head()
        .unwrap();
    assert_eq!(refused.status, 400);
    assert_eq!(upstream.count(), 2);
}

#[test]
fn pieces_pass_both_ways_before_the_last_is_sent() {
    let upstream = Upstream::raw(|mut stream| {
        let head = head(&mut stream).to_lowercase();
        assert!(head.contains("transfer-encoding: chunked\r\n"), "{head}");
        let answer = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        stream.write_all(answer.as_bytes()).unwrap();
        for at in 0..5 {
            expect(&mut stream, format!("6\r\nping {at}\r\n").as_bytes());
            let pong = format!("6\r\npong {at}\r\n");
            stream.write_all(pong.as_bytes()).unwrap();
        }
        expect(&mut stream, b"0\r\n\r\n");
        stream.write_all(b"0\r\n\r\n").unwrap();
    });
    let proxy = Proxy::start(upstream, "");
    let mut client = Client::connect(proxy.address);
    client.send("PUT /a HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n");
    for at in 0..5 {
        client.send(format!("6\r\nping {at}\r\n"));
        if at == 0 {
            assert_eq!(client.head().unwrap().status, 200);
        }
        assert_eq!(client.chunk().unwrap(), format!("pong {at}").into_bytes());
    }
    client.send("0\r\n\r\n");
    assert_eq!(client.chunk(), None);
    assert_eq!(client.line(), "\r\n");
}

/// Reads and writes large bodies without buffering them.
fn bulk(mut stream: TcpStream) {
    let head = head(&mut stream).to_lowercase();
    let (_, len) = head.split_once("content-length: ").unwrap();
    let len: u64 = len.split("\r\n").next().unwrap().parse().unwrap();
    swallow(&mut stream, len);
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {len}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    pour(&mut stream, len);
}

const BULK: usize = 1 << 20;

fn pour(stream: &mut TcpStream, len: u64) {
    let bytes = vec![b'x'; BULK];
    for _ in 0..len / BULK as u64 {
        stream.write_all(&bytes).unwrap();
    }
}

fn swallow(stream: &mut TcpStream, len: u64) {
    let mut bytes = vec![0; BULK];
    let mut left = len;
    while left > 0 {
        let most = bytes.len().min(usize::try_from(left).unwrap());
        let read = stream.read(&mut bytes[..most]).unwrap();
        assert!(read > 0, "{left} bytes are missing");
        left -= read as u64;
    }
}

#[test]
fn a_huge_body_passes_both_ways_in_little_memory() {
    let mib = std::env::var("REFRAIN_BODY_MIB").map_or(1_024, |mib| mib.parse().unwrap());
    let len: u64 = mib << 20;
    let proxy = Proxy::start(Upstream::raw(bulk), "");
    let mut client = Client::connect(proxy.address);
    client.send(format!(
        "POST /bulk HTTP/1.1\r\nhost: a\r\ncontent-length: {len}\r\n\r\n"
    ));
    pour(&mut client.stream, len);
    let head = head(&mut client.stream);
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    swallow(&mut client.stream, len);
    let high = proxy.memory_high();
    assert!(high < 100 << 10, "{high} KiB");
}

/// An upstream that responds while it reads must not wait for a client that reads only after sending everything.
#[test]
fn an_answer_that_nobody_reads_yet_does_not_hold_up_the_request() {
    const LEN: u64 = 32 << 20;
    let upstream = Upstream::raw(|mut stream| {
        head(&mut stream);
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {LEN}\r\n\r\n");
        stream.write_all(answer.as_bytes()).unwrap();
        let mut writer = stream.try_clone().unwrap();
        let pouring = thread::spawn(move || pour(&mut writer, LEN));
        swallow(&mut stream, LEN);
        pouring.join().unwrap();
    });
    let proxy = Proxy::start(upstream, "");
    let mut client = Client::connect(proxy.address);
    client.send(format!(
        "PUT /a HTTP/1.1\r\nhost: a\r\ncontent-length: {LEN}\r\n\r\n"
    ));
    pour(&mut client.stream, LEN);
    let head = head(&mut client.stream);
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    swallow(&mut client.stream, LEN);
}

#[test]
fn strips_hop_by_hop_headers_and_adds_forwarded_headers() {
    let upstream = Upstream::start(|_, stream| {
        let headers = [
            ("connection", "x-hop, keep-alive"),
            ("keep-alive", "timeout=5"),
            ("x-hop", "1"),
            ("proxy-connection", "1"),
            ("x-end", "1"),
            ("set-cookie", "a=1"),
            ("set-cookie", "b=2"),
        ];
        answer(stream, "200 OK", &headers, b"x")
    });
    let proxy = Proxy::start(upstream.address, "");
    let bytes = request(
        "GET /a",
        &[
            ("connection", "X-Hop, authorization, idempotency-key"),
            ("x-hop", "1"),
            ("keep-alive", "1"),
            ("proxy-connection", "1"),
            ("te", "gzip"),
            ("authorization", "Bearer x"),
            ("idempotency-key", "k"),
            ("x-end", "1"),
            ("x-forwarded-for", "10.0.0.1"),
            ("via", "1.0 other"),
        ],
        b"",
    );
    let answer = call(proxy.address, bytes);
    for name in ["x-hop", "keep-alive", "proxy-connection"] {
        assert_eq!(answer.header(name), None, "{name}");
    }
    assert_eq!(answer.header("x-end"), Some("1"));
    assert!(
        answer
            .head
            .contains("set-cookie: a=1\r\nset-cookie: b=2\r\n")
    );
    call(proxy.address, get("/plain"));
    let seen = upstream.seen();
    for (name, value) in [
        ("x-hop", None),
        ("keep-alive", None),
        ("proxy-connection", None),
        ("te", None),
        ("connection", None),
        ("authorization", Some("Bearer x")),
        ("idempotency-key", Some("k")),
        ("x-end", Some("1")),
        ("host", Some("shop.test")),
        ("x-forwarded-for", Some("127.0.0.1")),
        ("x-forwarded-host", Some("shop.test")),
        ("x-forwarded-proto", Some("http")),
        ("via", Some("1.0 other, 1.1 refrain")),
    ] {
        assert_eq!(seen[0].header(name), value, "{name}");
    }
    for (name, value) in [
        ("x-forwarded-for", "127.0.0.1"),
        ("via", "1.1 refrain"),
        ("x-forwarded-host", "shop.test"),
    ] {
        assert_eq!(seen[1].header(name), Some(value), "{name}");
    }
}

#[test]
fn the_upstream_may_see_its_own_host() {
    let upstream = Upstream::echo();
    let proxy = Proxy::start(upstream.address, "[proxy]\nhost = \"upstream\"");
    assert_eq!(call(proxy.address, get("/")).status, 200);
    let seen = upstream.seen();
    assert_eq!(seen[0].header("host"), Some(&*upstream.address.to_string()));
    assert_eq!(seen[0].header("x-forwarded-host"), Some("shop.test"));
}

#[test]
fn answers_without_bodies_say_what_they_would_have_said() {
    let upstream = Upstream::start(|seen, stream| {
        let answer = match seen.start() {
            "HEAD /a" => "HTTP/1.1 200 OK\r\ncontent-length: 77\r\n\r\n",
            "HEAD /chunked" => "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
            "GET /none" => "HTTP/1.1 204 No Content\r\n\r\n",
            "GET /same" => "HTTP/1.1 304 Not Modified\r\ncontent-length: 77\r\netag: \"e\"\r\n\r\n",
            "GET /hint" => {
                "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
            }
            _ => {
                let _ = stream.write_all(b"HTTP/1.0 200 OK\r\n\r\nuntil the end");
                return AfterResponse::Close;
            }
        };
        stream.write_all(answer.as_bytes()).unwrap();
        AfterResponse::Keep
    });
    let proxy = Proxy::start(upstream.address, "");
    let mut client = Client::connect(proxy.address);
    let long = client.send(request("HEAD /a", &[], b"")).head().unwrap();
    assert_eq!(
        (long.status, long.header("content-length")),
        (200, Some("77"))
    );
    let head = client
        .send(request("HEAD /chunked", &[], b""))
        .head()
        .unwrap();
    assert_eq!(head.status, 200);
    assert_eq!(client.send(get("/none")).answer().status, 204);
    let same = client.send(get("/same")).answer();
    assert_eq!((same.status, same.header("etag")), (304, Some("\"e\"")));
    assert_eq!(client.send(get("/hint")).answer().text(), "ok");
    assert_eq!(client.send(get("/end")).answer().text(), "until the end");
    // A response with a body after bodyless ones is still matched correctly.
    assert_eq!(client.send(get("/hint")).answer().text(), "ok");
}

#[test]
fn an_answer_that_is_cut_is_cut_for_the_client_too() {
    let upstream = Upstream::raw(|mut stream| {
        head(&mut stream);
        let cut = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n";
        stream.write_all(cut.as_bytes()).unwrap();
        let _ = stream.shutdown(Shutdown::Both);
    });
    let proxy = Proxy::start(upstream, "");
    let mut client = Client::connect(proxy.address);
    assert_eq!(client.send(get("/")).head().unwrap().status, 200);
    let mut rest = Vec::new();
    let _ = client.stream.read_to_end(&mut rest);
    // It must not look like a complete response.
    assert_eq!(find(&rest, b"0\r\n\r\n"), None);
}

#[test]
fn a_response_that_breaks_off_or_stalls_is_counted() {
    let upstream = Upstream::start(|seen, stream| {
        let head = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc";
        stream.write_all(head).unwrap();
        if seen.head.contains("/stalls") {
            // Until the proxy has given up.
            let _ = stream.read(&mut [0]);
        }
        AfterResponse::Close
    });
    let proxy = Proxy::start(upstream.address, "[proxy]\nread_timeout = \"200ms\"\n");
    let count = |reason: &str| {
        proxy.metric(&format!(
            "refrain_upstream_errors_total{{reason=\"{reason}\"}}"
        ))
    };
    for (path, reason) in [("/cut", "truncated"), ("/stalls", "stalled")] {
        assert_eq!(count(reason) as u64, 0, "{reason}");
        let mut client = Client::connect(proxy.address);
        client.send(request(&format!("GET {path}"), &[], b""));
        let mut all = Vec::new();
        let _ = client.stream.read_to_end(&mut all);
        until("it is counted", || count(reason) as u64 == 1);
    }
}

#[test]
fn an_early_answer_reaches_a_client_that_still_sends() {
    let upstream = Upstream::raw(|mut stream| {
        head(&mut stream);
        let early = "HTTP/1.1 413 Too Large\r\nconnection: close\r\ncontent-length: 2\r\n\r\nno";
        stream.write_all(early.as_bytes()).unwrap();
        // Drains the request, so that a reset does not destroy the response.
        let _ = stream.shutdown(Shutdown::Write);
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    });
    let proxy = Proxy::start(upstream, "");
    let mut client = Client::connect(proxy.address);
    client.send("PUT /a HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\nsome");
    let answer = client.answer();
    assert_eq!((answer.status, answer.text()), (413, "no"));
}

/// Responds before it has read the request, and then resets the connection.
fn reject_and_reset(mut stream: TcpStream) {
    let start = head(&mut stream);
    // The proxy is sending the body now.
    stream.read_exact(&mut [0; 1_000]).unwrap();
    let text = "x".repeat(if start.contains("short") { 2 } else { 40_000 });
    let answer = match start.contains("chunked") {
        true => format!("transfer-encoding: chunked\r\n\r\n9c40\r\n{text}\r\n0\r\n\r\n"),
        false => format!("content-length: {}\r\n\r\n{text}", text.len()),
    };
    let answer = format!("HTTP/1.1 413 Too Large\r\n{answer}");
    stream.write_all(answer.as_bytes()).unwrap();
}

#[test]
fn an_early_answer_survives_the_reset_of_its_connection() {
    let proxy = Proxy::start(Upstream::raw(reject_and_reset), "");
    for (path, len) in [("short", 2), ("long", 40_000), ("chunked", 40_000)] {
        for _ in 0..20 {
            let mut client = Client::connect(proxy.address);
            let mut sender = client.sender();
            client.send(format!(
                "PUT /{path} HTTP/1.1\r\nhost: a\r\ncontent-length: 8388608\r\n\r\n"
            ));
            // Fails if the proxy closes the connection before it has read all of it.
            let sending = thread::spawn(move || sender.write_all(&vec![b'x'; 8 << 20]));
            let answer = client.answer();
            assert_eq!((answer.status, answer.body.len()), (413, len), "{path}");
            drop(client);
            let _ = sending.join().unwrap();
        }
    }
}

/// Sizes at which a body fills the socket buffers of a connection almost, exactly, or more than that.
fn sizes(step: usize) -> impl Iterator<Item = usize> {
    (1 << 20..6 << 20).step_by(step)
}

#[test]
fn after_an_upload_that_the_upstream_did_not_read_the_connection_does_not_hang() {
    let left = Mutex::new(Vec::new());
    let upstream = Upstream::raw(move |mut stream| {
        let start = head(&mut stream);
        let answer = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
        stream.write_all(answer.as_bytes()).unwrap();
        if start.starts_with("PUT /left") {
            left.lock().unwrap().push(stream);
        }
    });
    // No connection is reused: this upstream responds once.
    let settings = "[proxy]\nread_timeout = \"10s\"\nthreads = 1\nupstream_idle_max = 0";
    let proxy = Proxy::start(upstream, settings);
    let check = |path: &str, len: usize| {
        let mut client = Client::connect(proxy.address);
        let mut sender = client.sender();
        client.send(format!(
            "PUT {path} HTTP/1.1\r\nhost: a\r\ncontent-length: {len}\r\n\r\n"
        ));
        // Fails if the proxy closes the connection before it has read all of it.
        let sending = thread::spawn(move || sender.write_all(&vec![b'x'; len]));
        assert_eq!(client.answer().text(), "ok", "{path} {len}");
        let _ = sending.join().unwrap();
        // The read fails if neither happens within a minute.
        if let Some(next) = client.send(get("/next")).try_answer() {
            assert_eq!((next.status, next.text()), (200, "ok"), "{path} {len}");
        }
    };
    thread::scope(|scope| {
        for len in sizes(200_000) {
            scope.spawn(move || check("/left", len));
            scope.spawn(move || check("/closed", len));
        }
    });
}

/// hyper is done with a connection when it has taken the last part of the response, which the client may not take yet.
#[test]
fn response_is_complete_though_the_request_ends_after_it_and_closes_the_connection() {
    let upstream = Upstream::raw(|mut stream| {
        let start = head(&mut stream);
        let len = start
            .strip_prefix("PUT /")
            .and_then(|rest| rest.split(' ').next());
        let len = len.map_or(0, |len| len.parse().unwrap());
        let answer =
            format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {len}\r\n\r\n");
        stream.write_all(answer.as_bytes()).unwrap();
        stream.write_all(&vec![b'x'; len]).unwrap();
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    });
    let proxy = Proxy::start(upstream, "[proxy]\nthreads = 1");
    // After some other requests, the only thread of the proxy has handled what arrived before them.
    let turn = || (0..3).for_each(|_| assert_eq!(call(proxy.address, get("/")).status, 200));
    for len in sizes(60_000) {
        let mut client = Client::connect_narrow(proxy.address);
        client.send(format!(
            "PUT /{len} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 10\r\n\r\n12345"
        ));
        assert_eq!(client.head().unwrap().status, 200);
        turn();
        client.send("67890");
        turn();
        assert_eq!(client.exactly(len).len(), len);
        assert!(client.is_closed());
    }
}
