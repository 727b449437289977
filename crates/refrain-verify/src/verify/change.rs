//! The same request written in another way, and another request that looks much like it.
//!
//! All of it works on the text, so that numbers stay as they were written.

use serde_json::Value;

/// The JSON object with its members the other way round; `None` where there are not two.
pub(super) fn reordered(body: &[u8]) -> Option<Vec<u8>> {
    is_json(body, Value::is_object).then_some(())?;
    let text = body.trim_ascii();
    let inner = text.strip_prefix(b"{")?.strip_suffix(b"}")?;
    let mut members = vec![Vec::new()];
    walk(inner, |byte, place| match (byte, place) {
        (b',', Place::Outside(0)) => members.push(Vec::new()),
        _ => members.last_mut().into_iter().for_each(|it| it.push(byte)),
    });
    members.reverse();
    let is_worth_it = members.len() > 1;
    is_worth_it.then(|| [&b"{"[..], &members.join(&b','), b"}"].concat())
}

/// The JSON body with other white space between its parts.
pub(super) fn spaced(body: &[u8]) -> Option<Vec<u8>> {
    is_json(body, |value| value.is_object() || value.is_array()).then_some(())?;
    let mut spaced = Vec::with_capacity(body.len() * 2);
    walk(body, |byte, place| {
        spaced.push(byte);
        if matches!(place, Place::Outside(_)) && matches!(byte, b':' | b',' | b'{' | b'[') {
            spaced.extend(b"\n  ");
        }
    });
    Some(spaced)
}

/// Another request: the same body with another number in it, or with more text where it has none.
pub(super) fn varied(body: &[u8], by: u64) -> Option<Vec<u8>> {
    if body.is_empty() {
        return None;
    }
    if !is_json(body, |_| true) {
        let end = body.iter().rposition(u8::is_ascii_digit);
        let Some(end) = end.filter(|_| !body.ends_with(b"}}")) else {
            return Some([body, format!("{by}").as_bytes()].concat());
        };
        let digits = |byte: &u8| !byte.is_ascii_digit();
        let start = body[..end].iter().rposition(digits).map_or(0, |at| at + 1);
        return Some(raised(body, start, end + 1, by));
    }
    if let Some((start, end)) = first_number(body) {
        return Some(raised(body, start, end, by));
    }
    let text = body.trim_ascii_end();
    let (front, behind) = text.split_at(text.len() - 1);
    let is_empty = !front.trim_ascii_end().contains(&b'"');
    let more = match (behind, is_empty) {
        (b"}", true) => format!("\"refrain_verify\":{by}}}"),
        (b"}", false) => format!(",\"refrain_verify\":{by}}}"),
        (b"]", true) => format!("{by}]"),
        (b"]", false) => format!(",{by}]"),
        (b"\"", _) => format!("{by}\""),
        _ => return Some(format!("{by}").into_bytes()),
    };
    Some([front, more.as_bytes()].concat())
}

/// The body with this much more in it; `None` where that cannot be done.
pub(super) fn padded(body: &[u8], bytes: usize) -> Option<Vec<u8>> {
    let padding = "x".repeat(bytes);
    if !is_json(body, |_| true) {
        return (!body.is_empty()).then(|| [body, padding.as_bytes()].concat());
    }
    is_json(body, Value::is_object).then_some(())?;
    let front = body.trim_ascii_end().strip_suffix(b"}")?;
    let comma = if front.contains(&b'"') { "," } else { "" };
    let member = format!("{comma}\"refrain_verify\":\"{padding}\"}}");
    Some([front, member.as_bytes()].concat())
}

fn is_json(body: &[u8], is_so: impl Fn(&Value) -> bool) -> bool {
    serde_json::from_slice::<Value>(body).is_ok_and(|value| is_so(&value))
}

/// `body` with the digits from `start` to `end` as a higher number.
fn raised(body: &[u8], start: usize, end: usize, by: u64) -> Vec<u8> {
    let digits = std::str::from_utf8(&body[start..end]).unwrap_or_default();
    let number = match digits.parse::<u64>() {
        Ok(number) => number.wrapping_add(by).to_string(),
        // Too long to be counted with: one digit more makes it another one.
        Err(_) => format!("{digits}{by}"),
    };
    [&body[..start], number.as_bytes(), &body[end..]].concat()
}

/// Where the first whole number of a JSON text stands.
fn first_number(body: &[u8]) -> Option<(usize, usize)> {
    let (mut at, mut start, mut end) = (0, None, None);
    walk(body, |byte, place| {
        let is_digit = matches!(place, Place::Outside(_)) && byte.is_ascii_digit();
        match (is_digit, start, end) {
            (true, None, _) => start = Some(at),
            (false, Some(_), None) => end = Some(at),
            _ => {}
        }
        at += 1;
    });
    start.map(|start| (start, end.unwrap_or(at)))
}

enum Place {
    /// In a string, its quotes among it.
    String,
    /// So deep in objects and arrays.
    Outside(usize),
}

/// Tells each byte of a JSON text, and where it stands.
fn walk(text: &[u8], mut each: impl FnMut(u8, Place)) {
    let (mut depth, mut is_string, mut is_escaped) = (0_usize, false, false);
    for &byte in text {
        if is_string {
            each(byte, Place::String);
            match byte {
                _ if is_escaped => is_escaped = false,
                b'\\' => is_escaped = true,
                b'"' => is_string = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => {
                is_string = true;
                each(byte, Place::String);
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        each(byte, Place::Outside(depth));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(body: Option<Vec<u8>>) -> Option<String> {
        body.map(|body| String::from_utf8(body).unwrap())
    }

    #[test]
    fn the_same_in_another_way_stays_the_same() {
        let body = br#"{"a":1.10,"b":{"c":"x,\"}","d":[1,2]},"e":"y"}"#;
        let same: Value = serde_json::from_slice(body).unwrap();
        for other in [reordered(body).unwrap(), spaced(body).unwrap()] {
            assert_ne!(other, body);
            assert_eq!(serde_json::from_slice::<Value>(&other).unwrap(), same);
        }
        assert_eq!(
            text(reordered(body)).unwrap(),
            r#"{"e":"y","b":{"c":"x,\"}","d":[1,2]},"a":1.10}"#
        );
        assert_eq!(reordered(b"{\"a\":1}"), None);
        assert_eq!(reordered(b"a=1"), None);
    }

    #[test]
    fn another_one_differs_and_is_of_the_same_kind() {
        for (body, other) in [
            (r#"{"amount":20,"to":"7"}"#, r#"{"amount":21,"to":"7"}"#),
            (r#"{"amount":19.99}"#, r#"{"amount":20.99}"#),
            (r#"{"to":"7"}"#, r#"{"to":"7","refrain_verify":1}"#),
            ("{}", r#"{"refrain_verify":1}"#),
            ("[]", "[1]"),
            (r#""text""#, r#""text1""#),
            ("amount=20&to=x", "amount=21&to=x"),
            ("to={{unique}}", "to={{unique}}1"),
            ("text", "text1"),
        ] {
            assert_eq!(text(varied(body.as_bytes(), 1)).as_deref(), Some(other));
        }
        assert_eq!(varied(b"", 1), None);
        let large = padded(br#"{"amount":20}"#, 10).unwrap();
        assert_eq!(large, br#"{"amount":20,"refrain_verify":"xxxxxxxxxx"}"#);
    }
}
