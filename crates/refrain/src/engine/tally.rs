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
/// Number of timed-out attempts whose late response is awaited beyond `settle_after`.
const LISTENING_MAX: usize = 1_024;
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
    /// Duplicates that did not wait, because too many already waited for the same record.
    WaitRefused,
}

impl Count {
    /// All of them.
    pub const ALL: [Self; 25] = [
        Self::Granted,
        Self::PossibleDuplicate,
        Self::Replayed,
        Self::InFlight,
        Self::Mismatch,
        Self::OtherCredential,
        Self::Indeterminate,
        Self::Expired,
        Self::Refused,
        Self::Released,
        Self::Doubted,
        Self::Followed,
        Self::Probed,
        Self::Resolved,
        Self::ReceiptsLooked,
        Self::ReceiptsFound,
        Self::ReceiptsMissing,
        Self::Erased,
        Self::Overtaken,
        Self::LeaseLost,
        Self::Unguarded,
        Self::Unverified,
        Self::Unaudited,
        Self::OverBudget,
        Self::WaitRefused,
    ];

    /// The name of its metric, without prefix and suffix, and the help of it.
    #[must_use]
    pub fn metric(self) -> (&'static str, &'static str) {
        match self {
            Self::Granted => ("claims_granted", "Claims granted"),
            Self::PossibleDuplicate => (
                "possible_duplicates",
                "Takeovers of lapsed claims under at-least-once; the earlier attempt may have executed",
            ),
            Self::Replayed => ("replays", "Stored outcomes replayed"),
            Self::InFlight => (
                "in_flight_duplicates",
                "Duplicates rejected because the first request was in flight",
            ),
            Self::Mismatch => ("mismatches", "Keys reused with another request"),
            Self::OtherCredential => ("other_credentials", "Keys reused with another credential"),
            Self::Indeterminate => (
                "unknown_outcomes",
                "Duplicates rejected because the outcome is unknown",
            ),
            Self::Expired => (
                "expired_keys",
                "Requests rejected because their key is past its retention",
            ),
            Self::Refused => (
                "shared_refusals",
                "Waiting duplicates answered with the refusal of the request that they waited for",
            ),
            Self::Released => (
                "releases",
                "Operations that ended without effect; their keys are free again",
            ),
            Self::Doubted => ("doubts", "Operations that ended with an unknown outcome"),
            Self::Followed => (
                "followed",
                "Duplicates that received a streamed response while it was produced",
            ),
            Self::Probed => ("probes", "Probes sent to learn an unknown outcome"),
            Self::Resolved => (
                "resolutions",
                "Unknown outcomes resolved by a probe, a receipt or an operator",
            ),
            Self::ReceiptsLooked => (
                "receipts_looked_for",
                "Receipts looked up because an outcome was unknown",
            ),
            Self::ReceiptsFound => ("receipts_found", "Receipts found among those looked up"),
            Self::ReceiptsMissing => (
                "receipts_missing",
                "Successful exactly-once operations without a receipt",
            ),
            Self::Erased => ("erasures", "Records deleted by an operator"),
            Self::Overtaken => (
                "overtaken",
                "Operations that ended after another attempt had taken over",
            ),
            Self::LeaseLost => ("leases_lost", "Leases lost while the operation ran"),
            Self::Unguarded => (
                "unguarded",
                "Requests executed without a claim because the store failed",
            ),
            Self::Unverified => ("unverified", "Requests without a valid signature"),
            Self::Unaudited => (
                "audit_refusals",
                "Requests rejected because the audit log cannot be written",
            ),
            Self::OverBudget => (
                "over_budget",
                "Requests rejected because buffered bodies reached `buffered_bytes_max`",
            ),
            Self::WaitRefused => (
                "waits_refused",
                "Duplicates rejected without waiting because `waiting_max` others waited for the same key",
            ),
        }
    }
}

// Each is its own place in the list.
const _: () = {
    let mut at = 0;
    while at < Count::ALL.len() {
        assert!(Count::ALL[at] as usize == at);
        at += 1;
    }
    assert!(Count::ALL.len() == Count::WaitRefused as usize + 1);
};

/// What happened so far, in numbers.
#[derive(Debug, Default)]
pub struct Tally {
    counts: [AtomicU64; Count::ALL.len()],
    waiting: Arc<AtomicUsize>,
    held: Arc<AtomicUsize>,
    lost: Arc<AtomicUsize>,
    watched: Arc<AtomicUsize>,
    cared: Arc<AtomicUsize>,
    listening: Arc<AtomicUsize>,
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

    /// Number of timed-out attempts whose late response is still awaited, beyond `settle_after`.
    #[must_use]
    pub fn listening_now(&self) -> usize {
        self.listening.load(Ordering::Relaxed)
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

    /// Counts one attempt whose late response is awaited; `None` when there are too many.
    pub(super) fn listen(&self) -> Option<Gauge> {
        Gauge::up_to(&self.listening, LISTENING_MAX)
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
