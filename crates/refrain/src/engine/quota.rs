//! Quotas: admits or refuses a request of a scope before its claim, and counts what each scope runs and stores.
//!
//! Rate and requests in flight are those of this process. Records and bytes are those of the store: what was counted there
//! last, and what this process has added since. A process learns what others add at its next count.
//! Requests are admitted by their scope alone. A request that is not admitted is refused only if its key has no record,
//! which is looked up then, so that requests within the quota cost no look-up.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::time::Instant;

use super::{Ended, Engine, EngineState};
use crate::{
    Result, Scope,
    key::RecordId,
    policy::{Quota, Terms},
    record::ScopeDigest,
    store::{Store, Usage},
};

mod scope;
pub(crate) use scope::OverQuota;
use scope::{CountedScope, ScopeCounts};

/// Shards of the table of scopes.
const SHARDS: usize = 16;
/// Pause between two removals of idle scopes from a full shard: each looks at the whole shard.
const FORGET_EVERY: Duration = Duration::from_secs(1);
/// Pause between two counts of a store that other processes use too.
const COUNT_SHARED_EVERY: Duration = Duration::from_secs(30);
/// Pause between two counts of a store of this process, which corrects only what operators and probes changed.
const COUNT_OWN_EVERY: Duration = Duration::from_secs(600);
/// A count is followed by a pause of this many times its duration.
const PAUSES_PER_COUNT: u32 = 50;
/// Maximum number of concurrent look-ups in a shared store, for each scope over its quota.
const LOOKUPS_MAX: u32 = 16;

/// A limit of a [`Quota`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum QuotaKind {
    /// New keys a second.
    Rate,
    /// Requests in flight.
    InFlight,
    /// Records in the store.
    Records,
    /// Bytes of stored outcomes.
    Bytes,
}

impl QuotaKind {
    /// All limits.
    pub const ALL: [Self; 4] = [Self::Rate, Self::InFlight, Self::Records, Self::Bytes];

    /// Its name in metrics.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::InFlight => "in-flight",
            Self::Records => "records",
            Self::Bytes => "bytes",
        }
    }
}

/// The quotas of an engine, and what its scopes use of them.
pub(super) struct Quotas {
    pub(super) limits: Quota,
    /// What the times of all counts begin with.
    base: Instant,
    shards: [Mutex<Shard>; SHARDS],
    refused: [AtomicU64; QuotaKind::ALL.len()],
    uncounted: AtomicU64,
    /// Whether the store was counted at least once.
    is_counted: AtomicBool,
    /// Whether the store is being counted.
    is_counting: AtomicBool,
    /// When the next count is due; `None` before the first.
    next_count: Mutex<Option<Instant>>,
}

#[derive(Default)]
struct Shard {
    scopes: HashMap<ScopeDigest, Arc<CountedScope>>,
    /// When idle scopes were last removed because the shard was full.
    forgot: Option<Instant>,
}

impl fmt::Debug for Quotas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.limits.fmt(f)
    }
}

/// A request that was admitted within the quota of its scope. Dropped once its claim is decided.
#[derive(Debug)]
pub(crate) struct Admission {
    quotas: Arc<Quotas>,
    scope: Arc<CountedScope>,
    /// Whether it created a record, so that it used up a key of the rate.
    created: bool,
}

impl Admission {
    /// Notes that the request created a record.
    pub(super) fn note_created(&mut self) {
        self.created = true;
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        let mut counts = self.scope.counts();
        counts.admitted = counts.admitted.saturating_sub(1);
        if !self.created {
            counts.give_back_key(&self.quotas.limits);
        }
    }
}

/// A granted claim, counted in its scope until it ends.
#[derive(Debug)]
pub(super) struct CountedClaim {
    quotas: Arc<Quotas>,
    scope: Arc<CountedScope>,
}

impl CountedClaim {
    /// Counts what the end leaves in the store. A record whose outcome is unknown stays, until the next count.
    pub(super) fn end(self, ended: &Ended, terms: &Terms) {
        let now = self.quotas.now();
        self.quotas.change(&self.scope, |usage| match ended {
            Ended::Unknown => {}
            Ended::Released(_) => usage.add_open(-1),
            Ended::Completed(outcome) => {
                usage.add_open(-1);
                let bytes = outcome.encoded().len() as u64;
                usage.add_end(now, terms.retention + terms.remember, 1, 0);
                usage.add_end(now, terms.retention, 0, bytes);
            }
        });
    }
}

impl Drop for CountedClaim {
    fn drop(&mut self) {
        let mut counts = self.scope.counts();
        counts.in_flight = counts.in_flight.saturating_sub(1);
    }
}

impl Quotas {
    fn new(limits: Quota) -> Self {
        Self {
            limits,
            base: tokio::time::Instant::now(),
            shards: Default::default(),
            refused: Default::default(),
            uncounted: AtomicU64::new(0),
            is_counted: AtomicBool::new(false),
            is_counting: AtomicBool::new(false),
            next_count: Mutex::new(None),
        }
    }

    /// The time since the base of all counts.
    fn now(&self) -> Duration {
        self.base.elapsed()
    }

    fn shard(&self, scope: ScopeDigest) -> MutexGuard<'_, Shard> {
        let place = usize::from(scope.0[0]) % SHARDS;
        let shard = self.shards[place].lock();
        shard.unwrap_or_else(PoisonError::into_inner)
    }

    /// The counts of this scope; `None` if as many scopes as possible are counted, and none of them is idle.
    fn find(&self, scope: ScopeDigest) -> Option<Arc<CountedScope>> {
        let mut shard = self.shard(scope);
        if let Some(found) = shard.scopes.get(&scope) {
            return Some(found.clone());
        }
        let room = self.limits.scopes_max.div_ceil(SHARDS);
        if shard.scopes.len() >= room {
            shard.forget_idle(self.now());
        }
        (shard.scopes.len() < room).then(|| shard.scopes.entry(scope).or_default().clone())
    }

    /// Admits one request of this scope; `Ok(None)` if the scope is not counted.
    fn admit(self: &Arc<Self>, scope: ScopeDigest) -> Result<Option<Admission>, OverQuota> {
        let is_counted = !self.limits.counts_store() || self.is_counted.load(Relaxed);
        let found = self.find(scope);
        if found.is_none() || !is_counted {
            self.uncounted.fetch_add(1, Relaxed);
        }
        let Some(scope) = found else {
            return Ok(None);
        };
        let mut counts = scope.counts();
        if let Some((kind, retry_after)) = counts.exceeded(&self.limits, self.now()) {
            drop(counts);
            return Err(OverQuota {
                kind,
                retry_after,
                scope,
            });
        }
        counts.admit(&self.limits, self.now());
        drop(counts);
        Ok(Some(Admission {
            quotas: self.clone(),
            scope,
            created: false,
        }))
    }

    /// Counts a granted claim, which created its record if it is the first attempt.
    pub(super) fn grant(
        self: &Arc<Self>,
        scope: Option<ScopeDigest>,
        attempt: u16,
    ) -> Option<CountedClaim> {
        let scope = self.find(scope?)?;
        scope.counts().in_flight += 1;
        if attempt == 1 {
            self.change(&scope, |usage| usage.add_open(1));
        }
        let quotas = self.clone();
        Some(CountedClaim { quotas, scope })
    }

    /// Notes a change of what the scope stores.
    fn change(&self, scope: &CountedScope, change: impl Fn(&mut crate::store::ScopeUsage)) {
        if !self.limits.counts_store() {
            return;
        }
        let mut counts = scope.counts();
        change(&mut counts.own);
        if self.is_counting.load(Relaxed) {
            change(&mut counts.newer);
        }
    }

    fn each(&self, mut work: impl FnMut(ScopeDigest, &mut ScopeCounts)) {
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            for (digest, scope) in &shard.scopes {
                work(*digest, &mut scope.counts());
            }
        }
    }

    /// Replaces the last count of the store. Changes of this process since the count began are added to it.
    fn take_count(&self, mut usage: Usage, began: Duration) {
        self.each(|digest, counts| {
            counts.stored = usage.take(digest).counted_from(began);
            counts.own = std::mem::take(&mut counts.newer);
        });
        if usage.left_out() > 0 {
            crate::log_rarely!(
                warn,
                scopes_max = self.limits.scopes_max,
                "the store has records of more scopes than are counted; raise `scopes_max` of the quota"
            );
        }
        for (digest, held) in usage.drain() {
            if let Some(scope) = self.find(digest) {
                scope.counts().stored = held.counted_from(began);
            }
        }
        self.is_counted.store(true, Relaxed);
    }

    /// Whether the store should be counted now.
    fn is_count_due(&self) -> bool {
        let next = self.next_count();
        self.limits.counts_store() && next.is_none_or(|at| tokio::time::Instant::now() >= at)
    }

    fn next_count(&self) -> MutexGuard<'_, Option<Instant>> {
        self.next_count
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shard {
    fn forget_idle(&mut self, now: Duration) {
        let is_due = |at: Instant| at.elapsed() >= FORGET_EVERY;
        if self.forgot.is_none_or(is_due) {
            self.forgot = Some(tokio::time::Instant::now());
            let is_idle =
                |scope: &Arc<CountedScope>| Arc::strong_count(scope) == 1 && scope.is_idle(now);
            self.scopes.retain(|_, scope| !is_idle(scope));
        }
    }
}

impl EngineState {
    /// Counts what the scopes hold in the store.
    pub(super) async fn count_usage(&self) -> Result<()> {
        let Some(quotas) = self.quotas.get() else {
            return Ok(());
        };
        if quotas.is_counting.swap(true, Relaxed) {
            return Ok(());
        }
        let counting = CountingMark(quotas);
        // Left over from a count that failed, or from the end of the last one.
        quotas.each(|_, counts| counts.newer = <_>::default());
        let began = quotas.now();
        let counted = self.store.usage(quotas.limits.scopes_max).await;
        let every = match self.store.guarantees().shared || counted.is_err() {
            true => COUNT_SHARED_EVERY,
            false => COUNT_OWN_EVERY,
        };
        let pause = every.max((quotas.now() - began) * PAUSES_PER_COUNT);
        *quotas.next_count() = Some(tokio::time::Instant::now() + pause);
        quotas.take_count(counted?, began);
        drop(counting);
        Ok(())
    }

    /// Whether the background task should count the store.
    pub(super) fn is_count_due(&self) -> bool {
        self.quotas.get().is_some_and(|it| it.is_count_due())
    }
}

/// Ends a count when it is dropped, also unfinished.
struct CountingMark<'a>(&'a Quotas);

impl Drop for CountingMark<'_> {
    fn drop(&mut self) {
        self.0.is_counting.store(false, Relaxed);
    }
}

impl Engine {
    /// Limits what each scope may run and store. The first quota stays; [`RefrainLayer`](crate::http::RefrainLayer) sets
    /// that of its policy. Applies to requests of the layer alone, not to [`claim`](Self::claim).
    #[must_use]
    pub fn with_quota(self, quota: Quota) -> Self {
        if quota.is_on() {
            let quotas = || Arc::new(Quotas::new(quota));
            self.inner.quotas.get_or_init(quotas);
        }
        self
    }

    /// Counts the records and bytes of all scopes in the store, if the quota limits them.
    ///
    /// Until the first count, requests are admitted without these limits, and counted as such. The background task repeats
    /// it; call it at the start, before requests arrive.
    ///
    /// # Errors
    /// When the store cannot be read.
    ///
    /// # Cancellation
    /// May be dropped: the background task counts later.
    pub async fn count_usage(&self) -> Result<()> {
        match self.inner.is_count_due() {
            true => self.inner.count_usage().await,
            false => Ok(()),
        }
    }

    /// How many requests were refused because their scope was over this limit.
    #[must_use]
    pub fn quota_refused(&self, kind: QuotaKind) -> u64 {
        let quotas = self.inner.quotas.get();
        quotas.map_or(0, |quotas| quotas.refused[kind as usize].load(Relaxed))
    }

    /// How many requests were admitted without all limits: their scope, or the store, was not counted.
    #[must_use]
    pub fn quota_uncounted(&self) -> u64 {
        let quotas = self.inner.quotas.get();
        quotas.map_or(0, |quotas| quotas.uncounted.load(Relaxed))
    }

    /// How many scopes are counted now.
    #[must_use]
    pub fn quota_scopes(&self) -> usize {
        let mut scopes = 0;
        if let Some(quotas) = self.inner.quotas.get() {
            quotas.each(|_, _| scopes += 1);
        }
        scopes
    }

    /// Admits a request, or says which limit of its scope is used up. `Ok(None)` if its scope is not counted.
    pub(crate) fn admit(&self, scope: &Scope) -> Result<Option<Admission>, OverQuota> {
        let Some(quotas) = self.inner.quotas.get() else {
            return Ok(None);
        };
        self.inner.start_background();
        quotas.admit(ScopeDigest::derive(self.secret(), scope))
    }

    /// Whether a request that was not admitted may go on, because one of these records exists. Otherwise counts its refusal.
    ///
    /// A scope may look up only so many records of a shared store at a time; beyond that its requests are refused unseen.
    pub(crate) async fn is_duplicate(
        &self,
        records: &[RecordId],
        over: &OverQuota,
    ) -> Result<bool> {
        let store = &self.inner.store;
        let lookups_max = match store.guarantees().shared {
            true => LOOKUPS_MAX,
            false => u32::MAX,
        };
        let looking = over.scope.look_up(lookups_max);
        let mut is_found = false;
        for (at, record) in records.iter().enumerate() {
            let is_new = looking.is_some() && !is_found && !records[..at].contains(record);
            is_found |= is_new && store.read(*record).await?.is_some();
        }
        if !is_found && let Some(quotas) = self.inner.quotas.get() {
            quotas.refused[over.kind as usize].fetch_add(1, Relaxed);
        }
        Ok(is_found)
    }
}
