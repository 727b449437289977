//! Heads of requests: which of them are refused, and how the body after them is framed.

use refrain::http::Code;
use refrain_http1::{Framing, Limits};

use crate::clients::checked::{CheckedHead, HeadCheck, RefusedHead};

const LIMITS: Limits = Limits {
    bytes_max: 1 << 10,
    fields_max: 8,
};

fn check(bytes: &str) -> Result<Option<CheckedHead>, RefusedHead> {
    HeadCheck::default().check(bytes.as_bytes(), LIMITS)
}

fn post(fields: &str, behind: &str) -> String {
    format!("POST /a HTTP/1.1\r\nhost: a\r\n{fields}\r\n{behind}")
}

#[test]
fn body_is_framed_as_its_head_says() {
    let chunked = Framing::chunked();
    for (fields, framing, is_last) in [
        ("", Framing::Length(0), false),
        ("Content-Length: 0\r\n", Framing::Length(0), false),
        ("content-length: 2\r\n", Framing::Length(2), false),
        ("content-length: 002\r\n", Framing::Length(2), false),
        ("transfer-encoding: Chunked\r\n", chunked, false),
        // Transfer-Encoding takes precedence, and the connection is not reused.
        (
            "content-length: 9\r\ntransfer-encoding: chunked\r\n",
            chunked,
            true,
        ),
    ] {
        let expected = CheckedHead {
            len: post(fields, "").len(),
            framing,
            is_last,
        };
        assert_eq!(check(&post(fields, "next")), Ok(Some(expected)), "{fields}");
    }
    let bare = "POST /a HTTP/1.1\nhost: a\ncontent-length: 2\n\n";
    let head = check(&format!("{bare}ok")).unwrap().unwrap();
    assert_eq!((head.len, head.framing), (bare.len(), Framing::Length(2)));
}

#[test]
fn rejects_ambiguous_requests() {
    for fields in [
        "content-length: 2\r\ncontent-length: 3\r\n",
        "content-length: 2\r\ncontent-length: 2\r\n",
        "content-length: 2, 2\r\n",
        "content-length: +2\r\n",
        "content-length: 2 2\r\n",
        "content-length: \r\n",
        "content-length: 0x2\r\n",
        "content-length: 18446744073709551616\r\n",
        "transfer-encoding: gzip, chunked\r\n",
        "transfer-encoding: chunked, identity\r\n",
        "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: \x0bchunked\r\n",
        "transfer-encoding : chunked\r\n",
        "transfer-encoding\t: chunked\r\n",
        " transfer-encoding: chunked\r\n",
        "transfer-encoding:\r\n chunked\r\n",
        "x: y\r\n folded\r\n",
        "x\r\n",
        ": y\r\n",
        "x y: z\r\n",
        "x: \0\r\n",
        "x: a\rb\r\n",
        "x: \x7f\r\n",
    ] {
        let refused = check(&post(fields, "")).unwrap_err();
        assert_eq!(refused.code, Code::RequestMalformed, "{fields:?}");
    }
    for start in [
        "GET /a",
        "GET /a HTTP/1.2",
        "GET /a HTTP/2.0",
        "GET /a  HTTP/1.1",
        "GET  /a HTTP/1.1",
        "GET\t/a HTTP/1.1",
        "GET /a\tHTTP/1.1",
        " GET /a HTTP/1.1",
        "GE:T /a HTTP/1.1",
        "GET /\x01 HTTP/1.1",
        "GET /a HTTP/1.1 ",
        "GET /a#b HTTP/1.1",
        "GET /<a> HTTP/1.1",
        "PRI * HTTP/2.0",
        "PRI * HTTP/1.1",
        "PRI /a HTTP/1.0",
        "\r\nGET /a HTTP/1.1",
        "\nGET /a HTTP/1.1",
        "\rGET /a HTTP/1.1",
    ] {
        let bytes = format!("{start}\r\nhost: a\r\n\r\n");
        let refused = check(&bytes).unwrap_err();
        assert_eq!(refused.code, Code::RequestMalformed, "{start:?}");
    }
    let old = "POST /a HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n";
    assert!(check(old).is_err());
}

#[test]
fn a_head_over_a_limit_is_refused_before_all_of_it_has_come() {
    let large = Code::HeadTooLarge;
    let endless = format!("GET /a HTTP/1.1\r\nx: {}", "x".repeat(1 << 10));
    let long = format!("{endless}\r\n\r\n");
    let many = format!("GET /a HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(9));
    for bytes in [endless, long, many] {
        assert_eq!(check(&bytes).unwrap_err().code, large, "{bytes:?}");
    }
    let target = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(66_000));
    for bytes_max in [8 << 10, 64 << 10, 1 << 20] {
        let limits = Limits {
            bytes_max,
            fields_max: 8,
        };
        let checked = HeadCheck::default().check(target.as_bytes(), limits);
        assert_eq!(checked.unwrap_err().code, Code::TargetTooLong);
    }
}
