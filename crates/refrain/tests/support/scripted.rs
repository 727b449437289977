//! A store that does what the test says: slow, failing, answering late or not at all, and counting what it is asked.

#![allow(
    dead_code,
    reason = "each test file that takes this in uses a part of it"
)]

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use refrain::{
    Claim, Error, ErrorKind, Fence, Outcome, RecordId, Secret, Settled, Settlement, Store, Verdict,
    clock::{Clock, Steady, Timestamp},
    engine::Running,
    record::Erased,
    store::{Census, Guarantees, Memory, Page, Query, Reading, StateName, Watch, Watches},
};
use tokio::time::{Instant, sleep};

/// What can be asked of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    Claim,
    Settle,
    Renew,
    Read,
    Sweep,
}

/// What goes wrong.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    /// An error, and nothing was done.
    Fails(ErrorKind),
    /// An error that says that nothing was done.
    Refuses,
    /// An error at once, and done that much later: it was held up on its way.
    ArrivesLate(Duration),
    /// Done, but what comes back, that much later, is an error.
    LosesAnswer(Duration),
    /// Done at once, answered late.
    AnswersLate(Duration),
    /// Done late by somebody who does not care whether the asker is still there, as a writer thread or a server.
    DoneLate(Duration),
    /// Never answers, and nothing is done.
    Hangs,
}

/// Records in memory behind a script. Clones share both.
#[derive(Debug, Clone)]
pub(crate) struct Scripted {
    pub(crate) records: Memory,
    script: Arc<Script>,
    /// Who is woken by a settlement, if the store can tell.
    watches: Option<Watches>,
}

#[derive(Debug, Default)]
struct Script {
    /// How many calls of this kind are to go wrong yet, and how.
    faults: Mutex<HashMap<Op, (usize, Fault)>>,
    calls: Mutex<HashMap<Op, usize>>,
}

impl Scripted {
    pub(crate) fn new() -> Self {
        Self::on(Memory::new())
    }

    /// With a clock that follows the runtime's, so that paused time moves leases, too.
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

    /// The same store, which tells of settlements.
    pub(crate) fn with_watches(mut self) -> Self {
        self.watches = Some(Watches::new());
        self
    }

    /// The next `times` calls of this kind go wrong.
    pub(crate) fn set(&self, op: Op, times: usize, fault: Fault) {
        self.script
            .faults
            .lock()
            .unwrap()
            .insert(op, (times, fault));
    }

    /// Calls of this kind go right again.
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
    async fn claim(&self, claims: &[Claim]) -> refrain::Result<Vec<refrain::Result<Verdict>>> {
        let (records, claims) = (self.records.clone(), claims.to_vec());
        self.run(Op::Claim, async move { records.claim(&claims).await })
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
        self.records.list(query).await
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

/// Waits until it is so; fails loudly if it never is.
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
        panic!("it never came to be what was waited for at {place}");
    }
}

/// Ends it with this outcome, and sees that it counts.
pub(crate) async fn complete(running: Running, body: &str) {
    let settled = running.complete(Outcome::new(200, body)).await;
    assert_eq!(settled.unwrap(), Settled::Applied);
}

/// What the store's records are now.
pub(crate) async fn states(store: &impl Store) -> Vec<StateName> {
    let page = store.list(&Query::default()).await.unwrap();
    let readings = page.readings.iter();
    readings.map(|it| it.record.state.name()).collect()
}
