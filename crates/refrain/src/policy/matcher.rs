//! Finds the pattern that matches a path.
//!
//! The patterns form a tree with one level per segment. A search tries literal, named and rest in this order, and
//! backtracks. Every node is reached at most once, so the cost of a request is bounded by the length of its path plus
//! the size of the tree.
//! The tree ignores case; the caller's `pick` tells case-sensitive patterns with one path apart.

use std::{borrow::Cow, collections::HashMap};

use super::pattern::{Pattern, SEGMENTS_MAX, Segment, Tail};

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

/// Percent-decodes. A `%` without two hexadecimal digits is kept.
pub(super) fn decode(text: &str) -> Cow<'_, [u8]> {
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
