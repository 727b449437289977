//! Converts messages to and from NATS messages.

use std::str::from_utf8;

use async_nats::{HeaderMap, HeaderName, HeaderValue, jetstream};
use bytes::Bytes;
use refrain::{
    Error, ErrorKind, Result,
    consume::{HEADER_BYTES_MAX, Message, Position},
};

/// The header that JetStream deduplicates by.
const MESSAGE_ID: &str = "Nats-Msg-Id";
const CONTENT_TYPE: &str = "Content-Type";
/// NATS has no message groups: this header only carries the group to the consumer.
const GROUP: &str = "Refrain-Group";
/// Headers with this prefix are instructions to the server, not data of the message.
const OWN_PREFIX: &str = "nats-";

/// Encodes everything except the payload as NATS headers.
///
/// # Errors
/// [`ErrorKind::Invalid`] for a header that NATS cannot carry.
pub(super) fn headers_of(message: &Message) -> Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    let mut bytes = 0;
    for (name, value) in &message.headers {
        bytes += name.len() + value.len();
        put(&mut headers, name, value)?;
    }
    for (name, value) in [
        (MESSAGE_ID, &message.id),
        (CONTENT_TYPE, &message.content_type),
        (GROUP, &message.group),
    ] {
        if let Some(value) = value {
            bytes += name.len() + value.len();
            put(&mut headers, name, value.as_bytes())?;
        }
    }
    if bytes > HEADER_BYTES_MAX {
        let message =
            format!("the headers have {bytes} bytes; the limit is {HEADER_BYTES_MAX} bytes");
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    Ok(headers)
}

fn put(headers: &mut HeaderMap, name: &str, value: &[u8]) -> Result<()> {
    let invalid = |why: &str| {
        let message = format!("NATS cannot carry the header {name:?}: {why}");
        Error::new(ErrorKind::Invalid, message)
    };
    let value = from_utf8(value).map_err(|_| invalid("its value is not UTF-8"))?;
    if value.trim() != value {
        return Err(invalid("its value starts or ends with white space"));
    }
    let parsed = name.parse::<HeaderName>();
    let name = parsed.map_err(|_| {
        invalid("its name contains a colon or a character other than visible ASCII")
    })?;
    let value = value.parse::<HeaderValue>();
    headers.append(
        name,
        value.map_err(|_| invalid("its value contains a line break"))?,
    );
    Ok(())
}

/// Decodes a delivered message and its attempt number, counted from 1.
///
/// `None` for a message that did not come from a stream.
pub(super) fn message_of(delivered: &jetstream::Message) -> Option<(Message, u32)> {
    let info = delivered.info().ok()?;
    let mut message = Message::new(delivered.payload.clone());
    message.subject = delivered.subject.to_string();
    message.position = Some(Position {
        log: info.stream.to_owned(),
        partition: 0,
        offset: info.stream_sequence.to_string(),
    });
    if let Some(headers) = &delivered.headers {
        take_headers(&mut message, headers);
    }
    let attempt = u32::try_from(info.delivered).unwrap_or(u32::MAX).max(1);
    Some((message, attempt))
}

pub(super) fn take_headers(message: &mut Message, headers: &HeaderMap) {
    let fields = headers.iter();
    let mut fields: Vec<(&str, _)> = fields.map(|(name, all)| (name.as_ref(), all)).collect();
    // The client does not keep the order of header names; sorting makes the order stable.
    fields.sort_by_key(|(name, _)| *name);
    for (name, values) in fields {
        let first = || values.first().map(|value| value.as_str().to_owned());
        if name.eq_ignore_ascii_case(MESSAGE_ID) {
            message.id = first();
        } else if name.eq_ignore_ascii_case(CONTENT_TYPE) {
            message.content_type = first();
        } else if name.eq_ignore_ascii_case(GROUP) {
            message.group = first();
        } else if !has_own_prefix(name) {
            for value in values {
                let value = Bytes::copy_from_slice(value.as_str().as_bytes());
                message.headers.push((name.to_owned(), value));
            }
        }
    }
}

/// Server instructions of the original publish must not be sent again when the message is republished.
fn has_own_prefix(name: &str) -> bool {
    let front = name.get(..OWN_PREFIX.len());
    front.is_some_and(|front| front.eq_ignore_ascii_case(OWN_PREFIX))
}

#[cfg(test)]
mod tests {
    //! A header value with a line break could inject further headers.

    use super::*;

    fn check(name: &str, value: &'static [u8], words: &str) {
        let message = Message::new("").with_header(name, value);
        let error = headers_of(&message).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(words), "{error}");
    }

    #[test]
    fn a_header_that_nats_cannot_carry_is_refused() {
        check("a", b"x\r\nNats-Rollup: all", "line break");
        check("a", b"\xff", "UTF-8");
        check("a", b" x", "white space");
        check("a: b", b"x", "colon");
        check("\u{e4}", b"x", "ASCII");
        let long = Message::new("").with_header("a", vec![b'x'; HEADER_BYTES_MAX]);
        assert!(headers_of(&long).is_err());
    }

    #[test]
    fn message_properties_round_trip() {
        let sent = Message::new("x")
            .with_id("7")
            .with_group("g")
            .with_content_type("text/plain")
            .with_header("a", "1")
            .with_header("a", "2")
            .with_header("B", "3");
        let mut back = Message::new("x");
        take_headers(&mut back, &headers_of(&sent).unwrap());
        back.headers.sort();
        let mut expected = sent.clone();
        expected.headers.sort();
        assert_eq!(back, expected);
    }

    #[test]
    fn server_control_headers_are_not_forwarded() {
        let sent = Message::new("").with_header("Nats-Rollup", "all");
        let mut back = Message::new("");
        take_headers(&mut back, &headers_of(&sent).unwrap());
        assert_eq!(back.headers, []);
    }
}
