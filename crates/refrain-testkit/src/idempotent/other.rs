//! Makes a different request that resembles the first.

use bytes::Bytes;
use serde_json::Value;

/// Returns the body with one value changed, or `None` for an empty body.
pub(super) fn other(body: &Bytes) -> Option<Bytes> {
    if body.is_empty() {
        return None;
    }
    let mut json = serde_json::from_slice::<Value>(body).ok();
    match json.as_mut().is_some_and(change) {
        true => json.map(|json| json.to_string().into()),
        false => Some([body, &b" and more"[..]].concat().into()),
    }
}

/// Changes the first number, or the first string if there is no number.
fn change(json: &mut Value) -> bool {
    change_where(json, &|it| it.is_number()) || change_where(json, &|it| it.is_string())
}

fn change_where(json: &mut Value, is_meant: &dyn Fn(&Value) -> bool) -> bool {
    if is_meant(json) {
        *json = match &*json {
            Value::Number(number) => match number.as_u64() {
                Some(number) => number.wrapping_add(1).into(),
                None => 1.into(),
            },
            Value::String(text) => format!("{text} and more").into(),
            other => other.clone(),
        };
        return true;
    }
    match json {
        Value::Array(values) => values.iter_mut().any(|it| change_where(it, is_meant)),
        Value::Object(members) => members.values_mut().any(|it| change_where(it, is_meant)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_one_value_of_the_body() {
        for (body, want) in [
            (r#"{"a":"x","n":[20]}"#, r#"{"a":"x","n":[21]}"#),
            (r#"{"a":-2}"#, r#"{"a":1}"#),
            (r#"{"a":"x"}"#, r#"{"a":"x and more"}"#),
            ("{}", "{} and more"),
            ("text", "text and more"),
        ] {
            assert_eq!(other(&Bytes::from(body)).unwrap(), want);
        }
        assert_eq!(other(&Bytes::new()), None);
    }
}
