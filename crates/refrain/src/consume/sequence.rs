//! Sequences: events of one aggregate are accepted once and in order.

use std::{fmt, str::FromStr};

use super::{
    Message,
    dead::REDRIVES_MAX,
    key::{content, invalid, one_header, readable, text_key},
    work::redriven,
};
use crate::{
    Key, RecordId, Result, Scope,
    key::{Pointer, Source},
    record::State,
    store::{AnyStore, StateName, Store},
};

/// Accepts the events of one aggregate once and in order. Each event carries its aggregate and its number.
///
/// Aggregate and number are the key of an event; the consumer's other key sources are not used.
/// An event is handled after its predecessor: the predecessor's record is completed, or a tombstone.
/// Duplicates are skipped, so a stream may be replayed from its start.
///
/// A forgotten predecessor looks like a gap. Choose retention plus remember longer than the longest silence of an
/// aggregate, or let gaps pass.
///
/// ```
/// use refrain::consume::{Gap, Sequence};
/// let sequence = Sequence::new("body:/order", "body:/version")?.with_gap(Gap::Hold);
/// # Ok::<(), refrain::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sequence {
    aggregate: Field,
    number: Field,
    first: u64,
    gap: Gap,
}

/// What happens to an event whose predecessor has not been handled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[cfg_attr(feature = "policy-file", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Gap {
    /// Log a warning, and return the event with the backoff; after all attempts it becomes a dead letter.
    #[default]
    Hold,
    /// Log a warning, and handle the event.
    Pass,
}

/// Field of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Field {
    Header(String),
    Body(Pointer),
}

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.number, self.aggregate)
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Body(pointer) => write!(f, "body:{pointer}"),
        }
    }
}

impl FromStr for Field {
    type Err = crate::Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.parse()? {
            Source::Header(name) => Ok(Self::Header(name)),
            Source::Body(pointer) => Ok(Self::Body(pointer)),
            _ => Err(invalid(format!(
                "invalid event field `{text}`; write header:NAME or body:/pointer"
            ))),
        }
    }
}

/// Position of an event in its sequence: its own key, and that of its predecessor.
#[derive(Debug, Clone)]
pub(super) struct SequencePosition {
    /// Scope of the aggregate.
    pub(super) scope: Scope,
    /// Number of the event, as a key.
    pub(super) key: Key,
    /// Key of the predecessor; `None` for the first event.
    before: Option<Key>,
}

/// State of the predecessor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Before {
    /// Handled, or there is no predecessor.
    Handled,
    /// Being handled now.
    InFlight,
    /// Not handled, or forgotten.
    Missing,
}

impl Sequence {
    /// Creates a sequence from the fields with the aggregate and the number: `header:NAME` or `body:/pointer` each.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if a field has another form.
    pub fn new(aggregate: &str, number: &str) -> Result<Self> {
        Ok(Self {
            aggregate: aggregate.parse()?,
            number: number.parse()?,
            first: 1,
            gap: Gap::default(),
        })
    }

    /// Sets the first number of every aggregate. Default: 1.
    #[must_use]
    pub fn with_first(self, first: u64) -> Self {
        Self { first, ..self }
    }

    /// Sets what happens to an event whose predecessor has not been handled.
    #[must_use]
    pub fn with_gap(self, gap: Gap) -> Self {
        Self { gap, ..self }
    }

    /// Returns what happens to an event whose predecessor has not been handled.
    #[must_use]
    pub fn gap(&self) -> Gap {
        self.gap
    }

    /// Returns the first number of every aggregate.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Reads the aggregate and the number of an event.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if one is missing, or the number is less than the first.
    pub fn read(&self, message: &Message) -> Result<(String, u64)> {
        let aggregate = self.aggregate.read(message)?;
        let aggregate = aggregate.ok_or_else(|| invalid("the event has no aggregate".into()))?;
        let number = self.number.read(message)?;
        let number = number.and_then(|text| text.parse::<u64>().ok());
        let number =
            number.ok_or_else(|| invalid("the event's number is missing or invalid".into()))?;
        if number < self.first {
            let first = self.first;
            return Err(invalid(format!(
                "the event's number {number} is below the first number, {first}"
            )));
        }
        Ok((aggregate, number))
    }

    /// Returns the place of an event.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the event has no valid aggregate and number.
    pub(super) fn position(&self, scope: &Scope, message: &Message) -> Result<SequencePosition> {
        let (aggregate, number) = self.read(message)?;
        let key = |number: u64| text_key(&number.to_string());
        let key_here = key(number).ok_or_else(|| invalid("the event has no number".into()))?;
        let is_first = number == self.first;
        Ok(SequencePosition {
            scope: scope.clone().with("aggregate", aggregate),
            key: key_here,
            before: (!is_first).then(|| key(number - 1)).flatten(),
        })
    }
}

impl Field {
    fn read(&self, message: &Message) -> Result<Option<String>> {
        match self {
            Self::Header(name) => Ok(one_header(message, name)?
                .and_then(|value| std::str::from_utf8(value).ok())
                .map(Into::into)),
            Self::Body(pointer) => {
                let content = content(message);
                let text = readable(&content)?.and_then(|json| json.text(pointer));
                Ok(text.map(Into::into))
            }
        }
    }
}

impl SequencePosition {
    /// Returns the state of the predecessor, including its redrives.
    ///
    /// An event that was already handled under one of its own records does not wait: it is a duplicate,
    /// and its predecessor may be forgotten.
    ///
    /// # Errors
    /// If the store is unavailable.
    pub(super) async fn predecessor_state(
        &self,
        store: &AnyStore,
        own: &[RecordId],
    ) -> Result<Before> {
        let Some(key) = &self.before else {
            return Ok(Before::Handled);
        };
        for redrive in 0..=REDRIVES_MAX {
            let scope = redriven(&self.scope, redrive);
            let id = RecordId::derive(store.secret(), &scope, key);
            let Some(found) = store.read(id).await? else {
                break;
            };
            match found.record.state {
                State::Completed { .. } | State::Tombstone { .. } => return Ok(Before::Handled),
                // It failed, or its holder died; it waits for its next attempt.
                State::InFlight { lease_ends, .. } if lease_ends <= found.now => break,
                State::InFlight { .. } => return Ok(Before::InFlight),
                State::Indeterminate { .. } => {}
            }
        }
        for id in own {
            let found = store.read(*id).await?;
            let state = found.map(|found| found.record.state.name());
            if matches!(state, Some(StateName::Completed | StateName::Tombstone)) {
                return Ok(Before::Handled);
            }
        }
        Ok(Before::Missing)
    }
}
