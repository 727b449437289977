//! Converts messages to and from Kafka records.

use bytes::Bytes;
use rdkafka::{
    Message as _,
    message::{BorrowedMessage, Header, Headers as _, OwnedHeaders},
};
use refrain::consume::{Message, Position};

const ID: &str = "refrain-id";
const CONTENT_TYPE: &str = "content-type";

/// Encodes id, content type and headers as record headers.
pub(super) fn headers(message: &Message) -> OwnedHeaders {
    let mut headers = OwnedHeaders::new();
    for (name, value) in [(ID, &message.id), (CONTENT_TYPE, &message.content_type)] {
        if let Some(value) = value {
            headers = headers.insert(Header {
                key: name,
                value: Some(value),
            });
        }
    }
    for (name, value) in &message.headers {
        headers = headers.insert(Header {
            key: name,
            value: Some(&value[..]),
        });
    }
    headers
}

/// Decodes a record, of Refrain or of another program. The record's key becomes the group; invalid UTF-8 in
/// the key is replaced.
pub(super) fn read(record: &BorrowedMessage<'_>) -> Message {
    let bytes = |value: Option<&[u8]>| Bytes::copy_from_slice(value.unwrap_or_default());
    let mut message = Message::new(bytes(record.payload()));
    message.subject = record.topic().into();
    let key = record
        .key()
        .map(|key| String::from_utf8_lossy(key).into_owned());
    message.group = key;
    message.position = Some(Position {
        log: record.topic().into(),
        partition: u32::try_from(record.partition()).unwrap_or_default(),
        offset: record.offset().to_string(),
    });
    let headers = record.headers().into_iter().flat_map(|it| it.iter());
    for header in headers {
        let text = || {
            header
                .value
                .map(|it| String::from_utf8_lossy(it).into_owned())
        };
        match header.key {
            ID => message.id = text(),
            CONTENT_TYPE => message.content_type = text(),
            name => message.headers.push((name.into(), bytes(header.value))),
        }
    }
    message
}
