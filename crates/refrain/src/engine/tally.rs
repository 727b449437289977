//! Counters and gauges of an engine.

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

use super::ClaimReply;
use crate::record::Verdict;

/// Maximum number of ends that are held until the store answers.
const HELD_MAX: usize = 1_024;
/// Maximum number of lost claims whose state is not known yet; at the limit no more claims are sent.
const LOST_MAX: usize = 10_000;
/// Maximum number of lost claims that are watched in case they arrive late.
const WATCHED_MAX: usize = 1_024;
/// Maximum number of timed-out attempts whose late response is awaited beyond `settle_after`.
const LISTENING_MAX: usize = 1_024;
/// Maximum number of indeterminate records of this process that are probed in the background.
const BACKGROUND_PROBES_MAX: usize = 10_000;
/// Maximum number of indeterminate records of earlier processes that are probed at the same time.
pub(super) const RESUMED_PROBES_MAX: usize = 1_000;

/// A counter of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Count {
    /// Claims that were granted.
    Granted,
    /// Granted takeovers under at-least-once: possible duplicates.
    PossibleDuplicate,
    /// Outcomes replayed.
    Replayed,
    /// Duplicates rejected because the first request is in flight.
    InFlight,
    /// Keys used for another request.
    Mismatch,
    /// Keys used by another credential.
    OtherCredential,
    /// Duplicates rejected because the outcome is unknown.
    Indeterminate,
    /// Keys past retention.
    Expired,
    /// Duplicates that got the response of the released request that they waited for.
    Refused,
    /// Operations that ended without effect.
    Released,
    /// Operations that ended with an unknown outcome.
    Doubted,
    /// Duplicates that followed the streamed response of the request in flight.
    Followed,
    /// Probes, by a retry or in the background.
    Probed,
    /// Indeterminate records that a probe, a receipt, a late response or an operator settled.
    Resolved,
    /// Receipts looked up because an outcome was unknown.
    ReceiptsLooked,
    /// Receipts found among those looked up.
    ReceiptsFound,
    /// Successes without their receipt.
    ReceiptsMissing,
    /// Records deleted by an operator.
    Erased,
    /// Operations whose outcome came after another attempt had taken over.
    Overtaken,
    /// Leases lost while the operation ran.
    LeaseLost,
    /// Requests that ran without a claim because the store failed and the policy lets them pass.
    Unguarded,
    /// Requests without a valid signature, including observed ones.
    Unverified,
    /// Requests rejected because the audit log cannot be written.
    Unaudited,
    /// Requests rejected because the memory budget for bodies is used up.
    OverBudget,
    /// Duplicates that did not wait, because too many already waited for the same record.
    WaitRefused,
}

impl Count {
    /// All counters.
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

    /// The name of the metric, without prefix and suffix, and its help text.
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
                "Unknown outcomes resolved by a probe, a receipt, a late response or an operator",
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

// Each counter is at its own index in `ALL`.
const _: () = {
    let mut at = 0;
    while at < Count::ALL.len() {
        assert!(Count::ALL[at] as usize == at);
        at += 1;
    }
    assert!(Count::ALL.len() == Count::WaitRefused as usize + 1);
};

/// Counters and gauges of an engine.
#[derive(Debug, Default)]
pub struct Tally {
    counts: [AtomicU64; Count::ALL.len()],
    waiting: Arc<AtomicUsize>,
    held: Arc<AtomicUsize>,
    lost: Arc<AtomicUsize>,
    watched: Arc<AtomicUsize>,
    background_probes: Arc<AtomicUsize>,
    resumed_probes: Arc<AtomicUsize>,
    listening: Arc<AtomicUsize>,
}

impl Tally {
    /// Value of a counter.
    #[must_use]
    pub fn get(&self, count: Count) -> u64 {
        self.counts[count as usize].load(Ordering::Relaxed)
    }

    /// Number of duplicates that wait now.
    #[must_use]
    pub fn waiting_now(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Number of completed requests that are not persisted yet, because the store does not respond.
    #[must_use]
    pub fn held_now(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Number of lost claims whose state is not known yet.
    #[must_use]
    pub fn lost_now(&self) -> usize {
        self.lost.load(Ordering::Relaxed)
    }

    /// Number of indeterminate records that are probed in the background now.
    #[must_use]
    pub fn background_probes_now(&self) -> usize {
        self.background_probes.load(Ordering::Relaxed) + self.resumed_probes.load(Ordering::Relaxed)
    }

    /// Number of timed-out attempts whose late response is still awaited, beyond `settle_after`.
    #[must_use]
    pub fn listening_now(&self) -> usize {
        self.listening.load(Ordering::Relaxed)
    }

    /// Increments a counter.
    pub(crate) fn count(&self, count: Count) {
        self.counts[count as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_reply(&self, reply: &ClaimReply) {
        self.count(match reply {
            ClaimReply::Refused(_) => Count::Refused,
            ClaimReply::Live(_) => Count::Followed,
            ClaimReply::Verdict(Verdict::Granted(guard)) => {
                if guard.is_possible_duplicate() {
                    self.count(Count::PossibleDuplicate);
                }
                Count::Granted
            }
            ClaimReply::Verdict(Verdict::Replay(_)) => Count::Replayed,
            ClaimReply::Verdict(Verdict::InFlight { .. }) => Count::InFlight,
            ClaimReply::Verdict(Verdict::OtherCredential) => Count::OtherCredential,
            ClaimReply::Verdict(Verdict::Mismatch) => Count::Mismatch,
            ClaimReply::Verdict(Verdict::Indeterminate(_)) => Count::Indeterminate,
            ClaimReply::Verdict(Verdict::Expired) => Count::Expired,
        });
    }

    /// Counts one waiting duplicate, until the gauge is dropped.
    pub(super) fn waiting(&self) -> Gauge {
        Gauge::up(&self.waiting)
    }

    /// Counts one end that is held; `None` if there are too many.
    pub(super) fn hold_end(&self) -> Option<Gauge> {
        Gauge::up_to(&self.held, HELD_MAX)
    }

    /// Whether another claim may be sent, which may get lost.
    pub(super) fn has_room_for_lost(&self) -> bool {
        self.lost_now() < LOST_MAX
    }

    /// Counts one lost claim.
    pub(super) fn lose_claim(&self) -> Gauge {
        Gauge::up(&self.lost)
    }

    /// Counts one lost claim that may still arrive; `None` if there are too many.
    pub(super) fn watch_claim(&self) -> Option<Gauge> {
        Gauge::up_to(&self.watched, WATCHED_MAX)
    }

    /// Counts one attempt whose late response is awaited; `None` if there are too many.
    pub(super) fn listen(&self) -> Option<Gauge> {
        Gauge::up_to(&self.listening, LISTENING_MAX)
    }

    /// Counts one record of this process with a background probe; `None` if there are too many.
    pub(super) fn background_probe(&self) -> Option<Gauge> {
        Gauge::up_to(&self.background_probes, BACKGROUND_PROBES_MAX)
    }

    /// Counts one record of an earlier process with a background probe; `None` if there are too many.
    pub(super) fn resumed_probe(&self) -> Option<Gauge> {
        Gauge::up_to(&self.resumed_probes, RESUMED_PROBES_MAX)
    }
}

/// Increments a gauge, until it is dropped.
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
