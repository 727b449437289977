//! Converts messages to and from stream entries.

use ::redis::Cmd;
use bytes::Bytes;
use refrain::consume::{Message, Position};

const PAYLOAD: &str = "payload";
const ID: &str = "id";
const GROUP: &str = "group";
const CONTENT_TYPE: &str = "content-type";
/// Prefix of a header's field name.
const HEADER: &str = "header:";

/// Field names and values, in order.
pub(super) type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// Appends the message's fields to the command.
pub(super) fn write(command: &mut Cmd, message: &Message) {
    command.arg(PAYLOAD).arg(&message.payload[..]);
    for (name, value) in [
        (ID, &message.id),
        (GROUP, &message.group),
        (CONTENT_TYPE, &message.content_type),
    ] {
        if let Some(value) = value {
            command.arg(name).arg(value);
        }
    }
    for (name, value) in &message.headers {
        command.arg(format!("{HEADER}{name}")).arg(&value[..]);
    }
}

/// Decodes an entry, of Refrain or of another program.
pub(super) fn read(stream: &str, id: &str, fields: Fields) -> Message {
    let is_ours = fields.iter().any(|(name, _)| name == PAYLOAD.as_bytes());
    let mut message = match is_ours {
        true => ours(fields),
        false => foreign(fields),
    };
    message.subject = stream.into();
    message.position = Some(Position {
        log: stream.into(),
        partition: 0,
        offset: id.into(),
    });
    message
}

/// Decodes an entry in Refrain's format; unknown fields become headers.
fn ours(fields: Fields) -> Message {
    let mut message = Message::default();
    for (name, value) in fields {
        let name = String::from_utf8_lossy(&name).into_owned();
        let text = |value: &[u8]| Some(String::from_utf8_lossy(value).into_owned());
        match &*name {
            PAYLOAD => message.payload = value.into(),
            ID => message.id = text(&value),
            GROUP => message.group = text(&value),
            CONTENT_TYPE => message.content_type = text(&value),
            _ => {
                let header = name.strip_prefix(HEADER).unwrap_or(&name);
                message.headers.push((header.into(), value.into()));
            }
        }
    }
    message
}

/// Decodes an entry in another format: text fields become members of a JSON object, binary fields become
/// headers, so that their bytes stay unchanged.
fn foreign(fields: Fields) -> Message {
    let mut members = serde_json::Map::new();
    let mut headers = Vec::new();
    for (name, value) in fields {
        let name = String::from_utf8_lossy(&name).into_owned();
        match String::from_utf8(value) {
            Ok(text) => drop(members.insert(name, text.into())),
            Err(error) => headers.push((name, Bytes::from(error.into_bytes()))),
        }
    }
    let mut message = Message::new(serde_json::Value::Object(members).to_string());
    message.headers = headers;
    message.with_content_type("application/json")
}

#[cfg(test)]
mod tests {
    //! Entries of services in other languages may be binary; decoding must not change or lose any field.

    use super::*;

    fn fields(pairs: &[(&str, &[u8])]) -> Fields {
        let owned = |(name, value): &(&str, &[u8])| (name.as_bytes().to_vec(), value.to_vec());
        pairs.iter().map(owned).collect()
    }

    #[test]
    fn entries_round_trip() {
        let message = Message::new(vec![0, 255])
            .with_id("i-1")
            .with_group("g")
            .with_content_type("image/png")
            .with_header("Trace", vec![7, 200])
            .with_header("Trace", "again");
        let mut command = Cmd::new();
        write(&mut command, &message);
        let words: Vec<Vec<u8>> = command
            .args_iter()
            .filter_map(|word| match word {
                ::redis::Arg::Simple(word) => Some(word.to_vec()),
                _ => None,
            })
            .collect();
        let pairs = words
            .chunks(2)
            .map(|pair| (pair[0].clone(), pair[1].clone()));
        let read = read("orders", "5-0", pairs.collect());
        assert_eq!(read.position.as_ref().unwrap().to_string(), "orders/0/5-0");
        let mut expected = message;
        expected.subject = "orders".into();
        expected.position = read.position.clone();
        assert_eq!(read, expected);
    }

    #[test]
    fn foreign_entries_are_json_objects() {
        let read = read("s", "1-1", fields(&[("order", b"17"), ("raw", b"\xff")]));
        assert_eq!(read.payload, r#"{"order":"17"}"#);
        assert_eq!(read.content_type.as_deref(), Some("application/json"));
        assert_eq!(read.header("RAW").unwrap(), &b"\xff"[..]);
        assert_eq!(read.id, None);
    }

    #[test]
    fn fields_beside_a_payload_are_headers() {
        let read = read("s", "1-1", fields(&[("payload", b"x"), ("tenant", b"a")]));
        assert_eq!(read.payload, "x");
        assert_eq!(read.header("tenant").unwrap(), "a");
    }
}
