//! What each scope holds in a store, by the time at which it ends. Quotas are checked against it.
//!
//! Records end by time, so a scope needs no list of its records, only sums by time.
//! Ends that are close to each other, compared with how far they are away, share one sum:
//! a record or an outcome counts at most 1/64 of its remaining time, or a second, too long; a store may round as well,
//! by so little that it stays below 2 %.

use std::{collections::HashMap, time::Duration};

use super::FACT;
use crate::{
    Outcome,
    clock::Timestamp,
    record::{Record, ScopeDigest, State},
};

/// Ends with the same remaining time are rounded up to this part of it.
const PARTS: u32 = 64;
/// Above this number of sums, neighbours are merged.
const ENDS_MAX: usize = 256;

/// What each scope holds in a store.
#[derive(Debug, Clone, Default)]
pub struct Usage {
    scopes: HashMap<ScopeDigest, ScopeUsage>,
    scopes_max: usize,
    left_out: u64,
}

/// What one scope holds. Times count from the moment at which counting began.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScopeUsage {
    /// Records in flight or indeterminate, whose end is not known. Below zero in a list of changes.
    open: i64,
    /// Sums of what ends, in the order of time.
    ends: Vec<UsageEnd>,
}

/// Records and bytes of outcomes that end at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsageEnd {
    /// In seconds.
    at: u32,
    /// Records.
    pub records: u32,
    /// Bytes of outcomes.
    pub bytes: u64,
}

impl UsageEnd {
    /// When they end.
    #[must_use]
    pub fn at(&self) -> Duration {
        Duration::from_secs(self.at.into())
    }
}

impl Usage {
    /// No records yet. Further scopes than `scopes_max` are [left out](Self::left_out).
    #[must_use]
    pub fn new(scopes_max: usize) -> Self {
        Self {
            scopes_max,
            ..Self::default()
        }
    }

    /// What this scope holds.
    #[must_use]
    pub fn of(&self, scope: ScopeDigest) -> ScopeUsage {
        self.scopes.get(&scope).cloned().unwrap_or_default()
    }

    /// Removes and returns what this scope holds.
    pub fn take(&mut self, scope: ScopeDigest) -> ScopeUsage {
        self.scopes.remove(&scope).unwrap_or_default()
    }

    /// Removes and returns all scopes.
    pub fn drain(&mut self) -> impl Iterator<Item = (ScopeDigest, ScopeUsage)> {
        self.scopes.drain()
    }

    /// How often a record was not counted, because its scope was left out.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Counts a record at the time `now` of the store's clock.
    pub fn add_record(&mut self, record: &Record<Outcome>, now: Timestamp) {
        let bytes = match &record.state {
            State::Completed { outcome, .. } => outcome.encoded().len(),
            _ => 0,
        };
        self.add_record_of(record, bytes, now);
    }

    /// Counts a record whose outcome, read elsewhere, has `bytes` bytes.
    pub fn add_record_of<O>(&mut self, record: &Record<O>, bytes: usize, now: Timestamp) {
        let scope = record.trace.scope_digest();
        let Some(scope) = scope.filter(|_| record.fingerprint.0 != FACT) else {
            return;
        };
        let zero = Timestamp::default();
        match record.state {
            State::InFlight { .. } | State::Indeterminate { .. } => {
                self.scope(scope, |it| it.add_open(1));
            }
            State::Completed {
                retention_ends,
                remember_ends,
                ..
            } => self.add_ended(scope, (retention_ends, remember_ends), bytes, now),
            State::Tombstone { remember_ends } => {
                self.add_ended(scope, (zero, remember_ends), 0, now);
            }
        }
    }

    /// Counts a completed record or a tombstone: the ends of its retention and of `remember`, and the bytes of its outcome.
    pub(super) fn add_ended(
        &mut self,
        scope: ScopeDigest,
        (retention_ends, remember_ends): (Timestamp, Timestamp),
        bytes: usize,
        now: Timestamp,
    ) {
        if remember_ends <= now {
            return;
        }
        self.scope(scope, |it| {
            it.add_end(Duration::ZERO, remember_ends.left(now), 1, 0);
            if retention_ends > now {
                it.add_end(Duration::ZERO, retention_ends.left(now), 0, bytes as u64);
            }
        });
    }

    /// Changes what this scope holds, unless the scope is left out.
    pub fn scope(&mut self, scope: ScopeDigest, change: impl FnOnce(&mut ScopeUsage)) {
        if self.scopes.len() >= self.scopes_max && !self.scopes.contains_key(&scope) {
            self.left_out += 1;
            return;
        }
        change(self.scopes.entry(scope).or_default());
    }
}

impl ScopeUsage {
    /// Adds records whose end is not known.
    pub fn add_open(&mut self, records: i64) {
        self.open += records;
    }

    /// Adds records and bytes that end `left` after the moment `now`.
    pub fn add_end(&mut self, now: Duration, left: Duration, records: u32, bytes: u64) {
        let at = rounded_end(now, left);
        let place = self.ends.partition_point(|end| end.at < at);
        match self.ends.get_mut(place).filter(|end| end.at == at) {
            Some(end) => end.add(records, bytes),
            None => self.ends.insert(place, UsageEnd { at, records, bytes }),
        }
        if self.ends.len() > ENDS_MAX {
            self.merge();
        }
    }

    /// Halves the number of sums: what is merged counts until the later end.
    fn merge(&mut self) {
        let mut merged = Vec::with_capacity(self.ends.len().div_ceil(2));
        for pair in self.ends.chunks(2) {
            let mut last = pair[pair.len() - 1];
            if let [earlier, _] = pair {
                last.add(earlier.records, earlier.bytes);
            }
            merged.push(last);
        }
        self.ends = merged;
    }

    /// Removes what has ended at the moment `now`.
    pub fn forget_ended(&mut self, now: Duration) {
        let ended = self.ends.partition_point(|end| end.at() <= now);
        self.ends.drain(..ended);
    }

    /// The same with times that count from an earlier moment.
    #[must_use]
    pub fn counted_from(mut self, earlier: Duration) -> Self {
        for end in &mut self.ends {
            end.at = end.at.saturating_add(seconds(earlier));
        }
        self
    }

    /// The number of records. Below zero in a list of changes.
    #[must_use]
    pub fn records(&self) -> i64 {
        let ends = self.ends.iter().map(|end| i64::from(end.records));
        self.open + ends.sum::<i64>()
    }

    /// The bytes of all outcomes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.ends.iter().map(|end| end.bytes).sum()
    }

    /// The sums of what ends, in the order of time.
    #[must_use]
    pub fn ends(&self) -> &[UsageEnd] {
        &self.ends
    }

    /// Whether it holds nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.open == 0 && self.ends.is_empty()
    }
}

impl UsageEnd {
    fn add(&mut self, records: u32, bytes: u64) {
        self.records = self.records.saturating_add(records);
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// The end in seconds, rounded up to a multiple of a power of two that is at most 1/64 of the remaining time.
fn rounded_end(now: Duration, left: Duration) -> u32 {
    let exact = seconds(now.saturating_add(left));
    let part = (seconds(left) / PARTS).max(1);
    let width = 1 << part.ilog2();
    exact.checked_next_multiple_of(width).unwrap_or(u32::MAX)
}

/// Whole seconds, rounded up.
fn seconds(span: Duration) -> u32 {
    let up = u64::from(span.subsec_nanos() > 0);
    u32::try_from(span.as_secs().saturating_add(up)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    //! A scope whose records have ended must not stay refused, and its counts must not take memory for each record.

    use super::*;

    const DAY: Duration = Duration::from_hours(24);

    #[test]
    fn ends_are_counted_at_most_a_64th_too_long_and_never_too_short() {
        for left in [1, 63, 64, 65, 4_095, 86_400, 691_200, 315_619_200] {
            for now in [0, 1, 12_345] {
                let at = rounded_end(Duration::from_secs(now), Duration::from_secs(left));
                let exact = now + left;
                let late = u64::from(at) - exact;
                assert!(late <= left / 64, "{now} + {left}: {at}");
            }
        }
    }

    #[test]
    fn a_million_records_take_few_sums_and_all_end() {
        let mut usage = ScopeUsage::default();
        let mut added = 0;
        for second in 0..10_000 {
            let now = Duration::from_secs(second * 100);
            usage.forget_ended(now);
            usage.add_end(now, DAY * 8, 100, 0);
            usage.add_end(now, DAY, 0, 1_000);
            added += 100;
            assert!(usage.ends().len() <= ENDS_MAX, "{}", usage.ends().len());
        }
        assert!(usage.records() < added, "some have ended");
        // A million seconds are more than 8 days: about 691,200 of the records are left.
        assert!((691_200..=703_000).contains(&usage.records()), "{usage:?}");
        assert!((864_000..=878_000).contains(&usage.bytes()), "{usage:?}");
        usage.forget_ended(Duration::from_secs(1_000_000) + DAY * 9);
        assert!(usage.is_empty());
    }

    #[test]
    fn merged_sums_keep_their_totals_and_end_later() {
        let mut usage = ScopeUsage::default();
        for second in 1..=u64::from(PARTS) * 5 {
            usage.add_end(Duration::from_secs(second), Duration::ZERO, 1, 2);
        }
        assert!(usage.ends().len() <= ENDS_MAX);
        assert_eq!((usage.records(), usage.bytes()), (320, 640));
        let last = usage.ends().last().unwrap();
        assert_eq!(last.at(), Duration::from_secs(320));
    }

    #[test]
    fn scopes_beyond_the_limit_are_left_out_and_counted() {
        let mut usage = Usage::new(1);
        for scope in [1, 2, 1, 3] {
            usage.scope(ScopeDigest([scope; 8]), |it| it.add_open(1));
        }
        assert_eq!(usage.of(ScopeDigest([1; 8])).records(), 2);
        assert_eq!(usage.of(ScopeDigest([2; 8])).records(), 0);
        assert_eq!(usage.left_out(), 2);
    }
}
