//! Requests: where they end, and which of them are malformed.

use bytes::BytesMut;
use proptest::prelude::*;
use refrain::http::Code;

use crate::{
    clients::head::{self, RefusedHead, RequestHeadParser},
    http1::{Framing, Limits, Step},
};

const LIMITS: Limits = Limits {
    bytes_max: 1 << 10,
    fields_max: 8,
};

/// A request that was read to its end, or as far as it came.
#[derive(Debug, Default, PartialEq)]
struct Read {
    start: String,
    fields: Vec<(String, String)>,
    body: Vec<u8>,
    trailers: usize,
    is_whole: bool,
    keeps_alive: bool,
}

/// Result of reading a connection: its requests, and how it ended.
#[derive(Debug, Default, PartialEq)]
struct All {
    requests: Vec<Read>,
    refused: Option<RefusedHead>,
    /// Whether a body was malformed.
    is_broken: bool,
    rest: Vec<u8>,
}

/// Reads requests that come in pieces, up to the end or the first error.
fn read<'p>(pieces: impl IntoIterator<Item = &'p [u8]>) -> All {
    let (mut input, mut heads, mut all) = (
        BytesMut::new(),
        RequestHeadParser::default(),
        All::default(),
    );
    let mut framing = Framing::Length(0);
    for piece in pieces {
        input.extend_from_slice(piece);
        if all.refused.is_none() && !all.is_broken {
            while advance(&mut input, &mut heads, &mut framing, &mut all) {}
        }
    }
    all.rest = match (&all.refused, all.is_broken) {
        (None, false) => input.to_vec(),
        // The bytes after an error are not read.
        _ => Vec::new(),
    };
    all
}

/// Advances by one step; returns whether another may follow.
fn advance(
    input: &mut BytesMut,
    heads: &mut RequestHeadParser,
    framing: &mut Framing,
    all: &mut All,
) -> bool {
    if framing.is_over() {
        match heads.take(input, LIMITS) {
            Ok(None) => return false,
            Err(refused) => {
                all.refused = Some(refused);
                return false;
            }
            Ok(Some(head)) => {
                let fields = head.parts.headers.iter().map(|(name, value)| {
                    let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
                    (name.to_string(), value)
                });
                *framing = head.framing;
                all.requests.push(Read {
                    start: format!("{} {}", head.parts.method, head.parts.uri),
                    fields: fields.collect(),
                    is_whole: framing.is_over(),
                    keeps_alive: head.asked.keeps_alive,
                    ..Read::default()
                });
                // The next head reuses its memory.
                head::reuse(head.parts);
            }
        }
    }
    let Some(read) = all.requests.last_mut() else {
        return false;
    };
    let is_more = match framing.next(input) {
        Ok(Step::Data(data)) => {
            read.body.extend_from_slice(&data);
            true
        }
        Ok(Step::Trailers(trailers)) => {
            read.trailers = trailers.len();
            true
        }
        Ok(Step::End) => true,
        Ok(Step::More) => false,
        Err(_) => {
            all.is_broken = true;
            false
        }
    };
    read.is_whole = framing.is_over();
    is_more && !(input.is_empty() && framing.is_over())
}

fn post(fields: &str, behind: &str) -> String {
    format!("POST /a HTTP/1.1\r\nhost: a\r\n{fields}\r\n{behind}")
}

#[test]
fn a_request_ends_where_it_says_and_the_next_one_starts_there() {
    let get = "GET /b HTTP/1.1\r\nhost: a\r\n\r\n";
    for (bytes, body, trailers, keeps_alive) in [
        (post("", ""), "", 0, true),
        (post("Content-Length: 0\r\n", ""), "", 0, true),
        (post("content-length: 2\r\n", "ok"), "ok", 0, true),
        (post("content-length: 002\r\n", "ok"), "ok", 0, true),
        (
            post("transfer-encoding: Chunked\r\n", "2\r\nok\r\n0\r\n\r\n"),
            "ok",
            0,
            true,
        ),
        (
            post(
                "transfer-encoding: chunked\r\n",
                "1;x=\"y\"\r\no\r\n1 \r\nk\r\n00\r\nx: 1\r\ny: 2\r\n\r\n",
            ),
            "ok",
            2,
            true,
        ),
        // Transfer-Encoding takes precedence, and the connection is not reused.
        (
            post(
                "content-length: 9\r\ntransfer-encoding: chunked\r\n",
                "2\r\nok\r\n0\r\n\r\n",
            ),
            "ok",
            0,
            false,
        ),
        (post("connection: x, Close\r\n", ""), "", 0, false),
        ("POST /a HTTP/1.0\r\n\r\n".to_owned(), "", 0, false),
        (
            "POST /a HTTP/1.0\r\nconnection: Keep-Alive\r\n\r\n".to_owned(),
            "",
            0,
            true,
        ),
        (
            "POST /a HTTP/1.1\nhost: a\ncontent-length: 2\n\nok".to_owned(),
            "ok",
            0,
            true,
        ),
    ] {
        let all = read([format!("{bytes}{get}").as_bytes()]);
        assert_eq!(all.requests.len(), 2, "{bytes:?}: {all:?}");
        let first = &all.requests[0];
        assert_eq!(first.start, "POST /a", "{bytes:?}");
        assert_eq!(String::from_utf8_lossy(&first.body), body, "{bytes:?}");
        assert_eq!(
            (first.trailers, first.keeps_alive),
            (trailers, keeps_alive),
            "{bytes:?}"
        );
        assert_eq!(all.requests[1].start, "GET /b", "{bytes:?}");
        assert!(all.rest.is_empty(), "{bytes:?}");
    }
}

#[test]
fn ignored_content_length_is_not_forwarded() {
    let bytes = post(
        "content-length: 9\r\ntransfer-encoding: chunked\r\n",
        "0\r\n\r\n",
    );
    let fields = &read([bytes.as_bytes()]).requests[0].fields;
    assert!(
        fields.iter().all(|(name, _)| name != "content-length"),
        "{fields:?}"
    );
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
        let all = read([post(fields, "").as_bytes()]);
        let status = all.refused.map(|refused| refused.code);
        assert_eq!(status, Some(Code::RequestMalformed), "{fields:?}");
        assert!(all.requests.is_empty(), "{fields:?}");
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
        "PRI * HTTP/2.0",
        "PRI * HTTP/1.1",
        "PRI /a HTTP/1.0",
        "\r\nGET /a HTTP/1.1",
        "\nGET /a HTTP/1.1",
        "\rGET /a HTTP/1.1",
    ] {
        let bytes = format!("{start}\r\nhost: a\r\n\r\n");
        let status = read([bytes.as_bytes()]).refused.map(|refused| refused.code);
        assert_eq!(status, Some(Code::RequestMalformed), "{start:?}");
    }
    let old = "POST /a HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n";
    assert!(read([old.as_bytes()]).refused.is_some());
}

#[test]
fn a_head_over_a_limit_is_refused_before_all_of_it_has_come() {
    let large = Code::HeadTooLarge;
    let endless = format!("GET /a HTTP/1.1\r\nx: {}", "x".repeat(1 << 10));
    let long = format!("{endless}\r\n\r\n");
    let many = format!("GET /a HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(9));
    for bytes in [endless, long, many] {
        let status = read([bytes.as_bytes()]).refused.map(|refused| refused.code);
        assert_eq!(status, Some(large), "{bytes:?}");
    }
    let target = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(66_000));
    for bytes_max in [8 << 10, 64 << 10, 1 << 20] {
        let limits = Limits {
            bytes_max,
            fields_max: 8,
        };
        let taken = RequestHeadParser::default().take(&mut target.as_bytes().into(), limits);
        assert_eq!(taken.unwrap_err().code, Code::TargetTooLong);
    }
}

#[test]
fn extensions_of_chunks_have_a_limit_for_the_whole_body() {
    let chunk = format!("1;{}\r\nx\r\n", "e".repeat(1_000));
    for (count, is_broken) in [(16, false), (17, true)] {
        let bytes = post("transfer-encoding: chunked\r\n", &chunk.repeat(count));
        assert_eq!(read([bytes.as_bytes()]).is_broken, is_broken, "{count}");
    }
}

/// Valid and nearly valid requests, one after the other.
fn requests() -> impl Strategy<Value = String> {
    let start = prop_oneof![
        6 => Just("POST /a HTTP/1.1\r\n"),
        1 => Just("POST /a HTTP/1.1\n"),
        1 => Just("GET http://b/c?d HTTP/1.0\r\n"),
        1 => Just("\r\nGET / HTTP/1.1\r\n"),
        1 => Just("GET / HTTP/1.1 \r\n"),
    ];
    let field = prop_oneof![
        Just("content-length: 5\r\n"),
        Just("transfer-encoding: chunked\r\n"),
        Just("connection: close\r\n"),
        Just("x-a: b\r\n"),
        Just("X-Long-Name: b\n"),
        Just("x a: b\r\n"),
    ];
    let piece = prop_oneof![
        Just("5\r\nhello\r\n"),
        Just("c;x\r\nhello, world\r\n"),
        Just("0\r\n\r\n"),
        Just("0\r\nx: y\r\n\r\n"),
        Just("hello"),
        Just("\r"),
        Just("\n"),
    ];
    let fields = prop::collection::vec(field, 0..3);
    let pieces = prop::collection::vec(piece, 0..4);
    let request = (start, fields, pieces).prop_map(|(start, fields, pieces)| {
        format!("{start}{}\r\n{}", fields.concat(), pieces.concat())
    });
    prop::collection::vec(request, 1..4).prop_map(|requests| requests.concat())
}

proptest! {
    #[test]
    fn any_split_of_the_bytes_reads_the_same(
        requests in requests(),
        cuts in prop::collection::vec(0_usize..400, 0..20),
    ) {
        let bytes = requests.as_bytes();
        let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let pieces = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]);
        prop_assert_eq!(read(pieces), read([bytes]));
        prop_assert_eq!(read(bytes.chunks(1)), read([bytes]));
    }

    #[test]
    fn arbitrary_bytes_parse_or_are_rejected(bytes: Vec<u8>) {
        let _ = read([&b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"[..], &bytes]);
        let _ = read([&b"POST / HTTP/1.1\r\n"[..], &bytes]);
        let _ = read([&bytes[..]]);
    }
}
