//! Operation classes, which preset other settings.

use super::{Duplicates, Operation, units};
use crate::Guarantee;

/// Class of an operation, which presets other settings.
///
/// A class changes only the settings listed with it.
/// The operation's own settings override its class, and its class overrides `[policy]`,
/// because the class is named on the operation itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Deserialize, serde::Serialize)]
#[cfg_attr(feature = "policy-file", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Changes nothing, such as a search by POST. Not guarded.
    Read,
    /// Creates a resource. At-most-once, because a second execution creates a second resource.
    Create,
    /// Moves money. Requires a key; at-most-once; retention 30d, remember 365d, because disputes and late retries
    /// come weeks later; audited.
    Monetary,
    /// Moves a resource to its next state, such as capture or cancel. At-most-once, because a second execution may
    /// find another state.
    Transition,
    /// Replaces a whole resource. At-least-once, because writing the same again changes nothing.
    Replace,
    /// Deletes a resource. At-least-once, because deleting it again changes nothing.
    Delete,
    /// Receives a webhook or message. At-least-once, because the sender retries until it is accepted; retention 7d,
    /// remember 30d, longer than senders retry. Duplicates of completed events get a success, even without an outcome.
    Event,
}

impl Class {
    /// Applies the presets of this class to the operation.
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
