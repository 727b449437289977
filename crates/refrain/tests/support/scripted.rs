//! A store with scripted faults: slow, failing, responding late or never, and counting its calls.

#![allow(
    dead_code,
    reason = "each test file that takes this in uses a part of it"
)]

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use refrain::{
    Claim, Error, ErrorKind, Fence, Outcome, RecordId, Secret, Settled, Settlement, Store, Verdict,
    clock::{Clock, Steady, Timestamp},
    engine::Running,
    record::{Erased, ScopeDigest},
    store::{
        Census, Guarantees, Memory, Page, Query, Reading, ScopeKeyPage, StateName, Watch, Watches,
    },
};
use tokio::time::{Instant, sleep};

/// Operations of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    Claim,
    Settle,
    Renew,
    Read,
    List,
    Sweep,
    /// Reads and replaces a data key.
    ScopeKey,
}

/// Kinds of faults.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    /// Returns an error, and applies nothing.
    Fails(ErrorKind),
    /// Returns an error that says that nothing was applied.
    Refuses,
    /// Returns an error at once, and applies the call this much later: it was delayed on the network.
    ArrivesLate(Duration),
    /// Applies the call, but returns an error this much later.
    LosesAnswer(Duration),
    /// Applies the call at once, and responds late.
    AnswersLate(Duration),
    /// Applies the call late even if the caller was dropped meanwhile, like a writer thread or a server.
    DoneLate(Duration),
    /// Never responds, and applies nothing.
    Hangs,
}

/// Records in memory with scripted faults. Clones share both.
#[derive(Debug, Clone)]
pub(crate) struct Scripted {
    pub(crate) records: Memory,
    script: Arc<Script>,
    /// Notified of settlements, if the store supports that.
    watches: Option<Watches>,
}

#[derive(Debug, Default)]
struct Script {
    /// Number of calls of this kind that still fail, and how.
    faults: Mutex<HashMap<Op, (usize, Fault)>>,
    calls: Mutex<HashMap<Op, usize>>,
}

impl Scripted {
    pub(crate) fn new() -> Self {
        Self::on(Memory::new())
    }

    /// With a clock that follows the runtime's, so that paused time affects leases as well.
    pub(crate) fn on_runtime_clock() -> Self {
        let clock = Arc::new(RuntimeClock(tokio::time::Instant::now()));
        Self::on(Memory::with_options(Memory::BYTES_MAX, clock))
    }

    pub(crate) fn on(records: Memory) -> Self {
        let script = Arc::default();
        Self {
            records,
            script,
            watches: None,
        }
    }

    /// The same store, with notifications of settlements.
    pub(crate) fn with_watches(mut self) -> Self {
        self.watches = Some(Watches::new());
        self
    }

    /// Lets the next `times` calls of this kind fail.
    pub(crate) fn set(&self, op: Op, times: usize, fault: Fault) {
        self.script
            .faults
            .lock()
            .unwrap()
            .insert(op, (times, fault));
    }

    /// Lets calls of this kind succeed again.
    pub(crate) fn mend(&self, op: Op) {
        self.script.faults.lock().unwrap().remove(&op);
    }

    pub(crate) fn calls(&self, op: Op) -> usize {
        *self.script.calls.lock().unwrap().get(&op).unwrap_or(&0)
    }

    fn next(&self, op: Op) -> Option<Fault> {
        *self.script.calls.lock().unwrap().entry(op).or_default() += 1;
        let mut faults = self.script.faults.lock().unwrap();
        let (times, fault) = faults.get_mut(&op)?;
        *times = times.checked_sub(1)?;
        Some(*fault)
    }

    async fn run<T: Send + 'static>(
        &self,
        op: Op,
        work: impl Future<Output = refrain::Result<T>> + Send + 'static,
    ) -> refrain::Result<T> {
        match self.next(op) {
            None => work.await,
            Some(Fault::Fails(kind)) => Err(Error::new(kind, "scripted: nothing was done")),
            Some(Fault::Refuses) => {
                let error = Error::new(ErrorKind::Unavailable, "scripted: refused");
                Err(error.unapplied())
            }
            Some(Fault::ArrivesLate(late)) => {
                tokio::spawn(async move {
                    sleep(late).await;
                    work.await
                });
                let message = "scripted: the connection broke";
                Err(Error::new(ErrorKind::Unavailable, message))
            }
            Some(Fault::LosesAnswer(late)) => {
                let _ = work.await;
                sleep(late).await;
                let message = "scripted: the answer got lost";
                Err(Error::new(ErrorKind::Unavailable, message))
            }
            Some(Fault::AnswersLate(late)) => {
                let done = work.await;
                sleep(late).await;
                done
            }
            Some(Fault::DoneLate(late)) => {
                let done = tokio::spawn(async move {
                    sleep(late).await;
                    work.await
                });
                done.await.unwrap()
            }
            Some(Fault::Hangs) => std::future::pending().await,
        }
    }
}

impl Store for Scripted {
    async fn claim(&self, claim: Claim) -> refrain::Result<Verdict> {
        let records = self.records.clone();
        self.run(Op::Claim, async move { records.claim(claim).await })
            .await
    }

    async fn settle(
        &self,
        id: RecordId,
        fence: Fence,
        end: Settlement,
    ) -> refrain::Result<Settled> {
        let records = self.records.clone();
        let watches = self.watches.clone();
        let work = async move {
            let settled = records.settle(id, fence, end).await;
            watches.inspect(|watches| watches.settled(id));
            settled
        };
        self.run(Op::Settle, work).await
    }

    async fn renew(&self, id: RecordId, fence: Fence, lease: Duration) -> refrain::Result<Settled> {
        let records = self.records.clone();
        let work = async move { records.renew(id, fence, lease).await };
        self.run(Op::Renew, work).await
    }

    async fn read(&self, id: RecordId) -> refrain::Result<Option<Reading>> {
        let records = self.records.clone();
        self.run(Op::Read, async move { records.read(id).await })
            .await
    }

    async fn list(&self, query: &Query) -> refrain::Result<Page> {
        let (records, query) = (self.records.clone(), query.clone());
        self.run(Op::List, async move { records.list(&query).await })
            .await
    }

    async fn erase(&self, id: RecordId) -> refrain::Result<Erased> {
        self.records.erase(id).await
    }

    async fn census(&self) -> refrain::Result<Census> {
        self.records.census().await
    }

    async fn sweep(&self, at_most: u32) -> refrain::Result<u32> {
        let records = self.records.clone();
        self.run(Op::Sweep, async move { records.sweep(at_most).await })
            .await
    }

    async fn scope_key(&self, scope: ScopeDigest) -> refrain::Result<Option<Bytes>> {
        let records = self.records.clone();
        self.run(Op::ScopeKey, async move { records.scope_key(scope).await })
            .await
    }

    async fn replace_scope_key(
        &self,
        scope: ScopeDigest,
        expected: Option<Bytes>,
        key: Bytes,
    ) -> refrain::Result<Option<Bytes>> {
        let records = self.records.clone();
        let work = async move { records.replace_scope_key(scope, expected, key).await };
        self.run(Op::ScopeKey, work).await
    }

    async fn scope_keys(&self, cursor: Option<u64>) -> refrain::Result<ScopeKeyPage> {
        self.records.scope_keys(cursor).await
    }

    fn guarantees(&self) -> Guarantees {
        self.records.guarantees()
    }

    fn watch(&self, id: RecordId) -> Option<Watch> {
        self.watches.as_ref().map(|watches| watches.watch(id))
    }

    fn secret(&self) -> &Secret {
        self.records.secret()
    }
}

/// The runtime's time as a clock.
#[derive(Debug)]
pub(crate) struct RuntimeClock(Instant);

impl Clock for RuntimeClock {
    fn wall(&self) -> Timestamp {
        Timestamp(1_000_000)
    }

    fn steady(&self) -> Steady {
        let millis = u64::try_from(self.0.elapsed().as_millis()).unwrap();
        Steady { boot: None, millis }
    }
}

/// Waits until the condition holds; panics on a timeout.
#[track_caller]
pub(crate) fn until(is_so: impl Fn() -> bool) -> impl Future<Output = ()> {
    let place = std::panic::Location::caller();
    async move {
        for _ in 0..30_000 {
            if is_so() {
                return;
            }
            sleep(Duration::from_millis(2)).await;
        }
        panic!("timed out waiting for the condition at {place}");
    }
}

/// Completes the run with this body, and checks that it is applied.
pub(crate) async fn complete(running: Running, body: &str) {
    let settled = running.complete(Outcome::new(200, body)).await;
    assert_eq!(settled.unwrap(), Settled::Applied);
}

/// The states of all records in the store.
pub(crate) async fn states(store: &impl Store) -> Vec<StateName> {
    let page = store.list(&Query::default()).await.unwrap();
    let readings = page.readings.iter();
    readings.map(|it| it.record.state.name()).collect()
}
