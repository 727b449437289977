//! Writes the audit log of an engine. The end of an attempt is logged before it is stored.
//!
//! So no process returns an outcome that is not in the log.
//! A crash in between leaves an entry whose outcome is not in the store: the entry is true, and the record is indeterminate.

use std::{borrow::Cow, sync::Arc};

use super::{Count, Engine, EngineState};
use crate::{
    Result,
    audit::{AuditLog, Entry, Event},
    key::RecordId,
    record::{Fence, Settled, Settlement},
};

impl Engine {
    /// The same engine with an audit log, for [audited intents](super::Intent::audit) and operator actions.
    ///
    /// Only the first call sets the log.
    #[must_use]
    pub fn with_audit(self, log: AuditLog) -> Self {
        let _ = self.inner.audit.set(log);
        self
    }

    /// The audit log, if the engine has one.
    #[must_use]
    pub fn audit(&self) -> Option<&AuditLog> {
        self.inner.audit.get()
    }

    /// Logs that an audited operation runs without a claim.
    ///
    /// # Errors
    /// When the log cannot be written: then the operation must not run.
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

impl EngineState {
    /// Checks, for an audited intent, that the audit log can be written.
    pub(super) fn check_audit(&self) -> Result<()> {
        let checked = self.audit.get().map_or(Ok(()), AuditLog::check);
        if checked.is_err() {
            self.tally.count(Count::Unaudited);
        }
        checked
    }

    /// Writes an entry without waiting until it is durable.
    pub(super) fn audit_note(&self, entry: Entry) {
        if let Some(log) = self.audit.get() {
            log.note(entry);
        }
    }

    /// Writes an entry, and returns once it is durable.
    pub(super) async fn audit_write(&self, entry: Entry) -> Result<()> {
        match self.audit.get() {
            Some(log) => log.write(entry).await,
            None => Ok(()),
        }
    }

    /// Settles an indeterminate record by a probe, a receipt or a late response, after logging it.
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

/// Entry for an unknown outcome that was resolved.
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

/// Entry that revokes the end that was logged before.
pub(super) fn overtaken(id: RecordId, fence: Fence, operation: Option<&Arc<str>>) -> Entry {
    let mut entry = Entry::new(Event::Overtaken).of(id, Some(fence));
    entry.operation = operation.cloned();
    entry
}
