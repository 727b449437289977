//! What is written down: before, as an [`Entry`]; behind, as it was [`Written`].

use std::{borrow::Cow, sync::Arc};

use serde::{Deserialize, Serialize};

use super::chain::{self, ChainHash};
use crate::{
    Outcome,
    clock::Timestamp,
    key::RecordId,
    record::{Fence, Settlement},
};

/// The longest line that is written or read, in bytes.
pub const LINE_BYTES_MAX: usize = 32 << 10;
/// The longest text of one member, in bytes; what is longer is cut. Six members of twice that, escaped, fit a line.
const TEXT_BYTES_MAX: usize = 2 << 10;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Event {
    /// The log began.
    Began,
    /// The log was opened again, by another process or after a restart, or could not be written for a while;
    /// `detail` says what was cut off its end, or why it paused.
    Reopened,
    /// A claim was granted: from now on it may run.
    Granted,
    /// It ended with an outcome. Written before the outcome is stored, and so before anybody sees it.
    Completed,
    /// It ended without effect, and its key is free again.
    Released,
    /// Whether it took effect was not learnt; `detail` says why.
    Doubted,
    /// What the entry before about this attempt says came too late, or too early, and does not count.
    Overtaken,
    /// A person is about to say what became of a record in doubt; `detail` says what.
    Resolving,
    /// The doubt about a record was ended, by a person, a probe or a receipt.
    Resolved,
    /// A person is about to take a record away.
    Erasing,
    /// A record was taken away.
    Erased,
    /// What a person was about to do was not done; `detail` says why.
    Refused,
    /// A dead letter was let through again, on purpose.
    Redriven,
    /// It was let through without a claim, since the store failed and the policy says so.
    Unguarded,
}

impl Event {
    /// All of them.
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

    /// Its name in the log.
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

/// One thing to be written down. Number, time, node and hashes are the log's own.
#[derive(Debug, Clone)]
pub struct Entry {
    /// What happened.
    pub event: Event,
    /// Of which operation or consumer, where that is known.
    pub operation: Option<Arc<str>>,
    /// To which record.
    pub record: Option<RecordId>,
    /// Under which fence.
    pub fence: Option<Fence>,
    /// In which attempt.
    pub attempt: Option<u16>,
    /// With which outcome: its status and the digest of its body are written, never the body.
    pub outcome: Option<Outcome>,
    /// More about it, in a word or a few.
    pub detail: Option<Cow<'static, str>>,
    /// Who did it, as far as the listener can tell: `loopback`, `token`, `probe`, `receipt`.
    pub actor: Option<Cow<'static, str>>,
    /// Who says to have done it.
    pub by: Option<String>,
    /// Why.
    pub reason: Option<String>,
}

impl Entry {
    /// That this happened, and nothing more.
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

    /// The same about this record.
    #[must_use]
    pub fn of(mut self, record: RecordId, fence: Option<Fence>) -> Self {
        (self.record, self.fence) = (Some(record), fence);
        self
    }

    /// The same with more about it.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<Cow<'static, str>>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// How an attempt ends.
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

/// The line of an entry, without its end.
#[derive(Serialize)]
struct Line<'a> {
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

/// Where in the chain an entry is put.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) seq: u64,
    pub(super) at: Timestamp,
    pub(super) node: &'a str,
    pub(super) prev: ChainHash,
}

impl Entry {
    /// The whole line, and its hash.
    pub(super) fn line(&self, place: Place<'_>) -> std::io::Result<(Vec<u8>, ChainHash)> {
        let outcome = self.outcome.as_ref();
        let kept = outcome.filter(|outcome| outcome.is_body_kept());
        let line = Line {
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

/// As much as there is room for.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_BYTES_MAX)]
}

/// An entry as it stands in the log.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Written {
    /// Its number; the first is 1.
    pub seq: u64,
    /// When, by the wall clock of its node.
    pub at: String,
    /// What happened; a later version may know more than [`Event`].
    pub event: String,
    /// Of which operation or consumer.
    pub operation: Option<String>,
    /// To which record.
    pub record: Option<String>,
    /// Under which fence.
    pub fence: Option<String>,
    /// In which attempt.
    pub attempt: Option<u16>,
    /// With which status.
    pub status: Option<u16>,
    /// The SHA-256 of the outcome's body, where that was kept.
    pub outcome: Option<String>,
    /// More about it.
    pub detail: Option<String>,
    /// Who did it.
    pub actor: Option<String>,
    /// Who says to have done it.
    pub by: Option<String>,
    /// Why.
    pub reason: Option<String>,
    /// On which machine.
    pub node: String,
    /// The hash of the line before.
    pub prev: String,
    /// The hash of this line.
    pub hash: String,
}

/// Why a line is none of a log.
pub(super) enum Unreadable {
    /// It is no JSON of an entry with a hash behind it.
    NoEntry,
    /// What stands in it does not give the hash at its end.
    Changed,
}

impl Written {
    /// Reads a line without the newline behind it, and checks its own hash.
    pub(super) fn read(line: &[u8]) -> Result<(Self, [ChainHash; 2]), Unreadable> {
        let (content, hash) = chain::open(line).ok_or(Unreadable::NoEntry)?;
        if ChainHash::of(content) != hash {
            return Err(Unreadable::Changed);
        }
        let written: Self = serde_json::from_slice(line).map_err(|_| Unreadable::NoEntry)?;
        let prev = written.prev.parse().map_err(|_| Unreadable::NoEntry)?;
        // Nothing can follow the last number that there is.
        if written.seq == u64::MAX {
            return Err(Unreadable::NoEntry);
        }
        Ok((written, [prev, hash]))
    }
}
