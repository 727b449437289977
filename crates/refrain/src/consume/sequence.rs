//! Events of one aggregate, accepted once and in order.

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

/// Accepts the events of one aggregate once and in order: each names its aggregate and its number in it.
///
/// The record of an event is named by aggregate and number, in place of the consumer's other key sources.
/// An event is handled when the one before it has been: its record is completed, or past retention and still remembered.
/// A duplicate is skipped, so a stream may be replayed from its start.
///
/// What is no longer remembered looks like a gap. So an aggregate must not be silent for longer than retention and remember together,
/// or gaps must pass.
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

/// What becomes of an event whose predecessor has not been handled.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    serde::Deserialize,
    serde::Serialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Gap {
    /// It is reported and given back with the back-off, as often as there are attempts; then it is a dead letter.
    #[default]
    Hold,
    /// It is reported and handled.
    Pass,
}

/// Where an event tells something of itself.
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
                "`{text}` names no field of an event; write header:NAME or body:/pointer"
            ))),
        }
    }
}

/// An event's place: its own record, and where to look for the one before it.
#[derive(Debug, Clone)]
pub(super) struct Place {
    /// The scope of the aggregate.
    pub(super) scope: Scope,
    /// The event's number as a key.
    pub(super) key: Key,
    /// The key of the one before it; `None` for the first.
    before: Option<Key>,
}

/// What is known of the event before one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Before {
    /// Handled, or there is none.
    Handled,
    /// Being handled now.
    InFlight,
    /// Not handled, as far as is remembered.
    Missing,
}

impl Sequence {
    /// Where events tell their aggregate and their number in it: `header:NAME` or `body:/pointer` each.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) when it is anything else.
    pub fn new(aggregate: &str, number: &str) -> Result<Self> {
        Ok(Self {
            aggregate: aggregate.parse()?,
            number: number.parse()?,
            first: 1,
            gap: Gap::default(),
        })
    }

    /// The number that every aggregate starts with; 1 if nothing is said.
    #[must_use]
    pub fn with_first(self, first: u64) -> Self {
        Self { first, ..self }
    }

    /// What becomes of an event whose predecessor has not been handled.
    #[must_use]
    pub fn with_gap(self, gap: Gap) -> Self {
        Self { gap, ..self }
    }

    /// What becomes of an event whose predecessor has not been handled.
    #[must_use]
    pub fn gap(&self) -> Gap {
        self.gap
    }

    /// The number that every aggregate starts with.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.first
    }

    /// The aggregate of an event, and its number in it.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) where it has none, or a number before the first.
    pub fn read(&self, message: &Message) -> Result<(String, u64)> {
        let aggregate = self.aggregate.read(message)?;
        let aggregate =
            aggregate.ok_or_else(|| invalid("the event does not name its aggregate".into()))?;
        let number = self.number.read(message)?;
        let number = number.and_then(|text| text.parse::<u64>().ok());
        let number =
            number.ok_or_else(|| invalid("the event's number is missing, or is none".into()))?;
        if number < self.first {
            let first = self.first;
            return Err(invalid(format!(
                "the event has the number {number}, and the first is {first}"
            )));
        }
        Ok((aggregate, number))
    }

    /// The place of an event.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) where it has none.
    pub(super) fn place(&self, scope: &Scope, message: &Message) -> Result<Place> {
        let (aggregate, number) = self.read(message)?;
        let key = |number: u64| text_key(&number.to_string());
        let key_here = key(number).ok_or_else(|| invalid("the event has no number".into()))?;
        let is_first = number == self.first;
        Ok(Place {
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

impl Place {
    /// What is known of the event before this one, be it that it was let through again.
    ///
    /// An event that was handled itself, under one of its own records, waits for nobody: it is a duplicate,
    /// and its predecessor may be forgotten by now.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub(super) async fn before(&self, store: &AnyStore, own: &[RecordId]) -> Result<Before> {
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
                // It failed, or its holder died, and it waits for its next attempt.
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
