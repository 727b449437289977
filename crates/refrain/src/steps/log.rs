//! Log of one operation: a sequence of places, each of which is a record.
//!
//! The first claim of a place fixes its content: a claim for other content is a mismatch, even after a failure.
//! So an overtaken run cannot go forward where another run has begun to undo, and vice versa.

use bytes::Bytes;

use super::Cause;
use crate::{Fingerprint, Key, Outcome, RecordId, Scope, Secret, outcome::Packer};

/// Version of the derivation of places, fingerprints and keys.
const VERSION: &[u8] = b"1";
/// Header names in the outcomes of places.
const KIND: &str = "kind";
const NAME: &str = "name";
const END: &str = "end";
const GENERATION: &str = "generation";
const OPERATION: &str = "operation";
/// Value of the header `end`: the operation is undone, from here on or completely.
const END_UNDO: &[u8] = b"undo";
const END_DONE: &[u8] = b"done";

/// Content of a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryKind {
    Step,
    /// Undo of a step.
    Undo,
    /// The code abandoned the operation here.
    Abandon,
    /// The last place of the operation.
    End,
}

/// Result of a place.
#[derive(Debug, Clone, Copy)]
pub(super) enum EntryEnding<'a> {
    Done(&'a [u8]),
    Undo(&'a Cause),
}

/// A place with a known result.
#[derive(Debug)]
pub(super) struct RecordedEntry {
    pub(super) fingerprint: Fingerprint,
    pub(super) outcome: Outcome,
}

/// The places of one operation.
#[derive(Debug, Clone)]
pub(super) struct Log {
    secret: Secret,
    scope: Scope,
    key: Key,
    /// Fingerprint of the operation's input.
    operation: Fingerprint,
    /// Random value of the first entry, part of the scope of all later places. If the first record is forgotten before
    /// the others, a new first entry does not find the leftover ones.
    generation: Option<Bytes>,
}

impl EntryKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Step => "step",
            Self::Undo => "undo",
            Self::Abandon => "abandon",
            Self::End => "end",
        }
    }
}

impl Log {
    pub(super) fn new(
        secret: &Secret,
        scope: &Scope,
        name: &str,
        key: &Key,
        input: Option<&str>,
    ) -> Self {
        let scope = scope.clone().with("refrain-steps", VERSION);
        let input = input.map(|input| {
            let parts = [VERSION, input.as_bytes()];
            Fingerprint(secret.digest("steps-input", &parts))
        });
        Self {
            secret: secret.clone(),
            scope: scope.with("operation", name),
            key: key.clone(),
            operation: input.unwrap_or_default(),
            generation: None,
        }
    }

    /// Returns scope and key of a place's record.
    pub(super) fn place(&self, at: usize) -> (Scope, Key) {
        let scope = self.scope.clone().with("place", at.to_string());
        let scope = match &self.generation {
            Some(generation) => scope.with("generation", generation),
            None => scope,
        };
        (scope, self.key.clone())
    }

    pub(super) fn id(&self, at: usize) -> RecordId {
        let (scope, key) = self.place(at);
        RecordId::derive(&self.secret, &scope, &key)
    }

    /// Fingerprint of the content of a place and its input.
    pub(super) fn fingerprint(
        &self,
        kind: EntryKind,
        name: &str,
        input: Option<&str>,
    ) -> Fingerprint {
        let mut digest = self.secret.start_digest("step");
        digest.part(VERSION);
        digest.part(&self.operation.0);
        digest.part(kind.name().as_bytes());
        digest.part(name.as_bytes());
        if let Some(input) = input {
            digest.part(input.as_bytes());
        }
        Fingerprint(digest.finish())
    }

    /// Returns the key for the downstream system, the same at every attempt and on every node that shares the store.
    pub(super) fn key(&self, kind: EntryKind, name: &str) -> Key {
        let (scope, key) = (self.scope.as_bytes(), self.key.as_str().as_bytes());
        let parts = [VERSION, scope, key, kind.name().as_bytes(), name.as_bytes()];
        RecordId(self.secret.digest("step-key", &parts)).into()
    }

    /// Packs the outcome of a place.
    pub(super) fn pack(
        &self,
        at: usize,
        kind: EntryKind,
        name: &str,
        ending: EntryEnding<'_>,
    ) -> Outcome {
        let cause;
        let (end, body) = match ending {
            EntryEnding::Done(body) => (END_DONE, body),
            EntryEnding::Undo(why) => {
                cause = serde_json::to_vec(why).unwrap_or_default();
                (END_UNDO, &cause[..])
            }
        };
        let generation = format!("{:016x}", rand::random::<u64>());
        let first: [(&str, &[u8]); 2] = [
            (GENERATION, generation.as_bytes()),
            (OPERATION, &self.operation.0),
        ];
        let headers: [(&str, &[u8]); 3] = [
            (KIND, kind.name().as_bytes()),
            (NAME, name.as_bytes()),
            (END, end),
        ];
        let first = first.into_iter().filter(|_| at == 0);
        let mut packer = Packer::with_room(0, headers.into_iter().chain(first), body.len());
        packer.push(body);
        packer.finish([])
    }

    /// Adopts the generation from the first entry.
    pub(super) fn follow(&mut self, at: usize, outcome: &Outcome) {
        if at == 0 {
            // An entry resolved by an operator has no generation header; then no generation is used.
            self.generation = header(outcome, GENERATION);
        }
    }

    /// Whether the first entry has the same input. Without the header, its fingerprint decides.
    pub(super) fn is_same_operation(&self, first: &Outcome) -> bool {
        header(first, OPERATION).is_none_or(|operation| operation[..] == self.operation.0)
    }
}

/// Returns the cause if the operation is undone from here on, else `None`.
pub(super) fn cause(outcome: &Outcome) -> Option<Cause> {
    if header(outcome, END)? != END_UNDO {
        return None;
    }
    let unreadable = |error: serde_json::Error| Cause {
        step: None,
        reason: format!("the recorded cause cannot be read: {error}"),
    };
    Some(serde_json::from_slice(&outcome.body()).unwrap_or_else(unreadable))
}

/// Describes the content of a place.
pub(super) fn describe(outcome: &Outcome) -> String {
    let text = |name| {
        let value = header(outcome, name).unwrap_or_default();
        String::from_utf8_lossy(&value).into_owned()
    };
    describe_entry(&text(KIND), &text(NAME))
}

/// Describes a kind and a name.
pub(super) fn describe_entry(kind: &str, name: &str) -> String {
    match kind {
        "step" => format!("step `{name}`"),
        "undo" => format!("the undo of step `{name}`"),
        "abandon" => "the decision to abandon the operation".into(),
        "end" => "the end".into(),
        _ => "something else".into(),
    }
}

fn header(outcome: &Outcome, name: &str) -> Option<Bytes> {
    let mut headers = outcome.headers();
    headers.find_map(|(other, value)| (other == name).then_some(value))
}
