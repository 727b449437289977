//! Request smuggling: client, proxy and upstream must agree where one request ends and the next begins.
//!
//! Each case is followed by one valid request. The upstream is a strict parser that fails the test on any framing
//! error, and it has to see exactly the requests that the client got responses for.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use support::{AfterResponse, Client, Proxy, Seen, Upstream, answer, call, http2, post, request};

const CANARY: &str = "GET /canary HTTP/1.1\r\nhost: shop.test\r\nconnection: close\r\n\r\n";

/// The bytes of one connection and their expected result.
struct Case {
    name: &'static str,
    bytes: Vec<u8>,
    /// Statuses of the responses, in order.
    statuses: &'static [u16],
    /// Requests that the upstream sees: method, target and body.
    seen: &'static [(&'static str, &'static str)],
}

const REFUSED: &[u16] = &[400];
const NOTHING: &[(&str, &str)] = &[];
const BOTH: &[u16] = &[200, 200];

fn case(
    name: &'static str,
    bytes: impl AsRef<[u8]>,
    statuses: &'static [u16],
    seen: &'static [(&'static str, &'static str)],
) -> Case {
    let bytes = [bytes.as_ref(), CANARY.as_bytes()].concat();
    Case {
        name,
        bytes,
        statuses,
        seen,
    }
}

/// The head of `POST /a` with these fields, followed by `behind`.
fn to(fields: &str, behind: &str) -> String {
    format!("POST /a HTTP/1.1\r\nhost: shop.test\r\n{fields}\r\n{behind}")
}

fn echo(seen: &Seen, stream: &mut std::net::TcpStream) -> AfterResponse {
    answer(stream, "200 OK", &[], &seen.body)
}

fn check(settings: &str, cases: Vec<Case>) {
    let upstream = Upstream::start(echo);
    let proxy = Proxy::start(upstream.address, settings);
    let wrong: Vec<_> = cases
        .iter()
        .filter_map(|case| wrong(case, &upstream, &proxy))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // The case has not affected other connections.
    assert_eq!(call(proxy.address, support::get("/after")).status, 200);
}

/// The difference between expected and actual result of a case.
fn wrong(case: &Case, upstream: &Upstream, proxy: &Proxy) -> Option<String> {
    let before = upstream.count();
    let mut client = Client::connect(proxy.address);
    client.send(&case.bytes);
    let mut statuses = Vec::new();
    while let Some(answer) = client.try_answer() {
        statuses.push(answer.status);
    }
    let seen = upstream.seen().split_off(before);
    let told: Vec<_> = seen
        .iter()
        .map(|seen| (seen.start(), std::str::from_utf8(&seen.body).unwrap()))
        .collect();
    let is_right = (&*statuses, &*told) == (case.statuses, case.seen);
    (!is_right).then(|| format!("{}: {statuses:?} {told:?}", case.name))
}

const INNER: &str = "GET /inner HTTP/1.1\r\nhost: x\r\n\r\n";

#[test]
fn two_lengths_of_one_body() {
    let hello = "5\r\nhello\r\n0\r\n\r\n";
    let cl = |len: usize| format!("content-length: {len}\r\n");
    let te = "transfer-encoding: chunked\r\n";
    let once: &[(&str, &str)] = &[("POST /a", "hello")];
    let twice: &[(&str, &str)] = &[("POST /a", "hello"), ("GET /canary", "")];
    check(
        "",
        vec![
            // The transfer encoding counts, and the connection is closed afterwards.
            case("CL, TE", to(&(cl(4) + te), hello), &[200], once),
            case("TE, CL", to(&(te.to_owned() + &cl(4)), hello), &[200], once),
            case(
                "TE, CL 0",
                to(&(te.to_owned() + &cl(0)), hello),
                &[200],
                once,
            ),
            case(
                "CL twice, equal",
                to(&(cl(5) + &cl(5)), "hello"),
                REFUSED,
                NOTHING,
            ),
            case(
                "CL twice, other",
                to(&(cl(5) + &cl(6)), "hello"),
                REFUSED,
                NOTHING,
            ),
            case(
                "CL list",
                to("content-length: 5, 5\r\n", "hello"),
                REFUSED,
                NOTHING,
            ),
            case(
                "CL +5",
                to("content-length: +5\r\n", "hello"),
                REFUSED,
                NOTHING,
            ),
            case(
                "CL -5",
                to("content-length: -5\r\n", "hello"),
                REFUSED,
                NOTHING,
            ),
            case(
                "CL 0x5",
                to("content-length: 0x5\r\n", "hello"),
                REFUSED,
                NOTHING,
            ),
            case(
                "CL 5.0",
                to("content-length: 5.0\r\n", "hello"),
                REFUSED,
                NOTHING,
            ),
            case("CL empty", to("content-length:\r\n", ""), REFUSED, NOTHING),
            case(
                "CL huge",
                to("content-length: 18446744073709551616\r\n", "hello"),
                REFUSED,
                NOTHING,
            ),
            case(
                "CL 005",
                to("content-length: 005\r\n", "hello"),
                BOTH,
                twice,
            ),
        ],
    );
}

#[test]
fn encodings_in_disguise() {
    let hello = "5\r\nhello\r\n0\r\n\r\n";
    let refused = |name, field: &str| case(name, to(field, hello), REFUSED, NOTHING);
    let twice: &[(&str, &str)] = &[("POST /a", "hello"), ("GET /canary", "")];
    check(
        "",
        vec![
            refused("xchunked", "transfer-encoding: xchunked\r\n"),
            refused("identity", "transfer-encoding: identity\r\n"),
            refused("identity last", "transfer-encoding: chunked, identity\r\n"),
            refused("identity first", "transfer-encoding: identity, chunked\r\n"),
            refused("gzip first", "transfer-encoding: gzip, chunked\r\n"),
            refused("chunked twice", "transfer-encoding: chunked, chunked\r\n"),
            refused(
                "two fields",
                "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
            ),
            refused(
                "two fields, one identity",
                "transfer-encoding: identity\r\ntransfer-encoding: chunked\r\n",
            ),
            refused("quoted", "transfer-encoding: \"chunked\"\r\n"),
            refused("parameter", "transfer-encoding: chunked;q=1\r\n"),
            refused("empty", "transfer-encoding:\r\n"),
            refused("space before the colon", "transfer-encoding : chunked\r\n"),
            refused("tab before the colon", "transfer-encoding\t: chunked\r\n"),
            refused("space before the name", " transfer-encoding: chunked\r\n"),
            refused("vertical tab", "transfer-encoding: \x0bchunked\r\n"),
            refused("NUL", "transfer-encoding: chunked\0\r\n"),
            refused("on a new line", "transfer-encoding:\r\n chunked\r\n"),
            case(
                "tab",
                to("transfer-encoding:\tchunked\t\r\n", hello),
                BOTH,
                twice,
            ),
            case(
                "upper case",
                to("TRANSFER-ENCODING: CHUNKED\r\n", hello),
                BOTH,
                twice,
            ),
            case(
                "HTTP/1.0",
                to("transfer-encoding: chunked\r\n", hello).replacen("1.1", "1.0", 1),
                REFUSED,
                NOTHING,
            ),
        ],
    );
}

#[test]
fn chunks_that_mean_two_things() {
    let chunked = |behind: &str| to("transfer-encoding: chunked\r\n", behind);
    let twice: &[(&str, &str)] = &[("POST /a", "hello"), ("GET /canary", "")];
    let refused = |name, behind: &str| case(name, chunked(behind), REFUSED, NOTHING);
    check(
        "",
        vec![
            case(
                "extension",
                chunked("5;a=b\r\nhello\r\n0\r\n\r\n"),
                BOTH,
                twice,
            ),
            case(
                "extension of the last",
                chunked("5\r\nhello\r\n0;x\r\n\r\n"),
                BOTH,
                twice,
            ),
            case(
                "leading zeros",
                chunked("0005\r\nhello\r\n0\r\n\r\n"),
                BOTH,
                twice,
            ),
            refused("bare LF in an extension", "5;a\nhello\r\n0\r\n\r\n"),
            refused("bare LF behind the size", "5\nhello\r\n0\r\n\r\n"),
            refused("bare LF behind the chunk", "5\r\nhello\n0\r\n\r\n"),
            refused("no size", "\r\nhello\r\n0\r\n\r\n"),
            refused("0x", "0x5\r\nhello\r\n0\r\n\r\n"),
            refused("minus", "-5\r\nhello\r\n0\r\n\r\n"),
            refused("too large", "FFFFFFFFFFFFFFFFF\r\nhello\r\n0\r\n\r\n"),
            refused("longer than said", "4\r\nhello\r\n0\r\n\r\n"),
        ],
    );
}

#[test]
fn heads_that_mean_two_things() {
    let get = |head: &str| format!("GET /a HTTP/1.1\r\nhost: shop.test\r\n{head}\r\n");
    let refused = |name, bytes: &str| case(name, bytes, REFUSED, NOTHING);
    let twice: &[(&str, &str)] = &[("GET /a", ""), ("GET /canary", "")];
    let large = format!("x-a: {}\r\n", "a".repeat(70 << 10));
    let many = (0..200)
        .map(|at| format!("x-{at}: a\r\n"))
        .collect::<String>();
    check(
        "",
        vec![
            case(
                "bare LF",
                "GET /a HTTP/1.1\nhost: shop.test\n\n",
                BOTH,
                twice,
            ),
            refused("obs-fold", &get("x-a: 1\r\n 2\r\n")),
            refused("obs-fold, first", "GET /a HTTP/1.1\r\n host: x\r\n\r\n"),
            refused("NUL in a value", &get("x-a: 1\x002\r\n")),
            refused("CR in a value", &get("x-a: 1\r2\r\n")),
            refused("CR in a name", &get("x\r-a: 1\r\n")),
            refused("NUL in a name", &get("x\0a: 1\r\n")),
            refused("space in a name", &get("x a: 1\r\n")),
            refused("no colon", &get("x-a\r\n")),
            refused("no name", &get(": a\r\n")),
            refused("two hosts", &get("host: evil.test\r\n")),
            refused("two equal hosts", &get("host: shop.test\r\n")),
            refused("no host", "GET /a HTTP/1.1\r\n\r\n"),
            refused("host with a path", "GET /a HTTP/1.1\r\nhost: a/b\r\n\r\n"),
            refused("host with a user", "GET /a HTTP/1.1\r\nhost: b@a\r\n\r\n"),
            refused("host with a space", "GET /a HTTP/1.1\r\nhost: a b\r\n\r\n"),
            refused("no version", "GET /a\r\nhost: shop.test\r\n\r\n"),
            refused("HTTP/1.2", "GET /a HTTP/1.2\r\nhost: shop.test\r\n\r\n"),
            refused("two spaces", "GET /a  HTTP/1.1\r\nhost: shop.test\r\n\r\n"),
            refused(
                "tab in the line",
                "GET /a\tHTTP/1.1\r\nhost: shop.test\r\n\r\n",
            ),
            refused("no slash", "GET a HTTP/1.1\r\nhost: shop.test\r\n\r\n"),
            refused(
                "method with a colon",
                "GE:T /a HTTP/1.1\r\nhost: shop.test\r\n\r\n",
            ),
            case("large", get(&large), &[431], NOTHING),
            case("many", get(&many), &[431], NOTHING),
        ],
    );
}

#[test]
fn bodies_that_look_like_requests() {
    let len = format!("content-length: {}\r\n", INNER.len());
    let key = "idempotency-key: k\r\n";
    let keyed = |body: &str| to(&format!("{key}{len}"), body);
    let post: (&str, &str) = ("POST /a", INNER);
    let canary = ("GET /canary", "");
    let inner = ("GET /inner", "");
    check(
        "[[operation]]\nmatch = \"POST /needs\"\nrequired = true",
        vec![
            case(
                "unguarded",
                to(&len, INNER),
                BOTH,
                Box::leak(Box::new([post, canary])),
            ),
            case(
                "a replay",
                keyed(INNER) + &keyed(INNER),
                &[200, 200, 200],
                Box::leak(Box::new([post, canary])),
            ),
            // Bytes after a body are the next request.
            case(
                "longer than said",
                to("content-length: 0\r\n", INNER),
                &[200, 200, 200],
                Box::leak(Box::new([("POST /a", ""), inner, canary])),
            ),
            case(
                "a body of GET",
                format!("GET /a HTTP/1.1\r\nhost: x\r\n{len}\r\n{INNER}"),
                BOTH,
                Box::leak(Box::new([("GET /a", INNER), canary])),
            ),
        ],
    );
}

#[test]
fn a_body_that_was_not_read_is_not_taken_for_the_next_request() {
    let upstream = Upstream::start(echo);
    let settings = r#"
[policy]
request_bytes_max = "1KiB"
[[operation]]
match = "POST /needs"
required = true
"#;
    let proxy = Proxy::start(upstream.address, settings);
    let large = INNER.repeat(20_000);
    let page = "POST /.well-known/refrain/problems/in-flight";
    let cases = [
        (request("POST /needs", &[], INNER.as_bytes()), 400),
        (request("POST /needs", &[], large.as_bytes()), 400),
        (post("a b", INNER), 400),
        (post("a b", &large), 400),
        (post("k", &large), 413),
        (
            request(&page.replace("POST", "GET"), &[], INNER.as_bytes()),
            200,
        ),
        (
            request(&page.replace("POST", "GET"), &[], large.as_bytes()),
            200,
        ),
    ];
    let mut answered = 0;
    for (bytes, status) in cases {
        let mut client = Client::connect(proxy.address);
        let mut writer = client.stream.try_clone().unwrap();
        let writing = std::thread::spawn(move || {
            let all = [&*bytes, CANARY.as_bytes()].concat();
            let _ = std::io::Write::write_all(&mut writer, &all);
        });
        assert_eq!(client.answer().status, status);
        // Either the body was drained and the valid request gets a response, or the connection is closed.
        while let Some(answer) = client.try_answer() {
            assert_eq!(answer.status, 200);
            answered += 1;
        }
        drop(client);
        writing.join().unwrap();
    }
    let seen = upstream.seen();
    let is_honest = seen.iter().all(|seen| seen.start() == "GET /canary");
    assert!(is_honest && seen.len() == answered, "{answered}: {seen:?}");
}

#[test]
fn targets_and_authorities_that_mean_two_things() {
    let upstream = Upstream::start(echo);
    let proxy = Proxy::start(upstream.address, "");
    for (line, host, status, start, told) in [
        (
            "GET http://other.test/a?b",
            "shop.test",
            200,
            "GET /a?b",
            "other.test",
        ),
        (
            "GET http://other.test:81",
            "shop.test",
            200,
            "GET /",
            "other.test:81",
        ),
        (
            "GET http://other.test?b",
            "shop.test",
            200,
            "GET /?b",
            "other.test",
        ),
        ("OPTIONS *", "shop.test", 200, "OPTIONS *", "shop.test"),
        (
            "GET //other.test/a",
            "shop.test",
            200,
            "GET //other.test/a",
            "shop.test",
        ),
        ("GET /a/../b", "shop.test", 200, "GET /a/../b", "shop.test"),
        (
            "GET /%2e%2E/%00",
            "shop.test",
            200,
            "GET /%2e%2E/%00",
            "shop.test",
        ),
        ("GET http://user:pw@other.test/a", "shop.test", 400, "", ""),
        ("GET other.test:80", "shop.test", 400, "", ""),
        ("CONNECT other.test:80", "other.test:80", 501, "", ""),
    ] {
        let before = upstream.count();
        let bytes = format!("{line} HTTP/1.1\r\nhost: {host}\r\n\r\n");
        assert_eq!(call(proxy.address, bytes).status, status, "{line}");
        let seen = upstream.seen().split_off(before);
        let found = seen
            .first()
            .map(|it| (it.start(), it.header("host").unwrap()));
        let expected = (status == 200).then_some((start, told));
        assert_eq!(
            (found, seen.len()),
            (expected, expected.iter().len()),
            "{line}"
        );
    }
}

#[test]
fn fields_of_http_2_that_would_be_more_than_fields_in_http_1() {
    let upstream = Upstream::start(echo);
    let proxy = Proxy::start(upstream.address, "");
    let honest = [
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "shop.test"),
        (":path", "/a"),
    ];
    let with = |more: &[(&'static str, &'static str)]| [&honest, more].concat();
    let but = |name: &str, value: &'static str| {
        honest
            .map(|(it, was)| if it == name { (it, value) } else { (it, was) })
            .to_vec()
    };
    assert_eq!(
        http2::call(proxy.address, &honest, Some("hello")),
        Some(200)
    );
    assert_eq!(http2::call(proxy.address, &honest, None), Some(200));
    let refused = [
        with(&[("x-a", "1\r\nx-b: 2")]),
        with(&[("x-a", "1\nx-b: 2")]),
        with(&[("x-a", "1\0")]),
        with(&[("x-a\r\nx-b", "1")]),
        with(&[("x-a: 1\r\nx-b", "1")]),
        with(&[("x a", "1")]),
        with(&[("X-A", "1")]),
        with(&[("", "1")]),
        with(&[("transfer-encoding", "chunked")]),
        with(&[("connection", "keep-alive")]),
        with(&[("keep-alive", "1")]),
        with(&[("proxy-connection", "1")]),
        with(&[("upgrade", "websocket")]),
        with(&[("te", "gzip")]),
        with(&[("content-length", "3")]),
        with(&[("content-length", "300")]),
        with(&[("content-length", "5"), ("content-length", "6")]),
        with(&[("content-length", "+5")]),
        with(&[(":path", "/b")]),
        with(&[(":odd", "1")]),
        with(&[("host", "evil.test"), ("host", "shop.test")]),
        but(":path", "/a HTTP/1.1\r\nx-b: 2"),
        but(":path", "/a b"),
        but(":path", "/a\r\n"),
        but(":path", "a"),
        but(":path", ""),
        but(":path", "http://evil.test/"),
        but(":method", "GET /b HTTP/1.1\r\nx: "),
        but(":method", "GE T"),
        but(":authority", "a\r\nx-b: 2"),
        but(":authority", "a b"),
        but(":authority", "user@shop.test"),
        but(":scheme", "http\r\nx-b: 2"),
    ];
    let before = upstream.count();
    for fields in refused {
        let status = http2::call(proxy.address, &fields, Some("hello"));
        assert!(matches!(status, None | Some(400)), "{status:?} {fields:?}");
        let seen = upstream.seen().split_off(before);
        assert!(seen.is_empty(), "{fields:?}: {seen:?}");
    }
    assert_eq!(http2::call(proxy.address, &honest, None), Some(200));
    let host = http2::call(proxy.address, &with(&[("host", "evil.test")]), None);
    let seen = upstream.seen();
    if host == Some(200) {
        assert_eq!(seen.last().unwrap().header("host"), Some("shop.test"));
    }
    assert!(seen.iter().all(|seen| seen.start() == "POST /a"));
}
