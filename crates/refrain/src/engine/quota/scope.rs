//! What one scope uses of its quota.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::QuotaKind;
use crate::{
    policy::Quota,
    store::{ScopeUsage, UsageEnd},
};

/// `Retry-After` while no end is known: a request in flight may end at any time.
const SOON: Duration = Duration::from_secs(1);
/// `Retry-After` while all records of the scope are in flight or indeterminate.
const NO_END_KNOWN: Duration = Duration::from_secs(60);
/// As many keys may come at once as the rate allows in this time.
const BURST: u64 = 1_000_000_000;

/// A request whose scope has used up its quota.
#[derive(Debug)]
pub(crate) struct OverQuota {
    pub(crate) kind: QuotaKind,
    /// When the limit allows another request, if no other one comes before it.
    pub(crate) retry_after: Duration,
    pub(super) scope: Arc<CountedScope>,
}

/// The counts of a scope.
#[derive(Debug, Default)]
pub(super) struct CountedScope(Mutex<ScopeCounts>);

/// What a scope uses. Times are since the base of all counts.
#[derive(Debug, Default)]
pub(super) struct ScopeCounts {
    /// When the rate allows the next key without a burst, in nanoseconds: it is later the more keys came at once.
    next_key: u64,
    /// Admitted requests whose claim is not decided.
    pub(super) admitted: usize,
    /// Claims that this process holds.
    pub(super) in_flight: usize,
    /// Look-ups of records while the scope is over its quota.
    lookups: u32,
    /// What the scope held in the store when it was last counted.
    pub(super) stored: ScopeUsage,
    /// Changes by this process since that count began.
    pub(super) own: ScopeUsage,
    /// Changes by this process since the count under way began.
    pub(super) newer: ScopeUsage,
}

impl CountedScope {
    pub(super) fn counts(&self) -> MutexGuard<'_, ScopeCounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether forgetting the scope changes nothing.
    pub(super) fn is_idle(&self, now: Duration) -> bool {
        let mut counts = self.counts();
        counts.forget_ended(now);
        let is_unused = counts.admitted == 0 && counts.in_flight == 0 && counts.lookups == 0;
        is_unused && counts.next_key <= nanos(now) && counts.holds_nothing()
    }

    /// Counts a look-up until it is dropped; `None` if there are `lookups_max` already.
    pub(super) fn look_up(&self, lookups_max: u32) -> Option<LookUp<'_>> {
        let mut counts = self.counts();
        (counts.lookups < lookups_max).then(|| {
            counts.lookups += 1;
            LookUp(self)
        })
    }
}

/// A look-up of a record for a scope that is over its quota.
pub(super) struct LookUp<'a>(&'a CountedScope);

impl Drop for LookUp<'_> {
    fn drop(&mut self) {
        self.0.counts().lookups -= 1;
    }
}

impl ScopeCounts {
    /// The limit that is used up, and how long it stays so; of several, the one that stays longest.
    pub(super) fn exceeded(
        &mut self,
        limits: &Quota,
        now: Duration,
    ) -> Option<(QuotaKind, Duration)> {
        let exceeded = [
            (QuotaKind::Rate, self.rate_left(limits, now)),
            (QuotaKind::InFlight, self.in_flight_left(limits)),
            (QuotaKind::Records, self.records_left(limits, now)),
            (QuotaKind::Bytes, self.bytes_left(limits, now)),
        ];
        let exceeded = exceeded.into_iter();
        exceeded
            .filter_map(|(kind, left)| Some((kind, left?)))
            .max_by_key(|(_, left)| *left)
    }

    /// Counts an admitted request, and a key of the rate.
    pub(super) fn admit(&mut self, limits: &Quota, now: Duration) {
        self.admitted += 1;
        if let Some(pause) = pause(limits) {
            self.next_key = self.next_key.max(nanos(now)) + pause;
        }
    }

    /// Gives back a key that created no record.
    pub(super) fn give_back_key(&mut self, limits: &Quota) {
        self.next_key = self.next_key.saturating_sub(pause(limits).unwrap_or(0));
    }

    /// How long until the rate allows another key; `None` if it does.
    fn rate_left(&self, limits: &Quota, now: Duration) -> Option<Duration> {
        let allowed_at = self.next_key.saturating_sub(BURST - pause(limits)?);
        let left = allowed_at.saturating_sub(nanos(now));
        (left > 0).then_some(Duration::from_nanos(left))
    }

    fn in_flight_left(&self, limits: &Quota) -> Option<Duration> {
        let used = self.in_flight + self.admitted;
        (used >= limits.in_flight_max?).then_some(SOON)
    }

    fn records_left(&mut self, limits: &Quota, now: Duration) -> Option<Duration> {
        let records_max = limits.records_max? as u64;
        self.forget_ended(now);
        let records = self.stored.records() + self.own.records();
        let used = u64::try_from(records).unwrap_or(0) + self.admitted as u64;
        let excess = (used + 1).checked_sub(records_max).filter(|it| *it > 0)?;
        Some(self.time_until(excess, now, |end| end.records.into()))
    }

    fn bytes_left(&mut self, limits: &Quota, now: Duration) -> Option<Duration> {
        let bytes_max = limits.bytes_max? as u64;
        self.forget_ended(now);
        let used = self.stored.bytes() + self.own.bytes();
        let excess = (used + 1).checked_sub(bytes_max).filter(|it| *it > 0)?;
        Some(self.time_until(excess, now, |end| end.bytes))
    }

    /// How long until so much has ended.
    fn time_until(&self, excess: u64, now: Duration, of: impl Fn(&UsageEnd) -> u64) -> Duration {
        let ends = self.stored.ends().iter().chain(self.own.ends());
        let mut ends: Vec<_> = ends.map(|end| (end.at(), of(end))).collect();
        ends.sort_unstable();
        let mut ended = 0;
        for (at, amount) in ends {
            ended += amount;
            if ended >= excess {
                return at.saturating_sub(now);
            }
        }
        NO_END_KNOWN
    }

    fn forget_ended(&mut self, now: Duration) {
        self.stored.forget_ended(now);
        self.own.forget_ended(now);
        self.newer.forget_ended(now);
    }

    fn holds_nothing(&self) -> bool {
        self.stored.is_empty() && self.own.is_empty() && self.newer.is_empty()
    }
}

/// The pause between two keys at the maximum rate, in nanoseconds.
fn pause(limits: &Quota) -> Option<u64> {
    let rate = limits.keys_per_second?.max(1) as u64;
    Some((BURST / rate).max(1))
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
