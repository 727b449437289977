//! A cache in front of a store that is empty, down, slow, stale or poisoned must cost time and nothing else. Other
//! libraries put a response cache in front of the store, and returned another user's body, or the outcome of a
//! payment after its key was reused.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use refrain::{
    Claim, Credential, Error, ErrorKind, Fence, Fingerprint, Outcome, RecordId, Result, Settled,
    Settlement, Store, Verdict,
    clock::Clock,
    record::Erased,
    store::{Front, Guarantees, Memory, Tiered},
};
use refrain_testkit::{
    ManualClock, Model,
    store_suite::{self, Fixture},
};

const RETENTION: Duration = Duration::from_secs(600);
const REMEMBER: Duration = Duration::from_secs(86_400);

/// An in-memory front cache that can be made to fail. Clones share it.
#[derive(Debug, Clone, Default)]
struct Shelf(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    kept: Mutex<HashMap<RecordId, (Fence, Option<Bytes>)>>,
    fault: Mutex<Option<Fault>>,
    finds: AtomicU32,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    Down,
    Hangs,
}

const LAST: Fence = Fence {
    epoch: u32::MAX,
    counter: u64::MAX,
    nonce: u32::MAX,
};

impl Shelf {
    async fn meet(&self) -> Result<()> {
        let fault = *self.0.fault.lock().unwrap();
        match fault {
            None => Ok(()),
            Some(Fault::Down) => Err(Error::new(ErrorKind::Unavailable, "the shelf is down")),
            Some(Fault::Hangs) => std::future::pending().await,
        }
    }

    fn fail(&self, fault: Option<Fault>) {
        *self.0.fault.lock().unwrap() = fault;
    }

    fn entry(&self, id: RecordId) -> Option<Bytes> {
        let kept = self.0.kept.lock().unwrap();
        kept.get(&id).and_then(|(_, entry)| entry.clone())
    }

    fn set(&self, id: RecordId, entry: impl Into<Bytes>) {
        let mut kept = self.0.kept.lock().unwrap();
        kept.insert(id, (LAST, Some(entry.into())));
    }

    fn finds(&self) -> u32 {
        self.0.finds.load(Ordering::Relaxed)
    }
}

impl Front for Shelf {
    async fn find(&self, id: RecordId) -> Result<Option<Bytes>> {
        self.0.finds.fetch_add(1, Ordering::Relaxed);
        self.meet().await?;
        Ok(self.entry(id))
    }

    async fn keep(&self, id: RecordId, fence: Fence, entry: Bytes, _: Duration) -> Result<()> {
        self.meet().await?;
        let mut kept = self.0.kept.lock().unwrap();
        if kept.get(&id).is_none_or(|(there, _)| *there < fence) {
            kept.insert(id, (fence, Some(entry)));
        }
        Ok(())
    }

    async fn erase(&self, id: RecordId, _: Duration) -> Result<()> {
        self.meet().await?;
        self.0.kept.lock().unwrap().insert(id, (LAST, None));
        Ok(())
    }
}

/// A model store behind a front cache, on a manual clock.
struct Stage {
    clock: ManualClock,
    shelf: Shelf,
    model: Model,
    store: Tiered<Shelf, Model>,
}

fn stage() -> Stage {
    let clock = ManualClock::new();
    let (shelf, model) = (Shelf::default(), Model::new(clock.shared()));
    let store = Tiered::with_clock(shelf.clone(), model.clone(), clock.shared());
    Stage {
        clock,
        shelf,
        model,
        store,
    }
}

fn id(number: u8) -> RecordId {
    RecordId([number; 16])
}

fn claim(number: u8) -> Claim {
    Claim {
        credential: Some(Credential([1; 8])),
        ..Claim::new(id(number), Fingerprint([1; 16]))
    }
}

async fn ask(store: &impl Store, claim: &Claim) -> Result<Verdict> {
    store.claim(claim.clone()).await
}

async fn complete(store: &impl Store, number: u8, body: &str) {
    let Verdict::Granted(grant) = ask(store, &claim(number)).await.unwrap() else {
        panic!("a new key is granted");
    };
    let end = Settlement::Complete {
        outcome: Outcome::new(200, body),
        retention: RETENTION,
        remember: REMEMBER,
    };
    let settled = store.settle(id(number), grant.fence, end).await.unwrap();
    assert_eq!(settled, Settled::Applied);
}

async fn replayed(store: &impl Store, number: u8) -> Bytes {
    match ask(store, &claim(number)).await.unwrap() {
        Verdict::Replay(outcome) => outcome.body(),
        other => panic!("expected a replay, got {other:?}"),
    }
}

/// Whether replays come from the front: the record in the store is erased first.
async fn is_served_in_front(stage: &Stage, number: u8) -> bool {
    let erased = stage.model.erase(id(number)).await.unwrap();
    assert_eq!(erased, Erased::Gone);
    let is_replay = matches!(
        ask(&stage.store, &claim(number)).await.unwrap(),
        Verdict::Replay(_)
    );
    is_replay
}

#[tokio::test]
async fn replayed_outcome_is_served_from_the_front() {
    let stage = stage();
    complete(&stage.store, 1, "done").await;
    assert_eq!(
        stage.shelf.entry(id(1)),
        None,
        "cached before the first replay"
    );
    assert_eq!(replayed(&stage.store, 1).await, "done");
    assert!(stage.shelf.entry(id(1)).is_some());
    assert_eq!(replayed(&stage.store, 1).await, "done");
    assert!(is_served_in_front(&stage, 1).await);
}

#[tokio::test]
async fn front_checks_credential_and_fingerprint() {
    let stage = stage();
    complete(&stage.store, 1, "done").await;
    let _ = replayed(&stage.store, 1).await;
    let mut other_request = claim(1);
    other_request.fingerprint = Fingerprint([2; 16]);
    let mut other_caller = claim(1);
    other_caller.credential = Some(Credential([2; 8]));
    let mut both = other_request.clone();
    both.credential = other_caller.credential;
    let mut unbound = claim(1);
    unbound.credential = None;
    for claim in [claim(1), other_request, other_caller, both, unbound] {
        let want = ask(&stage.model, &claim).await.unwrap();
        assert_eq!(ask(&stage.store, &claim).await.unwrap(), want);
    }
}

#[tokio::test]
async fn nothing_is_replayed_from_the_front_when_retention_may_have_ended() {
    let stage = stage();
    complete(&stage.store, 1, "done").await;
    let _ = replayed(&stage.store, 1).await;
    let before = stage.shelf.finds();
    // Near the end of retention the store decides, and after it the key is refused, even if the front still has the
    // outcome.
    stage.clock.advance(RETENTION - Duration::from_secs(1));
    assert_eq!(replayed(&stage.store, 1).await, "done");
    stage.clock.advance(Duration::from_secs(1));
    assert_eq!(
        ask(&stage.store, &claim(1)).await.unwrap(),
        Verdict::Expired
    );
    assert!(stage.shelf.finds() > before && stage.shelf.entry(id(1)).is_some());
    stage.clock.advance(REMEMBER);
    let fresh = ask(&stage.store, &claim(1)).await.unwrap();
    assert!(matches!(fresh, Verdict::Granted(_)), "{fresh:?}");
}

#[tokio::test]
async fn a_process_that_does_not_know_the_stores_time_asks_the_store() {
    let stage = stage();
    complete(&stage.store, 1, "done").await;
    let _ = replayed(&stage.store, 1).await;
    let fresh = Tiered::with_clock(
        stage.shelf.clone(),
        stage.model.clone(),
        stage.clock.shared(),
    );
    assert_eq!(replayed(&fresh, 1).await, "done");
    assert_eq!(stage.shelf.finds(), 0);
    let _ = replayed(&fresh, 1).await;
    assert_eq!(stage.shelf.finds(), 1);
}

#[tokio::test]
async fn a_poisoned_entry_is_never_replayed() {
    let stage = stage();
    for number in [1, 2] {
        complete(&stage.store, number, "done").await;
        let _ = replayed(&stage.store, number).await;
    }
    let whole = stage.shelf.entry(id(1)).unwrap();
    let another = stage.shelf.entry(id(2)).unwrap();
    let mut poisons: Vec<(String, Bytes)> = vec![
        ("nothing".into(), Bytes::new()),
        ("another record's".into(), another),
        ("a cut one".into(), whole.slice(..whole.len() - 1)),
        ("a longer one".into(), [&whole[..], b"x"].concat().into()),
    ];
    for at in 0..whole.len() {
        let mut changed = whole.to_vec();
        changed[at] ^= 1;
        poisons.push((format!("byte {at} changed"), changed.into()));
    }
    // A valid entry that was made by a store with another secret.
    let shelf = Shelf::default();
    let elsewhere = Tiered::new(shelf.clone(), Memory::new());
    complete(&elsewhere, 1, "charged another").await;
    let _ = replayed(&elsewhere, 1).await;
    let foreign = shelf.entry(id(1)).unwrap();
    poisons.push(("another store's".into(), foreign));
    for (what, poison) in poisons {
        stage.shelf.set(id(1), poison);
        assert_eq!(replayed(&stage.store, 1).await, "done", "{what}");
        let mut other = claim(1);
        other.fingerprint = Fingerprint([9; 16]);
        let verdict = ask(&stage.store, &other).await.unwrap();
        assert_eq!(verdict, Verdict::Mismatch, "{what}");
    }
    // A poisoned entry for a new key does not prevent a grant.
    stage.shelf.set(id(3), whole);
    let fresh = ask(&stage.store, &claim(3)).await.unwrap();
    assert!(matches!(fresh, Verdict::Granted(_)), "{fresh:?}");
}

#[tokio::test]
async fn a_front_that_is_down_or_hangs_costs_little_and_changes_nothing() {
    for fault in [Fault::Down, Fault::Hangs] {
        let stage = stage();
        complete(&stage.store, 1, "done").await;
        let _ = replayed(&stage.store, 1).await;
        stage.shelf.fail(Some(fault));
        let finds = stage.shelf.finds();
        for _ in 0..20 {
            assert_eq!(replayed(&stage.store, 1).await, "done");
        }
        complete(&stage.store, 2, "done").await;
        assert_eq!(
            stage.shelf.finds() - finds,
            1,
            "the failing front must not be called, {fault:?}"
        );
        stage.shelf.fail(None);
        stage.clock.advance(Duration::from_secs(2));
        let _ = replayed(&stage.store, 1).await;
        assert_eq!(
            stage.shelf.finds() - finds,
            2,
            "the front must be called again, {fault:?}"
        );
    }
}

#[tokio::test]
async fn erased_record_is_not_replayed_or_cached_again() {
    let stage = stage();
    complete(&stage.store, 1, "first life").await;
    let _ = replayed(&stage.store, 1).await;
    let (fence, old) = (LAST, stage.shelf.entry(id(1)).unwrap());
    assert_eq!(stage.store.erase(id(1)).await.unwrap(), Erased::Gone);
    // A process read the record before, and writes it to the front late.
    let late = Fence {
        counter: 1,
        ..fence
    };
    stage.shelf.keep(id(1), late, old, RETENTION).await.unwrap();
    complete(&stage.store, 1, "second life").await;
    assert_eq!(replayed(&stage.store, 1).await, "second life");
}

/// An operator erases a key in the database directly; the front is not notified, and never drops entries by itself.
#[tokio::test]
async fn a_record_erased_elsewhere_is_not_replayed_after_seconds() {
    let stale_max = Tiered::<Shelf, Model>::STALE_MAX;
    assert!(stale_max <= Duration::from_secs(10));
    let stage = stage();
    complete(&stage.store, 1, "erased").await;
    let _ = replayed(&stage.store, 1).await;
    assert_eq!(stage.model.erase(id(1)).await.unwrap(), Erased::Gone);
    stage.clock.advance(stale_max);
    let stale = stage.shelf.entry(id(1));
    assert!(stale.is_some(), "the front must still have it");
    let again = ask(&stage.store, &claim(1)).await.unwrap();
    assert!(matches!(again, Verdict::Granted(_)), "{again:?}");
    // Also in a process that has just read the store's time for the first time.
    let fresh = Tiered::with_clock(
        stage.shelf.clone(),
        stage.model.clone(),
        stage.clock.shared(),
    );
    complete(&fresh, 2, "done").await;
    let _ = replayed(&fresh, 2).await;
    let late = ask(&fresh, &claim(1)).await.unwrap();
    assert!(matches!(late, Verdict::InFlight { .. }), "{late:?}");
}

/// Reading a record and caching it are two steps: a process may be paused between them for long.
#[tokio::test]
async fn an_entry_that_was_read_long_ago_is_not_replayed_however_late_it_was_put() {
    let stage = stage();
    complete(&stage.store, 1, "erased").await;
    let _ = replayed(&stage.store, 1).await;
    let old = stage.shelf.entry(id(1)).unwrap();
    stage.clock.advance(Duration::from_secs(60));
    assert_eq!(stage.store.erase(id(1)).await.unwrap(), Erased::Gone);
    stage.shelf.set(id(1), old);
    complete(&stage.store, 2, "done").await;
    let _ = replayed(&stage.store, 2).await;
    let again = ask(&stage.store, &claim(1)).await.unwrap();
    assert!(matches!(again, Verdict::Granted(_)), "{again:?}");
}

#[tokio::test]
async fn a_record_that_the_front_cannot_be_told_of_is_not_erased() {
    for fault in [Fault::Down, Fault::Hangs] {
        let stage = stage();
        complete(&stage.store, 1, "done").await;
        stage.shelf.fail(Some(fault));
        let error = stage.store.erase(id(1)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("start without it"), "{error}");
        assert_eq!(replayed(&stage.store, 1).await, "done");
    }
}

/// A store with a front must still pass the store suite.
struct Fronted;

impl Fixture for Fronted {
    type Store = Tiered<Shelf, Model>;

    async fn open(&self, clock: Arc<dyn Clock>) -> Result<Self::Store> {
        let model = Model::new(clock.clone()).with_guarantees(Guarantees {
            survives_process: false,
            survives_power: false,
            lossy_failover: false,
            shared: true,
        });
        Ok(Tiered::with_clock(Shelf::default(), model, clock))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_with_a_front_passes_the_suite() {
    store_suite::run(Fronted).await;
}
