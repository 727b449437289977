//! Tracks whether the receipts of an operation are reliable.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::{Instant, timeout};

use super::{AnyReceipts, Receipts};
use crate::{
    Error, ErrorKind, Guarantee, Operation, Outcome, Result, key::RecordId, record::Fence,
};

/// Timeout of one lookup of receipts, because a request waits for it.
const LOOK_MAX: Duration = Duration::from_secs(5);
/// Maximum number of successes queued for the receipt check.
const UNCHECKED_MAX: usize = 10_000;
/// Number of receipts checked in one query.
const CHECKED_AT_ONCE: usize = 500;
/// Maximum age of the standing read from the store. Other processes also see receipts, and also miss them.
const FRESH: Duration = Duration::from_secs(5);

/// Looks up the receipts of one operation, and tracks whether they are reliable.
///
/// An operation that forgets to write its receipt would run again whenever a response is lost.
/// So before the first receipt is seen, nothing runs again until the old attempt can no longer commit,
/// and a success without a receipt makes the operation at-most-once.
/// The engine stores whether a receipt was seen, for all processes and across restarts.
#[derive(Debug)]
pub struct Witness {
    operation: String,
    receipts: AnyReceipts,
    /// The largest body that is stored, in bytes.
    outcome_bytes_max: usize,
    /// How long a key is remembered after its execution. An older receipt belongs to an earlier use of the key.
    remembered: Duration,
    /// Changes only while `stored` is locked.
    standing: AtomicU8,
    stored: Mutex<Stored>,
    missing: AtomicU64,
    unchecked: Mutex<Unchecked>,
}

/// The standing as persisted in the store.
#[derive(Debug)]
struct Stored {
    /// The value last read or written.
    standing: Standing,
    is_read: bool,
    /// When the store was last asked.
    asked: Option<Instant>,
}

/// Successes whose receipts have not been checked yet.
#[derive(Debug, Default)]
struct Unchecked {
    records: Vec<RecordId>,
    /// Whether a task is checking them now.
    is_checking: bool,
    /// The number of successes dropped since the last check because the queue was full.
    left_out: u64,
}

/// Whether the receipts of an operation are reliable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// No receipt was ever seen. A record without a receipt is released once its attempt can no longer commit.
    Unproven = 0,
    /// The last checked success had a receipt.
    Proven = 1,
    /// The last checked success had no receipt: at-most-once until a receipt is seen.
    Missing = 2,
}

/// The result of looking for a receipt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sighting {
    /// The attempt committed; this is its outcome.
    Found(Outcome),
    /// No attempt has committed.
    Absent,
    /// The receipt belongs to an earlier use of the key and was never deleted. It blocks every new commit.
    Stale,
}

impl Witness {
    /// Creates a witness for an operation whose receipts were never seen.
    #[must_use]
    pub fn new(operation: &Operation, receipts: AnyReceipts) -> Self {
        let terms = &operation.terms;
        let remembered = terms.retention.saturating_add(terms.remember);
        Self {
            operation: operation.name.clone(),
            receipts,
            outcome_bytes_max: operation.outcome_bytes_max,
            remembered: remembered.saturating_add(terms.settle_after),
            standing: AtomicU8::new(Standing::Unproven as u8),
            stored: Mutex::new(Stored {
                standing: Standing::Unproven,
                is_read: false,
                asked: None,
            }),
            missing: AtomicU64::new(0),
            unchecked: Mutex::default(),
        }
    }

    /// The name of the operation.
    #[must_use]
    pub fn operation(&self) -> &str {
        &self.operation
    }

    /// The source of the receipts.
    #[must_use]
    pub fn receipts(&self) -> &AnyReceipts {
        &self.receipts
    }

    /// Whether the receipts are reliable.
    #[must_use]
    pub fn standing(&self) -> Standing {
        match self.standing.load(Ordering::Relaxed) {
            1 => Standing::Proven,
            2 => Standing::Missing,
            _ => Standing::Unproven,
        }
    }

    /// The number of successes without a receipt.
    #[must_use]
    pub fn missing(&self) -> u64 {
        self.missing.load(Ordering::Relaxed)
    }

    /// The guarantee for an attempt that starts now.
    #[must_use]
    pub fn guarantee(&self) -> Guarantee {
        match self.standing() {
            Standing::Proven | Standing::Unproven => Guarantee::ExactlyOnce,
            Standing::Missing => Guarantee::AtMostOnce,
        }
    }

    /// Looks for the receipt of a record.
    ///
    /// `first` is the fence of the first attempt, if this use of the key had only one attempt.
    /// An old receipt with another fence then belongs to an earlier use of the key.
    ///
    /// # Errors
    /// If the receipts cannot be read, or the receipt is not a valid outcome. The outcome stays unknown then.
    pub async fn look(&self, record: RecordId, first: Option<Fence>) -> Result<Sighting> {
        let found = match timeout(LOOK_MAX, self.receipts.find(record)).await {
            Ok(found) => found?,
            Err(_) => {
                let message = "the database of the receipts did not respond in time";
                return Err(Error::new(ErrorKind::Unavailable, message));
            }
        };
        let Some(receipt) = found else {
            return Ok(Sighting::Absent);
        };
        let is_other = first.is_some_and(|first| first.to_string() != receipt.fence);
        if is_other && receipt.age > self.remembered {
            tracing::error!(
                %record, operation = %self.operation, fence = %receipt.fence,
                "a receipt of an earlier use of the key blocks the operation: delete receipts after retention plus remember"
            );
            return Ok(Sighting::Stale);
        }
        let outcome = receipt.outcome(record, self.outcome_bytes_max)?;
        self.record_seen();
        Ok(Sighting::Found(outcome))
    }

    /// Records that a receipt was seen: receipts are reliable from now on.
    fn record_seen(&self) {
        let before = self.set_standing(Standing::Proven);
        if before != Standing::Proven as u8 {
            tracing::info!(operation = %self.operation, "a receipt was seen: exactly-once from now on");
        }
    }

    /// Records that a success has no receipt: receipts are not reliable from now on.
    fn record_missing(&self, record: RecordId) {
        self.missing.fetch_add(1, Ordering::Relaxed);
        match self.set_standing(Standing::Missing) == Standing::Missing as u8 {
            true => {
                tracing::warn!(%record, operation = %self.operation, "another success without a receipt");
            }
            false => tracing::error!(
                %record, operation = %self.operation,
                "a success without a receipt: at-most-once until a receipt is seen; insert the receipt in the transaction of the effect, and respond after its commit"
            ),
        }
    }

    fn set_standing(&self, standing: Standing) -> u8 {
        let _stored = self.stored();
        self.standing.swap(standing as u8, Ordering::Relaxed)
    }

    /// Returns whether the standing was never read from the store. No guarantee may be given before that.
    pub(crate) fn is_unread(&self) -> bool {
        !self.stored().is_read
    }

    /// Returns whether the store should be asked again. Of several concurrent callers, only the first gets `true`.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        let mut stored = self.stored();
        let is_due = stored.asked.is_none_or(|asked| now - asked >= FRESH);
        if is_due {
            stored.asked = Some(now);
        }
        is_due
    }

    /// Returns the standing if it is not in the store yet.
    pub(crate) fn unsaved(&self) -> Option<Standing> {
        let stored = self.stored();
        let standing = self.standing();
        (standing != stored.standing).then_some(standing)
    }

    /// Records that this standing was written to the store.
    pub(crate) fn saved(&self, standing: Standing) {
        let mut stored = self.stored();
        stored.standing = standing;
        stored.is_read = true;
    }

    /// Records that this standing was read from the store. A standing learnt here meanwhile is newer, and stays.
    pub(crate) fn read(&self, standing: Standing) {
        let mut stored = self.stored();
        let is_changed = self.standing() != stored.standing;
        stored.standing = standing;
        stored.is_read = true;
        if !is_changed {
            self.standing.store(standing as u8, Ordering::Relaxed);
        }
    }

    fn stored(&self) -> MutexGuard<'_, Stored> {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a success for the receipt check. Returns whether no check is running; then the caller must start one.
    pub(crate) fn note(&self, record: RecordId) -> bool {
        let mut unchecked = self.unchecked();
        match unchecked.records.len() < UNCHECKED_MAX {
            true => unchecked.records.push(record),
            false => unchecked.left_out += 1,
        }
        !std::mem::replace(&mut unchecked.is_checking, true)
    }

    /// Checks the receipts of a batch of successes. Returns how many had none, or `None` if the queue is empty.
    ///
    /// # Errors
    /// If the receipts cannot be read. The next call checks the same batch again.
    pub(crate) async fn check(&self) -> Result<Option<u64>> {
        let Some(records) = self.next_unchecked() else {
            return Ok(None);
        };
        let seen = match timeout(LOOK_MAX, self.receipts.seen(&records)).await {
            Ok(seen) => seen?,
            Err(_) => {
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    "the database did not respond in time",
                ));
            }
        };
        let mut missing = 0;
        for (record, is_seen) in records.iter().zip(seen) {
            match is_seen {
                true => self.record_seen(),
                false => {
                    self.record_missing(*record);
                    missing += 1;
                }
            }
        }
        self.unchecked().records.drain(..records.len());
        Ok(Some(missing))
    }

    fn next_unchecked(&self) -> Option<Vec<RecordId>> {
        let mut unchecked = self.unchecked();
        let left_out = std::mem::take(&mut unchecked.left_out);
        if left_out > 0 {
            tracing::warn!(operation = %self.operation, left_out, "too many successes to check: the receipts of some were not looked up");
        }
        if unchecked.records.is_empty() {
            unchecked.is_checking = false;
            return None;
        }
        let len = unchecked.records.len().min(CHECKED_AT_ONCE);
        Some(unchecked.records[..len].into())
    }

    /// Ends the check, even if the queue is not empty.
    pub(crate) fn stop_checking(&self) {
        self.unchecked().is_checking = false;
    }

    fn unchecked(&self) -> MutexGuard<'_, Unchecked> {
        self.unchecked
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
