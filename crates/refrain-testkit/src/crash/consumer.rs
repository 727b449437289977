//! Duplicate deliveries and crashes of consumers, on an in-memory broker.

use std::{sync::Arc, time::Duration};

use refrain::{
    Guarantee,
    consume::{Broker, Memory, Message, Publisher as _, caught},
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use super::{
    CRASHES_MAX, add, at_points, describe_crash,
    life::{Death, live},
};
use crate::{
    Ledger,
    door::{Going, fresh_key},
    holes::{Case, Report, Seen},
    ledger::Fall,
};

/// Dead-letter destination that a consumer under test must use; the harness reads it.
pub const DEAD_LETTERS: &str = "dead-letters";

const QUEUE: &str = "messages";
const NAME: &str = "under-test";
const OTHER: &str = "another-under-test";
/// Consumer name under which the harness reads dead letters.
const LOOKING: &str = "harness";
const ACK_WAIT: Duration = Duration::from_millis(200);
/// Timeout for a message to be acknowledged.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long the harness waits for late effects after the last acknowledgement.
const QUIET: Duration = Duration::from_millis(150);
const LOOK_EVERY: Duration = Duration::from_millis(5);

const PLAIN: Case = Case {
    id: "every-message",
    hole: "A message that is delivered once does not take effect once, so duplicates cannot be tested.",
    fix: "Consume from the stand's broker under the stand's name, and call Ledger::take_effect once where the effect of a message happens.",
};
const DUPLICATE: Case = Case {
    id: "duplicate-message",
    hole: "The consumer does not identify messages by id, or forgets handled ids: every redelivery takes effect again.",
    fix: "Claim the message id before handling, record completion, and skip completed messages.",
};
const AT_ONCE: Case = Case {
    id: "duplicates-at-once",
    hole: "No claim, or check-then-act: copies that are handled concurrently all take effect.",
    fix: "Claim the message id in one atomic step before handling.",
};
const OUT_OF_ORDER: Case = Case {
    id: "out-of-order",
    hole: "Only the last message is remembered: a duplicate after another message takes effect again, or a late message is lost.",
    fix: "Remember every message by its id, not only the highest or the last id.",
};
const TWO: Case = Case {
    id: "two-consumers",
    hole: "The key does not contain the consumer's name: the second subscriber loses the message.",
    fix: "Put the consumer's name into the scope of the key.",
};
const DIES: Case = Case {
    id: "process-dies",
    hole: "A message is marked or acknowledged before it is handled, and is lost with the process; or it is handled again although the guarantee forbids it.",
    fix: "Claim, handle, store the outcome, and acknowledge last; for exactly one effect, commit effect and mark in one transaction.",
};
const PANICS: Case = Case {
    id: "handler-panics",
    hole: "A failed message is marked as done, or was acknowledged before handling: it is lost.",
    fix: "Mark and acknowledge only after successful handling; return a failed message to the broker.",
};

/// What the harness passes to a consumer under test.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Stand {
    /// Source of the messages; also takes the dead letters, published to [`DEAD_LETTERS`].
    pub broker: Arc<dyn Broker>,
    /// Name that the consumer must use.
    pub name: String,
    /// Ledger to which the handler records its effects.
    pub ledger: Ledger,
}

/// Asserts that the consumer handles each message once, and keeps its guarantee after every injected crash.
///
/// `consume` is called once for each life of the process, and runs until it is dropped.
/// Call it within a tokio runtime.
///
/// ```no_run
/// # use refrain::{Engine, Guarantee, Outcome, consume::Consumer, store::Memory};
/// # async fn example() {
/// let store = Memory::new();
/// refrain_testkit::assert_consumer(Guarantee::AtLeastOnce, move |stand| {
///     let consumer = Consumer::new(stand.broker, Engine::new(store.clone()), stand.name);
///     let ledger = stand.ledger;
///     let handle = move |job: refrain::consume::Job| {
///         let ledger = ledger.clone();
///         async move {
///             ledger.take_effect(job.key.as_str(), job.fence).await?;
///             Ok(Outcome::new(0, "done"))
///         }
///     };
///     async { drop(consumer.run(handle, std::future::pending()).await) }
/// }).await;
/// # }
/// ```
///
/// # Panics
/// When a case fails; the message names each bug, what was observed, and the fix.
pub async fn assert_consumer<F>(
    guarantee: Guarantee,
    consume: impl Fn(Stand) -> F + Send + Sync + 'static,
) where
    F: Future<Output = ()> + Send + 'static,
{
    check_consumer(guarantee, consume).await.must_hold();
}

/// Like [`assert_consumer`], but returns a report instead of panicking.
pub async fn check_consumer<F>(
    guarantee: Guarantee,
    consume: impl Fn(Stand) -> F + Send + Sync + 'static,
) -> Report
where
    F: Future<Output = ()> + Send + 'static,
{
    let consume: Arc<Consume> = Arc::new(move |stand| Box::pin(consume(stand)));
    let mut report = Report::default();
    report.add(&PLAIN, plain(&consume).await);
    if !report.holes.is_empty() {
        return report;
    }
    report.add(&DUPLICATE, duplicate(&consume).await);
    report.add(&AT_ONCE, delivered(&consume, &[0, 0, 0, 0, 0], 1).await);
    report.add(&OUT_OF_ORDER, delivered(&consume, &[1, 0, 1, 0], 2).await);
    report.add(&TWO, two(&consume).await);
    let died = dies(guarantee, &consume).await;
    let at_points = at_points(async |at, fall| at_point(guarantee, &consume, at, fall).await).await;
    add(&mut report, [&DIES, &PANICS], died, at_points);
    report
}

type Consume = dyn Fn(Stand) -> Going<()> + Send + Sync;

/// A broker and a ledger of its own, and consumers that are restarted when they end.
struct Trial {
    consume: Arc<Consume>,
    memory: Memory,
    ledger: Ledger,
    ids: Vec<String>,
    running: JoinSet<()>,
    /// Consumers started so far.
    names: Vec<&'static str>,
}

impl Trial {
    fn new(consume: &Arc<Consume>) -> Self {
        let memory = Memory::new().with_ack_wait(ACK_WAIT);
        drop(memory.subscribe(DEAD_LETTERS, LOOKING));
        Self {
            consume: consume.clone(),
            memory,
            ledger: Ledger::in_memory(),
            ids: (0..2).map(|_| fresh_key()).collect(),
            running: JoinSet::new(),
            names: Vec::new(),
        }
    }

    fn stand(&self, name: &str) -> Stand {
        Stand {
            broker: Arc::new(self.memory.subscribe(QUEUE, name)),
            name: name.to_owned(),
            ledger: self.ledger.clone(),
        }
    }

    fn start(&mut self, name: &'static str) {
        let (consume, stand) = (self.consume.clone(), self.stand(name));
        self.names.push(name);
        self.running.spawn(async move {
            loop {
                // As a supervisor does: restart the consumer when it ends or panics.
                drop(caught(async { consume(stand.clone()).await }).await);
                sleep(LOOK_EVERY).await;
            }
        });
    }

    async fn publish(&self, which: usize) {
        let id = &self.ids[which];
        let message = Message::new(format!("{{\"id\":\"{id}\"}}"))
            .with_id(id)
            .with_content_type("application/json");
        let published = self.memory.publish(QUEUE, &message).await;
        published.unwrap_or_else(|error| panic!("the in-memory broker rejects a message: {error}"));
    }

    fn backlog(&self) -> usize {
        let of = |name: &&str| self.memory.backlog(QUEUE, name);
        self.names.iter().map(of).sum()
    }

    fn effects(&self) -> usize {
        self.ledger.count().unwrap_or_default()
    }

    /// Waits until all messages are acknowledged and no more effects occur.
    /// Returns the number of effects, and whether all messages were acknowledged in time.
    async fn settled(&self, want: usize) -> (usize, bool) {
        let since = Instant::now();
        while self.backlog() > 0 && since.elapsed() < PATIENCE {
            sleep(LOOK_EVERY).await;
        }
        let is_done = self.backlog() == 0;
        let mut since = Instant::now();
        let mut effects = self.effects();
        while since.elapsed() < QUIET || (effects < want && since.elapsed() < 4 * QUIET) {
            sleep(LOOK_EVERY).await;
            if self.effects() != effects {
                (effects, since) = (self.effects(), Instant::now());
            }
        }
        (effects, is_done)
    }

    async fn exactly(&self, want: usize, after: &str) -> Seen {
        let (effects, is_done) = self.settled(want).await;
        match (effects == want, is_done) {
            (true, true) => Ok(()),
            (true, false) => Err(format!(
                "{after} a message was not acknowledged within {PATIENCE:?}"
            )),
            (false, _) => Err(format!("{after} there were {effects} effects, not {want}")),
        }
    }

    /// Checks what the guarantee promises for one message that met a crash.
    fn promised(
        &self,
        guarantee: Guarantee,
        (effects, is_done): (usize, bool),
        after: &str,
    ) -> Seen {
        let letters = self.memory.backlog(DEAD_LETTERS, LOOKING);
        let seen = |why: &str| {
            Err(format!(
                "{after}; after the redelivery there were {effects} effects and {letters} dead letters: {why}"
            ))
        };
        if !is_done {
            return seen("the message was not settled in time");
        }
        match (guarantee, effects) {
            (_, 0) if guarantee == Guarantee::AtMostOnce && letters > 0 => Ok(()),
            (_, 0) => seen("the message is lost"),
            (Guarantee::AtLeastOnce, _) | (_, 1) => Ok(()),
            (Guarantee::AtMostOnce, _) => seen("it must take effect at most once"),
            (Guarantee::ExactlyOnce, _) => seen("it must take effect exactly once"),
        }
    }
}

async fn plain(consume: &Arc<Consume>) -> Seen {
    delivered(consume, &[0, 1], 2).await
}

/// Publishes these messages, given by index, and expects `want` effects.
async fn delivered(consume: &Arc<Consume>, which: &[usize], want: usize) -> Seen {
    let mut trial = Trial::new(consume);
    trial.start(NAME);
    for which in which {
        trial.publish(*which).await;
    }
    let after = format!("after {} deliveries of {want} messages", which.len());
    trial.exactly(want, &after).await
}

/// Publishes the duplicate after the first message is acknowledged.
async fn duplicate(consume: &Arc<Consume>) -> Seen {
    let mut trial = Trial::new(consume);
    trial.start(NAME);
    trial.publish(0).await;
    trial.exactly(1, "after one message").await?;
    trial.publish(0).await;
    trial.exactly(1, "after the same message again").await
}

/// Two consumers of one message both handle it, the second after the first has acknowledged it.
async fn two(consume: &Arc<Consume>) -> Seen {
    let mut trial = Trial::new(consume);
    drop(trial.memory.subscribe(QUEUE, OTHER));
    trial.start(NAME);
    trial.publish(0).await;
    trial.exactly(1, "after one message").await?;
    trial.start(OTHER);
    let after = "after a second consumer has read the same message";
    trial.exactly(2, after).await
}

/// Kills the process at each await of the consumer in turn.
async fn dies(guarantee: Guarantee, consume: &Arc<Consume>) -> Seen {
    for awaits in 1..=CRASHES_MAX {
        let mut trial = Trial::new(consume);
        let work = one_life(&trial);
        trial.publish(0).await;
        let is_over = live(work, Death::AtAwait(awaits)).await.is_some();
        trial.start(NAME);
        let after = format!("the process died at await {awaits}");
        let settled = trial.settled(1).await;
        trial.promised(guarantee, settled, &after)?;
        if is_over {
            return Ok(());
        }
    }
    Ok(())
}

async fn at_point(
    guarantee: Guarantee,
    consume: &Arc<Consume>,
    at: usize,
    fall: Fall,
) -> Option<Seen> {
    let mut trial = Trial::new(consume);
    trial.ledger.arm(at, fall);
    let work = one_life(&trial);
    trial.publish(0).await;
    if fall == Fall::Stop {
        live(work, Death::AtPoint(trial.ledger.clone())).await;
    }
    trial.start(NAME);
    let settled = trial.settled(1).await;
    let place = trial.ledger.fallen()?;
    Some(trial.promised(guarantee, settled, &describe_crash(fall, at, &place)))
}

/// Waits until the message is acknowledged, then for late effects.
async fn until_done(memory: Memory) {
    while memory.backlog(QUEUE, NAME) > 0 {
        sleep(LOOK_EVERY).await;
    }
    sleep(QUIET).await;
}

/// Returns a consumer that runs until there is no more work.
fn one_life(trial: &Trial) -> impl FnOnce() -> Going<()> + Send + 'static {
    let (consume, stand) = (trial.consume.clone(), trial.stand(NAME));
    let idle = until_done(trial.memory.clone());
    move || {
        Box::pin(async move {
            tokio::select! {
                () = consume(stand) => {}
                () = idle => {}
            }
        })
    }
}
