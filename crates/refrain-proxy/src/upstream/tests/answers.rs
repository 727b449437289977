//! Responses: where they end, and which of them are malformed.

use bytes::BytesMut;
use proptest::prelude::*;

use crate::{
    http1::{Broken, Framing, Limits, Step},
    upstream::UpstreamHeadParser,
};

const LIMITS: Limits = Limits {
    bytes_max: 1 << 10,
    fields_max: 8,
};

/// A response that was read to its end, or as far as it came.
#[derive(Debug, Default, PartialEq)]
struct Read {
    status: u16,
    fields: Vec<(String, String)>,
    body: Vec<u8>,
    trailers: Vec<(String, String)>,
    is_whole: bool,
    stays_open: bool,
    /// Bytes left after it.
    rest: Vec<u8>,
}

fn words(headers: &http::HeaderMap) -> Vec<(String, String)> {
    let words = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let fields = headers.iter();
    fields
        .map(|(name, value)| (name.to_string(), words(value)))
        .collect()
}

/// Reads a response that comes in pieces, up to its end or the end of the connection.
fn read<'p>(pieces: impl IntoIterator<Item = &'p [u8]>, is_to_head: bool) -> Result<Read, Broken> {
    let (mut input, mut read) = (BytesMut::new(), Read::default());
    let mut heads = UpstreamHeadParser::default();
    let mut framing: Option<Framing> = None;
    for piece in pieces {
        input.extend_from_slice(piece);
        while framing.is_none()
            && let Some(head) = heads.take(&mut input, is_to_head, LIMITS)?
        {
            if !head.is_interim() {
                read.status = head.status.as_u16();
                read.fields = words(&head.headers);
                read.stays_open = head.stays_open;
                framing = Some(head.framing);
            }
        }
        let Some(framing) = &mut framing else {
            continue;
        };
        while !framing.is_over() {
            match framing.next(&mut input)? {
                Step::Data(data) => read.body.extend_from_slice(&data),
                Step::Trailers(trailers) => read.trailers = words(&trailers),
                Step::More | Step::End => break,
            }
        }
    }
    read.is_whole = framing.is_some_and(|it| it.ends_with_connection());
    read.rest = input.to_vec();
    Ok(read)
}

fn whole(answer: &str) -> Result<Read, Broken> {
    read([answer.as_bytes()], false)
}

#[test]
fn an_answer_ends_where_it_says() {
    for (answer, body, is_whole, stays_open, rest) in [
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP",
            "ok",
            true,
            true,
            "HTTP",
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok",
            "ok",
            false,
            true,
            "",
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            "",
            true,
            true,
            "",
        ),
        (
            "HTTP/1.1 200 OK\r\n\r\nuntil the end",
            "until the end",
            true,
            false,
            "",
        ),
        (
            "HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
            "ok",
            true,
            false,
            "",
        ),
        (
            "HTTP/1.1 200 OK\r\nConnection: x, Close\r\ncontent-length: 2\r\n\r\nok",
            "ok",
            true,
            false,
            "",
        ),
        (
            "HTTP/1.1 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\nok",
            "ok",
            true,
            true,
            "",
        ),
        ("HTTP/1.1 204 No Content\r\n\r\nx", "", true, true, "x"),
        (
            "HTTP/1.1 304 Not Modified\r\ncontent-length: 7\r\n\r\n",
            "",
            true,
            true,
            "",
        ),
        (
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\nHTTP/1.1 201 \r\ncontent-length: 1\r\n\r\nx",
            "x",
            true,
            true,
            "",
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n2\r\nok\r\n0\r\n\r\nHTTP",
            "ok",
            true,
            true,
            "HTTP",
        ),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0A;x=\"y\"\r\n0123456789\r\n1 \r\nx\r\n00\r\n\r\n",
            "0123456789x",
            true,
            true,
            "",
        ),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n",
            "ok",
            false,
            true,
            "",
        ),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n",
            "ok",
            false,
            true,
            "",
        ),
    ] {
        let read = whole(answer).unwrap_or_else(|broken| panic!("{answer:?}: {broken}"));
        assert_eq!(String::from_utf8_lossy(&read.body), body, "{answer:?}");
        assert_eq!(read.is_whole, is_whole, "{answer:?}");
        assert_eq!(read.stays_open, stays_open, "{answer:?}");
        assert_eq!(String::from_utf8_lossy(&read.rest), rest, "{answer:?}");
    }
}

#[test]
fn response_to_head_has_no_body() {
    for fields in ["content-length: 77", "transfer-encoding: chunked", "x: y"] {
        let answer = format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n");
        let read = read([answer.as_bytes()], true).unwrap();
        assert!(
            read.is_whole && read.stays_open && read.body.is_empty(),
            "{fields}"
        );
    }
}

#[test]
fn rejects_ambiguous_responses() {
    let long = "x".repeat(1 << 10);
    let many = "x: y\r\n".repeat(9);
    let chunked = "transfer-encoding: chunked\r\n";
    for head in [
        "content-length: 2\r\ncontent-length: 3\r\n",
        "content-length: 2\r\ncontent-length: 2\r\n",
        "content-length: 2, 2\r\n",
        "content-length: +2\r\n",
        "content-length: \r\n",
        "content-length: 0x2\r\n",
        "content-length: 99999999999999999999\r\n",
        "content-length: 2\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: chunked\r\ncontent-length: 2\r\n",
        "transfer-encoding: gzip, chunked\r\n",
        "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: identity\r\n",
        "transfer-encoding : chunked\r\n",
        "x: y\r\n folded\r\n",
        "x: y\n",
        "x: y\r\n\n",
        "x\r\n",
        "x: \0\r\n",
        "x: a\rb\r\n",
        &many,
        &long,
        &format!("x: {long}\r\n"),
    ] {
        let answer = format!("HTTP/1.1 200 OK\r\n{head}\r\nok");
        assert!(whole(&answer).is_err(), "{answer:?}");
    }
    for start in [
        "HTTP/1.1 20\r\n",
        "HTTP/2.0 200 OK\r\n",
        "\r\n",
        "200 OK\r\n",
        "HTTP/1.1 099 X\r\n",
        "HTTP/1.1 200 OK\n",
    ] {
        assert!(
            whole(&format!("{start}content-length: 0\r\n\r\n")).is_err(),
            "{start:?}"
        );
    }
    assert!(whole(&format!("HTTP/1.0 200 OK\r\n{chunked}\r\n0\r\n\r\n")).is_err());
    for body in [
        "\r\n",
        ";\r\nok",
        "x\r\nok",
        "-1\r\n",
        " 2\r\nok\r\n",
        "2 2\r\nok\r\n",
        "0x2\r\nok\r\n",
        "2\nok\r\n",
        "2\r\nokx\r\n",
        "2\r\nok\n0\r\n\r\n",
        "10000000000000000\r\n",
        "2;a\rb\r\nok\r\n",
        "2\r\nok\r\n0\r\nx\r\n\r\n",
        "2\r\nok\r\n0\r\nx: y\n\r\n",
        &format!("2;{long}\r\nok\r\n0\r\n\r\n"),
        &format!("0\r\n{}\r\n", format!("x: {long}\r\n").repeat(17)),
        &format!("0\r\n{}\r\n", "x: y\r\n".repeat(65)),
    ] {
        let answer = format!("HTTP/1.1 200 OK\r\n{chunked}\r\n{body}");
        assert!(whole(&answer).is_err(), "{body:?}");
    }
}

#[test]
fn trailers_follow_the_last_chunk() {
    let answer = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 7\r\nx-sum: 8\r\n\r\n";
    let trailers = whole(answer).unwrap().trailers;
    let expected =
        [("x-sum", "7"), ("x-sum", "8")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(trailers, expected);
}

#[test]
fn the_name_of_a_status_is_kept_where_it_is_the_upstreams_own() {
    for (reason, own) in [("OK", None), ("Fine", Some("Fine")), ("", Some(""))] {
        let answer = format!("HTTP/1.1 200 {reason}\r\n\r\n");
        let head = UpstreamHeadParser::default()
            .take(&mut answer.as_bytes().into(), false, LIMITS)
            .unwrap()
            .unwrap();
        let read = head.reason.as_ref().map(|reason| reason.as_bytes());
        assert_eq!(read, own.map(str::as_bytes), "{reason:?}");
    }
}

/// Valid and nearly valid responses, and the bytes after them.
fn answers() -> impl Strategy<Value = String> {
    let field = prop_oneof![
        Just("content-length: 5\r\n"),
        Just("content-length: 12\r\n"),
        Just("transfer-encoding: chunked\r\n"),
        Just("connection: close\r\n"),
        Just("x-a: b\r\n"),
        Just("x-a: b\n"),
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
    let start = prop_oneof![
        4 => Just("HTTP/1.1 200 OK\r\n"),
        1 => Just("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 Fine\r\n"),
        1 => Just("HTTP/1.1 204 No Content\r\n"),
        1 => Just("HTTP/1.0 200 OK\r\n"),
    ];
    let fields = prop::collection::vec(field, 0..3);
    let pieces = prop::collection::vec(piece, 0..5);
    (start, fields, pieces).prop_map(|(start, fields, pieces)| {
        format!("{start}{}\r\n{}", fields.concat(), pieces.concat())
    })
}

proptest! {
    #[test]
    fn any_split_of_the_bytes_reads_the_same(
        answer in answers(),
        is_to_head: bool,
        cuts in prop::collection::vec(0_usize..200, 0..20),
    ) {
        let bytes = answer.as_bytes();
        let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let pieces = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]);
        prop_assert_eq!(read(pieces, is_to_head), read([bytes], is_to_head));
        prop_assert_eq!(read(bytes.chunks(1), is_to_head), read([bytes], is_to_head));
    }

    #[test]
    fn arbitrary_bytes_parse_as_a_response_or_are_rejected(bytes: Vec<u8>, is_to_head: bool) {
        let _ = read([&b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"[..], &bytes], is_to_head);
        let _ = read([&b"HTTP/1.1 200 OK\r\n"[..], &bytes], is_to_head);
        let _ = read([&bytes[..]], is_to_head);
    }
}
