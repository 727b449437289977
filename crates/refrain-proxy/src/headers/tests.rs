//! Heads as the upstream gets them: the body length is declared once and correctly, and headers meant for the proxy
//! are removed.

use http::{Request, header};
use http_body_util::BodyExt as _;
use http_body_util::{Empty, Full, combinators::BoxBody};

use super::*;

type TestBody = BoxBody<Bytes, std::convert::Infallible>;

/// A body of this length; of unknown length if there is none.
fn body(size: Option<u64>) -> TestBody {
    match size {
        Some(0) => Empty::new().boxed(),
        Some(size) => Full::from(vec![b'x'; size as usize]).boxed(),
        None => Full::from("x").map_frame(|frame| frame).boxed(),
    }
}

/// A head as the upstream gets it.
fn rewritten(
    target: &str,
    fields: &[(&str, &str)],
    size: Option<u64>,
    caller: Option<&Caller>,
    host: HostHeader,
) -> request::Parts {
    rewritten_below("", target, fields, size, caller, host)
}

/// A head as an upstream with a base path gets it.
fn rewritten_below(
    base: &str,
    target: &str,
    fields: &[(&str, &str)],
    size: Option<u64>,
    caller: Option<&Caller>,
    host: HostHeader,
) -> request::Parts {
    let mut request = Request::builder().method("PUT").uri(target);
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    let (mut head, ()) = request.body(()).unwrap().into_parts();
    let visible = Visible {
        host,
        upstream: HeaderValue::from_static("up:1"),
        base: base.into(),
    };
    let forwarded = ForwardedHead {
        visible: &visible,
        client: caller,
        upgrade: None,
    };
    forwarded.rewrite(&mut head, &body(size));
    head
}

/// The fields of a head, sorted.
fn lines(head: &request::Parts) -> Vec<String> {
    let fields = head.headers.iter();
    let lines = fields.map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()));
    let mut lines: Vec<_> = lines.collect();
    lines.sort_unstable();
    lines
}

#[test]
fn the_length_of_a_body_is_said_once_and_truly() {
    for (said, known, expected) in [
        (vec![], Some(0), None),
        (vec!["0"], Some(0), Some("0")),
        (vec!["5"], Some(5), Some("5")),
        (vec![], Some(5), Some("5")),
        (vec!["7"], Some(5), Some("5")),
        (vec!["5", "5"], Some(5), Some("5")),
        (vec!["5"], None, Some("5")),
        // Such bodies are sent in chunks.
        (vec!["+5"], None, None),
        (vec![], None, None),
    ] {
        let mut fields: Vec<_> = said.iter().map(|it| ("content-length", *it)).collect();
        fields.push(("transfer-encoding", "chunked"));
        let head = rewritten("/", &fields, known, None, HostHeader::Client);
        let lengths: Vec<_> = head
            .headers
            .get_all(header::CONTENT_LENGTH)
            .iter()
            .collect();
        assert_eq!(lengths, Vec::from_iter(expected), "{said:?} {known:?}");
        let is_chunked = known.is_none() && expected.is_none();
        let encoding = head.headers.get(header::TRANSFER_ENCODING);
        assert_eq!(encoding.is_some(), is_chunked, "{said:?} {known:?}");
    }
}

#[test]
fn target_is_sent_without_the_authority() {
    for (target, start) in [
        ("/a?b=c", "/a?b=c"),
        ("http://shop.test/a", "/a"),
        ("http://shop.test", "/"),
        ("http://shop.test?b", "/?b"),
        ("*", "*"),
    ] {
        let head = rewritten(target, &[], Some(0), None, HostHeader::Client);
        assert_eq!(head.uri.to_string(), start);
    }
}

#[test]
fn hop_by_hop_headers_are_not_forwarded() {
    let fields = [
        ("connection", "x-a, keep-alive, host, refrain-attempt"),
        ("connection", "X-B"),
        ("x-a", "1"),
        ("x-b", "1"),
        ("x-c", "1"),
        ("host", "shop.test"),
        ("refrain-attempt", "1"),
        ("expect", "100-continue"),
        ("te", "gzip, Trailers"),
        ("upgrade", "x"),
        ("http2-settings", "x"),
        ("via", "1.0 one"),
        ("via", "1.1 two"),
        ("x-forwarded-for", "10.0.0.1"),
    ];
    let head = rewritten("/", &fields, Some(0), None, HostHeader::Client);
    let expected = [
        "host: shop.test",
        "refrain-attempt: 1",
        "te: trailers",
        "via: 1.0 one, 1.1 two, 1.1 refrain",
        "x-c: 1",
        "x-forwarded-for: 10.0.0.1",
        "x-forwarded-host: shop.test",
    ];
    assert_eq!(lines(&head), expected);
}

/// Headers that a client may send to pass for another one.
const FORGED: [(&str, &str); 6] = [
    ("x-forwarded-for", "10.0.0.1"),
    ("x-forwarded-proto", "ftp"),
    ("x-forwarded-host", "bank.test"),
    ("x-forwarded-port", "1"),
    ("forwarded", "for=10.0.0.1"),
    ("host", "shop.test"),
];

#[test]
fn forwarding_headers_of_clients_are_replaced() {
    let caller = Caller::new([10, 0, 0, 9].into(), false, false);
    for (fields, expected) in [
        (
            &[][..],
            "host: up:1|x-forwarded-for: 10.0.0.9|x-forwarded-proto: http|via: 1.1 refrain",
        ),
        (
            &FORGED,
            "host: up:1|x-forwarded-host: shop.test|x-forwarded-for: 10.0.0.9|x-forwarded-proto: http|via: 1.1 refrain",
        ),
        (
            &[("via", "1.0 a")],
            "host: up:1|x-forwarded-for: 10.0.0.9|x-forwarded-proto: http|via: 1.0 a, 1.1 refrain",
        ),
    ] {
        let head = rewritten("/", fields, Some(0), Some(&caller), HostHeader::Upstream);
        let mut expected: Vec<_> = expected.split('|').collect();
        expected.sort_unstable();
        assert_eq!(lines(&head), expected);
    }
}

#[test]
fn forwarding_headers_of_trusted_proxies_are_extended() {
    let caller = Caller::new("fd00::9".parse().unwrap(), true, true);
    let head = rewritten("/", &FORGED, Some(0), Some(&caller), HostHeader::Client);
    let expected = [
        "forwarded: for=10.0.0.1, for=\"[fd00::9]\";host=\"shop.test\";proto=https",
        "host: shop.test",
        "via: 1.1 refrain",
        "x-forwarded-for: 10.0.0.1, fd00::9",
        "x-forwarded-host: bank.test",
        "x-forwarded-port: 1",
        "x-forwarded-proto: ftp",
    ];
    assert_eq!(lines(&head), expected);
    let head = rewritten("/", &[], Some(0), Some(&caller), HostHeader::Client);
    let expected = [
        "host: up:1",
        "via: 1.1 refrain",
        "x-forwarded-for: fd00::9",
        "x-forwarded-proto: https",
    ];
    assert_eq!(lines(&head), expected);
}

#[test]
fn targets_are_joined_to_the_base_path() {
    for (target, joined) in [
        ("/a?b=c", "/shop/a?b=c"),
        ("/", "/shop/"),
        ("//a", "/shop//a"),
        ("http://shop.test/a/", "/shop/a/"),
        ("http://shop.test", "/shop/"),
        ("http://shop.test?b", "/shop/?b"),
        ("*", "*"),
    ] {
        let host = HostHeader::Client;
        let head = rewritten_below("/shop", target, &[], Some(0), None, host);
        assert_eq!(head.uri.to_string(), joined);
    }
}

#[test]
fn paths_that_leave_the_base_are_found() {
    for path in [
        "/..",
        "/../a",
        "/a/../..",
        "/%2e%2E/a",
        "/.%2e/a",
        "/%252e%252e/a",
        "/..;x/a",
        "/..%2fa",
        "/..%5ca",
        "/a/..;/../b",
        "/.\\../a",
    ] {
        assert!(leaves_base(path), "{path}");
    }
    for path in [
        "/",
        "/a/../b",
        "/a/..",
        "/...",
        "/..a",
        "/a/b/../../c",
        "*",
        "",
    ] {
        assert!(!leaves_base(path), "{path}");
    }
}

#[test]
fn trailers_that_the_proxy_writes_into_heads_are_dropped() {
    let mut trailers = HeaderMap::new();
    for name in [
        "x-sum",
        "via",
        "x-forwarded-for",
        "forwarded",
        "refrain-record",
        "idempotency-key",
    ] {
        trailers.insert(name, HeaderValue::from_static("7"));
    }
    strip_trailers(&mut trailers);
    assert_eq!(trailers.keys().collect::<Vec<_>>(), ["x-sum"]);
}
