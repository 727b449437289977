//! What the receipts of one operation are known to be worth.

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

/// How long a look at the receipts may take: somebody waits for it.
const LOOK_MAX: Duration = Duration::from_secs(5);
/// How many successes may wait to be checked.
const UNCHECKED_MAX: usize = 10_000;
/// How many are checked at once.
const CHECKED_AT_ONCE: usize = 500;
/// How old what the store was last asked may get: other processes see receipts, and miss them, too.
const FRESH: Duration = Duration::from_secs(5);

/// Knows the receipts of one operation, and whether they can be relied on.
///
/// An operation that forgets to write its receipt would run again whenever an answer is lost.
/// So until one was seen, nothing is run again before the old attempt can no longer commit, and a success without its
/// receipt takes the trust away. Whether one was seen is remembered in the engine's store, for every process and after a restart.
#[derive(Debug)]
pub struct Witness {
    operation: String,
    receipts: AnyReceipts,
    /// The largest body that is kept.
    outcome_bytes_max: usize,
    /// How long a key is known after its run: a receipt that is older belongs to an earlier life of the key.
    remembered: Duration,
    /// Changed only while `stored` is locked.
    standing: AtomicU8,
    stored: Mutex<Stored>,
    missing: AtomicU64,
    unchecked: Mutex<Unchecked>,
}

/// What the store is known to remember of the standing.
#[derive(Debug)]
struct Stored {
    /// As it was last read or written.
    standing: Standing,
    is_read: bool,
    /// When the store was last asked.
    asked: Option<Instant>,
}

/// Successes whose receipts are still to be looked for.
#[derive(Debug, Default)]
struct Unchecked {
    records: Vec<RecordId>,
    /// Whether somebody is at it.
    is_checking: bool,
    /// How many were left out since somebody was last at it, because there were too many.
    left_out: u64,
}

/// Whether an operation's receipts can be relied on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// None was ever seen: what has none is released once its attempt can no longer commit.
    Unproven = 0,
    /// The last success that was checked had its receipt.
    Proven = 1,
    /// The last success that was checked had none: at-most-once until one is seen.
    Missing = 2,
}

/// What a look at the receipts showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sighting {
    /// It committed, and this is its outcome.
    Found(Outcome),
    /// It has not committed.
    Absent,
    /// The receipt is of an earlier life of the key and was never removed: nothing can commit beside it.
    Stale,
}

impl Witness {
    /// Nothing is known yet of this operation's receipts.
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

    /// Which operation this is about.
    #[must_use]
    pub fn operation(&self) -> &str {
        &self.operation
    }

    /// Where the receipts are read.
    #[must_use]
    pub fn receipts(&self) -> &AnyReceipts {
        &self.receipts
    }

    /// Whether its receipts can be relied on.
    #[must_use]
    pub fn standing(&self) -> Standing {
        match self.standing.load(Ordering::Relaxed) {
            1 => Standing::Proven,
            2 => Standing::Missing,
            _ => Standing::Unproven,
        }
    }

    /// How many successes came without their receipt.
    #[must_use]
    pub fn missing(&self) -> u64 {
        self.missing.load(Ordering::Relaxed)
    }

    /// What is promised for an attempt that starts now.
    #[must_use]
    pub fn guarantee(&self) -> Guarantee {
        match self.standing() {
            Standing::Proven | Standing::Unproven => Guarantee::ExactlyOnce,
            Standing::Missing => Guarantee::AtMostOnce,
        }
    }

    /// Looks for the receipt of a record.
    ///
    /// `first` is the fence of its first attempt, where there was no other in this life of the key:
    /// an old receipt under another fence is then none of it.
    ///
    /// # Errors
    /// When the receipts cannot be read, or what is there cannot be an outcome: nothing is known then.
    pub async fn look(&self, record: RecordId, first: Option<Fence>) -> Result<Sighting> {
        let found = match timeout(LOOK_MAX, self.receipts.find(record)).await {
            Ok(found) => found?,
            Err(_) => {
                let message = "the receipts did not answer in time";
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
                "a receipt from before the key was forgotten stands in the way: delete receipts once retention and remember are over"
            );
            return Ok(Sighting::Stale);
        }
        let outcome = receipt.outcome(record, self.outcome_bytes_max)?;
        self.saw();
        Ok(Sighting::Found(outcome))
    }

    /// A receipt was seen: from now on they can be relied on.
    fn saw(&self) {
        let before = self.stand(Standing::Proven);
        if before != Standing::Proven as u8 {
            tracing::info!(operation = %self.operation, "a receipt was seen: exactly-once from now on");
        }
    }

    /// A success has no receipt: from now on they cannot be relied on.
    fn missed(&self, record: RecordId) {
        self.missing.fetch_add(1, Ordering::Relaxed);
        match self.stand(Standing::Missing) == Standing::Missing as u8 {
            true => {
                tracing::warn!(%record, operation = %self.operation, "another success without its receipt");
            }
            false => tracing::error!(
                %record, operation = %self.operation,
                "a success without its receipt: at-most-once until one is seen; insert it in the transaction of the effect, and answer once that is committed"
            ),
        }
    }

    fn stand(&self, standing: Standing) -> u8 {
        let _stored = self.stored();
        self.standing.swap(standing as u8, Ordering::Relaxed)
    }

    /// Whether the store was never asked what it remembers: nothing may be promised before that.
    pub(crate) fn is_unread(&self) -> bool {
        !self.stored().is_read
    }

    /// Whether the store should be asked again. Only the first who asks this is told so.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        let mut stored = self.stored();
        let is_due = stored.asked.is_none_or(|asked| now - asked >= FRESH);
        if is_due {
            stored.asked = Some(now);
        }
        is_due
    }

    /// What was learnt here and is not in the store yet.
    pub(crate) fn unsaved(&self) -> Option<Standing> {
        let stored = self.stored();
        let standing = self.standing();
        (standing != stored.standing).then_some(standing)
    }

    /// The store remembers this now, because it was written.
    pub(crate) fn saved(&self, standing: Standing) {
        let mut stored = self.stored();
        stored.standing = standing;
        stored.is_read = true;
    }

    /// The store remembers this. What was learnt here meanwhile is newer.
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

    /// Notes a success whose receipt is to be looked for; whether nobody is at it yet.
    pub(crate) fn note(&self, record: RecordId) -> bool {
        let mut unchecked = self.unchecked();
        match unchecked.records.len() < UNCHECKED_MAX {
            true => unchecked.records.push(record),
            false => unchecked.left_out += 1,
        }
        !std::mem::replace(&mut unchecked.is_checking, true)
    }

    /// Looks for the receipts of some successes; how many had none, or `None` once there is nothing left to look for.
    ///
    /// # Errors
    /// When the receipts cannot be read; the same are looked for when this is called again.
    pub(crate) async fn check(&self) -> Result<Option<u64>> {
        let Some(records) = self.next_unchecked() else {
            return Ok(None);
        };
        let seen = match timeout(LOOK_MAX, self.receipts.seen(&records)).await {
            Ok(seen) => seen?,
            Err(_) => return Err(Error::new(ErrorKind::Unavailable, "no answer in time")),
        };
        let mut missing = 0;
        for (record, is_seen) in records.iter().zip(seen) {
            match is_seen {
                true => self.saw(),
                false => {
                    self.missed(*record);
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
            tracing::warn!(operation = %self.operation, left_out, "successes whose receipts were not looked for: too many");
        }
        if unchecked.records.is_empty() {
            unchecked.is_checking = false;
            return None;
        }
        let len = unchecked.records.len().min(CHECKED_AT_ONCE);
        Some(unchecked.records[..len].into())
    }

    /// Nobody is at it any more, though something may be left.
    pub(crate) fn stop_checking(&self) {
        self.unchecked().is_checking = false;
    }

    fn unchecked(&self) -> MutexGuard<'_, Unchecked> {
        self.unchecked
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
