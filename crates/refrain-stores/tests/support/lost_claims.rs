//! The store commits a claim, the connection breaks before the response, and the store stays unavailable. The client
//! got an error that says that nothing ran, so a retry with the key must run: nothing was dispatched (I9).

use std::{
    env,
    io::{BufRead as _, BufReader, Write as _},
    pin::Pin,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use refrain::{
    Engine, Guarantee, Intent, Key, Operation, Outcome, RecordId, Scope, Store, Terms, Verdict,
    engine::{Finding, Guard, Probe},
    receipts::{AnyReceipts, Receipt, Receipts, Witness},
    record::Doubt,
    store::StateName,
};
use tokio::time::sleep;

use crate::relay::{Mood, Relay};

const DEADLINE: Duration = Duration::from_secs(60);
/// Rejected requests: more than the 1 024 lost claims that an engine watches for late arrival.
const CROWD: usize = 1_500;

/// Engine that uses the relay, and a direct handle on the same store.
pub(crate) struct Scene<S> {
    pub(crate) relay: Relay,
    pub(crate) engine: Engine,
    pub(crate) direct: S,
}

fn intent(name: &str) -> Intent {
    let mut intent = Intent::new(Scope::none(), Key::new(name).unwrap());
    intent.terms = Terms {
        lease: Duration::from_secs(1),
        wait: Duration::ZERO,
        ..Terms::default()
    };
    intent
}

/// Retries until the store is available; every verdict but a grant means that the first request was swallowed.
async fn answered(engine: &Engine, name: &str) -> Guard {
    let since = tokio::time::Instant::now();
    loop {
        match engine.claim(&intent(name)).await {
            Ok(Verdict::Granted(guard)) => return guard,
            Ok(other) => panic!("{name} never ran, but the verdict is {other:?}"),
            Err(error) if error.is_retryable() => {}
            Err(error) => panic!("{error}"),
        }
        assert!(since.elapsed() < DEADLINE, "the store never came back");
        sleep(Duration::from_millis(5)).await;
    }
}

/// Runs some keys first, so that all connections are open and a cut hits the claim under test.
async fn warm(engine: &Engine, name: &str) {
    for number in 0..8 {
        let running = answered(engine, &format!("{name}-warm-{number}")).await;
        let settled = running.start().complete(Outcome::new(200, "")).await;
        assert_eq!(settled.unwrap(), refrain::Settled::Applied);
    }
}

impl<S: Store> Scene<S> {
    pub(crate) fn new(relay: Relay, through: S, direct: S) -> Self {
        let engine = Engine::new(through);
        Self {
            relay,
            engine,
            direct,
        }
    }

    fn id(&self, name: &str) -> RecordId {
        let intent = intent(name);
        RecordId::derive(self.direct.secret(), &intent.scope, &intent.key)
    }

    async fn state(&self, name: &str) -> Option<StateName> {
        let reading = self.direct.read(self.id(name)).await.unwrap();
        reading.map(|reading| reading.record.state.name())
    }

    async fn until(&self, name: &str, state: Option<StateName>) {
        let since = tokio::time::Instant::now();
        while self.state(name).await != state {
            assert!(since.elapsed() < DEADLINE, "{name} never became {state:?}");
            sleep(Duration::from_millis(20)).await;
        }
    }

    async fn answered(&self, name: &str) -> Guard {
        answered(&self.engine, name).await
    }

    async fn refused(&self, name: &str) {
        let claimed = self.engine.claim(&intent(name)).await;
        assert!(claimed.unwrap_err().is_retryable());
    }

    /// The store commits this claim, its answer is lost, and the store becomes unavailable.
    async fn lose(&self, name: &str) {
        let since = tokio::time::Instant::now();
        for attempt in 0.. {
            warm(&self.engine, &format!("{name}-{attempt}")).await;
            self.relay.set(Mood::LosesNextAnswerAndGoes);
            self.refused(name).await;
            if self.state(name).await.is_some() {
                return;
            }
            // The cut hit another answer than the claim's.
            assert!(since.elapsed() < DEADLINE, "the claim is never committed");
            self.relay.set(Mood::Faithful);
        }
    }
}

/// (a) The store is unavailable for longer than the lease.
pub(crate) async fn is_released_when_the_store_is_back<S: Store>(scene: Scene<S>) {
    scene.lose("first").await;
    scene.until("first", Some(StateName::Indeterminate)).await;
    scene.relay.set(Mood::Faithful);
    let guard = scene.answered("first").await;
    assert_eq!(guard.attempt(), 1);
    let settled = guard.start().complete(Outcome::new(201, "ran")).await;
    assert_eq!(settled.unwrap(), refrain::Settled::Applied);
    // The record is released without a retry, too.
    scene.lose("second").await;
    scene.relay.set(Mood::Faithful);
    scene.until("second", None).await;
    assert_eq!(scene.state("first").await, Some(StateName::Completed));
}

/// (b) Many requests are rejected before and while the claim is lost.
pub(crate) async fn is_not_crowded_out_by_refused_requests<S: Store>(scene: Scene<S>) {
    warm(&scene.engine, "before").await;
    scene.relay.set(Mood::Gone);
    // Each open connection still sends one request before it is cut: those requests may have arrived.
    for number in 0..CROWD {
        scene.refused(&format!("crowd-{number}")).await;
    }
    let kept = scene.engine.tally().lost_now();
    assert!(kept < 16, "{kept} claims are kept that were never sent");
    scene.relay.set(Mood::Faithful);
    scene.lose("first").await;
    for number in 0..CROWD {
        scene.refused(&format!("more-{number}")).await;
    }
    scene.until("first", Some(StateName::Indeterminate)).await;
    scene.relay.set(Mood::Faithful);
    drop(scene.answered("first").await);
}

/// Environment variables of the child: address of its store, and guarantee of its claim.
const CHILD_STORE: &str = "REFRAIN_TEST_CHILD_STORE";
const CHILD_GUARANTEE: &str = "REFRAIN_TEST_CHILD_GUARANTEE";
const READY: &str = "child: ready";
const REFUSED: &str = "child: refused";

/// Address of the store, if this process was started as a child.
pub(crate) fn child_store() -> Option<String> {
    env::var(CHILD_STORE).ok()
}

/// Receipts of one record, or of none.
#[derive(Debug, Default)]
struct Shown(Option<RecordId>);

impl Receipts for Shown {
    async fn find(&self, record: RecordId) -> refrain::Result<Option<Receipt>> {
        Ok((self.0 == Some(record)).then(|| Receipt {
            fence: String::new(),
            status: 200,
            content_type: None,
            location: None,
            body: Bytes::new(),
            age: Duration::ZERO,
        }))
    }

    async fn seen(&self, records: &[RecordId]) -> refrain::Result<Vec<bool>> {
        Ok(records.iter().map(|it| self.0 == Some(*it)).collect())
    }
}

fn witness(shown: Option<RecordId>) -> Arc<Witness> {
    let receipts = AnyReceipts::new(Shown(shown));
    Arc::new(Witness::new(&Operation::default(), receipts))
}

/// Probe that reports that the attempt was never sent.
#[derive(Debug)]
struct NeverHappened;

impl Probe for NeverHappened {
    fn probe<'a>(
        &'a self,
        _: &'a Intent,
        _: Doubt,
    ) -> Pin<Box<dyn Future<Output = Finding> + Send + 'a>> {
        Box::pin(async { Finding::NeverHappened })
    }
}

fn guaranteed(name: &str) -> Intent {
    let mut intent = intent("killed");
    (intent.terms.guarantee, intent.terms.settle_after) = match name {
        "at-least-once" => (Guarantee::AtLeastOnce, Duration::from_hours(1)),
        "exactly-once" => (Guarantee::ExactlyOnce, Duration::from_hours(1)),
        _ => (Guarantee::AtMostOnce, Duration::from_secs(2)),
    };
    if intent.terms.guarantee == Guarantee::ExactlyOnce {
        intent.receipts = Some(witness(None));
    }
    intent
}

/// Claims on command and reports that the claim was rejected; then waits to be killed.
pub(crate) async fn be_killed(store: impl Store) {
    let intent = guaranteed(&env::var(CHILD_GUARANTEE).unwrap());
    let engine = Engine::new(store);
    warm(&engine, &format!("child-{}", std::process::id())).await;
    if let Some(witness) = &intent.receipts {
        engine.learn_standing(witness).await.unwrap();
    }
    println!("{READY}");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    engine.claim(&intent).await.unwrap_err();
    println!("{REFUSED}");
    std::future::pending::<()>().await;
}

/// Child process that runs one test of this binary. Killed when dropped.
struct Killed {
    child: Child,
    told: ChildStdin,
    says: BufReader<ChildStdout>,
}

impl Killed {
    fn start(test: &str, store: &str, guarantee: &str) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture"])
            .env(CHILD_STORE, store)
            .env(CHILD_GUARANTEE, guarantee)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let told = child.stdin.take().unwrap();
        let says = BufReader::new(child.stdout.take().unwrap());
        Self { child, told, says }
    }

    fn until_it_says(&mut self, word: &str) {
        let mut said = String::new();
        while !said.trim_end().ends_with(word) {
            said.clear();
            let read = self.says.read_line(&mut said).unwrap();
            assert!(read > 0, "the child ended before it said {word:?}");
        }
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// (c) The process is killed before the store is available again. The record does not show whether the attempt was
/// dispatched, so the guarantee decides what can be proven.
pub(crate) async fn is_judged_by_its_guarantee_after_a_kill<S: Store>(
    test: &str,
    address: &str,
    scene: Scene<S>,
    guarantee: &str,
) {
    let since = tokio::time::Instant::now();
    let (id, node) = (scene.id("killed"), Engine::new(scene.direct));
    // Another process, which has ended, saw a receipt once.
    let seen = witness(Some(id));
    seen.look(id, None).await.unwrap();
    node.learn_standing(&seen).await.unwrap();
    loop {
        let mut child = Killed::start(test, address, guarantee);
        tokio::task::block_in_place(|| child.until_it_says(READY));
        scene.relay.set(Mood::LosesNextAnswerAndGoes);
        child.told.write_all(b"go\n").unwrap();
        tokio::task::block_in_place(|| child.until_it_says(REFUSED));
        drop(child);
        scene.relay.set(Mood::Faithful);
        if node.store().read(id).await.unwrap().is_some() {
            break;
        }
        // The cut hit another answer than the claim's.
        assert!(since.elapsed() < DEADLINE, "the claim is never committed");
    }
    let mut retry = guaranteed(guarantee);
    let mut doubted = false;
    let guard = loop {
        match node.claim(&retry).await.unwrap() {
            Verdict::Granted(guard) => break guard,
            Verdict::InFlight { .. } => {}
            Verdict::Indeterminate(doubt) if guarantee == "at-most-once" => {
                doubted = true;
                // Stays indeterminate until a probe decides, after the old attempt can no longer act.
                if doubt.settle_left.is_zero() {
                    retry.probe = Some(Arc::new(NeverHappened));
                }
            }
            other => panic!("{guarantee}: {other:?}"),
        }
        assert!(since.elapsed() < DEADLINE * 2, "{guarantee}");
        sleep(Duration::from_millis(20)).await;
    };
    let expected = match guarantee {
        "at-most-once" => (true, 1),
        _ => (false, 2),
    };
    assert_eq!((doubted, guard.attempt()), expected, "{guarantee}");
}
