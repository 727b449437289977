//! What kind of operation it is, and the settings that go with the kind.

use super::{Duplicates, Operation, units};
use crate::Guarantee;

/// What kind of operation it is.
///
/// A class is a preset: it sets what its documentation says and leaves the rest alone.
/// What the operation itself sets goes before its class, and the class goes before `[policy]`:
/// a preset is named on the operation, so it is nearer to it than what is said for all.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    serde::Deserialize,
    serde::Serialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Changes nothing, such as a search by POST: not guarded at all.
    Read,
    /// Makes something new: at-most-once, because a second one is a second thing.
    Create,
    /// Moves money: required key, at-most-once, retention 30d, remember 365d, audit. Disputes come weeks later, and so do late retries.
    Monetary,
    /// Moves something on to its next state, such as capture or cancel: at-most-once, because the second time may find another state.
    Transition,
    /// Writes all of something anew: at-least-once, because writing the same again changes nothing.
    Replace,
    /// Removes something: at-least-once, because what is gone stays gone.
    Delete,
    /// Takes in a webhook or message: at-least-once, because its sender sends until it is taken; retention 7d, remember 30d, longer than senders go on trying;
    /// duplicates of what is done are acknowledged even where the outcome is gone.
    Event,
}

impl Class {
    /// Sets on the operation what this class stands for.
    pub(super) fn apply(self, operation: &mut Operation) {
        operation.class = Some(self);
        operation.guarded = self != Self::Read;
        let terms = &mut operation.terms;
        match self {
            Self::Read => {}
            Self::Create | Self::Transition => terms.guarantee = Guarantee::AtMostOnce,
            Self::Replace | Self::Delete => terms.guarantee = Guarantee::AtLeastOnce,
            Self::Monetary => {
                terms.guarantee = Guarantee::AtMostOnce;
                terms.retention = units::days(30);
                terms.remember = units::days(365);
                operation.required = true;
                operation.audit = true;
            }
            Self::Event => {
                terms.guarantee = Guarantee::AtLeastOnce;
                terms.retention = units::days(7);
                terms.remember = units::days(30);
                operation.duplicates = Duplicates::Acknowledge;
            }
        }
    }
}
