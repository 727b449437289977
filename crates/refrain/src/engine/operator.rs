//! Operator actions: resolve an unknown outcome, and delete a record.
//!
//! Both need a reason, and are written to the audit log with it: before the action, and its result.

use std::time::Duration;

use super::{Count, Engine, audit};
use crate::{
    Error, ErrorKind, Outcome, Result,
    audit::{Entry, Event},
    key::RecordId,
    record::{Erased, Fence, ScopeDigest, Settled, Settlement, State},
    store::{StateName, Store},
};

/// Maximum length of a reason, in bytes.
pub const REASON_BYTES_MAX: usize = 1_000;

/// Reason and author of an operator action.
#[derive(Debug, Clone, Copy)]
pub struct OperatorAction<'a> {
    /// The reason, in a few words.
    pub reason: &'a str,
    /// How the operator was authenticated: `loopback`, `token`; `program` for a caller of the library.
    pub actor: &'static str,
    /// The name that the operator gives, which is not verified.
    pub by: Option<&'a str>,
}

impl<'a> From<&'a str> for OperatorAction<'a> {
    /// A reason alone, from a program that calls the library.
    fn from(reason: &'a str) -> Self {
        Self {
            reason,
            actor: "program",
            by: None,
        }
    }
}

impl OperatorAction<'_> {
    /// Checks reason and name, as every operator action does first.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if one of them is empty, too long or has control characters.
    pub fn check(&self) -> Result<()> {
        check_text("reason", self.reason)?;
        self.by.map_or(Ok(()), |by| check_text("by", by))
    }

    /// Adds reason and author to an entry of the audit log.
    fn entry(&self, entry: Entry) -> Entry {
        Entry {
            actor: Some(self.actor.into()),
            by: self.by.map(str::to_owned),
            reason: Some(self.reason.to_owned()),
            ..entry
        }
    }
}

/// What the operator found out about an indeterminate record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolution {
    /// The operation took effect; the outcome is replayed from now on.
    Completed {
        /// The outcome to store.
        outcome: Outcome,
        /// How long the outcome is kept.
        retention: Duration,
        /// How long after that the key is rejected instead of run again.
        remember: Duration,
    },
    /// The operation did not take effect: the key is free again.
    NeverHappened,
}

/// Result of a resolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Resolved {
    /// The record is resolved.
    Applied,
    /// "Never happened" is not accepted yet, because the attempt may still act. Nothing was changed.
    TooEarly {
        /// How long the attempt may still act.
        left: Duration,
    },
    /// The record is not indeterminate, but in this state; `None` is absent. Nothing was changed.
    NotInDoubt(Option<StateName>),
    /// The record is indeterminate because of another attempt than the expected one. Nothing was changed.
    OtherAttempt,
}

impl Engine {
    /// Resolves the unknown outcome of an indeterminate record, as an operator decided.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the reason or the name is empty, too long or has control characters, [`ErrorKind::Unaudited`] if
    /// the engine's audit log cannot be written; otherwise when the store cannot answer.
    ///
    /// # Cancellation
    /// May be dropped: only the store then shows whether the record was resolved.
    pub async fn resolve(
        &self,
        id: RecordId,
        resolution: Resolution,
        action: impl Into<OperatorAction<'_>>,
    ) -> Result<Resolved> {
        self.resolve_attempt(id, None, resolution, action).await
    }

    /// Resolves the unknown outcome of one attempt: that with this fence, if one is given.
    /// What an operator found out about one attempt says nothing about a later one.
    ///
    /// # Errors
    /// As for [`resolve`](Self::resolve).
    ///
    /// # Cancellation
    /// As for [`resolve`](Self::resolve).
    pub async fn resolve_attempt(
        &self,
        id: RecordId,
        expected: Option<Fence>,
        resolution: Resolution,
        action: impl Into<OperatorAction<'_>>,
    ) -> Result<Resolved> {
        let action = action.into();
        action.check()?;
        let found = self.store().read(id).await?;
        let hold = match found.as_ref().map(|reading| &reading.record.state) {
            Some(State::Indeterminate { hold, .. }) => *hold,
            other => return Ok(Resolved::NotInDoubt(other.map(State::name))),
        };
        if expected.is_some_and(|expected| expected != hold.fence) {
            return Ok(Resolved::OtherAttempt);
        }
        let (end, outcome) = settlement(resolution, id);
        let told = |event| {
            let entry = audit::resolved(&end).of(id, Some(hold.fence));
            action.entry(Entry { event, ..entry })
        };
        let (before, after) = (told(Event::Resolving), told(Event::Resolved));
        // If the process dies after it, the log shows that the action was started.
        self.inner.audit_write(before).await?;
        let resolved = match self.store().settle(id, hold.fence, end).await? {
            Settled::Applied => self.check_outcome(id, outcome.as_ref()).await?,
            Settled::TooEarly { left } => Resolved::TooEarly { left },
            Settled::Fenced => match self.state_of(id).await? {
                Some(StateName::Indeterminate) => Resolved::OtherAttempt,
                other => Resolved::NotInDoubt(other),
            },
        };
        let after = match resolved {
            Resolved::Applied => after,
            Resolved::TooEarly { .. } => refused(&action, id, "too-early"),
            Resolved::NotInDoubt(_) => refused(&action, id, "not-in-doubt"),
            Resolved::OtherAttempt => refused(&action, id, "other-attempt"),
        };
        self.inner.audit_write(after).await?;
        if resolved == Resolved::Applied {
            let reason = action.reason;
            self.tally().count(Count::Resolved);
            let found = outcome.map_or("never happened", |_| "completed");
            tracing::warn!(record = %id, found, reason, "an operator has resolved a record");
        }
        Ok(resolved)
    }

    /// Deletes a completed record or a tombstone, as an operator decided. A retry under its key runs again.
    ///
    /// # Errors
    /// As for [`resolve`](Self::resolve).
    ///
    /// # Cancellation
    /// As for [`resolve`](Self::resolve).
    pub async fn erase(
        &self,
        id: RecordId,
        action: impl Into<OperatorAction<'_>>,
    ) -> Result<Erased> {
        let action = action.into();
        action.check()?;
        let told = |event| action.entry(Entry::new(event).of(id, None));
        self.inner.audit_write(told(Event::Erasing)).await?;
        let erased = self.store().erase(id).await?;
        let after = match erased {
            Erased::Gone => told(Event::Erased),
            Erased::Absent => refused(&action, id, "absent"),
            Erased::InFlight => refused(&action, id, "in-flight"),
            Erased::Indeterminate => refused(&action, id, "indeterminate"),
        };
        self.inner.audit_write(after).await?;
        if erased == Erased::Gone {
            let reason = action.reason;
            self.tally().count(Count::Erased);
            tracing::warn!(record = %id, reason, "an operator has erased a record");
        }
        Ok(erased)
    }

    /// Erases the data key of a scope, as an operator decided: the outcomes and targets that are encrypted with it can never
    /// be read again. Their keys stay refused until their records expire. Returns whether there was a data key.
    ///
    /// # Errors
    /// As for [`resolve`](Self::resolve).
    ///
    /// # Cancellation
    /// As for [`resolve`](Self::resolve).
    pub async fn erase_scope(
        &self,
        scope: ScopeDigest,
        action: impl Into<OperatorAction<'_>>,
    ) -> Result<bool> {
        let action = action.into();
        action.check()?;
        let told = |event| action.entry(Entry::new(event).with_detail(format!("scope {scope}")));
        self.inner.audit_write(told(Event::Erasing)).await?;
        let is_erased = self.store().erase_scope_key(scope).await?;
        let after = match is_erased {
            true => Event::Erased,
            false => Event::Refused,
        };
        self.inner.audit_write(told(after)).await?;
        if is_erased {
            let reason = action.reason;
            tracing::warn!(%scope, reason, "an operator has erased the data key of a scope");
        }
        Ok(is_erased)
    }

    /// Checks that the store holds our outcome. A late completion may have been faster: then ours changed nothing.
    async fn check_outcome(&self, id: RecordId, ours: Option<&Outcome>) -> Result<Resolved> {
        let Some(ours) = ours else {
            return Ok(Resolved::Applied);
        };
        let found = self.store().read(id).await?;
        Ok(match found.map(|reading| reading.record.state) {
            Some(State::Completed { outcome, .. }) if outcome.clone().sealed(id) != *ours => {
                Resolved::NotInDoubt(Some(StateName::Completed))
            }
            _ => Resolved::Applied,
        })
    }

    async fn state_of(&self, id: RecordId) -> Result<Option<StateName>> {
        let found = self.store().read(id).await?;
        Ok(found.map(|reading| reading.record.state.name()))
    }
}

fn settlement(resolution: Resolution, id: RecordId) -> (Settlement, Option<Outcome>) {
    match resolution {
        Resolution::NeverHappened => (Settlement::NeverHappened, None),
        Resolution::Completed {
            outcome,
            retention,
            remember,
        } => {
            let outcome = outcome.sealed(id);
            let end = Settlement::Complete {
                outcome: outcome.clone(),
                retention,
                remember,
            };
            (end, Some(outcome))
        }
    }
}

fn refused(action: &OperatorAction<'_>, id: RecordId, why: &'static str) -> Entry {
    let entry = Entry::new(Event::Refused).of(id, None);
    action.entry(entry.with_detail(why))
}

fn check_text(name: &str, text: &str) -> Result<()> {
    let why = match text {
        text if text.trim().is_empty() => "it is empty; write a few words",
        text if text.len() > REASON_BYTES_MAX => "it is longer than 1000 bytes; shorten it",
        text if text.chars().any(char::is_control) => {
            "it contains control characters; write it on one line"
        }
        _ => return Ok(()),
    };
    Err(Error::new(ErrorKind::Invalid, format!("{name}: {why}")))
}
