//! Log entries: an [`Entry`] to write, and a [`Written`] one as read.

use std::{borrow::Cow, sync::Arc};

use serde::{Deserialize, Serialize};

use super::chain::{self, ChainHash};
use crate::{
    Outcome,
    clock::Timestamp,
    key::RecordId,
    record::{Fence, Settlement},
};

/// Maximum length of a line, in bytes.
pub const LINE_BYTES_MAX: usize = 32 << 10;
/// Maximum length of a text member, in bytes; longer text is truncated.
const TEXT_BYTES_MAX: usize = 2 << 10;
/// Maximum length of a text member with its JSON escapes, in bytes. Six members fit in a line.
const ESCAPED_BYTES_MAX: usize = 2 * TEXT_BYTES_MAX;

/// Kind of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Event {
    /// The log began.
    Began,
    /// The log was opened again, by another process or after a restart, or was not writable for some time;
    /// `detail` contains what was truncated, or the reason of the pause.
    Reopened,
    /// A claim was granted: the attempt may run.
    Granted,
    /// The attempt ended with an outcome. Written before the outcome is stored, and so before a caller sees it.
    Completed,
    /// The attempt ended without effect, and its key is free again.
    Released,
    /// The outcome of the attempt is unknown; `detail` contains the reason.
    Doubted,
    /// The previous entry about this attempt came too late or too early, and does not count.
    Overtaken,
    /// An operator is about to resolve an unknown outcome; `detail` contains the resolution.
    Resolving,
    /// An unknown outcome was resolved, by an operator, a probe or a receipt.
    Resolved,
    /// An operator is about to delete a record.
    Erasing,
    /// A record was deleted.
    Erased,
    /// An operator action was not carried out; `detail` contains the reason.
    Refused,
    /// An operator redrove a dead letter.
    Redriven,
    /// A request passed without a claim, because the store failed and the policy allows it.
    Unguarded,
}

impl Event {
    /// All kinds.
    pub const ALL: [Self; 14] = [
        Self::Began,
        Self::Reopened,
        Self::Granted,
        Self::Completed,
        Self::Released,
        Self::Doubted,
        Self::Overtaken,
        Self::Resolving,
        Self::Resolved,
        Self::Erasing,
        Self::Erased,
        Self::Refused,
        Self::Redriven,
        Self::Unguarded,
    ];

    /// Returns the name in the log.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Began => "began",
            Self::Reopened => "reopened",
            Self::Granted => "granted",
            Self::Completed => "completed",
            Self::Released => "released",
            Self::Doubted => "doubted",
            Self::Overtaken => "overtaken",
            Self::Resolving => "resolving",
            Self::Resolved => "resolved",
            Self::Erasing => "erasing",
            Self::Erased => "erased",
            Self::Refused => "refused",
            Self::Redriven => "redriven",
            Self::Unguarded => "unguarded",
        }
    }
}

/// An entry to write. The log adds number, time, node and hashes.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Kind of the entry.
    pub event: Event,
    /// Operation or consumer, if known.
    pub operation: Option<Arc<str>>,
    /// Record.
    pub record: Option<RecordId>,
    /// Fence (fencing token).
    pub fence: Option<Fence>,
    /// Attempt number.
    pub attempt: Option<u16>,
    /// Outcome. Its status and the digest of its body are written, never the body.
    pub outcome: Option<Outcome>,
    /// Details.
    pub detail: Option<Cow<'static, str>>,
    /// Authenticated actor, as far as known: `loopback`, `token`, `probe`, `receipt`.
    pub actor: Option<Cow<'static, str>>,
    /// Name that the operator gave.
    pub by: Option<String>,
    /// Reason that the operator gave.
    pub reason: Option<String>,
}

impl Entry {
    /// Creates an entry with only its kind.
    #[must_use]
    pub fn new(event: Event) -> Self {
        Self {
            event,
            operation: None,
            record: None,
            fence: None,
            attempt: None,
            outcome: None,
            detail: None,
            actor: None,
            by: None,
            reason: None,
        }
    }

    /// Sets the record and the fence.
    #[must_use]
    pub fn of(mut self, record: RecordId, fence: Option<Fence>) -> Self {
        (self.record, self.fence) = (Some(record), fence);
        self
    }

    /// Sets the details.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<Cow<'static, str>>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// Creates the entry for the end of an attempt.
    pub(crate) fn ending(end: &Settlement) -> Self {
        let event = match end {
            Settlement::Complete { .. } => Event::Completed,
            Settlement::Release => Event::Released,
            Settlement::Doubt { .. } => Event::Doubted,
            Settlement::NeverHappened => Event::Resolved,
        };
        let mut entry = Self::new(event);
        match end {
            Settlement::Complete { outcome, .. } => entry.outcome = Some(outcome.clone()),
            Settlement::Doubt { reason } => {
                let reason = serde_json::to_value(reason).unwrap_or_default();
                let reason = reason.as_str().unwrap_or_default().to_owned();
                entry.detail = Some(reason.into());
            }
            Settlement::NeverHappened => entry.detail = Some("never-happened".into()),
            Settlement::Release => {}
        }
        entry
    }
}

/// Line of an entry, without its digest.
#[derive(Serialize)]
struct EntryLine<'a> {
    seq: u64,
    at: String,
    event: Event,
    #[serde(skip_serializing_if = "Option::is_none")]
    operation: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    record: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fence: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    actor: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    node: &'a str,
    prev: String,
}

/// Position of an entry in the chain.
#[derive(Debug, Clone, Copy)]
pub(super) struct ChainPosition<'a> {
    pub(super) seq: u64,
    pub(super) at: Timestamp,
    pub(super) node: &'a str,
    pub(super) prev: ChainHash,
}

impl Entry {
    /// Returns the whole line and its hash.
    pub(super) fn line(&self, place: ChainPosition<'_>) -> std::io::Result<(Vec<u8>, ChainHash)> {
        let outcome = self.outcome.as_ref();
        let kept = outcome.filter(|outcome| outcome.is_body_kept());
        let line = EntryLine {
            seq: place.seq,
            at: place.at.rfc3339(),
            event: self.event,
            operation: self.operation.as_deref().map(cut),
            record: self.record.map(|id| id.to_string()),
            fence: self.fence.map(|fence| fence.to_string()),
            attempt: self.attempt,
            status: outcome.map(Outcome::status),
            outcome: kept.map(|outcome| ChainHash::of(&outcome.body()).to_string()),
            detail: self.detail.as_deref().map(cut),
            actor: self.actor.as_deref().map(cut),
            by: self.by.as_deref().map(cut),
            reason: self.reason.as_deref().map(cut),
            node: cut(place.node),
            prev: place.prev.to_string(),
        };
        let mut bytes = serde_json::to_vec(&line)?;
        let hash = chain::seal(&mut bytes);
        debug_assert!(bytes.len() <= LINE_BYTES_MAX);
        Ok((bytes, hash))
    }
}

/// Truncates a text to the maximum length.
fn cut(text: &str) -> &str {
    let text = &text[..text.floor_char_boundary(TEXT_BYTES_MAX)];
    let mut escaped = 0;
    for (at, char) in text.char_indices() {
        escaped += match char {
            '"' | '\\' => 2,
            char if char.is_ascii_control() => r"\u0000".len(),
            char => char.len_utf8(),
        };
        if escaped > ESCAPED_BYTES_MAX {
            return &text[..at];
        }
    }
    text
}

/// An entry as read from the log.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Written {
    /// Sequence number, starting at 1.
    pub seq: u64,
    /// Wall-clock time of its node.
    pub at: String,
    /// Kind of the entry. A later version may have kinds that [`Event`] lacks.
    pub event: String,
    /// Operation or consumer.
    pub operation: Option<String>,
    /// Record.
    pub record: Option<String>,
    /// Fence (fencing token).
    pub fence: Option<String>,
    /// Attempt number.
    pub attempt: Option<u16>,
    /// Status of the outcome.
    pub status: Option<u16>,
    /// SHA-256 of the outcome's body, if that was kept.
    pub outcome: Option<String>,
    /// Details.
    pub detail: Option<String>,
    /// Authenticated actor.
    pub actor: Option<String>,
    /// Name that the operator gave.
    pub by: Option<String>,
    /// Reason that the operator gave.
    pub reason: Option<String>,
    /// Host name of the machine.
    pub node: String,
    /// Hash of the previous line.
    pub prev: String,
    /// Hash of this line.
    pub hash: String,
}

/// Why a line is invalid.
pub(super) enum Unreadable {
    /// It is not a JSON entry followed by a hash.
    NoEntry,
    /// Its content does not match its hash.
    Changed,
}

impl Written {
    /// Parses a line without its newline, and checks its own hash.
    pub(super) fn read(line: &[u8]) -> Result<(Self, [ChainHash; 2]), Unreadable> {
        let (content, hash) = chain::open(line).ok_or(Unreadable::NoEntry)?;
        if ChainHash::of(content) != hash {
            return Err(Unreadable::Changed);
        }
        let written: Self = serde_json::from_slice(line).map_err(|_| Unreadable::NoEntry)?;
        let prev = written.prev.parse().map_err(|_| Unreadable::NoEntry)?;
        // The largest number is invalid, because no entry could follow it.
        if written.seq == u64::MAX {
            return Err(Unreadable::NoEntry);
        }
        Ok((written, [prev, hash]))
    }
}

#[cfg(test)]
mod tests {
    //! A line over the limit counts as damage, and the log would refuse to open.

    use super::*;

    #[test]
    fn an_entry_fits_in_a_line_whatever_its_texts_escape_to() {
        for text in ["\u{1}", "\"", "\\", "\u{7f}", "é", "x"] {
            let text = text.repeat(LINE_BYTES_MAX);
            let entry = Entry {
                operation: Some(text.as_str().into()),
                detail: Some(text.clone().into()),
                actor: Some(text.clone().into()),
                by: Some(text.clone()),
                reason: Some(text.clone()),
                ..Entry::new(Event::Resolving)
            };
            let place = ChainPosition {
                seq: u64::MAX - 1,
                at: Timestamp::default(),
                node: &text,
                prev: ChainHash::START,
            };
            let (line, _) = entry.line(place).unwrap();
            assert!(line.len() <= LINE_BYTES_MAX, "{} bytes", line.len());
        }
    }
}
