//! String escapes of canonical JSON.

use std::fmt::Write as _;

/// Appends a character as canonical JSON writes it inside a string.
pub(crate) fn put_char(out: &mut String, char: char) {
    let short = match char {
        '"' | '\\' => char,
        '\u{8}' => 'b',
        '\t' => 't',
        '\n' => 'n',
        '\u{c}' => 'f',
        '\r' => 'r',
        '\0'..='\x1f' => {
            // Writing to a string cannot fail.
            let _ = write!(out, "\\u{:04x}", u32::from(char));
            return;
        }
        _ => return out.push(char),
    };
    out.push('\\');
    out.push(short);
}

/// Writes a string as canonical JSON, with quotes.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    text.chars().for_each(|char| put_char(&mut out, char));
    out.push('"');
    out
}

/// Decodes the character after a backslash; `None` for `u`, which the caller handles, and for invalid escapes.
pub(crate) fn simple_escape(char: char) -> Option<char> {
    Some(match char {
        '"' | '\\' | '/' => char,
        'b' => '\u{8}',
        't' => '\t',
        'n' => '\n',
        'f' => '\u{c}',
        'r' => '\r',
        _ => return None,
    })
}

/// Decodes the characters of a canonical string, given without its quotes.
pub(crate) fn decoded(inner: &str) -> impl Iterator<Item = char> {
    let mut chars = inner.chars();
    std::iter::from_fn(move || match chars.next()? {
        '\\' => match chars.next()? {
            'u' => control(&mut chars),
            char => simple_escape(char),
        },
        char => Some(char),
    })
}

fn control(chars: &mut std::str::Chars<'_>) -> Option<char> {
    let mut code = 0;
    for char in chars.take(4) {
        code = code << 4 | char.to_digit(16)?;
    }
    char::from_u32(code)
}
