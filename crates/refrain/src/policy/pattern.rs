//! Patterns of operations (`POST /v1/payments/{id}/capture`, `POST|PUT /hooks/*`, `* /v1/*`), and the search for the one
//! that matches a path.
//!
//! The patterns form a tree with one level per segment. A search tries literal, named and rest in this order, and
//! backtracks. Every node is reached at most once, so the cost of a request is bounded by the length of its path plus
//! the size of the tree.
//! The tree ignores case; the caller's `pick` tells case-sensitive patterns with one path apart.

use std::{borrow::Cow, collections::HashMap, fmt, str::FromStr};

use super::{Paths, invalid, suggest};
use crate::{Error, Result};

/// Maximum length of a pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 2048;
/// Maximum number of segments of a pattern, and maximum depth of the tree.
const SEGMENTS_MAX: usize = 64;
const METHODS_MAX: usize = 16;
/// Known methods. Another one is accepted unless it looks like a typo of one of these.
const METHODS: [&str; 10] = [
    "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "QUERY",
];

/// Methods and a path pattern.
///
/// `{name}` matches one segment; a trailing `*` matches the rest, which may be empty.
/// `*` in place of the path matches every path, with the lowest precedence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    text: String,
    /// Empty means any method.
    methods: Vec<String>,
    segments: Vec<Segment>,
    tail: Tail,
}

/// One segment of a path pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Segment {
    /// Exactly these bytes, after percent-decoding.
    Literal(Vec<u8>),
    /// `{name}`.
    Named(String),
}

/// What a pattern matches after its segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Tail {
    /// The end of the path.
    End,
    /// `/*`: any further segments, or none.
    Rest,
    /// `*` in place of the path: any path.
    EveryPath,
}

/// The paths below a prefix that a pattern matches: one literal or `{name}` (`None`) per segment.
#[cfg(feature = "http")]
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct PathsBelow<'p> {
    segments: Vec<Option<&'p [u8]>>,
    tail: Tail,
}

impl Pattern {
    /// Creates a pattern for every path with this method.
    pub(super) fn every_path(method: &str) -> Self {
        Self {
            text: format!("{method} *"),
            methods: vec![method.into()],
            segments: Vec::new(),
            tail: Tail::EveryPath,
        }
    }

    /// Returns the names of the `{name}` segments, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.segments.iter().filter_map(|segment| match segment {
            Segment::Named(name) => Some(name.as_str()),
            Segment::Literal(_) => None,
        })
    }

    /// The path with the names of the segments that `hides` selects in place of their values, for example
    /// `/orders/{key}`. The path has to match the pattern. If it is written in an unusual way, in which segments cannot
    /// be counted simply, it is replaced by the path of the pattern.
    pub fn masked<'t>(&self, path: &'t str, hides: impl Fn(&str) -> bool) -> Cow<'t, str> {
        if !self.names().any(&hides) {
            return Cow::Borrowed(path);
        }
        let is_plain = !path.contains('%') && !path.contains("//") && !path.contains("/.");
        let parts: Vec<_> = path.trim_start_matches('/').split('/').collect();
        if !is_plain || parts.len() < self.segments.len() {
            let path = self.text.split_once(' ').map_or("*", |(_, path)| path);
            return Cow::Owned(path.to_owned());
        }
        let mut masked = String::with_capacity(path.len());
        for (at, part) in parts.iter().enumerate() {
            masked.push('/');
            match self.segments.get(at) {
                Some(Segment::Named(name)) if hides(name) => {
                    masked.push('{');
                    masked.push_str(name);
                    masked.push('}');
                }
                _ => masked.push_str(part),
            }
        }
        Cow::Owned(masked)
    }

    pub(super) fn is_any_method(&self) -> bool {
        self.methods.is_empty()
    }

    /// Whether the pattern names this method.
    /// Case is ignored: a server that accepts `post` as POST must not be reachable unguarded.
    pub(super) fn names_method(&self, method: &str) -> bool {
        self.methods
            .iter()
            .any(|name| name == method || name.eq_ignore_ascii_case(method))
    }

    /// Whether one request could match both, if their paths were equal.
    pub(super) fn shares_method(&self, other: &Self) -> bool {
        match self.is_any_method() || other.is_any_method() {
            true => self.is_any_method() && other.is_any_method(),
            false => self.methods.iter().any(|name| other.names_method(name)),
        }
    }

    /// Whether both have the same path, regardless of names.
    pub(super) fn shares_path(&self, other: &Self, paths: Paths) -> bool {
        let is_same = |(left, right): (&Segment, &Segment)| match (left, right) {
            (Segment::Named(_), Segment::Named(_)) => true,
            (Segment::Literal(left), Segment::Literal(right)) => paths.is_same(left, right),
            _ => false,
        };
        self.tail == other.tail
            && self.segments.len() == other.segments.len()
            && self.segments.iter().zip(&other.segments).all(is_same)
    }

    /// Whether the literal segments of `reading` are spelled as in this pattern, case included.
    pub(super) fn is_written_as(&self, reading: &PathReading<'_>) -> bool {
        let is_same = |(segment, sent): (&Segment, &Cow<'_, [u8]>)| match segment {
            Segment::Literal(bytes) => bytes.as_slice() == sent.as_ref(),
            Segment::Named(_) => true,
        };
        self.segments.iter().zip(reading).all(is_same)
    }

    /// Returns the paths below `prefix` that match, or `None` if there are none.
    ///
    /// Literals of the prefix replace names of the pattern, and `/*` starts after the prefix.
    #[cfg(feature = "http")]
    pub(super) fn below<'p>(&'p self, prefix: &'p Self, paths: Paths) -> Option<PathsBelow<'p>> {
        let fits = |(own, above): (&Segment, &Segment)| match (own, above) {
            (Segment::Literal(own), Segment::Literal(above)) => paths.is_same(own, above),
            _ => true,
        };
        let len_min = match self.tail {
            Tail::End => prefix.segments.len(),
            Tail::Rest | Tail::EveryPath => 0,
        };
        let mut shared = self.segments.iter().zip(&prefix.segments);
        if self.segments.len() < len_min || !shared.all(fits) {
            return None;
        }
        let len = match self.tail {
            Tail::EveryPath => 0,
            Tail::End | Tail::Rest => self.segments.len().max(prefix.segments.len()),
        };
        let literal = |pattern: &'p Self, at: usize| match pattern.segments.get(at)? {
            Segment::Literal(bytes) => Some(bytes.as_slice()),
            Segment::Named(_) => None,
        };
        let segment = |at| literal(prefix, at).or_else(|| literal(self, at));
        Some(PathsBelow {
            segments: (0..len).map(segment).collect(),
            tail: self.tail,
        })
    }

    /// Whether this pattern wins over `other` on every path that both match.
    #[cfg(feature = "http")]
    pub(super) fn is_more_specific_than(&self, other: &Self) -> bool {
        let is_literal = |segment: &Segment| matches!(segment, Segment::Literal(_));
        let own = self.segments.iter().map(is_literal);
        own.gt(other.segments.iter().map(is_literal))
    }

    /// Whether this pattern accepts every method that `other` accepts.
    #[cfg(feature = "http")]
    pub(super) fn covers_methods(&self, other: &Self) -> bool {
        let names_all = || other.methods.iter().all(|name| self.names_method(name));
        self.is_any_method() || (!other.is_any_method() && names_all())
    }

    /// Whether this pattern matches everything that `other` matches, with the same path.
    pub(super) fn covers(&self, other: &Self, paths: Paths) -> bool {
        let same_methods = match other.is_any_method() {
            true => self.is_any_method(),
            false => other.methods.iter().all(|name| self.names_method(name)),
        };
        same_methods && self.shares_path(other, paths)
    }

    pub(super) fn is_every_path_of(&self, method: &str) -> bool {
        self.tail == Tail::EveryPath && (self.is_any_method() || self.names_method(method))
    }

    /// Returns the segments of `reading` where the pattern has names.
    pub(super) fn values(&self, reading: &PathReading<'_>) -> Vec<Box<[u8]>> {
        let named = |(segment, value)| match segment {
            &Segment::Named(_) => Some(Box::from(AsRef::<[u8]>::as_ref(value))),
            Segment::Literal(_) => None,
        };
        self.segments
            .iter()
            .zip(reading)
            .filter_map(named)
            .collect()
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Pattern {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if text.len() > PATTERN_BYTES_MAX {
            return Err(invalid(format!(
                "the pattern has {} bytes, more than the maximum of {PATTERN_BYTES_MAX}",
                text.len()
            )));
        }
        let words: Vec<_> = text.split_whitespace().collect();
        let &[methods, path] = words.as_slice() else {
            return Err(invalid(format!(
                "invalid pattern `{text}`; write a method and a path, such as `POST /v1/payments`"
            )));
        };
        let (segments, tail) = parse_path(path)?;
        Ok(Self {
            text: format!("{methods} {path}"),
            methods: parse_methods(methods)?,
            segments,
            tail,
        })
    }
}

fn parse_methods(text: &str) -> Result<Vec<String>> {
    if text == "*" {
        return Ok(Vec::new());
    }
    let mut methods: Vec<String> = Vec::new();
    for name in text.split('|') {
        check_method(name)?;
        if methods.iter().any(|other| other == name) {
            return Err(invalid(format!(
                "method `{name}` is listed twice; remove one"
            )));
        }
        methods.push(name.into());
    }
    match methods.len() > METHODS_MAX {
        true => Err(invalid(format!(
            "the pattern has more than {METHODS_MAX} methods; write `*` for any"
        ))),
        false => Ok(methods),
    }
}

fn check_method(name: &str) -> Result<()> {
    if name.starts_with('/') {
        return Err(invalid(format!(
            "`{name}` is a path; write a method before it, such as `POST`"
        )));
    }
    let is_letter = |byte: u8| byte.is_ascii_alphabetic() || byte == b'-' || byte == b'_';
    if name.is_empty() || !name.bytes().all(is_letter) {
        return Err(invalid(format!(
            "invalid method `{name}`; write `POST`, `POST|PUT` or `*`"
        )));
    }
    let upper = name.to_ascii_uppercase();
    if upper != name {
        return Err(invalid(format!(
            "method `{name}` is not in upper case; write `{upper}`"
        )));
    }
    match suggest::nearest(name, METHODS) {
        Some(meant) if !METHODS.contains(&name) => Err(invalid(format!(
            "unknown method `{name}`; did you mean `{meant}`?"
        ))),
        _ => Ok(()),
    }
}

fn parse_path(text: &str) -> Result<(Vec<Segment>, Tail)> {
    if text == "*" {
        return Ok((Vec::new(), Tail::EveryPath));
    }
    let Some(path) = text.strip_prefix('/') else {
        return Err(invalid(format!(
            "path `{text}` does not start with /; write `/{text}`"
        )));
    };
    let path = path
        .strip_suffix('/')
        .filter(|path| !path.is_empty())
        .unwrap_or(path);
    let (path, tail) = match path.strip_suffix('*') {
        Some("") => ("", Tail::Rest),
        Some(front) if front.ends_with('/') => (&front[..front.len() - 1], Tail::Rest),
        _ => (path, Tail::End),
    };
    let mut segments = Vec::new();
    for segment in path.split('/').take_while(|_| !path.is_empty()) {
        let segment = parse_segment(segment, text)?;
        if matches!(segment, Segment::Named(_)) && segments.contains(&segment) {
            return Err(invalid(format!(
                "path `{text}` has the same name twice; rename one"
            )));
        }
        segments.push(segment);
    }
    match segments.len() > SEGMENTS_MAX {
        true => Err(invalid(format!(
            "the path has more than {SEGMENTS_MAX} segments"
        ))),
        false => Ok((segments, tail)),
    }
}

fn parse_segment(segment: &str, path: &str) -> Result<Segment> {
    if let Some(name) = segment
        .strip_prefix('{')
        .and_then(|rest| rest.strip_suffix('}'))
    {
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        return match !name.is_empty() && name.bytes().all(is_word) {
            true => Ok(Segment::Named(name.into())),
            false => Err(invalid(format!(
                "invalid name `{segment}` in path `{path}`; write it like {{id}}"
            ))),
        };
    }
    let literal = decode(segment).into_owned();
    let fault = match segment {
        "" => "has an empty segment; write a single /",
        _ if segment.contains('*') => {
            "has a * that is not the whole last segment; write {name} for one segment"
        }
        _ if segment.contains(['{', '}']) => {
            "mixes text and a name in one segment; {name} must be a whole segment"
        }
        _ if segment.contains(['?', '#']) => {
            "has a query or fragment; patterns match the path alone"
        }
        _ if segment.chars().any(char::is_control) => "has a control character; remove it",
        _ if is_dots(&literal) => "has a . or .. segment; write the path without it",
        _ if literal.contains(&b'/') || literal.contains(&b'\\') => {
            "has an encoded slash; write {name} for that segment"
        }
        _ if !is_well_encoded(segment) => {
            "has a % without two hexadecimal digits; write %25 for a percent sign"
        }
        _ => return Ok(Segment::Literal(literal)),
    };
    Err(invalid(format!("path `{path}` {fault}")))
}

fn is_well_encoded(segment: &str) -> bool {
    let is_hex = |rest: &str| {
        let digits = rest.as_bytes().get(..2);
        digits.is_some_and(|pair| pair.iter().all(u8::is_ascii_hexdigit))
    };
    segment.split('%').skip(1).all(is_hex)
}

/// One interpretation of a path: its segments, percent-decoded.
pub(super) type PathReading<'a> = Vec<Cow<'a, [u8]>>;

/// All patterns of a policy. Leaves are positions in the policy's list of operations.
#[derive(Debug, Default)]
pub(super) struct Tree {
    root: PathNode,
    /// Patterns with `*` in place of the path.
    every_path: Vec<usize>,
}

#[derive(Debug, Default)]
struct PathNode {
    /// Keyed by case-folded text.
    literal: HashMap<Vec<u8>, PathNode>,
    named: Option<Box<PathNode>>,
    /// Patterns that end at this node.
    end: Vec<usize>,
    /// Patterns with `/*` after this node.
    rest: Vec<usize>,
}

impl Tree {
    /// Whether no pattern depends on the path.
    pub(super) fn is_pathless(&self) -> bool {
        let root = &self.root;
        root.literal.is_empty()
            && root.named.is_none()
            && root.end.is_empty()
            && root.rest.is_empty()
    }

    /// Returns the list of operations with this path pattern.
    pub(super) fn slot(&mut self, pattern: &Pattern) -> &mut Vec<usize> {
        let mut node = &mut self.root;
        for segment in &pattern.segments {
            node = match segment {
                Segment::Literal(bytes) => {
                    node.literal.entry(fold(bytes).into_owned()).or_default()
                }
                Segment::Named(_) => node.named.get_or_insert_default(),
            };
        }
        match pattern.tail {
            Tail::End => &mut node.end,
            Tail::Rest => &mut node.rest,
            Tail::EveryPath => &mut self.every_path,
        }
    }

    /// Finds the most specific operation for a path. `pick` chooses by method and case among those with one pattern.
    pub(super) fn find(
        &self,
        reading: &PathReading<'_>,
        pick: &impl Fn(&[usize]) -> Option<usize>,
    ) -> Option<usize> {
        let found = self.root.find(reading, pick);
        found.or_else(|| pick(&self.every_path))
    }
}

impl PathNode {
    fn find(
        &self,
        segments: &[Cow<'_, [u8]>],
        pick: &impl Fn(&[usize]) -> Option<usize>,
    ) -> Option<usize> {
        let Some((first, behind)) = segments.split_first() else {
            return pick(&self.end).or_else(|| pick(&self.rest));
        };
        let literal = match self.literal.is_empty() {
            true => None,
            false => self.literal.get(fold(first).as_ref()),
        };
        let literal = literal.and_then(|node| node.find(behind, pick));
        literal
            .or_else(|| self.named.as_ref().and_then(|node| node.find(behind, pick)))
            .or_else(|| pick(&self.rest))
    }
}

/// Returns the ways in which servers may interpret this path: one, unless it contains unusual segments.
/// The last one has all normalisations applied.
pub(super) fn readings(path: &str) -> Vec<PathReading<'_>> {
    let path = path.split_once('?').map_or(path, |(path, _)| path);
    let path = path.strip_prefix('/').unwrap_or(path);
    let path = path.strip_suffix('/').unwrap_or(path);
    let mut plain = Smoothing(0).read(path);
    let is_oddly_written = plain.iter().any(|segment| is_odd(segment));
    shorten(&mut plain);
    let mut readings = vec![plain];
    for smoothing in (1..=Smoothing::ALL).take_while(|_| is_oddly_written) {
        let mut reading = Smoothing(smoothing).read(path);
        shorten(&mut reading);
        readings.retain(|other| *other != reading);
        readings.push(reading);
    }
    readings
}

/// Drops segments beyond the depth of any pattern, to bound the memory of long paths.
fn shorten(reading: &mut PathReading<'_>) {
    reading.truncate(SEGMENTS_MAX + 1);
    reading.shrink_to_fit();
}

/// Normalisations that a server may apply to a path: a set of the flags below.
#[derive(Clone, Copy)]
struct Smoothing(u8);

impl Smoothing {
    /// Encoded slashes and backslashes are slashes.
    const SLASHES: u8 = 1;
    /// Empty segments are dropped.
    const EMPTY: u8 = 2;
    /// `.` and `..` are resolved.
    const DOTS: u8 = 4;
    /// `;parameters` are dropped.
    const PARAMETERS: u8 = 8;
    const ALL: u8 = 15;

    fn has(self, habit: u8) -> bool {
        self.0 & habit != 0
    }

    fn read(self, path: &str) -> PathReading<'_> {
        let mut reading = Vec::new();
        if path.is_empty() {
            return reading;
        }
        for segment in path.split('/') {
            let segment = match self.has(Self::PARAMETERS) {
                true => segment.split_once(';').map_or(segment, |(front, _)| front),
                false => segment,
            };
            let decoded = decode(segment);
            let is_slash = |byte: &u8| matches!(byte, b'/' | b'\\');
            if self.has(Self::SLASHES) && decoded.iter().any(is_slash) {
                let pieces = decoded.split(is_slash);
                pieces.for_each(|piece| self.push(&mut reading, Cow::Owned(piece.to_vec())));
            } else {
                self.push(&mut reading, decoded);
            }
        }
        reading
    }

    fn push<'a>(self, reading: &mut PathReading<'a>, segment: Cow<'a, [u8]>) {
        match segment.as_ref() {
            b"" if self.has(Self::EMPTY) => {}
            b"." if self.has(Self::DOTS) => {}
            b".." if self.has(Self::DOTS) => drop(reading.pop()),
            _ => reading.push(segment),
        }
    }
}

pub(super) fn is_dots(segment: &[u8]) -> bool {
    matches!(segment, b"." | b"..")
}

/// Whether servers may interpret this segment differently.
fn is_odd(segment: &[u8]) -> bool {
    let is_special = |byte: &u8| matches!(byte, b'/' | b'\\' | b';');
    segment.is_empty() || is_dots(segment) || segment.iter().any(is_special)
}

/// Folds case, so that all spellings that a case-insensitive server treats as one become equal.
pub(super) fn fold(segment: &[u8]) -> Cow<'_, [u8]> {
    if segment
        .iter()
        .all(|byte| byte.is_ascii() && !byte.is_ascii_uppercase())
    {
        return Cow::Borrowed(segment);
    }
    Cow::Owned(match std::str::from_utf8(segment) {
        // Via upper case, as some servers compare: `\u{17f}` equals `s`.
        Ok(text) if !text.is_ascii() => text.to_uppercase().to_lowercase().into_bytes(),
        _ => segment.to_ascii_lowercase(),
    })
}

/// The percent-decoded text; `None` if a `%` is not followed by two hexadecimal digits.
#[cfg(feature = "http")]
pub(crate) fn decoded(text: &str) -> Option<Cow<'_, [u8]>> {
    is_well_encoded(text).then(|| decode(text))
}

/// Percent-decodes. A `%` without two hexadecimal digits is kept.
fn decode(text: &str) -> Cow<'_, [u8]> {
    if !text.contains('%') {
        return Cow::Borrowed(text.as_bytes());
    }
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, behind)) = rest.split_first() {
        let pair = (byte == b'%').then(|| hex_pair(behind)).flatten();
        decoded.push(pair.unwrap_or(byte));
        rest = if pair.is_some() { &behind[2..] } else { behind };
    }
    Cow::Owned(decoded)
}

fn hex_pair(bytes: &[u8]) -> Option<u8> {
    let digit = |at: usize| char::from(*bytes.get(at)?).to_digit(16);
    u8::try_from(digit(0)? * 16 + digit(1)?).ok()
}
