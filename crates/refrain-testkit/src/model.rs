//! The reference store: [`step`] over a map in memory.
//!
//! The store suite compares other stores with it, reply by reply.
//! Tests give it a [`Flaw`] on purpose, to check that the suite detects the flaw.
//!
//! ```
//! use refrain::{Claim, Store, Verdict};
//! use refrain_testkit::{ManualClock, Model};
//!
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! let model = Model::new(ManualClock::new().shared());
//! let claim = Claim::new(Default::default(), Default::default());
//! assert!(matches!(model.claim(claim).await?, Verdict::Granted(_)));
//! # Ok::<(), refrain::Error>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use refrain::{
    Claim, Error, ErrorKind, Fence, RecordId, Result, Secret, Settled, Settlement, Store, Verdict,
    clock::{Clock, ClockMark, StoreClock, Timestamp},
    record::{Command, Erased, Record, Reply, ScopeDigest, Stepped, step},
    store::{Census, Guarantees, Page, Query, Reading, ScopeKeyPage, Watch, Watches},
};

mod flaw;
pub use flaw::Flaw;

/// Maximum number of records: the model is for tests, and keeps them in memory.
const RECORDS_MAX: usize = 1_000_000;

/// A store in memory that only applies [`step`] to a map. Clones share the same records.
#[derive(Debug, Clone)]
pub struct Model {
    shared: Arc<Mutex<ModelState>>,
    /// The machine's clocks; read only with [`Flaw::TrustsWallClock`].
    clock: Arc<dyn Clock>,
    time: StoreClock,
    /// The clock reading when the model was opened; [`Model::reopened`] resumes store time from it.
    mark: ClockMark,
    secret: Secret,
    guarantees: Guarantees,
    watches: Watches,
    flaw: Option<Flaw>,
}

/// State shared by all handles on the model.
#[derive(Debug, Default)]
struct ModelState {
    records: HashMap<RecordId, Record>,
    /// Erased records; [`Flaw::ForgetsErasedOnReopen`] restores them.
    erased: HashMap<RecordId, Record>,
    /// The data keys of scopes.
    scope_keys: HashMap<[u8; 8], Bytes>,
    /// How often the model was reopened; the epoch of its fences.
    epoch: u32,
    /// Number of fences issued; with [`Flaw::RepeatsFencesOnReopen`] it restarts at 0.
    fences: u64,
    /// Store time of the last decision.
    latest: Timestamp,
}

impl Model {
    /// Returns an empty model on this clock.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let time = StoreClock::start(clock.clone());
        Self {
            shared: Arc::default(),
            mark: time.mark(),
            time,
            clock,
            secret: Secret::from([7; 32]),
            guarantees: Guarantees {
                survives_process: false,
                survives_power: false,
                lossy_failover: false,
                shared: false,
            },
            watches: Watches::new(),
            flaw: None,
        }
    }

    /// Returns the same model with this flaw.
    #[must_use]
    pub fn with_flaw(mut self, flaw: Flaw) -> Self {
        self.flaw = Some(flaw);
        self
    }

    /// Returns the same model with other declared guarantees, by which the suite selects its cases.
    #[must_use]
    pub fn with_guarantees(mut self, guarantees: Guarantees) -> Self {
        self.guarantees = guarantees;
        self
    }

    /// Reopens the model as after a restart of its process or machine: same records, higher fences, store time resumed.
    #[must_use]
    pub fn reopened(mut self, clock: Arc<dyn Clock>) -> Self {
        let mut shared = self.shared();
        match self.flaw {
            Some(Flaw::ForgetsOnReopen) => shared.records.clear(),
            Some(Flaw::ForgetsScopeKeysOnReopen) => shared.scope_keys.clear(),
            Some(Flaw::ForgetsErasedOnReopen) => {
                let erased = std::mem::take(&mut shared.erased);
                shared.records.extend(erased);
                shared.epoch += 1;
            }
            Some(Flaw::RepeatsFencesOnReopen) => shared.fences = 0,
            _ => shared.epoch += 1,
        }
        let latest = shared.latest;
        drop(shared);
        self.time = StoreClock::resume(clock.clone(), self.mark, latest);
        self.mark = self.time.mark();
        self.clock = clock;
        self
    }

    fn shared(&self) -> MutexGuard<'_, ModelState> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Timestamp {
        match self.flaw {
            Some(Flaw::TrustsWallClock) => self.clock.wall(),
            _ => self.time.now(),
        }
    }

    fn is_flawed(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    /// The map key of a record.
    fn map_key(&self, id: RecordId) -> RecordId {
        match self.flaw {
            Some(Flaw::MixesUpRecords) => RecordId([id.0[0] % 4; 16]),
            _ => id,
        }
    }

    fn step(&self, record: Option<Record>, command: Command) -> Stepped {
        match self.flaw {
            Some(flaw) => flaw.step(record, command, self.now()),
            None => step(record, command, self.now()),
        }
    }

    /// Applies one command to one record atomically.
    fn decide(&self, shared: &mut ModelState, id: RecordId, command: Command) -> Reply {
        let place = self.map_key(id);
        shared.latest = self.now();
        let stepped = self.step(shared.records.remove(&place), command);
        if let Some(record) = stepped.record {
            shared.records.insert(place, record);
        }
        stepped.reply
    }

    fn verdict(&self, shared: &mut ModelState, claim: Claim) -> Result<Verdict> {
        if shared.records.len() >= RECORDS_MAX {
            let message = format!("the model is limited to {RECORDS_MAX} records; use fewer keys");
            return Err(Error::new(ErrorKind::Full, message));
        }
        let is_new = !shared.records.contains_key(&self.map_key(claim.id));
        let fence = match is_new && self.is_flawed(Flaw::RepeatsFences) {
            true => FIRST_FENCE,
            false => shared.next_fence(),
        };
        match self.decide(shared, claim.id, Command::Claim(claim, fence)) {
            Reply::Verdict(verdict) => Ok(verdict),
            other => Err(unanswered(&other)),
        }
    }

    /// Decides a claim against its record as it was `seen` earlier: concurrent claims for one key are all granted.
    fn verdict_on(&self, seen: Option<Record>, claim: Claim) -> Result<Verdict> {
        let place = self.map_key(claim.id);
        let mut shared = self.shared();
        match seen {
            Some(record) => shared.records.insert(place, record),
            None => shared.records.remove(&place),
        };
        self.verdict(&mut shared, claim)
    }

    fn settled(&self, id: RecordId, command: Command) -> Result<Settled> {
        match self.decide(&mut self.shared(), id, command) {
            Reply::Settled(settled) => Ok(settled),
            other => Err(unanswered(&other)),
        }
    }

    fn reading(&self, id: RecordId, record: &Record) -> Option<Reading> {
        let now = self.now();
        let record = self.step(Some(record.clone()), Command::Age).record?;
        Some(Reading { id, record, now })
    }

    fn readings(&self) -> Vec<Reading> {
        let shared = self.shared();
        let aged = |(id, record): (&RecordId, &Record)| self.reading(*id, record);
        shared.records.iter().filter_map(aged).collect()
    }
}

impl ModelState {
    fn next_fence(&mut self) -> Fence {
        self.fences += 1;
        Fence {
            counter: self.fences,
            epoch: self.epoch,
            ..FIRST_FENCE
        }
    }
}

/// Lower than every fence that the model issues.
const FIRST_FENCE: Fence = Fence {
    epoch: 0,
    counter: 0,
    nonce: 0,
};

/// Error for a reply of the wrong kind, which [`step`] never returns.
fn unanswered(reply: &Reply) -> Error {
    let message = format!("the command got the reply {reply:?}");
    Error::new(ErrorKind::Corrupt, message)
}

impl Store for Model {
    async fn claim(&self, claim: Claim) -> Result<Verdict> {
        let seen = self.shared().records.get(&self.map_key(claim.id)).cloned();
        match self.flaw {
            // The other claims of the group are read before the first is decided.
            Some(Flaw::GroupIsBlind) => tokio::task::yield_now().await,
            // Simulates a round trip to a server: other claims run in between.
            Some(Flaw::LooksThenActs) => tokio::time::sleep(Duration::from_millis(1)).await,
            _ => return self.verdict(&mut self.shared(), claim),
        }
        self.verdict_on(seen, claim)
    }

    async fn settle(&self, id: RecordId, fence: Fence, end: Settlement) -> Result<Settled> {
        let end = match end {
            Settlement::Complete {
                outcome,
                retention,
                remember,
            } => Settlement::Complete {
                outcome: outcome.sealed(id),
                retention,
                remember,
            },
            other => other,
        };
        let settled = self.settled(id, Command::Settle(fence, end));
        if !self.is_flawed(Flaw::SettlesInSilence) {
            self.watches.settled(id);
        }
        settled
    }

    async fn renew(&self, id: RecordId, fence: Fence, lease: Duration) -> Result<Settled> {
        self.settled(id, Command::Renew(fence, lease))
    }

    async fn read(&self, id: RecordId) -> Result<Option<Reading>> {
        let record = self.shared().records.get(&self.map_key(id)).cloned();
        Ok(record.and_then(|record| self.reading(id, &record)))
    }

    async fn list(&self, query: &Query) -> Result<Page> {
        let mut readings = self.readings();
        readings.sort_by_key(|reading| reading.id);
        if self.is_flawed(Flaw::ListsOutOfOrder) {
            readings.reverse();
        }
        let wanted = |reading: &Reading| {
            (query.fits(&reading.record, reading.now) || self.is_flawed(Flaw::ListsEveryState))
                && query.after.is_none_or(|after| reading.id > after)
        };
        readings.retain(wanted);
        let limit = usize::try_from(query.limit).unwrap_or(usize::MAX);
        let more = readings.len() > limit;
        readings.truncate(limit);
        let next = readings.last().map(|last| last.id).filter(|_| more);
        Ok(Page { readings, next })
    }

    async fn erase(&self, id: RecordId) -> Result<Erased> {
        let mut shared = self.shared();
        let before = shared.records.get(&self.map_key(id)).cloned();
        let reply = self.decide(&mut shared, id, Command::Erase);
        if let (Reply::Erased(Erased::Gone), Some(before)) = (&reply, before) {
            shared.erased.insert(id, before);
        }
        match reply {
            Reply::Erased(erased) => Ok(erased),
            other => Err(unanswered(&other)),
        }
    }

    async fn census(&self) -> Result<Census> {
        let mut census = Census::default();
        for record in self.shared().records.values() {
            match self.is_flawed(Flaw::CountsWithoutTime) {
                true => census.count(record.state.name()),
                false => census.count_at(record, self.now()),
            }
        }
        Ok(census)
    }

    async fn sweep(&self, at_most: u32) -> Result<u32> {
        let mut shared = self.shared();
        let is_past = |record: &Record| match self.step(Some(record.clone()), Command::Age).record {
            None => true,
            Some(record) => self.flaw.is_some_and(|flaw| flaw.sweeps(&record)),
        };
        let mut swept = 0;
        shared.records.retain(|_, record| {
            let goes = swept < at_most && is_past(record);
            swept += u32::from(goes);
            !goes
        });
        if self.is_flawed(Flaw::SweepsWithoutEnd) {
            return Ok(at_most);
        }
        Ok(swept)
    }

    async fn scope_key(&self, scope: ScopeDigest) -> Result<Option<Bytes>> {
        Ok(self.shared().scope_keys.get(&scope.0).cloned())
    }

    async fn replace_scope_key(
        &self,
        scope: ScopeDigest,
        expected: Option<Bytes>,
        key: Bytes,
    ) -> Result<Option<Bytes>> {
        let mut shared = self.shared();
        let stored = shared.scope_keys.get(&scope.0).cloned();
        if stored != expected && !self.is_flawed(Flaw::OverwritesScopeKeys) {
            return Ok(stored);
        }
        shared.scope_keys.insert(scope.0, key.clone());
        Ok(Some(key))
    }

    async fn scope_keys(&self, _: Option<u64>) -> Result<ScopeKeyPage> {
        let mut keys = self.shared().scope_keys.clone();
        if self.is_flawed(Flaw::ListsHalfOfTheScopeKeys) {
            keys.retain(|scope, _| scope[0] < 0x80);
        }
        let keys = keys.into_iter();
        let keys = keys.map(|(scope, key)| (ScopeDigest(scope), key));
        let keys = keys.collect();
        Ok(ScopeKeyPage { keys, next: None })
    }

    fn guarantees(&self) -> Guarantees {
        self.guarantees
    }

    fn watch(&self, id: RecordId) -> Option<Watch> {
        Some(self.watches.watch(id))
    }

    fn secret(&self) -> &Secret {
        &self.secret
    }
}
