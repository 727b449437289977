//! A process dies while operations run, and no client retries: the next process must find out what happened, without
//! asking too early, twice, or for ever, and without a request, a key or a credential of the dead one.

use std::{
    collections::HashSet,
    pin::Pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use refrain::{
    Claim, Engine, ErrorKind, Fingerprint, Intent, Key, Outcome, RecordId, Scope, Store as _,
    engine::{Count, Finding, Probe, ProbeSource, Unprobed},
    record::{Doubt, History, Origin, OriginFields, Verdict},
    store::{Reading, StateName},
};
use tokio::time::sleep;

#[path = "support/scripted.rs"]
mod scripted;
use scripted::{Fault, Op, Scripted, states, until};

const LEASE: Duration = Duration::from_secs(30);
const SETTLE_AFTER: Duration = Duration::from_secs(90);
const HOUR: Duration = Duration::from_hours(1);

/// Looks up the records of `payments`, and notes the targets that it was asked about.
#[derive(Debug, Clone)]
struct Ledger {
    finding: Finding,
    refuses: Option<Unprobed>,
    /// Its lookups never end.
    hangs: bool,
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
            hangs: false,
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
        if self.hangs {
            intent.terms.timeout = HOUR;
        }
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
        Box::pin(async {
            if self.ledger.hangs {
                std::future::pending::<()>().await;
            }
            self.ledger.finding.clone()
        })
    }
}

fn happened() -> Finding {
    Finding::Happened(Outcome::new(200, "found"))
}

/// A claim of a process that died: nobody renews or settles it.
async fn leave_behind(store: &Scripted, number: u8, operation: &str) {
    leave_at(store, RecordId([number; 16]), operation, "/v1/payments").await;
}

/// Claims of a process that died, each with its own target.
async fn leave_many(store: &Scripted, count: u16) {
    for number in 0..count {
        let mut id = RecordId([0; 16]);
        id.0[..2].copy_from_slice(&number.to_be_bytes());
        leave_at(store, id, "payments", &format!("/v1/payments/{number}")).await;
    }
}

async fn leave_at(store: &Scripted, id: RecordId, operation: &str, target: &str) {
    let fields = OriginFields {
        operation,
        method: "POST",
        target,
        ..OriginFields::default()
    };
    let claim = Claim {
        lease: LEASE,
        settle_after: SETTLE_AFTER,
        origin: Origin::new(&fields),
        ..Claim::new(id, Fingerprint([1; 16]))
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
        assert_eq!((counts, tally.background_probes_now()), ((1, 1), 0));
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
    let cared = engines
        .iter()
        .map(|(it, _)| it.tally().background_probes_now());
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
    assert_eq!(engine.tally().background_probes_now(), 0);
    sleep(HOUR * 10).await;
    assert_eq!(ledger.asked(), asked);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_asked_for_records_that_cannot_be_looked_up_or_without_a_source() {
    let store = Scripted::on_runtime_clock();
    leave_behind(&store, 1, "payments").await;
    let mut ledger = Ledger::new(happened());
    ledger.refuses = Some(Unprobed::KeyNotKept);
    let (engine, refusing) = resumed(&store, &ledger);
    sleep(HOUR).await;
    drop(refusing);
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

#[tokio::test(start_paused = true)]
async fn a_source_that_cannot_look_a_record_up_hides_no_other() {
    let store = Scripted::on_runtime_clock();
    leave_behind(&store, 1, "payments").await;
    let ledger = Ledger::new(happened());
    let refusing = Ledger {
        refuses: Some(Unprobed::KeyNotKept),
        ..ledger.clone()
    };
    let (engine, _refusing) = resumed(&store, &refusing);
    let source: Arc<dyn ProbeSource> = Arc::new(ledger.clone());
    engine.resume_probes(Arc::downgrade(&source));
    sleep(HOUR).await;
    assert_eq!(ledger.asked(), 1);
}

/// Records beyond the limit get their turn when others are given up.
#[tokio::test(start_paused = true)]
async fn a_bounded_number_of_records_is_looked_up_at_the_same_time() {
    let store = Scripted::on_runtime_clock();
    leave_many(&store, 1_100).await;
    let ledger = Ledger::new(Finding::Unknown);
    let (engine, _source) = resumed(&store, &ledger);
    sleep(HOUR / 2).await;
    assert_eq!(engine.tally().background_probes_now(), 1_000);
    sleep(HOUR * 3).await;
    let asked = ledger.asked.lock().unwrap().clone();
    assert_eq!(asked.into_iter().collect::<HashSet<_>>().len(), 1_100);
    assert_eq!(engine.tally().background_probes_now(), 0);
}

/// Lookups of earlier processes that hang must not delay those of this process.
#[tokio::test(start_paused = true)]
async fn records_of_this_process_are_probed_although_resumed_probes_hang() {
    let store = Scripted::on_runtime_clock();
    leave_many(&store, 100).await;
    let hanging = Ledger {
        hangs: true,
        ..Ledger::new(Finding::Unknown)
    };
    let (engine, _source) = resumed(&store, &hanging);
    sleep(SETTLE_AFTER * 2).await;
    let ledger = Ledger::new(happened());
    doubt_with(&engine, &ledger).await;
    sleep(SETTLE_AFTER * 2).await;
    assert_eq!(ledger.asked(), 1);
    assert_eq!(hanging.asked(), 16, "their part of the probes");
}

/// What was given up is not looked up for another hour after an error of the store.
#[tokio::test(start_paused = true)]
async fn an_error_between_two_pages_forgets_nothing() {
    let store = Scripted::on_runtime_clock();
    leave_many(&store, 1_001).await;
    sleep(SETTLE_AFTER).await;
    let ledger = Ledger::new(Finding::Unknown);
    let (engine, _source) = resumed(&store, &ledger);
    until(|| store.calls(Op::List) == 1).await;
    store.set(Op::List, 5, Fault::Fails(ErrorKind::Unavailable));
    sleep(HOUR * 5).await;
    let asked = ledger.asked();
    assert!(asked >= 1_001 * 5, "{asked} probes");
    assert_eq!(engine.tally().background_probes_now(), 0);
    sleep(HOUR * 5).await;
    assert_eq!(ledger.asked(), asked);
}

#[tokio::test(start_paused = true)]
async fn a_run_of_the_living_engine_is_given_up_once() {
    let store = Scripted::on_runtime_clock();
    let ledger = Ledger::new(Finding::Unknown);
    let (engine, _source) = resumed(&store, &ledger);
    doubt_with(&engine, &ledger).await;
    sleep(HOUR * 2).await;
    let asked = ledger.asked();
    assert!(asked >= 3, "{asked} probes");
    sleep(HOUR * 10).await;
    assert_eq!(ledger.asked(), asked);
}

/// A run of this engine that ends in doubt, and is probed by this ledger.
async fn doubt_with(engine: &Engine, ledger: &Ledger) {
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
}

/// The engine that made the run probes it already.
#[tokio::test(start_paused = true)]
async fn a_run_of_the_living_engine_is_probed_by_one_task() {
    let store = Scripted::on_runtime_clock();
    let ledger = Ledger::new(Finding::Unknown);
    let (engine, _source) = resumed(&store, &ledger);
    doubt_with(&engine, &ledger).await;
    sleep(HOUR / 2).await;
    let asked = ledger.asked.lock().unwrap().clone();
    assert!(asked.len() >= 3, "{asked:?}");
    assert!(asked.iter().all(|it| it == "the run's own"), "{asked:?}");
    assert_eq!(engine.tally().background_probes_now(), 1);
}

/// The lines of this thread's log.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A process that died cannot log that its outcomes are unknown; many of them must not fill the log either.
#[tokio::test(start_paused = true)]
async fn records_of_dead_processes_are_logged_once_and_in_a_bounded_number() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let _default = tracing::subscriber::set_default(subscriber);
    let store = Scripted::on_runtime_clock();
    leave_many(&store, 150).await;
    let ledger = Ledger {
        refuses: Some(Unprobed::KeyNotKept),
        ..Ledger::new(Finding::Unknown)
    };
    let (_engine, _source) = resumed(&store, &ledger);
    sleep(HOUR).await;
    let log = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    assert_eq!(log.matches("refrain records resolve").count(), 100, "{log}");
    let first = "record=00000000000000000000000000000000 operation=\"payments\" \
                 target=\"POST /v1/payments/0\" reason=\"lapsed\"";
    assert_eq!(log.matches(first).count(), 1, "{log}");
    assert_eq!(log.matches("records=50").count(), 1, "{log}");
}
