//! Heads as the upstream gets them: the body length is declared once and correctly, and headers meant for the proxy
//! are removed.

use http::{Request, header};

use super::*;

/// The lines of a head as the upstream gets it, sorted after the first.
fn sent(target: &str, fields: &[(&str, &str)], size: Option<u64>) -> (Vec<String>, Length) {
    let mut request = Request::builder().method("PUT").uri(target);
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    let (head, ()) = request.body(()).unwrap().into_parts();
    let visible = Visible {
        host: HostHeader::Client,
        upstream: HeaderValue::from_static("up:1"),
    };
    let way = ForwardedHead {
        visible: &visible,
        client: None,
        upgrade: None,
    };
    let (bytes, length) = way.to_upstream(&head, size);
    let text = String::from_utf8(bytes).unwrap();
    let mut lines: Vec<_> = text
        .strip_suffix("\r\n\r\n")
        .unwrap()
        .split("\r\n")
        .map(ToOwned::to_owned)
        .collect();
    lines[1..].sort_unstable();
    (lines, length)
}

#[test]
fn the_length_of_a_body_is_said_once_and_truly() {
    let length = |text: &str| ("content-length".to_owned(), text.to_owned());
    let chunked = ("transfer-encoding".to_owned(), "chunked".to_owned());
    for (said, known, expected, left) in [
        (vec![], Some(0), None, Some(0)),
        (vec!["0"], Some(0), Some(length("0")), Some(0)),
        (vec!["5"], Some(5), Some(length("5")), Some(5)),
        (vec![], Some(5), Some(length("5")), Some(5)),
        (vec!["7"], Some(5), Some(length("5")), Some(5)),
        (vec!["5", "5"], Some(5), Some(length("5")), Some(5)),
        (vec!["5"], None, Some(length("5")), Some(5)),
        (vec!["+5"], None, Some(chunked.clone()), None),
        (vec![], None, Some(chunked.clone()), None),
    ] {
        let mut fields: Vec<_> = said.iter().map(|it| ("content-length", *it)).collect();
        fields.push(("transfer-encoding", "chunked"));
        let (lines, length) = sent("/", &fields, known);
        let lines = lines.iter().filter_map(|line| line.split_once(": "));
        let framing: Vec<_> = lines
            .filter(|(name, _)| {
                [header::CONTENT_LENGTH, header::TRANSFER_ENCODING].contains(&name.parse().unwrap())
            })
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        assert_eq!(framing, Vec::from_iter(expected), "{said:?} {known:?}");
        let is = match length {
            Length::Left(left) => Some(left),
            Length::Chunked | Length::UntilClose => None,
        };
        assert_eq!(is, left, "{said:?} {known:?}");
    }
}

#[test]
fn target_is_sent_without_the_authority() {
    for (target, start) in [
        ("/a?b=c", "PUT /a?b=c HTTP/1.1"),
        ("http://shop.test/a", "PUT /a HTTP/1.1"),
        ("http://shop.test", "PUT / HTTP/1.1"),
        ("http://shop.test?b", "PUT /?b HTTP/1.1"),
        ("*", "PUT * HTTP/1.1"),
    ] {
        assert_eq!(sent(target, &[], Some(0)).0[0], start);
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
    let (lines, _) = sent("/", &fields, Some(0));
    let expected = [
        "PUT / HTTP/1.1",
        "host: shop.test",
        "refrain-attempt: 1",
        "te: trailers",
        "via: 1.0 one, 1.1 two, 1.1 refrain",
        "x-c: 1",
        "x-forwarded-for: 10.0.0.1",
        "x-forwarded-host: shop.test",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn client_address_is_appended_to_forwarded_headers() {
    let visible = Visible {
        host: HostHeader::Upstream,
        upstream: HeaderValue::from_static("up:1"),
    };
    let caller = Caller::new([10, 0, 0, 9].into());
    for (fields, expected) in [
        (
            &[][..],
            "host: up:1|x-forwarded-for: 10.0.0.9|x-forwarded-proto: http|via: 1.1 refrain",
        ),
        (
            &[("x-forwarded-for", "10.0.0.1"), ("host", "shop.test")],
            "host: up:1|x-forwarded-host: shop.test|x-forwarded-for: 10.0.0.1, 10.0.0.9|x-forwarded-proto: http|via: 1.1 refrain",
        ),
        (
            &[("x-forwarded-proto", "https"), ("x-forwarded-host", "a")],
            "host: up:1|x-forwarded-proto: https|x-forwarded-host: a|x-forwarded-for: 10.0.0.9|via: 1.1 refrain",
        ),
        (
            &[("via", "1.0 a")],
            "host: up:1|x-forwarded-for: 10.0.0.9|x-forwarded-proto: http|via: 1.0 a, 1.1 refrain",
        ),
    ] {
        let mut request = Request::builder().uri("/");
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let (head, ()) = request.body(()).unwrap().into_parts();
        let way = ForwardedHead {
            visible: &visible,
            client: Some(&caller),
            upgrade: None,
        };
        let text = String::from_utf8(way.to_upstream(&head, Some(0)).0).unwrap();
        let fields = text.trim_end().split("\r\n").skip(1).collect::<Vec<_>>();
        assert_eq!(fields.join("|"), expected);
    }
}
