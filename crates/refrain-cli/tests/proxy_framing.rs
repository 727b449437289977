//! Deviations from RFC 9112 must be deliberate and documented.
//!
//! The table in `docs/framing.md` lists every place where the proxy parses HTTP/1.1 differently from what the RFC
//! says or allows. Each of its rows is a case here, and each case is a row there.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use std::collections::BTreeSet;

use support::{AfterResponse, Client, Proxy, Upstream, answer, call, get, http2, post, until};

const PAGE: &str = include_str!("../../../docs/framing.md");
const CANARY: &str = "GET /canary HTTP/1.1\r\nhost: shop.test\r\nconnection: close\r\n\r\n";

/// Requests: name of the row, bytes, and status of the only response; 200 if the request is forwarded.
fn requests() -> Vec<(&'static str, String, u16)> {
    let to =
        |start: &str, fields: &str, body: &str| format!("{start}\r\nhost: a\r\n{fields}\r\n{body}");
    let post = |fields: &str, body: &str| to("POST /a HTTP/1.1", fields, body);
    let plain = || to("GET /a HTTP/1.1", "", "");
    let chunked = "transfer-encoding: chunked\r\n";
    let keyed = format!("idempotency-key: k\r\n{chunked}");
    let two = "content-length: 2\r\n";
    vec![
        (
            "empty line before a request",
            format!("\r\n{}", plain()),
            400,
        ),
        ("empty line before a request", format!("\n{}", plain()), 400),
        (
            "empty line before a request",
            format!("{}\r\n{}", plain().replace("/a", "/first"), plain()),
            400,
        ),
        ("equal lengths", post(&two.repeat(2), "ok"), 400),
        (
            "list of lengths",
            post("content-length: 2, 2\r\n", "ok"),
            400,
        ),
        ("`PRI`", to("PRI /a HTTP/1.1", "", ""), 400),
        ("`PRI`", to("PRI * HTTP/1.1", "", ""), 400),
        ("`PRI`", to("PRI /a HTTP/1.0", "", ""), 400),
        (
            "`TRACE` with a body",
            to("TRACE /a HTTP/1.1", two, "ok"),
            400,
        ),
        (
            "`TRACE` with a body",
            to("TRACE /a HTTP/1.1", chunked, "2\r\nok\r\n0\r\n\r\n"),
            400,
        ),
        (
            "`TRACE` with a body",
            to("TRACE /a HTTP/1.1", chunked, "0\r\n\r\n"),
            400,
        ),
        (
            "`CONNECT` with a body",
            to("CONNECT a:80 HTTP/1.1", two, "ok"),
            400,
        ),
        (
            "`CONNECT` with a body",
            to("CONNECT a:80 HTTP/1.1", chunked, "0\r\n\r\n"),
            400,
        ),
        ("`CONNECT`", to("CONNECT a:80 HTTP/1.1", "", ""), 501),
        (
            "other encodings",
            post("transfer-encoding: gzip, chunked\r\n", "0\r\n\r\n"),
            400,
        ),
        ("other versions", to("GET /a HTTP/1.2", "", ""), 400),
        ("other versions", to("GET /a HTTP/3.0", "", ""), 400),
        (
            "user in the target",
            to("GET http://u@a/a HTTP/1.1", "", ""),
            400,
        ),
        (
            "fragment in the target",
            to("GET /a#b HTTP/1.1", "", ""),
            400,
        ),
        (
            "fragment in the target",
            to("GET http://a/a?b#c HTTP/1.1", "", ""),
            400,
        ),
        (
            "bytes beyond ASCII in the target",
            to("GET /\u{e4} HTTP/1.1", "", ""),
            400,
        ),
        (
            "bytes beyond ASCII in the target",
            to("GET /a?\u{e4} HTTP/1.1", "", ""),
            400,
        ),
        (
            "control characters in a chunk extension",
            post(&keyed, "2;a=\0\r\nok\r\n0\r\n\r\n"),
            400,
        ),
        (
            "control characters in a chunk extension",
            post(&keyed, "2\r\nok\r\n0;\x7f\r\n\r\n"),
            400,
        ),
        (
            "control characters in a chunk extension",
            post(chunked, "2;\ta=\"\u{e4}\"\r\nok\r\n0\r\n\r\n"),
            200,
        ),
        (
            "blanks after a chunk size",
            post(chunked, "2 \t\r\nok\r\n0\r\n\r\n"),
            200,
        ),
    ]
}

/// Upstream responses to a guarded request that make its outcome unknown.
const ANSWERS: [(&str, &str); 2] = [
    (
        "equal lengths in an answer",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 2\r\n\r\nok",
    ),
    (
        "an answer that ends with its connection",
        "HTTP/1.1 200 OK\r\n\r\nok",
    ),
];

#[test]
fn each_deviation_is_documented_and_each_documented_one_is_tested() {
    let rows = PAGE.lines().filter_map(|line| line.strip_prefix("| "));
    let rows = rows.filter_map(|row| row.split(" |").next());
    let rows: BTreeSet<_> = rows.filter(|row| *row != "what").collect();
    let requests = requests();
    let cases = requests.iter().map(|(name, ..)| *name);
    let cases: BTreeSet<_> = cases.chain(ANSWERS.map(|(name, _)| name)).collect();
    assert_eq!(rows, cases);
}

#[test]
fn requests_are_refused_where_a_stricter_parser_refuses_them() {
    let upstream = Upstream::echo();
    let proxy = Proxy::start(upstream.address, "");
    let mut wrong = Vec::new();
    for (name, bytes, status) in requests() {
        let before = upstream.count();
        let mut client = Client::connect(proxy.address);
        client.send(format!("{bytes}{CANARY}"));
        let mut statuses = Vec::new();
        while let Some(answer) = client.try_answer() {
            statuses.push(answer.status);
        }
        let seen = upstream.seen().split_off(before);
        let seen: Vec<_> = seen.iter().map(support::Seen::start).collect();
        // After a rejection the connection is closed: the bytes after it are not parsed as a request.
        let (told, forwarded): (&[u16], &[&str]) = match (status, bytes.contains("/first")) {
            (200, _) => (&[200, 200], &["POST /a", "GET /canary"]),
            (_, true) => (&[200, 400], &["GET /first"]),
            (400, _) => (&[400], &[]),
            (_, _) => (&[501], &[]),
        };
        if (&*statuses, &*seen) != (told, forwarded) {
            wrong.push(format!("{name}: {bytes:?}: {statuses:?} {seen:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(call(proxy.address, get("/after")).status, 200);
}

/// The upstream speaks HTTP/1, where the method starts the preface of another protocol.
#[test]
fn the_method_pri_is_refused_in_http_2_as_well() {
    let upstream = Upstream::echo();
    let proxy = Proxy::start(upstream.address, "");
    let preface = [
        (":method", "PRI"),
        (":scheme", "http"),
        (":authority", "shop.test"),
        (":path", "/a"),
    ];
    assert_eq!(http2::call(proxy.address, &preface, None), Some(400));
    assert_eq!(upstream.count(), 0);
}

#[test]
fn a_body_with_trace_is_refused_in_http_2_as_well() {
    let upstream = Upstream::echo();
    let proxy = Proxy::start(upstream.address, "");
    let trace = [
        (":method", "TRACE"),
        (":scheme", "http"),
        (":authority", "shop.test"),
        (":path", "/a"),
    ];
    assert_eq!(http2::call(proxy.address, &trace, Some("ok")), Some(400));
    assert_eq!(upstream.count(), 0);
    assert_eq!(http2::call(proxy.address, &trace, None), Some(200));
    assert_eq!(upstream.count(), 1);
}

#[test]
fn connect_opens_no_tunnel_in_http_2_with_or_without_a_body() {
    let upstream = Upstream::echo();
    let proxy = Proxy::start(upstream.address, "");
    let connect = [(":method", "CONNECT"), (":authority", "shop.test:80")];
    let with_length = [&connect[..], &[("content-length", "2")]].concat();
    assert_eq!(http2::call(proxy.address, &with_length, Some("ok")), None);
    assert_eq!(http2::call(proxy.address, &connect, Some("ok")), Some(501));
    assert_eq!(http2::call(proxy.address, &connect, None), Some(501));
    assert_eq!(upstream.count(), 0);
}

#[test]
fn bytes_beyond_ascii_in_the_target_are_refused_in_http_2_as_well() {
    let upstream = Upstream::echo();
    let proxy = Proxy::start(upstream.address, "");
    let to = |path: &'static str| {
        [
            (":method", "GET"),
            (":scheme", "http"),
            (":authority", "shop.test"),
            (":path", path),
        ]
    };
    let told = http2::call(proxy.address, &to("/\u{e4}"), None);
    assert_eq!(told, Some(400));
    assert_eq!(upstream.count(), 0);
    // The HTTP/2 library drops a fragment before the proxy sees it.
    let told = http2::call(proxy.address, &to("/a#b"), None);
    assert_eq!(told, Some(200));
    assert_eq!(upstream.seen()[0].start(), "GET /a");
}

#[test]
fn an_answer_that_a_stricter_parser_refuses_leaves_the_outcome_unknown() {
    for (name, bytes) in ANSWERS {
        let upstream = Upstream::start(move |_, stream| {
            let _ = std::io::Write::write_all(stream, bytes.as_bytes());
            AfterResponse::Close
        });
        let proxy = Proxy::start(upstream.address, "");
        let told = call(proxy.address, post("k", "x"));
        let told = (told.status, told.code());
        assert_eq!(told, (502, Some("outcome-unknown".into())), "{name}");
        until("it has closed", || upstream.connections().1 == 1);
        assert_eq!(upstream.count(), 1, "{name}");
    }
    // The same response without the flaw is accepted.
    let upstream = Upstream::start(|_, stream| answer(stream, "200 OK", &[], b"ok"));
    let proxy = Proxy::start(upstream.address, "");
    assert_eq!(call(proxy.address, post("k", "x")).status, 200);
}

/// A library that takes `GET` for a method without body drops it, unless its length is known.
#[test]
fn a_body_of_unknown_length_is_forwarded_with_every_method() {
    let upstream = Upstream::echo();
    let proxy = Proxy::start(upstream.address, "");
    for (at, method) in ["GET", "DELETE", "OPTIONS", "QUERY"]
        .into_iter()
        .enumerate()
    {
        let bytes = format!(
            "{method} /a HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
        );
        assert_eq!(call(proxy.address, bytes).text(), "ok", "{method}");
        let fields = [
            (":method", method),
            (":scheme", "http"),
            (":authority", "shop.test"),
            (":path", "/a"),
        ];
        let told = http2::call(proxy.address, &fields, Some("ok"));
        assert_eq!(told, Some(200), "{method}");
        let seen = upstream.seen().split_off(2 * at);
        let bodies: Vec<_> = seen.iter().map(|it| &*it.body).collect();
        assert_eq!(bodies, [b"ok"; 2], "{method}");
    }
}
