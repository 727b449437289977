//! What a person decides: what became of a record in doubt, and that a record goes.
//!
//! Both want a reason, and both go into the audit log with it: before they are done, and how they ended.

use std::time::Duration;

use super::{Count, Engine, audit};
use crate::{
    Error, ErrorKind, Outcome, Result,
    audit::{Entry, Event},
    key::RecordId,
    record::{Erased, Settled, Settlement, State},
    store::{StateName, Store},
};

/// The longest reason, in bytes.
pub const REASON_BYTES_MAX: usize = 1_000;

/// Why a person does something, and who that is.
#[derive(Debug, Clone, Copy)]
pub struct Deed<'a> {
    /// Why, in a few words.
    pub reason: &'a str,
    /// How the person came in, as far as can be told: `loopback`, `token`.
    pub actor: &'static str,
    /// Who the person says to be.
    pub by: Option<&'a str>,
}

impl<'a> From<&'a str> for Deed<'a> {
    /// The reason alone, of a program that calls the library.
    fn from(reason: &'a str) -> Self {
        Self {
            reason,
            actor: "program",
            by: None,
        }
    }
}

impl Deed<'_> {
    /// The deed in the log.
    fn entry(&self, entry: Entry) -> Entry {
        Entry {
            actor: Some(self.actor.into()),
            by: self.by.map(str::to_owned),
            reason: Some(self.reason.to_owned()),
            ..entry
        }
    }
}

/// What a person has found out about an indeterminate record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolution {
    /// It took effect, and this is what is replayed from now on.
    Completed {
        /// What came of it.
        outcome: Outcome,
        /// How long the outcome is kept.
        retention: Duration,
        /// How long after that the key is refused instead of run again.
        remember: Duration,
    },
    /// It did not take effect: the key is free again.
    NeverHappened,
}

/// What became of a resolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Resolved {
    /// It stands.
    Applied,
    /// "Never happened" does not count yet: the attempt may still act for that long. Nothing was changed.
    TooEarly {
        /// How long.
        left: Duration,
    },
    /// The record is not indeterminate, or no longer: this is what it is; `None` is absent. Nothing was changed.
    NotInDoubt(Option<StateName>),
}

impl Engine {
    /// Ends the doubt about a record, on the word of a person.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] where the reason is empty, too long or holds control characters, [`ErrorKind::Unaudited`] where
    /// the engine's audit log cannot be written; otherwise when the store cannot answer.
    ///
    /// # Cancellation
    /// May be dropped: whether it was resolved is then for the store to tell.
    pub async fn resolve(
        &self,
        id: RecordId,
        resolution: Resolution,
        deed: impl Into<Deed<'_>>,
    ) -> Result<Resolved> {
        let deed = check_deed(deed.into())?;
        let found = self.store().read(id).await?;
        let hold = match found.as_ref().map(|reading| &reading.record.state) {
            Some(State::Indeterminate { hold, .. }) => *hold,
            other => return Ok(Resolved::NotInDoubt(other.map(State::name))),
        };
        let (end, outcome) = settlement(resolution, id);
        let told = |event| {
            let entry = audit::resolved(&end).of(id, Some(hold.fence));
            deed.entry(Entry { event, ..entry })
        };
        let (before, after) = (told(Event::Resolving), told(Event::Resolved));
        // Should the process die behind it, that somebody was about to do it stands there.
        self.inner.audit_write(before).await?;
        let resolved = match self.store().settle(id, hold.fence, end).await? {
            Settled::Applied => self.check_outcome(id, outcome.as_ref()).await?,
            Settled::TooEarly { left } => Resolved::TooEarly { left },
            Settled::Fenced => Resolved::NotInDoubt(self.state_of(id).await?),
        };
        let after = match resolved {
            Resolved::Applied => after,
            Resolved::TooEarly { .. } => refused(&deed, id, "too-early"),
            Resolved::NotInDoubt(_) => refused(&deed, id, "not-in-doubt"),
        };
        self.inner.audit_write(after).await?;
        if resolved == Resolved::Applied {
            let reason = deed.reason;
            self.tally().count(Count::Resolved);
            let found = outcome.map_or("never happened", |_| "completed");
            tracing::warn!(record = %id, found, reason, "an operator has resolved a record");
        }
        Ok(resolved)
    }

    /// Takes a record away whose end is known, on the word of a person. A retry under its key runs again.
    ///
    /// # Errors
    /// As for [`resolve`](Self::resolve).
    ///
    /// # Cancellation
    /// As for [`resolve`](Self::resolve).
    pub async fn erase(&self, id: RecordId, deed: impl Into<Deed<'_>>) -> Result<Erased> {
        let deed = check_deed(deed.into())?;
        let told = |event| deed.entry(Entry::new(event).of(id, None));
        self.inner.audit_write(told(Event::Erasing)).await?;
        let erased = self.store().erase(id).await?;
        let after = match erased {
            Erased::Gone => told(Event::Erased),
            Erased::Absent => refused(&deed, id, "absent"),
            Erased::InFlight => refused(&deed, id, "in-flight"),
            Erased::Indeterminate => refused(&deed, id, "indeterminate"),
        };
        self.inner.audit_write(after).await?;
        if erased == Erased::Gone {
            let reason = deed.reason;
            self.tally().count(Count::Erased);
            tracing::warn!(record = %id, reason, "an operator has erased a record");
        }
        Ok(erased)
    }

    /// Late truth may have been faster: completing what is completed is no fault, and changes nothing.
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

fn refused(deed: &Deed<'_>, id: RecordId, why: &'static str) -> Entry {
    let entry = Entry::new(Event::Refused).of(id, None);
    deed.entry(entry.with_detail(why))
}

fn check_deed(deed: Deed<'_>) -> Result<Deed<'_>> {
    check_text("reason", deed.reason)?;
    if let Some(by) = deed.by {
        check_text("by", by)?;
    }
    Ok(deed)
}

fn check_text(name: &str, text: &str) -> Result<()> {
    let why = match text {
        text if text.trim().is_empty() => "say why in a few words",
        text if text.len() > REASON_BYTES_MAX => "it is longer than 1000 bytes; shorten it",
        text if text.chars().any(char::is_control) => {
            "it holds control characters; write it in one line"
        }
        _ => return Ok(()),
    };
    Err(Error::new(ErrorKind::Invalid, format!("{name}: {why}")))
}
