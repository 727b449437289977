//! What happened so far, in numbers.

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

use super::Turn;
use crate::record::Verdict;

/// How many ends may wait for a store that does not answer.
const HELD_MAX: usize = 1_024;
/// How many claims may be lost of which the store has not said yet what became of them; then no more are sent.
const LOST_MAX: usize = 10_000;
/// How many lost claims that do not stand are watched in case that they arrive late.
const WATCHED_MAX: usize = 1_024;
/// For how many indeterminate records the probe is asked in the background.
const CARED_MAX: usize = 10_000;

/// One kind of thing that is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Count {
    /// Claims that were granted.
    Granted,
    /// Among these, takeovers under at-least-once: possible duplicates.
    PossibleDuplicate,
    /// Outcomes replayed.
    Replayed,
    /// Duplicates told that it is still in flight.
    InFlight,
    /// Keys used for another request.
    Mismatch,
    /// Keys used by another credential.
    OtherCredential,
    /// Duplicates told that the outcome is unknown.
    Indeterminate,
    /// Keys past retention.
    Expired,
    /// Duplicates that got the answer of the refused one that they waited for.
    Refused,
    /// Operations that ended without effect.
    Released,
    /// Operations whose outcome could not be learnt.
    Doubted,
    /// Duplicates that followed the answer of the one in flight as it came.
    Followed,
    /// Times that a probe was asked, by a retry or in the background.
    Probed,
    /// Indeterminate records that a probe, a receipt or a person settled.
    Resolved,
    /// Times that a receipt was looked for because an outcome was not learnt.
    ReceiptsLooked,
    /// Among these, those that were found.
    ReceiptsFound,
    /// Successes without their receipt.
    ReceiptsMissing,
    /// Records that a person took away.
    Erased,
    /// Operations whose outcome came after somebody took over.
    Overtaken,
    /// Leases that were lost while the operation ran.
    LeaseLost,
    /// Requests that ran without a claim because the policy says so when the store fails.
    Unguarded,
    /// Requests that were not signed as their operation wants it, those that are only observed too.
    Unverified,
    /// Requests that were refused since the audit log cannot be written.
    Unaudited,
    /// Requests that were refused since the bodies that are held take up the memory for them.
    OverBudget,
}

const COUNTS: usize = Count::OverBudget as usize + 1;

/// What happened so far, in numbers.
#[derive(Debug, Default)]
pub struct Tally {
    counts: [AtomicU64; COUNTS],
    waiting: Arc<AtomicUsize>,
    held: Arc<AtomicUsize>,
    lost: Arc<AtomicUsize>,
    watched: Arc<AtomicUsize>,
    cared: Arc<AtomicUsize>,
}

impl Tally {
    /// How often this happened.
    #[must_use]
    pub fn get(&self, count: Count) -> u64 {
        self.counts[count as usize].load(Ordering::Relaxed)
    }

    /// How many duplicates wait now.
    #[must_use]
    pub fn waiting_now(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// How many ends wait now for a store that did not answer.
    #[must_use]
    pub fn held_now(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// How many claims were lost of which the store has not said yet what became of them.
    #[must_use]
    pub fn lost_now(&self) -> usize {
        self.lost.load(Ordering::Relaxed)
    }

    /// For how many indeterminate records the probe is asked in the background now.
    #[must_use]
    pub fn cared_for_now(&self) -> usize {
        self.cared.load(Ordering::Relaxed)
    }

    /// Counts one more.
    pub(crate) fn count(&self, count: Count) {
        self.counts[count as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn turn(&self, turn: &Turn) {
        self.count(match turn {
            Turn::Refused(_) => Count::Refused,
            Turn::Live(_) => Count::Followed,
            Turn::Verdict(Verdict::Granted(guard)) => {
                if guard.is_possible_duplicate() {
                    self.count(Count::PossibleDuplicate);
                }
                Count::Granted
            }
            Turn::Verdict(Verdict::Replay(_)) => Count::Replayed,
            Turn::Verdict(Verdict::InFlight { .. }) => Count::InFlight,
            Turn::Verdict(Verdict::OtherCredential) => Count::OtherCredential,
            Turn::Verdict(Verdict::Mismatch) => Count::Mismatch,
            Turn::Verdict(Verdict::Indeterminate(_)) => Count::Indeterminate,
            Turn::Verdict(Verdict::Expired) => Count::Expired,
        });
    }

    /// Counts one who waits, until what this gives is dropped.
    pub(super) fn waiting(&self) -> Gauge {
        Gauge::up(&self.waiting)
    }

    /// Counts one end that waits for the store; `None` when there are too many.
    pub(super) fn hold_end(&self) -> Option<Gauge> {
        Gauge::up_to(&self.held, HELD_MAX)
    }

    /// Whether another claim may get lost.
    pub(super) fn has_room_for_lost(&self) -> bool {
        self.lost_now() < LOST_MAX
    }

    /// Counts one claim whose answer got lost.
    pub(super) fn lose_claim(&self) -> Gauge {
        Gauge::up(&self.lost)
    }

    /// Counts one lost claim that does not stand, and may still arrive; `None` when there are too many.
    pub(super) fn watch_claim(&self) -> Option<Gauge> {
        Gauge::up_to(&self.watched, WATCHED_MAX)
    }

    /// Counts one record whose probe is asked in the background; `None` when there are too many.
    pub(super) fn care(&self) -> Option<Gauge> {
        Gauge::up_to(&self.cared, CARED_MAX)
    }
}

/// Counts one as long as it lives.
#[derive(Debug)]
pub(super) struct Gauge(Arc<AtomicUsize>);

impl Gauge {
    fn up(gauge: &Arc<AtomicUsize>) -> Self {
        gauge.fetch_add(1, Ordering::Relaxed);
        Self(gauge.clone())
    }

    fn up_to(gauge: &Arc<AtomicUsize>, max: usize) -> Option<Self> {
        let up = Self::up(gauge);
        (gauge.load(Ordering::Relaxed) <= max).then_some(up)
    }
}

impl Drop for Gauge {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
