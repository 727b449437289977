//! What of an engine's work goes into its audit log, and when: the end of an attempt before the store knows of it.
//!
//! So nobody, here or at another process, is shown an outcome that is not written down.
//! A crash in between leaves an entry whose outcome the store does not hold: what it says is true, and the record is in doubt.

use std::{borrow::Cow, sync::Arc};

use super::{Count, Engine, Flight, Inner, Intent};
use crate::{
    Result,
    audit::{AuditLog, Entry, Event},
    key::RecordId,
    record::{Fence, Settled, Settlement},
};

impl Engine {
    /// The same engine with a log for what is [to be audited](Intent::audit), and for what people decide about records.
    ///
    /// The first log that is given counts.
    #[must_use]
    pub fn with_audit(self, log: AuditLog) -> Self {
        let _ = self.inner.audit.set(log);
        self
    }

    /// The log of what is audited, if it has one.
    #[must_use]
    pub fn audit(&self) -> Option<&AuditLog> {
        self.inner.audit.get()
    }

    /// Writes down that an audited operation is let through without a claim.
    ///
    /// # Errors
    /// When it cannot be written: then it must not be let through.
    #[cfg(feature = "http")]
    pub(crate) async fn audit_unguarded(&self, operation: &str) -> Result<()> {
        let Some(log) = self.audit() else {
            return Ok(());
        };
        let mut entry = Entry::new(Event::Unguarded);
        entry.operation = Some(operation.into());
        log.write(entry).await
    }
}

impl Inner {
    /// Whether this may begin.
    pub(super) fn check_audit(&self, intent: &Intent) -> Result<()> {
        if intent.audit.is_none() {
            return Ok(());
        }
        let checked = self.audit.get().map_or(Ok(()), AuditLog::check);
        if checked.is_err() {
            self.tally.count(Count::Unaudited);
        }
        checked
    }

    /// Writes an entry and does not wait for it.
    pub(super) fn audit_note(&self, entry: Entry) {
        if let Some(log) = self.audit.get() {
            log.note(entry);
        }
    }

    /// Writes an entry, and answers once it is durable.
    pub(super) async fn audit_write(&self, entry: Entry) -> Result<()> {
        match self.audit.get() {
            Some(log) => log.write(entry).await,
            None => Ok(()),
        }
    }

    /// Settles a record in doubt as a probe or a receipt says, once that is written down.
    pub(super) async fn settle_as(
        &self,
        (id, fence): (RecordId, Fence),
        end: Settlement,
        audit: Option<&Arc<str>>,
        actor: &'static str,
    ) -> Result<Settled> {
        use crate::store::Store as _;
        let Some(operation) = audit else {
            return self.store.settle(id, fence, end).await;
        };
        let mut entry = resolved(&end).of(id, Some(fence));
        entry.operation = Some(operation.clone());
        entry.actor = Some(Cow::Borrowed(actor));
        self.audit_write(entry).await?;
        let settled = self.store.settle(id, fence, end).await;
        if !matches!(settled, Ok(Settled::Applied) | Err(_)) {
            self.audit_note(overtaken(id, fence, Some(operation)));
        }
        settled
    }
}

/// That the doubt about a record was ended so.
pub(super) fn resolved(end: &Settlement) -> Entry {
    let found = match end {
        Settlement::NeverHappened => "never-happened",
        _ => "completed",
    };
    Entry {
        event: Event::Resolved,
        ..Entry::ending(end)
    }
    .with_detail(found)
}

/// That what was written before does not count.
pub(super) fn overtaken(id: RecordId, fence: Fence, operation: Option<&Arc<str>>) -> Entry {
    let mut entry = Entry::new(Event::Overtaken).of(id, Some(fence));
    entry.operation = operation.cloned();
    entry
}

impl Flight {
    /// An entry about this attempt; `None` where it is not audited.
    pub(super) fn entry(&self, entry: impl FnOnce() -> Entry) -> Option<Entry> {
        let operation = self.audit.as_ref()?;
        let mut entry = entry().of(self.id, Some(self.fence));
        entry.operation = Some(operation.clone());
        Some(entry)
    }
}
