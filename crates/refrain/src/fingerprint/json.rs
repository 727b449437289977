//! Canonical JSON: the parser validates a document and writes its canonical form in one pass.
//!
//! Members are first written in source order.
//! The parser notes the objects whose members are out of order, and one copy at the end reorders them.
//! So the time is linear except for sorting the names, and no tree is built.

use std::{
    borrow::Cow,
    cmp::Ordering,
    fmt::{self, Write as _},
    ops::Range,
};

use crate::key::Pointer;

/// The maximum nesting depth of arrays and objects.
pub const JSON_DEPTH_MAX: usize = 128;

/// A JSON document in canonical form.
///
/// - Members are sorted by name, in the order of Unicode code points.
/// - There is no white space.
/// - Strings are not escaped, except for `"`, `\` and control characters
///   (`\b \t \n \f \r`, otherwise `\u00xx` in lower case).
/// - Numbers are kept as written: `1`, `1.0` and `1e0` all differ, and none is converted to a float.
///
/// ```
/// use refrain::fingerprint::Json;
/// let json = Json::parse(br#" {"b": 1.0, "\u0061": "x"} "#).unwrap();
/// assert_eq!(json.as_str(), r#"{"a":"x","b":1.0}"#);
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Json(String);

/// The reason why bytes have no canonical JSON form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotJson {
    /// The bytes are not JSON in UTF-8, or contain an unpaired surrogate.
    Malformed,
    /// An object has two members of the same name; parsers do not agree which one counts.
    DuplicateName,
    /// Arrays and objects are nested deeper than [`JSON_DEPTH_MAX`].
    TooDeep,
    /// The text has 4 GiB or more.
    TooLarge,
}

impl Json {
    /// Parses a whole document.
    ///
    /// # Errors
    /// [`NotJson`] gives the reason why the document has no canonical form.
    pub fn parse(bytes: &[u8]) -> Result<Self, NotJson> {
        let text = std::str::from_utf8(bytes).map_err(|_| NotJson::Malformed)?;
        if u32::try_from(text.len()).is_err() {
            return Err(NotJson::TooLarge);
        }
        canonical(text).map(Self)
    }

    /// The canonical form.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the value that the pointer names, in canonical form.
    #[must_use]
    pub fn find(&self, pointer: &Pointer) -> Option<&str> {
        pointer.find_in(&self.0)
    }

    /// Returns the string, number or boolean that the pointer names, as text.
    ///
    /// A string comes without its quotes, a number as written.
    /// `null`, arrays and objects have no text.
    #[must_use]
    pub fn text(&self, pointer: &Pointer) -> Option<Cow<'_, str>> {
        let value = self.find(pointer)?;
        match value.as_bytes().first()? {
            b'"' => unquoted(value),
            b'{' | b'[' | b'n' => None,
            _ => Some(Cow::Borrowed(value)),
        }
    }

    /// Returns the string that the pointer names; `None` for a value of any other type.
    #[must_use]
    pub fn string(&self, pointer: &Pointer) -> Option<Cow<'_, str>> {
        self.find(pointer).and_then(unquoted)
    }
}

impl From<Json> for String {
    fn from(json: Json) -> Self {
        json.0
    }
}

impl fmt::Debug for Json {
    /// Shows only the length: bodies must not reach logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Json({} bytes)", self.0.len())
    }
}

fn unquoted(value: &str) -> Option<Cow<'_, str>> {
    let inner = value.strip_prefix('"')?.strip_suffix('"')?;
    Some(match inner.contains('\\') {
        false => Cow::Borrowed(inner),
        true => Cow::Owned(decoded(inner).collect()),
    })
}

/// Returns the canonical form of a whole document shorter than 4 GiB.
fn canonical(text: &str) -> Result<String, NotJson> {
    let mut parser = Parser::new(text);
    parser.value(0)?;
    parser.skip_blank();
    match parser.peek() {
        None => Ok(parser.finish()),
        Some(_) => Err(NotJson::Malformed),
    }
}

/// The position of a member in the written text.
#[derive(Debug, Clone, Copy)]
struct ParsedMember {
    start: u32,
    name_end: u32,
    end: u32,
    /// Whether the name contains an escape; then its bytes do not sort like its characters.
    escaped: bool,
}

impl ParsedMember {
    /// The member's name without quotes.
    fn name<'t>(&self, text: &'t str) -> &'t str {
        &text[self.start as usize + 1..self.name_end as usize - 1]
    }

    fn cmp(&self, other: &Self, text: &str) -> Ordering {
        let (one, two) = (self.name(text), other.name(text));
        match self.escaped || other.escaped {
            false => one.cmp(two),
            true => decoded(one).cmp(decoded(two)),
        }
    }
}

/// An object whose members were written out of order.
#[derive(Debug)]
struct Unsorted {
    start: u32,
    end: u32,
    /// The object's members in sorted order, as a range of [`Parser::reordered`].
    members: Range<usize>,
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    /// Text from here to `at` is already canonical, and not copied yet.
    from: usize,
    /// Canonical except for the order of members. Never longer than the source read so far, so 32-bit offsets suffice.
    out: String,
    /// A stack of the members read so far of all objects that are still open.
    open: Vec<ParsedMember>,
    unsorted: Vec<Unsorted>,
    reordered: Vec<ParsedMember>,
}

type ParseResult<T = ()> = Result<T, NotJson>;

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Self {
        Self {
            text,
            at: 0,
            from: 0,
            out: String::with_capacity(text.len()),
            open: Vec::new(),
            unsorted: Vec::new(),
            reordered: Vec::new(),
        }
    }

    fn value(&mut self, depth: usize) -> ParseResult {
        self.skip_blank();
        match self.peek() {
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b'"') => self.string().map(drop),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.literal("true"),
            Some(b'f') => self.literal("false"),
            Some(b'n') => self.literal("null"),
            _ => Err(NotJson::Malformed),
        }
    }

    fn object(&mut self, depth: usize) -> ParseResult {
        let start = self.out_len();
        let first = self.open.len();
        let mut more = self.enter(b'}', depth)?;
        while more {
            self.member(depth + 1)?;
            more = self.comma_or(b'}')?;
        }
        self.put_in_order(start, first)
    }

    fn array(&mut self, depth: usize) -> ParseResult {
        let mut more = self.enter(b']', depth)?;
        while more {
            self.value(depth + 1)?;
            more = self.comma_or(b']')?;
        }
        Ok(())
    }

    fn member(&mut self, depth: usize) -> ParseResult {
        self.skip_blank();
        let start = self.out_len();
        let escaped = self.string()?;
        let name_end = self.out_len();
        self.skip_blank();
        self.copy(b':')?;
        self.value(depth)?;
        self.open.push(ParsedMember {
            start,
            name_end,
            end: self.out_len(),
            escaped,
        });
        Ok(())
    }

    /// Opens an array or object; returns whether it is non-empty.
    fn enter(&mut self, close: u8, depth: usize) -> ParseResult<bool> {
        if depth >= JSON_DEPTH_MAX {
            return Err(NotJson::TooDeep);
        }
        self.copy(self.text.as_bytes()[self.at])?;
        self.skip_blank();
        match self.peek() == Some(close) {
            true => self.copy(close).map(|()| false),
            false => Ok(true),
        }
    }

    /// Continues after an element or member; returns whether another one follows.
    fn comma_or(&mut self, close: u8) -> ParseResult<bool> {
        self.skip_blank();
        match self.peek() {
            Some(b',') => self.copy(b',').map(|()| true),
            _ => self.copy(close).map(|()| false),
        }
    }

    /// Closes an object whose members start at index `first` of `open`, and notes it if they are out of order.
    fn put_in_order(&mut self, start: u32, first: usize) -> ParseResult {
        // Members are compared by their written form, so it must be complete.
        self.flush();
        let text = &self.out;
        let members = &mut self.open[first..];
        // Strict order: two equal names are out of order as well, and the check below finds them.
        if !members.is_sorted_by(|one, two| one.cmp(two, text).is_lt()) {
            members.sort_unstable_by(|one, two| one.cmp(two, text));
            let is_twice = |pair: &[ParsedMember]| pair[0].name(text) == pair[1].name(text);
            if members.windows(2).any(is_twice) {
                return Err(NotJson::DuplicateName);
            }
            let from = self.reordered.len();
            self.reordered.extend_from_slice(members);
            self.unsorted.push(Unsorted {
                start,
                end: self.out_len(),
                members: from..self.reordered.len(),
            });
        }
        self.open.truncate(first);
        Ok(())
    }

    /// Reads a string; returns whether it may contain an escape.
    fn string(&mut self) -> ParseResult<bool> {
        self.copy(b'"')?;
        let mut escaped = false;
        loop {
            let rest = &self.text.as_bytes()[self.at..];
            self.at += plain_len(rest).ok_or(NotJson::Malformed)?;
            match self.peek() {
                Some(b'"') => return self.copy(b'"').map(|()| escaped),
                Some(b'\\') => self.escape()?,
                _ => return Err(NotJson::Malformed),
            }
            escaped = true;
        }
    }

    fn escape(&mut self) -> ParseResult {
        self.flush();
        self.at += 1;
        let byte = self.peek().ok_or(NotJson::Malformed)?;
        self.at += 1;
        let char = match byte {
            b'u' => self.code_point()?,
            _ => simple_escape(byte.into()).ok_or(NotJson::Malformed)?,
        };
        put_char(&mut self.out, char);
        self.from = self.at;
        Ok(())
    }

    /// Decodes one `\uXXXX` or a surrogate pair.
    fn code_point(&mut self) -> ParseResult<char> {
        let first = self.hex_digits()?;
        let mut units = [first, 0];
        let mut len = 1;
        if (0xd800..0xdc00).contains(&first) && self.text[self.at..].starts_with("\\u") {
            self.at += 2;
            units[1] = self.hex_digits()?;
            len = 2;
        }
        let mut chars = char::decode_utf16(units[..len].iter().copied());
        match (chars.next(), chars.next()) {
            (Some(Ok(char)), None) => Ok(char),
            _ => Err(NotJson::Malformed),
        }
    }

    fn hex_digits(&mut self) -> ParseResult<u16> {
        let digits = self.text.as_bytes().get(self.at..self.at + 4);
        let mut unit = 0;
        for &byte in digits.ok_or(NotJson::Malformed)? {
            let digit = char::from(byte).to_digit(16).ok_or(NotJson::Malformed)?;
            unit = unit << 4 | digit as u16;
        }
        self.at += 4;
        Ok(unit)
    }

    fn number(&mut self) -> ParseResult {
        if self.peek() == Some(b'-') {
            self.copy(b'-')?;
        }
        match self.peek() {
            Some(b'0') => self.copy(b'0')?,
            _ => self.digits()?,
        }
        if self.peek() == Some(b'.') {
            self.copy(b'.')?;
            self.digits()?;
        }
        if let Some(e @ (b'e' | b'E')) = self.peek() {
            self.copy(e)?;
            if let Some(sign @ (b'+' | b'-')) = self.peek() {
                self.copy(sign)?;
            }
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> ParseResult {
        let rest = &self.text.as_bytes()[self.at..];
        let run = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.at += run;
        match run {
            0 => Err(NotJson::Malformed),
            _ => Ok(()),
        }
    }

    fn literal(&mut self, word: &str) -> ParseResult {
        if !self.text[self.at..].starts_with(word) {
            return Err(NotJson::Malformed);
        }
        self.at += word.len();
        Ok(())
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// Accepts this ASCII byte, which must come next.
    fn copy(&mut self, byte: u8) -> ParseResult {
        if self.peek() != Some(byte) {
            return Err(NotJson::Malformed);
        }
        self.at += 1;
        Ok(())
    }

    /// Copies the pending text, which is already canonical.
    fn flush(&mut self) {
        self.out.push_str(&self.text[self.from..self.at]);
        self.from = self.at;
    }

    fn skip_blank(&mut self) {
        let is_blank = |byte: Option<u8>| matches!(byte, Some(b' ' | b'\t' | b'\n' | b'\r'));
        if !is_blank(self.peek()) {
            return;
        }
        self.flush();
        while is_blank(self.peek()) {
            self.at += 1;
        }
        self.from = self.at;
    }

    /// The length of the canonical form so far.
    fn out_len(&self) -> u32 {
        let len = self.out.len() + (self.at - self.from);
        debug_assert!(len <= self.text.len());
        len as u32
    }

    /// Returns the written text, with all members in order.
    fn finish(mut self) -> String {
        self.flush();
        if self.unsorted.is_empty() {
            return self.out;
        }
        self.unsorted.sort_unstable_by_key(|object| object.start);
        let mut out = String::with_capacity(self.out.len());
        self.emit(0, self.out_len(), &mut out);
        out
    }

    /// Copies a range of the written text. The recursion is no deeper than the parser's.
    fn emit(&self, from: u32, to: u32, out: &mut String) {
        let mut at = from;
        while let Some(object) = self.unsorted_from(at).filter(|object| object.start < to) {
            out.push_str(&self.out[at as usize..object.start as usize]);
            out.push('{');
            for (nth, member) in self.reordered[object.members.clone()].iter().enumerate() {
                if nth > 0 {
                    out.push(',');
                }
                self.emit(member.start, member.end, out);
            }
            out.push('}');
            at = object.end;
        }
        out.push_str(&self.out[at as usize..to as usize]);
    }

    fn unsorted_from(&self, at: u32) -> Option<&Unsorted> {
        let next = self.unsorted.partition_point(|object| object.start < at);
        self.unsorted.get(next)
    }
}

/// Counts the bytes before the first quote, backslash or control character.
fn plain_len(bytes: &[u8]) -> Option<usize> {
    let (words, rest) = bytes.as_chunks::<8>();
    for (nth, word) in words.iter().enumerate() {
        let special = special(u64::from_le_bytes(*word));
        if special != 0 {
            return Some(nth * 8 + special.trailing_zeros() as usize / 8);
        }
    }
    let is_special = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..=0x1f);
    let at = rest.iter().position(is_special)?;
    Some(words.len() * 8 + at)
}

/// Checks eight bytes at once: the lowest set bit marks the first special byte.
///
/// Higher bits may be set wrongly, because the subtraction borrows from the next byte.
fn special(word: u64) -> u64 {
    const ONES: u64 = u64::MAX / 0xff;
    const HIGH: u64 = ONES << 7;
    let below = |word: u64, limit: u8| word.wrapping_sub(ONES * u64::from(limit)) & !word & HIGH;
    let is = |byte: u8| below(word ^ (ONES * u64::from(byte)), 1);
    is(b'"') | is(b'\\') | below(word, 0x20)
}

/// Appends a character as canonical JSON writes it inside a string.
fn put_char(out: &mut String, char: char) {
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
fn simple_escape(char: char) -> Option<char> {
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
fn decoded(inner: &str) -> impl Iterator<Item = char> {
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
