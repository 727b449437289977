//! A rejection must reach the client, even one that sends its whole request before it reads.
//!
//! If a server closes a connection on which bytes still arrive, the system resets it, and the reset destroys the
//! response in transit. A client such as Python's `http.client` then sees a broken pipe instead of the reason.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use std::{io::Write as _, net::SocketAddr, process::Command};

use support::{Client, HttpResponse, Proxy, Upstream, call, get, http2, request};

const MIB: usize = 1 << 20;
const SETTINGS: &str = "[[operation]]\nmatch = \"POST /needs\"\nrequired = true";

/// Sends everything, then reads.
fn send_then_read(address: SocketAddr, bytes: &[u8]) -> HttpResponse {
    let mut client = Client::connect(address);
    let sent = client.stream.write_all(bytes);
    sent.expect("the proxy reads the whole request");
    client.answer()
}

#[test]
fn a_refusal_reaches_a_client_that_sends_everything_first() {
    let upstream = Upstream::echo();
    let proxy = Proxy::start(upstream.address, SETTINGS);
    let large = vec![b'x'; 12 * MIB];
    let chunk = format!("100000\r\n{}\r\n", "x".repeat(MIB)).repeat(12);
    let head = "POST /orders HTTP/1.1\r\nhost: a\r\nidempotency-key: k\r\ntransfer-encoding: chunked\r\n\r\n";
    let chunked = format!("{head}{chunk}0\r\n\r\n").into_bytes();
    let key = |key| [("idempotency-key", key)];
    let cases = [
        (request("POST /needs", &[], &large), "key-missing"),
        (request("POST /needs", &key("a b"), &large), "key-invalid"),
        (
            request("POST /orders", &key("k"), &large),
            "request-too-large",
        ),
        (chunked, "request-too-large"),
    ];
    for (bytes, code) in cases {
        for _ in 0..3 {
            let told = send_then_read(proxy.address, &bytes);
            assert_eq!(told.code().as_deref(), Some(code));
        }
    }
    let twice = request("POST /a", &[("host", "b")], &large);
    assert_eq!(send_then_read(proxy.address, &twice).status, 400);
    assert_eq!(upstream.count(), 0);
}

/// Arithmetic with such a length must not overflow.
#[test]
fn a_length_beyond_every_limit_is_refused_with_the_reason() {
    let upstream = Upstream::echo();
    let proxy = Proxy::start(upstream.address, "");
    for length in [u64::MAX.into(), u128::from(u64::MAX) - 1, 1 << 64, 1 << 100] {
        for _ in 0..5 {
            let head = format!("POST /a HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n");
            let bytes = [head.as_bytes(), &vec![b'x'; 300_000]].concat();
            let told = send_then_read(proxy.address, &bytes);
            let told = (told.status, told.code());
            assert_eq!(told, (400, Some("request-malformed".into())), "{length}");
        }
    }
    assert_eq!(upstream.count(), 0);
}

const PYTHON: &str = r#"
import http.client, json, sys
large = b"x" * (12 << 20)
for path, headers in [("/needs", {}), ("/orders", {"Idempotency-Key": "a b"}), ("/orders", {"Idempotency-Key": "k"})]:
    connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=60)
    connection.request("POST", path, body=large, headers=headers)
    answer = connection.getresponse()
    print(answer.status, json.loads(answer.read())["code"])
"#;

#[test]
fn a_refusal_reaches_python() {
    let upstream = Upstream::echo();
    let proxy = Proxy::start(upstream.address, SETTINGS);
    let port = proxy.address.port().to_string();
    for _ in 0..5 {
        let ran = Command::new("python3").args(["-c", PYTHON, &port]).output();
        let ran = ran.unwrap();
        let errors = String::from_utf8_lossy(&ran.stderr).into_owned();
        let told = String::from_utf8(ran.stdout).unwrap();
        let expected = "400 key-missing\n400 key-invalid\n413 request-too-large\n";
        assert_eq!(told, expected, "{errors}");
    }
    assert_eq!(upstream.count(), 0);
}

#[test]
fn a_refusal_over_http_2_lets_the_client_send_the_rest_of_its_body() {
    let upstream = Upstream::echo();
    let proxy = Proxy::start(upstream.address, SETTINGS);
    let to = |path, more: &[(&'static str, &'static str)]| {
        let head = [
            (":method", "POST"),
            (":scheme", "http"),
            (":authority", "shop.test"),
            (":path", path),
        ];
        [&head, more].concat()
    };
    for fields in [
        to("/needs", &[]),
        to("/orders", &[("idempotency-key", "a b")]),
    ] {
        let told = http2::upload(proxy.address, &fields, 12 * MIB);
        assert_eq!(told, Ok(400), "{fields:?}");
    }
    // Without a declared length, the proxy finds out in the middle of the body that it is too large.
    let large = to("/orders", &[("idempotency-key", "k")]);
    let told = http2::upload(proxy.address, &large, 12 * MIB);
    assert_eq!(told, Ok(413));
    assert_eq!(upstream.count(), 0);
}

#[test]
fn a_client_that_never_stops_sending_is_closed() {
    let upstream = Upstream::echo();
    let proxy = Proxy::start(upstream.address, SETTINGS);
    let mut client = Client::connect(proxy.address);
    client.send("POST /needs HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n");
    let chunk = format!("100000\r\n{}\r\n", "x".repeat(MIB));
    let mut sent = 0;
    while client.stream.write_all(chunk.as_bytes()).is_ok() {
        sent += 1;
        assert!(sent < 512, "{sent} MiB were taken");
    }
    // The proxy reads more than a few packets, but not without limit.
    assert!(sent > 16, "{sent} MiB were taken");
    assert_eq!(call(proxy.address, get("/")).status, 200);
}

#[test]
fn a_client_that_was_refused_and_stands_still_is_closed() {
    let upstream = Upstream::echo();
    let settings = format!("{SETTINGS}\n[proxy]\nconnections_max = 1");
    let proxy = Proxy::start(upstream.address, &settings);
    let mut client = Client::connect(proxy.address);
    client.send("POST /needs HTTP/1.1\r\nhost: a\r\ncontent-length: 9000000\r\n\r\nx");
    assert_eq!(client.answer().status, 400);
    // The client neither sends the rest nor closes. The proxy closes and accepts the next connection.
    let mut next = Client::connect(proxy.address);
    let patience = Some(std::time::Duration::from_secs(60));
    next.stream.set_read_timeout(patience).unwrap();
    assert_eq!(next.send(get("/")).answer().status, 200);
}
