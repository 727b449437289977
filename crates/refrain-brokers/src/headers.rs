//! Message headers encoded as JSON, for brokers that cannot store binary header values.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use serde_json::{Value, json};

/// Encodes headers as an array of `[name, value]` pairs; a value that is not plain text becomes `{"base64": …}`.
pub(crate) fn write(headers: &[(String, Bytes)]) -> Value {
    let pair = |(name, value): &(String, Bytes)| match std::str::from_utf8(value) {
        // PostgreSQL's jsonb cannot store the NUL character.
        Ok(text) if !text.contains('\0') => json!([name, text]),
        _ => json!([name, { "base64": STANDARD.encode(value) }]),
    };
    headers.iter().map(pair).collect()
}

/// Decodes headers that `write` encoded or that a user wrote by hand; a value of another JSON type is
/// kept as JSON text.
pub(crate) fn read(written: Value) -> Vec<(String, Bytes)> {
    let pair = |(name, value): (String, Value)| (name, read_value(value));
    match written {
        Value::Object(members) => members.into_iter().map(pair).collect(),
        Value::Array(pairs) => {
            let named = pairs.into_iter().filter_map(|pair| match pair {
                Value::Array(pair) => <[Value; 2]>::try_from(pair).ok(),
                _ => None,
            });
            let named = named.filter_map(|[name, value]| Some((name.as_str()?.to_owned(), value)));
            named.map(pair).collect()
        }
        _ => Vec::new(),
    }
}

fn read_value(value: Value) -> Bytes {
    let bytes = value.get("base64").and_then(Value::as_str);
    if let Some(Ok(bytes)) = bytes.map(|text| STANDARD.decode(text)) {
        return bytes.into();
    }
    match value {
        Value::String(text) => text.into(),
        other => other.to_string().into(),
    }
}

#[cfg(test)]
mod tests {
    //! Headers are bytes, but many brokers store only text, and users also write headers by hand.

    use super::*;

    fn header(name: &str, value: &'static [u8]) -> (String, Bytes) {
        (name.into(), Bytes::from_static(value))
    }

    #[test]
    fn headers_come_back_to_the_byte() {
        let headers = [
            header("a", b"text"),
            header("a", b"again"),
            header("bytes", b"\xff\x00"),
            header("zero", b"\0"),
            header("", b""),
        ];
        assert_eq!(read(write(&headers)), headers);
    }

    #[test]
    fn headers_by_hand_are_understood() {
        for (by_hand, expected) in [
            (json!({ "a": "b" }), vec![header("a", b"b")]),
            (json!({ "n": 7 }), vec![header("n", b"7")]),
            (json!([["a", "b"], "odd", ["c"]]), vec![header("a", b"b")]),
            (json!(null), vec![]),
        ] {
            assert_eq!(read(by_hand), expected);
        }
    }
}
