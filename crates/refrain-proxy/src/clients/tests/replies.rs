//! Heads of responses: the declared length matches the body, and HTTP/1.0 clients get HTTP/1.0 responses.

use http::{HeaderValue, Response, StatusCode, Version, header};

use crate::{
    clients::{head::RequestTraits, reply},
    http1::Length,
    watch::Date,
};

fn asked(version: Version) -> RequestTraits {
    RequestTraits {
        version,
        keeps_alive: true,
        ..RequestTraits::nothing()
    }
}

/// The encoded head without its date, how the body is sent, and whether another response may follow.
fn written(
    status: u16,
    fields: &[(&'static str, &'static str)],
    size: Option<u64>,
    asked: RequestTraits,
) -> (String, String, bool) {
    let mut head = Response::new(()).into_parts().0;
    head.status = StatusCode::from_u16(status).unwrap();
    for (name, value) in fields {
        head.headers.append(*name, HeaderValue::from_static(value));
    }
    let reply = reply::from_head(&head, size, asked, asked.keeps_alive);
    let (mut out, date) = (Vec::new(), Date::default());
    let (length, keeps_alive) = reply.write(&mut out, &date);
    let out = String::from_utf8(out).unwrap();
    let date = format!(
        "date: {}\r\n",
        std::str::from_utf8(date.as_bytes()).unwrap()
    );
    assert_eq!(out.matches("date: ").count(), 1, "{out}");
    let length = match length {
        Length::Left(left) => left.to_string(),
        Length::Chunked => "chunked".to_owned(),
        Length::UntilClose => "until close".to_owned(),
    };
    (out.replace(&date, ""), length, keeps_alive)
}

#[test]
fn response_head_matches_its_body() {
    let new = asked(Version::HTTP_11);
    let old = asked(Version::HTTP_10);
    let to_head = RequestTraits {
        is_to_head: true,
        ..new
    };
    let last = RequestTraits {
        keeps_alive: false,
        ..new
    };
    let says = [("content-length", "7")];
    let trailer = [("trailer", "x-sum, x-other")];
    for (status, fields, size, asked, head, length, keeps_alive) in [
        (
            200,
            &[][..],
            Some(3),
            new,
            "200 OK\r\ncontent-length: 3\r\n",
            "3",
            true,
        ),
        (
            200,
            &[],
            Some(0),
            new,
            "200 OK\r\ncontent-length: 0\r\n",
            "0",
            true,
        ),
        (
            200,
            &[],
            None,
            new,
            "200 OK\r\ntransfer-encoding: chunked\r\n",
            "chunked",
            true,
        ),
        (
            200,
            &says,
            None,
            new,
            "200 OK\r\ncontent-length: 7\r\n",
            "7",
            true,
        ),
        // The known length takes precedence over the declared one.
        (
            200,
            &says,
            Some(3),
            new,
            "200 OK\r\ncontent-length: 3\r\n",
            "3",
            true,
        ),
        (
            200,
            &[("transfer-encoding", "chunked")],
            Some(3),
            new,
            "200 OK\r\ncontent-length: 3\r\n",
            "3",
            true,
        ),
        (204, &says, Some(0), new, "204 No Content\r\n", "0", true),
        (
            304,
            &says,
            Some(0),
            new,
            "304 Not Modified\r\ncontent-length: 7\r\n",
            "0",
            true,
        ),
        (304, &[], Some(0), new, "304 Not Modified\r\n", "0", true),
        (
            200,
            &says,
            Some(0),
            to_head,
            "200 OK\r\ncontent-length: 7\r\n",
            "0",
            true,
        ),
        (
            200,
            &[],
            Some(5),
            to_head,
            "200 OK\r\ncontent-length: 5\r\n",
            "0",
            true,
        ),
        (200, &[], None, to_head, "200 OK\r\n", "0", true),
        (
            200,
            &[],
            Some(3),
            last,
            "200 OK\r\ncontent-length: 3\r\nconnection: close\r\n",
            "3",
            false,
        ),
        (
            200,
            &[("connection", "Close")],
            Some(3),
            new,
            "200 OK\r\ncontent-length: 3\r\nconnection: close\r\n",
            "3",
            false,
        ),
        (
            200,
            &[],
            Some(3),
            old,
            "200 OK\r\ncontent-length: 3\r\nconnection: keep-alive\r\n",
            "3",
            true,
        ),
        (200, &[], None, old, "200 OK\r\n", "until close", false),
        (
            101,
            &[("connection", "upgrade"), ("upgrade", "x")],
            Some(0),
            new,
            "101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n",
            "0",
            true,
        ),
        (
            200,
            &trailer,
            None,
            new,
            "200 OK\r\ntrailer: x-sum, x-other\r\ntransfer-encoding: chunked\r\n",
            "chunked",
            true,
        ),
    ] {
        let version = if asked.version == Version::HTTP_10 {
            "1.0"
        } else {
            "1.1"
        };
        let expected = (
            format!("HTTP/{version} {head}\r\n"),
            length.to_owned(),
            keeps_alive,
        );
        assert_eq!(written(status, fields, size, asked), expected);
    }
}

#[test]
fn existing_date_header_is_kept() {
    let mut head = Response::new(()).into_parts().0;
    let told = "Thu, 01 Jan 1970 00:00:00 GMT";
    head.headers
        .insert(header::DATE, HeaderValue::from_static(told));
    let reply = reply::from_head(&head, Some(0), asked(Version::HTTP_11), true);
    let mut out = Vec::new();
    reply.write(&mut out, &Date::default());
    let out = String::from_utf8(out).unwrap();
    assert_eq!(
        out,
        format!("HTTP/1.1 200 OK\r\ndate: {told}\r\ncontent-length: 0\r\n\r\n")
    );
}
