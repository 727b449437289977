//! An operator resolves an unknown outcome while the operation itself may still complete: the operation's own outcome
//! must not be overwritten.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use refrain::{
    Engine, ErrorKind, Intent, Key, Outcome, RecordId, Scope, Settled, Store, Verdict,
    engine::{Count, Resolution, Resolved, Running},
    record::{Erased, Reason},
    store::{AnyStore, Memory, Meter, Op as StoreOp, StateName},
};
use refrain_testkit::ManualClock;

#[path = "support/scripted.rs"]
mod scripted;
use scripted::{Fault, Op, Scripted, states};

const DAY: Duration = Duration::from_secs(86_400);

fn intent() -> Intent {
    Intent::new(Scope::none(), Key::new("order-7").unwrap())
}

fn id(engine: &Engine) -> RecordId {
    RecordId::derive(engine.secret(), &Scope::none(), &intent().key)
}

async fn start(engine: &Engine) -> Running {
    match engine.claim(&intent()).await.unwrap() {
        Verdict::Granted(guard) => guard.start(),
        other => panic!("not granted: {other:?}"),
    }
}

async fn doubted(engine: &Engine) -> Running {
    let mut running = start(engine).await;
    assert_eq!(
        running.doubt(Reason::Timeout).await.unwrap(),
        Settled::Applied
    );
    running
}

fn completed(body: &str) -> Resolution {
    Resolution::Completed {
        outcome: Outcome::new(200, body),
        retention: DAY,
        remember: DAY,
    }
}

async fn replayed(engine: &Engine) -> Vec<u8> {
    match engine.claim(&intent()).await.unwrap() {
        Verdict::Replay(outcome) => outcome.body().to_vec(),
        other => panic!("not replayed: {other:?}"),
    }
}

#[tokio::test]
async fn operator_resolution_is_final_against_late_outcomes() {
    let engine = Engine::new(Memory::new());
    let running = doubted(&engine).await;
    let resolved = engine.resolve(id(&engine), completed("by hand"), "seen in the ledger");
    assert_eq!(resolved.await.unwrap(), Resolved::Applied);
    assert_eq!(engine.tally().get(Count::Resolved), 1);
    let _ = running.complete(Outcome::new(500, "late")).await.unwrap();
    assert_eq!(replayed(&engine).await, b"by hand");
}

/// Between the operator's read and write the operation completes: its outcome stays, and the operator gets an error.
#[tokio::test]
async fn late_outcome_before_the_operator_is_not_reported_as_operator_resolution() {
    let store = Scripted::new();
    let engine = Engine::new(store.clone());
    let running = doubted(&engine).await;
    let late = Duration::from_millis(200);
    store.set(Op::Settle, 1, Fault::DoneLate(late));
    let resolving = engine.resolve(id(&engine), completed("by hand"), "looked it up");
    let (resolved, _) = tokio::join!(resolving, async {
        scripted::until(|| store.calls(Op::Settle) == 2).await;
        running.complete(Outcome::new(201, "late truth")).await
    });
    let expected = Resolved::NotInDoubt(Some(StateName::Completed));
    assert_eq!(resolved.unwrap(), expected);
    assert_eq!(replayed(&engine).await, b"late truth");
    assert_eq!(engine.tally().get(Count::Resolved), 0);
}

#[tokio::test]
async fn never_happened_releases_the_key_after_settle_after() {
    let clock = ManualClock::new();
    let engine = Engine::new(Memory::with_options(1 << 20, clock.shared()));
    let _running = doubted(&engine).await;
    let never = || engine.resolve(id(&engine), Resolution::NeverHappened, "not in the ledger");
    let left = intent().terms.settle_after;
    assert_eq!(never().await.unwrap(), Resolved::TooEarly { left });
    clock.advance(left);
    assert_eq!(never().await.unwrap(), Resolved::Applied);
    assert_eq!(never().await.unwrap(), Resolved::NotInDoubt(None));
    let _free = start(&engine).await;
    let in_flight = Resolved::NotInDoubt(Some(StateName::InFlight));
    assert_eq!(never().await.unwrap(), in_flight);
}

#[tokio::test]
async fn what_was_found_out_about_one_attempt_does_not_resolve_a_later_one() {
    let clock = ManualClock::new();
    let engine = Engine::new(Memory::with_options(1 << 20, clock.shared()));
    let first = doubted(&engine).await.fence();
    clock.advance(intent().terms.settle_after);
    let never = engine.resolve(id(&engine), Resolution::NeverHappened, "not in the ledger");
    assert_eq!(never.await.unwrap(), Resolved::Applied);
    let second = doubted(&engine).await.fence();
    assert_ne!(first, second);
    let by = |fence| {
        let found = completed("of the first attempt");
        engine.resolve_attempt(id(&engine), Some(fence), found, "seen in the ledger")
    };
    assert_eq!(by(first).await.unwrap(), Resolved::OtherAttempt);
    assert_eq!(by(second).await.unwrap(), Resolved::Applied);
}

#[tokio::test]
async fn nothing_is_decided_without_a_reason() {
    let store = Memory::new();
    let engine = Engine::new(store.clone());
    let _running = doubted(&engine).await;
    let long = "x".repeat(1_001);
    for reason in ["", "  ", "two\nlines", "\u{1b}[2J", &long] {
        let resolved = engine.resolve(id(&engine), completed("x"), reason).await;
        assert_eq!(resolved.unwrap_err().kind(), ErrorKind::Invalid, "{reason}");
        let erased = engine.erase(id(&engine), reason).await;
        assert_eq!(erased.unwrap_err().kind(), ErrorKind::Invalid, "{reason}");
    }
    assert_eq!(states(&store).await, [StateName::Indeterminate]);
}

#[tokio::test]
async fn only_what_has_ended_is_erased() {
    let engine = Engine::new(Memory::new());
    let erase = || engine.erase(id(&engine), "test data");
    assert_eq!(erase().await.unwrap(), Erased::Absent);
    let running = start(&engine).await;
    assert_eq!(erase().await.unwrap(), Erased::InFlight);
    let _ = running.complete(Outcome::new(200, "done")).await.unwrap();
    assert_eq!(erase().await.unwrap(), Erased::Gone);
    let _running = doubted(&engine).await;
    assert_eq!(erase().await.unwrap(), Erased::Indeterminate);
    assert_eq!(engine.tally().get(Count::Erased), 1);
}

/// The calls to the store, and whether each succeeded.
#[derive(Debug, Default)]
struct Book(Mutex<Vec<(StoreOp, bool)>>);

impl Meter for Book {
    fn answered(&self, op: StoreOp, is_ok: bool, _: Duration) {
        self.0.lock().unwrap().push((op, is_ok));
    }
}

/// The memory store responds synchronously, on a separate code path; other stores are awaited. The meter sees both.
#[tokio::test]
async fn a_meter_is_told_of_every_answer() {
    for store in [AnyStore::new(Memory::new()), AnyStore::new(Scripted::new())] {
        let book = Arc::new(Book::default());
        let store = store.with_meter(book.clone());
        let engine = Engine::new(store.clone());
        let running = start(&engine).await;
        let _ = running.complete(Outcome::new(200, "done")).await.unwrap();
        let _ = engine.erase(id(&engine), "test data").await.unwrap();
        let _ = store.census().await.unwrap();
        let expected = [
            StoreOp::Claim,
            StoreOp::Settle,
            StoreOp::Erase,
            StoreOp::Census,
        ];
        let told = std::mem::take(&mut *book.0.lock().unwrap());
        assert_eq!(told, expected.map(|op| (op, true)), "{store:?}");
    }
    let scripted = Scripted::new();
    scripted.set(Op::Read, 1, Fault::Fails(ErrorKind::Unavailable));
    let book = Arc::new(Book::default());
    let store = AnyStore::new(scripted).with_meter(book.clone());
    assert!(store.read(RecordId::default()).await.is_err());
    assert_eq!(*book.0.lock().unwrap(), [(StoreOp::Read, false)]);
}

/// A store that finds out only from a claim that it is full: the process must not call itself ready.
#[tokio::test(start_paused = true)]
async fn a_claim_that_a_full_store_refused_is_remembered_for_a_while() {
    let store = Scripted::on_runtime_clock();
    let engine = Engine::new(store.clone());
    let intent = Intent::new(Scope::none(), Key::new("full").unwrap());
    assert_eq!(engine.claims_refused(), None);
    store.set(Op::Claim, 1, Fault::Fails(ErrorKind::Full));
    assert!(engine.claim(&intent).await.is_err());
    assert!(engine.claims_refused().is_some());
    tokio::time::advance(Duration::from_secs(11)).await;
    assert_eq!(engine.claims_refused(), None);
}
