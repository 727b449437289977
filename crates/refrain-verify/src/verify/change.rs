//! Rewrites a request: the same content written differently, or a similar but different request.
//!
//! Works on the text, so that numbers stay as written.

use serde_json::Value;

use super::stage::KEY;

/// Maximum number of variants of a body.
const VARIANTS_MAX: usize = 8;

/// The JSON object with its members in reverse order; `None` if it has fewer than two.
pub(super) fn reordered(body: &[u8]) -> Option<Vec<u8>> {
    is_json(body, Value::is_object).then_some(())?;
    let text = body.trim_ascii();
    let inner = text.strip_prefix(b"{")?.strip_suffix(b"}")?;
    let mut members = vec![Vec::new()];
    walk(inner, |byte, place| match (byte, place) {
        (b',', JsonPosition::Outside(0)) => members.push(Vec::new()),
        _ => members.last_mut().into_iter().for_each(|it| it.push(byte)),
    });
    members.reverse();
    let is_worth_it = members.len() > 1;
    is_worth_it.then(|| [&b"{"[..], &members.join(&b','), b"}"].concat())
}

/// The JSON body with additional white space between tokens; `None` if it is no object or array.
pub(super) fn spaced(body: &[u8]) -> Option<Vec<u8>> {
    is_json(body, |value| value.is_object() || value.is_array()).then_some(())?;
    let mut spaced = Vec::with_capacity(body.len() * 2);
    walk(body, |byte, place| {
        spaced.push(byte);
        if matches!(place, JsonPosition::Outside(_)) && matches!(byte, b':' | b',' | b'{' | b'[') {
            spaced.extend(b"\n  ");
        }
    });
    Some(spaced)
}

/// Similar but different bodies, those most likely to be accepted first: another number, another string, an extra
/// member. A value that contains the key does not change.
pub(super) fn variants(body: &[u8], by: u64) -> Vec<Vec<u8>> {
    let mut all = match is_json(body, |_| true) {
        _ if body.is_empty() => return Vec::new(),
        true => json_variants(body, by),
        false if body.contains(&b'=') => form_variants(body, by),
        false => text_variants(body, by),
    };
    all.truncate(VARIANTS_MAX);
    all
}

fn json_variants(body: &[u8], by: u64) -> Vec<Vec<u8>> {
    let numbers = numbers(body).into_iter();
    let mut all: Vec<_> = numbers
        .map(|(start, end)| raised(body, start, end, by))
        .collect();
    for (start, end) in texts(body) {
        if !holds_key(&body[start..end]) {
            all.push([&body[..end], by.to_string().as_bytes(), &body[end..]].concat());
        }
    }
    all.truncate(VARIANTS_MAX - 1);
    let text = body.trim_ascii_end();
    let (front, behind) = text.split_at(text.len() - 1);
    let is_empty = front.trim_ascii().len() == 1;
    let comma = if is_empty { "" } else { "," };
    let more = match behind {
        b"}" => format!("{comma}\"refrain_verify\":{by}}}"),
        b"]" => format!("{comma}{by}]"),
        _ => return all,
    };
    all.push([front, more.as_bytes()].concat());
    all
}

/// `a=1&b=x`: one changed value at a time, numbers first, then one with an extra pair.
fn form_variants(body: &[u8], by: u64) -> Vec<Vec<u8>> {
    let (mut numbers, mut texts, mut at) = (Vec::new(), Vec::new(), 0);
    for pair in body.split(|byte| *byte == b'&') {
        let end = at + pair.len();
        let start = pair.iter().position(|byte| *byte == b'=');
        let start = at + start.map_or(0, |equals| equals + 1);
        let value = &body[start..end];
        at = end + 1;
        if holds_key(value) {
            continue;
        }
        match !value.is_empty() && value.iter().all(u8::is_ascii_digit) {
            true => numbers.push(raised(body, start, end, by)),
            false => texts.push([&body[..end], by.to_string().as_bytes(), &body[end..]].concat()),
        }
    }
    numbers.append(&mut texts);
    numbers.truncate(VARIANTS_MAX - 1);
    let more = format!("&refrain_verify={by}");
    numbers.push([body, more.as_bytes()].concat());
    numbers
}

fn text_variants(body: &[u8], by: u64) -> Vec<Vec<u8>> {
    let appended = [body, by.to_string().as_bytes()].concat();
    let Some(end) = body.iter().rposition(u8::is_ascii_digit) else {
        return vec![appended];
    };
    let digits = |byte: &u8| !byte.is_ascii_digit();
    let start = body[..end].iter().rposition(digits).map_or(0, |at| at + 1);
    vec![raised(body, start, end + 1, by), appended]
}

fn holds_key(part: &[u8]) -> bool {
    part.windows(KEY.len()).any(|it| it == KEY.as_bytes())
}

/// The body with this many bytes of padding; `None` if it cannot be padded.
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

/// `body` with the digits from `start` to `end` replaced by a higher number.
fn raised(body: &[u8], start: usize, end: usize, by: u64) -> Vec<u8> {
    let digits = std::str::from_utf8(&body[start..end]).unwrap_or_default();
    let number = match digits.parse::<u64>() {
        Ok(number) => number.wrapping_add(by).to_string(),
        // Too large for `u64`: more digits make it a different number.
        Err(_) => format!("{digits}{by}"),
    };
    [&body[..start], number.as_bytes(), &body[end..]].concat()
}

/// Positions of the integer parts of the numbers in a JSON text.
fn numbers(body: &[u8]) -> Vec<(usize, usize)> {
    let (mut at, mut found) = (0, Vec::new());
    // Digits after a decimal point or an exponent belong to the number before.
    let (mut was_digit, mut is_tail) = (false, false);
    walk(body, |byte, place| {
        let is_digit = matches!(place, JsonPosition::Outside(_)) && byte.is_ascii_digit();
        match (is_digit, found.last_mut()) {
            (true, _) if is_tail => {}
            (true, Some((_, end))) if *end == at => *end = at + 1,
            (true, _) => found.push((at, at + 1)),
            (false, _) if was_digit => is_tail = matches!(byte, b'.' | b'e' | b'E'),
            (false, _) => is_tail = is_tail && matches!(byte, b'+' | b'-'),
        }
        (at, was_digit) = (at + 1, is_digit);
    });
    found
}

/// Positions of the string values in a JSON text, without their quotes; member names are left out.
fn texts(body: &[u8]) -> Vec<(usize, usize)> {
    let (mut at, mut start, mut found) = (0, None, Vec::new());
    walk(body, |byte, place| {
        match (place, start) {
            (JsonPosition::String, None) => start = Some(at + 1),
            (JsonPosition::Outside(_), Some(from)) => {
                // The last quote before this byte ended the string; white space may stand in between.
                let end = body[..at]
                    .iter()
                    .rposition(|byte| *byte == b'"')
                    .unwrap_or(at);
                if byte.is_ascii_whitespace() {
                    at += 1;
                    return;
                }
                if byte != b':' {
                    found.push((from, end));
                }
                start = None;
            }
            _ => {}
        }
        at += 1;
    });
    if let Some(from) = start {
        let end = body
            .iter()
            .rposition(|byte| *byte == b'"')
            .unwrap_or(body.len());
        found.push((from, end));
    }
    found
}

enum JsonPosition {
    /// In a string, including its quotes.
    String,
    /// Outside strings, at this nesting depth.
    Outside(usize),
}

/// Calls `each` for each byte of a JSON text with its position.
fn walk(text: &[u8], mut each: impl FnMut(u8, JsonPosition)) {
    let (mut depth, mut is_string, mut is_escaped) = (0_usize, false, false);
    for &byte in text {
        if is_string {
            each(byte, JsonPosition::String);
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
                each(byte, JsonPosition::String);
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        each(byte, JsonPosition::Outside(depth));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(body: Option<Vec<u8>>) -> Option<String> {
        body.map(|body| String::from_utf8(body).unwrap())
    }

    #[test]
    fn reformatted_body_stays_equal() {
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
    fn changed_body_differs_and_keeps_its_type() {
        let rows: &[(&str, &[&str])] = &[
            (
                r#"{"amount":20,"to":"7"}"#,
                &[
                    r#"{"amount":21,"to":"7"}"#,
                    r#"{"amount":20,"to":"71"}"#,
                    r#"{"amount":20,"to":"7","refrain_verify":1}"#,
                ],
            ),
            (
                r#"{"amount":19.99}"#,
                &[
                    r#"{"amount":20.99}"#,
                    r#"{"amount":19.99,"refrain_verify":1}"#,
                ],
            ),
            (
                r#"{"to" : "a\"b" , "k":"{{key}}"}"#,
                &[
                    r#"{"to" : "a\"b1" , "k":"{{key}}"}"#,
                    r#"{"to" : "a\"b" , "k":"{{key}}","refrain_verify":1}"#,
                ],
            ),
            (
                r#"{"to":"{{unique}}"}"#,
                &[
                    r#"{"to":"{{unique}}1"}"#,
                    r#"{"to":"{{unique}}","refrain_verify":1}"#,
                ],
            ),
            ("{}", &[r#"{"refrain_verify":1}"#]),
            ("[]", &["[1]"]),
            (r#"["a",5]"#, &[r#"["a",6]"#, r#"["a1",5]"#, r#"["a",5,1]"#]),
            (r#""text""#, &[r#""text1""#]),
            ("7", &["8"]),
            (
                "to2=x&amount=20",
                &[
                    "to2=x&amount=21",
                    "to2=x1&amount=20",
                    "to2=x&amount=20&refrain_verify=1",
                ],
            ),
            (
                "amount=20&key={{key}}",
                &[
                    "amount=21&key={{key}}",
                    "amount=20&key={{key}}&refrain_verify=1",
                ],
            ),
            ("text", &["text1"]),
            ("5 pounds", &["6 pounds", "5 pounds1"]),
            ("", &[]),
        ];
        for (body, others) in rows {
            let found = variants(body.as_bytes(), 1);
            let found: Vec<_> = found.iter().map(|it| String::from_utf8_lossy(it)).collect();
            assert_eq!(found, *others, "{body}");
        }
        let large = padded(br#"{"amount":20}"#, 10).unwrap();
        assert_eq!(large, br#"{"amount":20,"refrain_verify":"xxxxxxxxxx"}"#);
    }
}
