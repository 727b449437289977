//! Converts messages to and from SQS messages, which carry text and at most ten attributes.

use std::collections::HashMap;

use aws_sdk_sqs::{
    error::BuildError,
    operation::send_message::builders::SendMessageFluentBuilder,
    types::{self, MessageAttributeValue, MessageSystemAttributeName as System},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use refrain::consume::Message;

use crate::headers;

const ID: &str = "refrain-id";
const GROUP: &str = "refrain-group";
/// All headers in one attribute, because SQS limits the number of attributes.
const HEADERS: &str = "refrain-headers";
/// Encoding of the body, if the body is not the payload itself.
const ENCODING: &str = "refrain-encoding";
const CONTENT_TYPE: &str = "content-type";
const OURS: [&str; 5] = [ID, GROUP, HEADERS, ENCODING, CONTENT_TYPE];
/// The longest deduplication id or group id, in bytes.
const NAME_MAX: usize = 128;

/// Adds the message to a send request.
pub(super) fn write(
    mut send: SendMessageFluentBuilder,
    message: &Message,
    is_fifo: bool,
) -> Result<SendMessageFluentBuilder, BuildError> {
    let (body, encoding) = encoded(&message.payload);
    send = send.message_body(body);
    let headers = match message.headers.is_empty() {
        true => None,
        false => Some(headers::write(&message.headers).to_string()),
    };
    for (name, value) in [
        (ID, message.id.clone()),
        (GROUP, message.group.clone()),
        (CONTENT_TYPE, message.content_type.clone()),
        (HEADERS, headers),
        (ENCODING, encoding.map(Into::into)),
    ] {
        // SQS rejects an empty attribute.
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            let text = MessageAttributeValue::builder().data_type("String");
            send = send.message_attributes(name, text.string_value(value).build()?);
        }
    }
    if !is_fifo {
        return Ok(send);
    }
    // A FIFO queue requires both: a message without an id or a group gets its own.
    let id = message.id.clone().unwrap_or_else(random);
    let group = message.group.clone().unwrap_or_else(|| id.clone());
    Ok(send
        .message_deduplication_id(valid_id(&id))
        .message_group_id(valid_id(&group)))
}

/// Decodes a received message and its attempt number, counted from 1.
pub(super) fn read(queue: &str, received: types::Message) -> (Message, u32) {
    let types::Message {
        message_id,
        body,
        attributes,
        message_attributes,
        ..
    } = received;
    let told = attributes.unwrap_or_default();
    let mut own = message_attributes.unwrap_or_default();
    let encoding = take(&mut own, ENCODING);
    let mut message = Message::new(decoded(body.unwrap_or_default(), encoding.as_deref()));
    message.subject = queue.into();
    message.id = take(&mut own, ID)
        .or_else(|| told.get(&System::MessageDeduplicationId).cloned())
        .or(message_id);
    message.group = take(&mut own, GROUP).or_else(|| told.get(&System::MessageGroupId).cloned());
    message.content_type = take(&mut own, CONTENT_TYPE);
    let headers = take(&mut own, HEADERS).and_then(|text| serde_json::from_str(&text).ok());
    message.headers = headers.map(headers::read).unwrap_or_default();
    message.headers.extend(foreign_headers(own));
    let attempt = told.get(&System::ApproximateReceiveCount);
    let attempt = attempt.and_then(|count| count.parse().ok());
    (message, attempt.unwrap_or(1))
}

fn take(attributes: &mut HashMap<String, MessageAttributeValue>, name: &str) -> Option<String> {
    attributes.remove(name)?.string_value
}

/// Message attributes that are not ours become headers.
fn foreign_headers(
    attributes: HashMap<String, MessageAttributeValue>,
) -> impl Iterator<Item = (String, bytes::Bytes)> {
    let mut others: Vec<_> = attributes.into_iter().collect();
    others.sort_by(|(one, _), (other, _)| one.cmp(other));
    others.into_iter().filter_map(|(name, value)| {
        let text = value.string_value.map(bytes::Bytes::from);
        let bytes = value.binary_value.map(|bytes| bytes.into_inner().into());
        let is_ours = OURS.contains(&&*name);
        text.or(bytes).filter(|_| !is_ours).map(|it| (name, it))
    })
}

/// Encodes the payload as text that SQS accepts; returns the encoding's name, if any.
fn encoded(payload: &[u8]) -> (String, Option<&'static str>) {
    match std::str::from_utf8(payload) {
        Ok("") => ("-".into(), Some("empty")),
        Ok(text) if text.chars().all(is_carried) => (text.into(), None),
        _ => (STANDARD.encode(payload), Some("base64")),
    }
}

fn decoded(body: String, encoding: Option<&str>) -> Vec<u8> {
    match encoding {
        Some("empty") => Vec::new(),
        Some("base64") => STANDARD.decode(&body).unwrap_or_else(|_| body.into_bytes()),
        _ => body.into_bytes(),
    }
}

/// Whether SQS accepts the character in a body.
fn is_carried(character: char) -> bool {
    matches!(character, '\t' | '\n' | '\r' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..)
}

/// The text itself if SQS accepts it as an id, else its digest.
fn valid_id(text: &str) -> String {
    let fits = (1..=NAME_MAX).contains(&text.len()) && text.bytes().all(|it| it.is_ascii_graphic());
    match fits {
        true => text.into(),
        false => blake3::hash(text.as_bytes()).to_string(),
    }
}

fn random() -> String {
    format!("{:032x}", rand::random::<u128>())
}

#[cfg(test)]
mod tests {
    //! SQS limits the characters of bodies and the length of ids; payloads, ids and groups have no such limits.

    use super::*;

    #[test]
    fn payloads_come_back_to_the_byte() {
        for (payload, is_readable) in [
            (&b"plain \n text"[..], true),
            ("Grüße 🎈".as_bytes(), true),
            (b"", false),
            (b"\xff\x00", false),
            (b"bell \x07", false),
        ] {
            let (body, encoding) = encoded(payload);
            assert!(!body.is_empty());
            assert_eq!(encoding.is_none(), is_readable, "{payload:?}");
            assert_eq!(decoded(body, encoding), payload);
        }
    }

    #[test]
    fn invalid_sqs_names_are_hashed_and_stay_distinct() {
        assert_eq!(valid_id("order-7"), "order-7");
        let long = "x".repeat(NAME_MAX + 1);
        for odd in ["", "two words", "grün", &long] {
            let fitted = valid_id(odd);
            assert_eq!(fitted.len(), 64);
            assert_ne!(fitted, valid_id(&format!("{odd}!!")));
        }
    }
}
