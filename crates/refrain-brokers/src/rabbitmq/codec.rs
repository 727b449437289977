//! Converts messages to and from AMQP messages.

use bytes::Bytes;
use lapin::{
    BasicProperties,
    message::Delivery,
    types::{AMQPValue, FieldTable, ShortString},
};
use refrain::{
    Error, ErrorKind, Result,
    consume::{HEADER_BYTES_MAX, Message},
};

/// Delivery mode: the server writes the message to disk before it confirms it.
const PERSISTENT: u8 = 2;
/// Delivery attempts before the message entered a delay queue.
pub(super) const ATTEMPTS: &str = "x-refrain-attempts";
/// Destination of the original publish, before the message entered a delay queue.
pub(super) const SUBJECT: &str = "x-refrain-subject";
/// Prefix of a destination that is an exchange instead of a queue.
pub(super) const EXCHANGE: &str = "exchange:";
/// RabbitMQ has no message groups: this header only carries the group to the consumer.
const GROUP: &str = "Refrain-Group";
/// How often a quorum queue returned the message to the queue.
const RETURNS: &str = "x-delivery-count";
/// Headers that the server adds to dead letters, our own delay headers, and headers that route copies to
/// further queues.
const SERVERS_OWN: [&str; 12] = [
    RETURNS,
    ATTEMPTS,
    SUBJECT,
    "x-death",
    "x-first-death-exchange",
    "x-first-death-queue",
    "x-first-death-reason",
    "x-last-death-exchange",
    "x-last-death-queue",
    "x-last-death-reason",
    "CC",
    "BCC",
];

/// Encodes everything except the payload as AMQP properties.
///
/// # Errors
/// [`ErrorKind::Invalid`] for a message that AMQP cannot carry.
pub(super) fn properties_of(message: &Message) -> Result<BasicProperties> {
    let mut headers = FieldTable::default();
    let mut bytes = 0;
    for (name, value) in &message.headers {
        bytes += name.len() + value.len();
        put(&mut headers, name, value)?;
    }
    if let Some(group) = &message.group {
        bytes += GROUP.len() + group.len();
        put(&mut headers, GROUP, group.as_bytes())?;
    }
    if bytes > HEADER_BYTES_MAX {
        return Err(invalid(&format!(
            "the headers have {bytes} bytes; the limit is {HEADER_BYTES_MAX} bytes"
        )));
    }
    let mut properties = BasicProperties::default()
        .with_delivery_mode(PERSISTENT)
        .with_headers(headers);
    if let Some(id) = &message.id {
        properties = properties.with_message_id(short("the message id", id)?);
    }
    if let Some(content_type) = &message.content_type {
        properties = properties.with_content_type(short("the media type", content_type)?);
    }
    Ok(properties)
}

fn put(headers: &mut FieldTable, name: &str, value: &[u8]) -> Result<()> {
    let key = short("a header name", name)?;
    if headers.contains_key(name) {
        return Err(invalid(&format!("the header {name:?} occurs twice")));
    }
    headers.insert(key, AMQPValue::LongString(value.into()));
    Ok(())
}

fn short(what: &str, text: &str) -> Result<ShortString> {
    ShortString::try_new(text).map_err(|_| invalid(&format!("{what} is longer than 255 bytes")))
}

fn invalid(why: &str) -> Error {
    Error::new(
        ErrorKind::Invalid,
        format!("RabbitMQ cannot carry the message: {why}"),
    )
}

/// Properties for a delay queue: those of the published message, plus the attempt count and the original subject.
///
/// Drops the expiration, which would end the delay too early, and the user id, which need not be our own.
pub(super) fn delay_properties(
    old: &BasicProperties,
    attempt: u32,
    subject: &str,
) -> BasicProperties {
    let mut headers = FieldTable::default();
    for (name, value) in old.headers().iter().flatten() {
        if !SERVERS_OWN.contains(&name.as_str()) {
            headers.insert(name.clone(), value.clone());
        }
    }
    headers.insert(ATTEMPTS.into(), AMQPValue::LongLongInt(attempt.into()));
    headers.insert(SUBJECT.into(), AMQPValue::LongString(subject.into()));
    let mut new = BasicProperties::default()
        .with_delivery_mode(PERSISTENT)
        .with_headers(headers);
    macro_rules! keep {
        ($($get:ident $set:ident),*) => {
            $(if let Some(value) = old.$get() {
                new = new.$set(value.clone());
            })*
        };
    }
    keep!(
        content_type with_content_type, content_encoding with_content_encoding,
        priority with_priority, correlation_id with_correlation_id, reply_to with_reply_to,
        message_id with_message_id, timestamp with_timestamp, kind with_type, app_id with_app_id
    );
    new
}

/// Decodes a delivered message and its attempt number, counted from 1.
pub(super) fn message_of(delivered: &Delivery, payload: Bytes) -> (Message, u32) {
    let properties = &delivered.properties;
    let mut message = Message::new(payload);
    message.subject = subject(delivered);
    message.id = properties.message_id().as_ref().map(ShortString::to_string);
    let content_type = properties.content_type().as_ref();
    message.content_type = content_type.map(ShortString::to_string);
    let none = FieldTable::default();
    let headers = properties.headers().as_ref().unwrap_or(&none);
    for (name, value) in headers {
        let Some(value) = bytes_of(value) else {
            continue;
        };
        if name.as_str() == GROUP {
            message.group = text(&value);
        } else if name.as_str() == SUBJECT {
            message.subject = text(&value).unwrap_or_default();
        } else if !SERVERS_OWN.contains(&name.as_str()) {
            message.headers.push((name.to_string(), value));
        }
    }
    (message, attempt(headers, delivered.redelivered))
}

/// The destination of the publish, in the form that `publish` accepts.
fn subject(delivered: &Delivery) -> String {
    let key = delivered.routing_key.as_str();
    match delivered.exchange.as_str() {
        "" => key.to_owned(),
        exchange => format!("{EXCHANGE}{exchange}/{key}"),
    }
}

/// The attempt number. A quorum queue counts returns; a classic queue only flags a redelivery.
fn attempt(headers: &FieldTable, is_redelivered: bool) -> u32 {
    let count = |name: &str| {
        let value = headers.inner().get(name).and_then(bytes_of);
        value.and_then(|value| text(&value)?.parse::<u32>().ok())
    };
    let returns = count(RETURNS).unwrap_or(u32::from(is_redelivered));
    let before = count(ATTEMPTS).unwrap_or(0);
    before.saturating_add(returns).saturating_add(1)
}

fn text(value: &Bytes) -> Option<String> {
    String::from_utf8(value.to_vec()).ok()
}

/// A header's value as bytes; tables and lists are not supported.
fn bytes_of(value: &AMQPValue) -> Option<Bytes> {
    let text = match value {
        AMQPValue::LongString(value) => return Some(Bytes::copy_from_slice(value.as_bytes())),
        AMQPValue::ByteArray(value) => return Some(Bytes::copy_from_slice(value.as_slice())),
        AMQPValue::ShortString(value) => value.to_string(),
        AMQPValue::Boolean(value) => value.to_string(),
        AMQPValue::ShortShortInt(value) => value.to_string(),
        AMQPValue::ShortShortUInt(value) => value.to_string(),
        AMQPValue::ShortInt(value) => value.to_string(),
        AMQPValue::ShortUInt(value) => value.to_string(),
        AMQPValue::LongInt(value) => value.to_string(),
        AMQPValue::LongUInt(value) => value.to_string(),
        AMQPValue::LongLongInt(value) => value.to_string(),
        AMQPValue::Float(value) => value.to_string(),
        AMQPValue::Double(value) => value.to_string(),
        AMQPValue::Timestamp(value) => value.to_string(),
        _ => return None,
    };
    Some(text.into())
}

#[cfg(test)]
mod tests {
    //! A message returns from a delay queue with another routing key and extra headers of the server; the
    //! handler must see the message as it was published.

    use super::*;

    fn delivered(properties: BasicProperties, key: &str) -> Delivery {
        let mut delivery = Delivery::mock(1, "".into(), key.into(), false, Vec::new());
        delivery.properties = properties;
        delivery
    }

    #[test]
    fn delayed_message_equals_the_published_message() {
        let sent = Message::new("x")
            .with_id("7")
            .with_group("g")
            .with_content_type("text/plain")
            .with_header("a", vec![0xff]);
        let first = delivered(properties_of(&sent).unwrap(), "orders.eu");
        let (before, attempt) = message_of(&first, "x".into());
        assert_eq!(attempt, 1);
        let again = delay_properties(&first.properties, 3, &before.subject);
        let (after, attempt) = message_of(&delivered(again, "orders"), "x".into());
        assert_eq!(after, before);
        assert_eq!(attempt, 4);
    }

    #[test]
    fn redelivery_increments_the_attempt_number() {
        for (returns, is_redelivered, expected) in [
            (None, false, 1),
            (None, true, 2),
            (Some(3), true, 4),
            (Some(-1), false, 1),
        ] {
            let mut headers = FieldTable::default();
            if let Some(returns) = returns {
                headers.insert(RETURNS.into(), AMQPValue::LongLongInt(returns));
            }
            assert_eq!(attempt(&headers, is_redelivered), expected);
        }
    }

    #[test]
    fn rejects_messages_that_amqp_cannot_carry() {
        for message in [
            Message::new("").with_header("a", "1").with_header("a", "2"),
            Message::new("").with_header("a".repeat(256), "1"),
            Message::new("").with_id("a".repeat(256)),
            Message::new("").with_header("a", vec![0; HEADER_BYTES_MAX]),
        ] {
            let error = properties_of(&message).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
        }
    }
}
