//! A client library that prints its members in another order sends the same request again. A client that changes one
//! digit of the amount does not. Taking the first for another request rejects a valid retry; taking the second for a
//! retry answers one payment with the response of another.

use refrain::{
    Fingerprint, Secret,
    fingerprint::{Content, Fingerprints, Part, RequestView, is_json},
};

const JSON: Option<&[u8]> = Some(b"application/json");

#[test]
fn only_json_content_types_are_json() {
    let cases: &[(&str, bool)] = &[
        ("application/json", true),
        ("Application/JSON; charset=utf-8", true),
        ("application/json ;x", true),
        ("application/problem+json", true),
        ("application/vnd.api+JSON;v=1", true),
        ("application/jsonl", false),
        ("text/plain", false),
        ("text/plain; x=application/json", false),
        ("text/plain; x=+json", false),
        ("json", false),
        ("", false),
    ];
    for (content_type, expected) in cases {
        assert_eq!(
            is_json(content_type.as_bytes()),
            *expected,
            "{content_type}"
        );
    }
}

/// A request to fingerprint.
#[derive(Clone)]
struct Request {
    method: &'static str,
    path: &'static str,
    query: Option<&'static str>,
    host: Option<&'static str>,
    header: Option<&'static str>,
    content_type: Option<&'static [u8]>,
    body: &'static str,
}

const PAY: Request = Request {
    method: "POST",
    path: "/pay",
    query: Some("a=1"),
    host: Some("shop.example"),
    header: Some("1"),
    content_type: JSON,
    body: r#"{"amount":5,"to":"bo"}"#,
};

#[test]
fn a_retry_has_the_same_fingerprint_and_another_request_another() {
    let default = ["method", "path", "query", "body"];
    let same: &[(&[&str], Request)] = &[
        (&default, PAY),
        (
            &default,
            Request {
                body: r#" {"to" : "b\u006f", "amount": 5}"#,
                ..PAY
            },
        ),
        (
            &default,
            Request {
                content_type: Some(b"application/x+json; charset=utf-8"),
                ..PAY
            },
        ),
        (
            &default,
            Request {
                header: None,
                ..PAY
            },
        ),
        (
            &["body:/amount"],
            Request {
                body: r#"{"to":"al","amount":5}"#,
                path: "/other",
                ..PAY
            },
        ),
        (&["body:/none"], Request { body: "{}", ..PAY }),
        (
            &["header:X-Version"],
            Request {
                body: "",
                method: "PUT",
                ..PAY
            },
        ),
        (
            &[],
            Request {
                body: "",
                method: "PUT",
                ..PAY
            },
        ),
    ];
    for (nth, (parts, other)) in same.iter().enumerate() {
        assert_eq!(of(parts, &PAY), of(parts, other), "same {nth}");
    }
    let different: &[(&[&str], Request)] = &[
        (
            &default,
            Request {
                method: "PATCH",
                ..PAY
            },
        ),
        (
            &default,
            Request {
                path: "/pay/",
                ..PAY
            },
        ),
        (
            &default,
            Request {
                query: Some("a=999"),
                ..PAY
            },
        ),
        (
            &default,
            Request {
                query: Some(""),
                ..PAY
            },
        ),
        (&default, Request { query: None, ..PAY }),
        (
            &default,
            Request {
                body: r#"{"amount":5.0,"to":"bo"}"#,
                ..PAY
            },
        ),
        (
            &default,
            Request {
                body: r#"{"amount":"5","to":"bo"}"#,
                ..PAY
            },
        ),
        (
            &default,
            Request {
                body: r#"{"amount":5,"amount":5,"to":"bo"}"#,
                ..PAY
            },
        ),
        (&default, Request { body: "", ..PAY }),
        // The same bytes with another media type.
        (
            &default,
            Request {
                content_type: Some(b"text/plain"),
                ..PAY
            },
        ),
        (
            &default,
            Request {
                content_type: None,
                ..PAY
            },
        ),
        (
            &["body:/amount"],
            Request {
                body: r#"{"amount":5.0}"#,
                ..PAY
            },
        ),
        (
            &["body:/amount"],
            Request {
                body: r#"{"amount":null}"#,
                ..PAY
            },
        ),
        (&["body:/amount"], Request { body: "{}", ..PAY }),
        (&["body:/amount"], Request { body: "5", ..PAY }),
        (
            &["body:/amount"],
            Request {
                body: r#"{"amount":5,"amount":5}"#,
                ..PAY
            },
        ),
        (
            &["header:x-version"],
            Request {
                header: Some("2"),
                ..PAY
            },
        ),
        (
            &["header:x-version"],
            Request {
                header: Some(""),
                ..PAY
            },
        ),
        (
            &["header:x-version"],
            Request {
                header: None,
                ..PAY
            },
        ),
    ];
    for (nth, (parts, other)) in different.iter().enumerate() {
        assert_ne!(of(parts, &PAY), of(parts, other), "different {nth}");
    }
}

#[test]
fn a_body_without_canonical_form_counts_byte_for_byte() {
    let bodies = [
        r#"{"a":1,"a":2}"#,
        r#"{"a":2,"a":1}"#,
        r#"{"a":1, "a":2}"#,
        "a=1&b=2",
        "b=2&a=1",
        "",
        "{\"a\":1",
    ];
    for parts in [&["body"][..], &["body:/a"][..]] {
        let prints: Vec<_> = bodies
            .map(|body| of(parts, &Request { body, ..PAY }))
            .into_iter()
            .collect();
        for (nth, print) in prints.iter().enumerate() {
            assert!(!prints[..nth].contains(print), "{parts:?} {}", bodies[nth]);
        }
    }
}

#[test]
fn parts_cannot_pass_for_each_other() {
    let print = |method, path, query| {
        let request = Request {
            method,
            path,
            query,
            body: "",
            ..PAY
        };
        of(&["method", "path", "query"], &request)
    };
    assert_ne!(print("AB", "C", None), print("A", "BC", None));
    assert_ne!(print("A", "B", Some("C")), print("A", "BC", Some("")));
    let same_text = Request {
        method: "x",
        path: "x",
        header: Some("x"),
        ..PAY
    };
    let prints = [&["method"], &["path"], &["header:x-version"]].map(|part| of(part, &same_text));
    assert!(prints[0] != prints[1] && prints[1] != prints[2] && prints[0] != prints[2]);
    let secret = Secret::from([8; 32]);
    assert_ne!(of_with(&secret, &["method"], &PAY), of(&["method"], &PAY));
}

/// Stores contain fingerprints from before the host was part of them: a retry of such a request must still match.
#[test]
fn the_host_is_added_to_the_fingerprint_of_all_other_parts() {
    let secret = Secret::from([7; 32]);
    let both = |parts: &[&str], request: &Request| {
        let parts: Vec<Part> = parts.iter().map(|part| part.parse().unwrap()).collect();
        with_view(request, |view| Fingerprints::of(&secret, &parts, view))
    };
    let others = ["method", "path", "query", "body"];
    let whole = ["method", "path", "query", "body", "host"];
    let elsewhere = Request {
        host: Some("other.example"),
        ..PAY
    };
    let nowhere = Request { host: None, ..PAY };
    let prints = [&PAY, &elsewhere, &nowhere].map(|request| both(&whole, request));
    for (nth, print) in prints.iter().enumerate() {
        assert_eq!(print.hostless, Some(of(&others, &PAY)));
        assert_eq!(both(&others, &elsewhere).whole, of(&others, &PAY));
        assert_ne!(print.whole, of(&others, &PAY));
        assert!(prints[..nth].iter().all(|other| other.whole != print.whole));
    }
    assert_eq!(both(&others, &PAY).hostless, None);
    let moved = ["host", "method", "path", "query", "body"];
    assert_eq!(of(&moved, &PAY), of(&whole, &PAY));
    // Fingerprints must stay the same across releases.
    let stored = "a37bd8f1aa5c0a31b495167d2ff60932";
    assert_eq!(of(&others, &PAY).to_string(), stored);
}

#[test]
fn headers_count_value_by_value() {
    let print = |headers: [(&str, &[u8]); 2]| {
        let content = Content::new(None, b"");
        let request = RequestView {
            method: "POST",
            path: "/",
            query: None,
            host: None,
            headers: &headers,
            content: &content,
        };
        Fingerprint::of(
            &Secret::from([7; 32]),
            &["header:a".parse().unwrap()],
            &request,
        )
    };
    let one = print([("A", b"1"), ("b", b"2")]);
    assert_eq!(one, print([("b", b"3"), ("a", b"1")]));
    assert_ne!(one, print([("a", b"1"), ("a", b"2")]));
    assert_ne!(
        print([("a", b"1"), ("a", b"2")]),
        print([("a", b"2"), ("a", b"1")])
    );
    assert_ne!(
        print([("a", b"12"), ("b", b"")]),
        print([("a", b"1"), ("a", b"2")])
    );
}

#[test]
fn parts_read_back_as_they_are_written() {
    for text in [
        "method",
        "path",
        "query",
        "body",
        "body:/a/0",
        "host",
        "header:x-version",
    ] {
        assert_eq!(text.parse::<Part>().unwrap().to_string(), text);
    }
    for text in [
        "",
        "header",
        "body:a",
        "header:Authorization",
        "header:Proxy-Authorization",
    ] {
        assert!(text.parse::<Part>().is_err(), "{text}");
    }
}

fn of(parts: &[&str], request: &Request) -> Fingerprint {
    of_with(&Secret::from([7; 32]), parts, request)
}

fn of_with(secret: &Secret, parts: &[&str], request: &Request) -> Fingerprint {
    let parts: Vec<Part> = parts
        .iter()
        .map(|part| part.parse().expect("a part"))
        .collect();
    with_view(request, |view| Fingerprint::of(secret, &parts, view))
}

fn with_view<T>(request: &Request, take: impl FnOnce(&RequestView<'_>) -> T) -> T {
    let content = Content::new(request.content_type, request.body.as_bytes());
    let name = if request.header.is_some() {
        "x-version"
    } else {
        "other"
    };
    let view = RequestView {
        method: request.method,
        path: request.path,
        query: request.query,
        host: request.host,
        headers: &[(name, request.header.unwrap_or_default().as_bytes())],
        content: &content,
    };
    take(&view)
}
