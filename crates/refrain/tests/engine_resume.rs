//! A process dies while operations run, and no client retries: the next process must find out what happened, without
//! asking too early, twice, or for ever, and without a request, a key or a credential of the dead one.

use std::{
    pin::Pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use refrain::{
    Claim, Engine, Fingerprint, Intent, Key, Outcome, RecordId, Scope, Store as _,
    engine::{Count, Finding, Probe, ProbeSource, Unprobed},
    record::{Doubt, History, Origin, OriginFields, Verdict},
    store::{Reading, StateName},
};
use tokio::time::sleep;

#[path = "support/scripted.rs"]
mod scripted;
use scripted::{Scripted, states, until};

const LEASE: Duration = Duration::from_secs(30);
const SETTLE_AFTER: Duration = Duration::from_secs(90);
const HOUR: Duration = Duration::from_hours(1);

/// Looks up the records of `payments`, and notes the targets that it was asked about.
#[derive(Debug, Clone)]
struct Ledger {
    finding: Finding,
    refuses: Option<Unprobed>,
    asked: Arc<Mutex<Vec<String>>>,
}

/// The lookup of one record.
#[derive(Debug)]
struct Lookup {
    ledger: Ledger,
    target: String,
}

impl Ledger {
    fn new(finding: Finding) -> Self {
        Self {
            finding,
            refuses: None,
            asked: Arc::default(),
        }
    }

    fn asked(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

impl ProbeSource for Ledger {
    fn intent(&self, reading: &Reading, history: &History) -> Option<Result<Intent, Unprobed>> {
        if history.operation != "payments" {
            return None;
        }
        if let Some(why) = self.refuses {
            return Some(Err(why));
        }
        let key = Key::new(reading.id.to_string()).unwrap();
        let mut intent = Intent::new(Scope::none(), key);
        intent.probe = Some(Arc::new(Lookup {
            ledger: self.clone(),
            target: history.target.clone(),
        }));
        Some(Ok(intent))
    }
}

impl Probe for Lookup {
    fn probe<'a>(
        &'a self,
        _: &'a Intent,
        doubt: Doubt,
    ) -> Pin<Box<dyn Future<Output = Finding> + Send + 'a>> {
        assert!(doubt.settle_left.is_zero());
        self.ledger.asked.lock().unwrap().push(self.target.clone());
        Box::pin(async { self.ledger.finding.clone() })
    }
}

fn happened() -> Finding {
    Finding::Happened(Outcome::new(200, "found"))
}

/// A claim of a process that died: nobody renews or settles it.
async fn leave_behind(store: &Scripted, number: u8, operation: &str) {
    let fields = OriginFields {
        operation,
        method: "POST",
        target: "/v1/payments",
        ..OriginFields::default()
    };
    let claim = Claim {
        lease: LEASE,
        settle_after: SETTLE_AFTER,
        origin: Origin::new(&fields),
        ..Claim::new(RecordId([number; 16]), Fingerprint([1; 16]))
    };
    let verdict = store.claim(claim).await.unwrap();
    assert!(matches!(verdict, Verdict::Granted(_)));
}

fn resumed(store: &Scripted, ledger: &Ledger) -> (Engine, Arc<dyn ProbeSource>) {
    let engine = Engine::new(store.clone());
    let source: Arc<dyn ProbeSource> = Arc::new(ledger.clone());
    engine.resume_probes(Arc::downgrade(&source));
    (engine, source)
}

#[tokio::test(start_paused = true)]
async fn a_record_of_a_dead_process_is_settled_without_a_retry_and_not_too_early() {
    for (finding, expected) in [
        (happened(), vec![StateName::Completed]),
        (Finding::NeverHappened, vec![]),
    ] {
        let store = Scripted::on_runtime_clock();
        leave_behind(&store, 1, "payments").await;
        let ledger = Ledger::new(finding);
        let (engine, _source) = resumed(&store, &ledger);
        // Its lease has to lapse first: until then the process may be alive.
        sleep(SETTLE_AFTER - Duration::from_secs(1)).await;
        assert_eq!(ledger.asked(), 0, "too early");
        until(|| ledger.asked() > 0).await;
        sleep(HOUR).await;
        assert_eq!(*ledger.asked.lock().unwrap(), ["POST /v1/payments"]);
        assert_eq!(states(&store).await, expected);
        let tally = engine.tally();
        let counts = (tally.get(Count::Probed), tally.get(Count::Resolved));
        assert_eq!((counts, tally.cared_for_now()), ((1, 1), 0));
    }
}

#[tokio::test(start_paused = true)]
async fn records_of_other_operations_are_left_alone() {
    let store = Scripted::on_runtime_clock();
    leave_behind(&store, 1, "refunds").await;
    let ledger = Ledger::new(happened());
    let (_engine, _source) = resumed(&store, &ledger);
    sleep(HOUR).await;
    assert_eq!(ledger.asked(), 0);
    assert_eq!(states(&store).await, [StateName::Indeterminate]);
}

#[tokio::test(start_paused = true)]
async fn several_engines_settle_the_records_of_a_shared_store() {
    let store = Scripted::on_runtime_clock();
    for number in 0..20 {
        leave_behind(&store, number, "payments").await;
    }
    let ledger = Ledger::new(happened());
    let engines = [resumed(&store, &ledger), resumed(&store, &ledger)];
    sleep(HOUR).await;
    assert_eq!(states(&store).await, [StateName::Completed; 20]);
    // Two may have asked about a record at the same time, and then both stored the same outcome.
    let asked = ledger.asked();
    assert!((20..=40).contains(&asked), "{asked} probes");
    let cared = engines.iter().map(|(it, _)| it.tally().cared_for_now());
    assert_eq!(cared.sum::<usize>(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_record_without_an_answer_is_given_up_after_an_hour() {
    let store = Scripted::on_runtime_clock();
    leave_behind(&store, 1, "payments").await;
    let ledger = Ledger::new(Finding::Unknown);
    let (engine, _source) = resumed(&store, &ledger);
    sleep(HOUR * 2).await;
    let asked = ledger.asked();
    assert!((5..60).contains(&asked), "{asked} probes");
    assert_eq!(engine.tally().cared_for_now(), 0);
    sleep(HOUR * 10).await;
    assert_eq!(ledger.asked(), asked);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_asked_for_records_that_cannot_be_looked_up_or_without_a_source() {
    let store = Scripted::on_runtime_clock();
    leave_behind(&store, 1, "payments").await;
    let mut ledger = Ledger::new(happened());
    ledger.refuses = Some(Unprobed::KeyNotKept);
    let (engine, _source) = resumed(&store, &ledger);
    sleep(HOUR).await;
    ledger.refuses = None;
    // This source is gone before the first round.
    let source: Arc<dyn ProbeSource> = Arc::new(ledger.clone());
    engine.resume_probes(Arc::downgrade(&source));
    drop(source);
    sleep(HOUR).await;
    assert_eq!(ledger.asked(), 0);
    // One that stays is asked.
    let (_engine, _kept) = resumed(&store, &ledger);
    until(|| ledger.asked() == 1).await;
}

/// The engine that made the run probes it already.
#[tokio::test(start_paused = true)]
async fn a_run_of_the_living_engine_is_probed_by_one_task() {
    let store = Scripted::on_runtime_clock();
    let ledger = Ledger::new(Finding::Unknown);
    let (engine, _source) = resumed(&store, &ledger);
    let mut intent = Intent::new(Scope::none(), Key::new("k").unwrap());
    let fields = OriginFields {
        operation: "payments",
        ..OriginFields::default()
    };
    intent.origin = Some(engine.origin(&intent.scope, &intent.key, &fields));
    intent.probe = Some(Arc::new(Lookup {
        ledger: ledger.clone(),
        target: "the run's own".into(),
    }));
    let refrain::Verdict::Granted(guard) = engine.claim(&intent).await.unwrap() else {
        panic!("not granted");
    };
    drop(guard.start());
    sleep(HOUR / 2).await;
    let asked = ledger.asked.lock().unwrap().clone();
    assert!(asked.len() >= 3, "{asked:?}");
    assert!(asked.iter().all(|it| it == "the run's own"), "{asked:?}");
    assert_eq!(engine.tally().cared_for_now(), 1);
}
