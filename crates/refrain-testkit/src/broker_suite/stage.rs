//! Test stage of a case: a new queue, connections to it, and consumers that record effects.

use std::{
    any::Any,
    fmt::Debug,
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Poll,
    time::Duration,
};

use refrain::{
    Engine, Outcome, Terms,
    consume::{Backoff, Broker, Consumer, Delivery, Failure, Guarantees, Job, Message},
    store::Memory,
};
use tokio::time::{Instant, sleep, timeout};

use super::Fixture;

/// The consumer's name where a case has only one.
pub(super) const WORKER: &str = "worker";
/// Maximum attempts of a failed message.
pub(super) const ATTEMPTS: u16 = 3;
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Why a case failed.
#[derive(Debug)]
pub(crate) struct Broken(pub(super) String);

pub(crate) type Checked<T = ()> = Result<T, Broken>;

impl From<refrain::Error> for Broken {
    fn from(error: refrain::Error) -> Self {
        Self(format!("the broker failed: {error}"))
    }
}

pub(super) fn broken<T>(message: impl Into<String>) -> Checked<T> {
    Err(Broken(message.into()))
}

/// Turns a panic of the broker into a failure of the case, so that the suite continues.
pub(super) async fn caught<T>(case: impl Future<Output = Checked<T>>) -> Checked<T> {
    let mut case = pin!(case);
    poll_fn(|context| {
        let polled = catch_unwind(AssertUnwindSafe(|| case.as_mut().poll(context)));
        polled.unwrap_or_else(|panic| Poll::Ready(broken(panicked(&*panic))))
    })
    .await
}

fn panicked(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(|text| &**text));
    format!(
        "the broker panicked: {}",
        text.unwrap_or("without a message")
    )
}

/// Fails unless `got` equals `want`.
pub(super) fn expect<T: Debug + PartialEq>(what: &str, got: T, want: T) -> Checked {
    match got == want {
        true => Ok(()),
        false => broken(format!("{what}: expected {want:?}, got {got:?}")),
    }
}

/// A new queue with its dead-letter queue and an engine.
pub(super) struct Stage<'a, F> {
    pub(super) fixture: &'a F,
    /// Unused queue name.
    pub(super) queue: String,
    /// Dead-letter queue.
    pub(super) dead: String,
    pub(super) engine: Engine,
}

impl<'a, F: Fixture> Stage<'a, F> {
    pub(super) fn new(fixture: &'a F, case: &str) -> Self {
        // Short, because some transports limit the length; random, because the server may hold queues of earlier runs.
        let case: String = case.chars().take(24).collect();
        let queue = format!("refrain_{case}_{:016x}", rand::random::<u64>());
        Self {
            fixture,
            dead: format!("{queue}_dead"),
            queue,
            engine: Engine::new(Memory::new()),
        }
    }

    /// Opens a new connection for the consumer of this name.
    pub(super) async fn connect(&self, consumer: &str) -> Checked<Arc<dyn Broker>> {
        self.connect_to(&self.queue, consumer).await
    }

    /// Connects with an `ack_wait` of at least this.
    pub(super) async fn connect_holding(
        &self,
        consumer: &str,
        at_least: Duration,
    ) -> Checked<Arc<dyn Broker>> {
        let ack_wait = self.fixture.ack_wait().max(at_least);
        Ok(self
            .fixture
            .connect(&self.queue, consumer, ack_wait)
            .await?)
    }

    pub(super) async fn connect_to(&self, queue: &str, consumer: &str) -> Checked<Arc<dyn Broker>> {
        let ack_wait = self.fixture.ack_wait();
        Ok(self.fixture.connect(queue, consumer, ack_wait).await?)
    }

    /// Deadline for an event that takes `time`.
    pub(super) fn deadline(&self, time: Duration) -> Instant {
        Instant::now() + time + self.fixture.patience()
    }

    /// Time after which an abandoned delivery is redelivered.
    pub(super) fn redelivery_time(&self, guarantees: Guarantees) -> Duration {
        guarantees.ack_wait.unwrap_or(self.fixture.ack_wait())
    }

    pub(super) async fn publish(&self, broker: &dyn Broker, message: &Message) -> Checked {
        Ok(broker.publish(&self.queue, message).await?)
    }

    /// Returns the next delivery; fails if none arrives in time.
    pub(super) async fn next(&self, broker: &dyn Broker, takes: Duration) -> Checked<Delivery> {
        let deadline = self.deadline(takes);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return broken("no message was delivered, expected one");
            }
            let mut pulled = broker.pull(1, left.min(Duration::from_secs(1))).await?;
            match (pulled.pop(), pulled.is_empty()) {
                (Some(delivery), true) => return Ok(delivery),
                (Some(_), false) => {
                    return broken("the broker delivered more messages than were pulled");
                }
                (None, _) => {}
            }
        }
    }

    /// Fails if a delivery arrives within this time.
    pub(super) async fn expect_no_delivery(
        &self,
        broker: &dyn Broker,
        within: Duration,
    ) -> Checked {
        let until = Instant::now() + within;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            if let Some(delivery) = broker.pull(1, left).await?.pop() {
                return broken(format!("{delivery:?} was delivered, expected no message"));
            }
        }
    }

    /// A consumer with a short lease and short backoff.
    pub(super) fn consumer(&self, broker: &Arc<dyn Broker>, name: &str) -> Consumer {
        let terms = Terms {
            guarantee: refrain::Guarantee::AtLeastOnce,
            lease: Duration::from_secs(10),
            wait: Duration::from_millis(200),
            attempts_max: ATTEMPTS,
            ..Terms::default()
        };
        let backoff = Backoff::new(Duration::from_millis(50), Duration::from_millis(500));
        Consumer::new(broker.clone(), self.engine.clone(), name)
            .with_terms(terms)
            .with_backoff(backoff)
            .with_in_flight_max(16)
            .with_drain(self.fixture.patience())
    }

    /// Runs consumers until `is_done`, then shuts them down.
    pub(super) async fn run<H, W>(
        &self,
        consumers: Vec<Consumer>,
        handler: H,
        time: Duration,
        is_done: impl Fn() -> bool,
    ) -> Checked
    where
        H: Fn(Job) -> W + Clone + Send + Sync + 'static,
        W: Future<Output = Result<Outcome, Failure>> + Send + 'static,
    {
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let mut running = tokio::task::JoinSet::new();
        for consumer in consumers {
            let (handler, mut stopped) = (handler.clone(), stopped.clone());
            running.spawn(async move {
                let shutdown = async move {
                    let _ = stopped.wait_for(|stopped| *stopped).await;
                };
                consumer.run(handler, shutdown).await
            });
        }
        let done = self.wait(time, is_done).await;
        let _ = stop.send(true);
        while let Some(ended) = running.join_next().await {
            ended.map_err(|error| Broken(format!("a consumer panicked: {error}")))??;
        }
        done
    }

    /// Waits until `is_done`.
    pub(super) async fn wait(&self, time: Duration, is_done: impl Fn() -> bool) -> Checked {
        let waiting = async {
            while !is_done() {
                sleep(LOOK_EVERY).await;
            }
        };
        match timeout(time + self.fixture.patience(), waiting).await {
            Ok(()) => Ok(()),
            Err(_) => broken("the expected state was not reached in time"),
        }
    }
}

/// Effects of handlers, in order. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Effects(Arc<Mutex<Vec<String>>>);

impl Effects {
    /// Records the message's payload as an effect.
    pub(super) fn add(&self, job: &Job) {
        self.note(text(&job.message));
    }

    pub(super) fn note(&self, text: String) {
        self.lock().push(text);
    }

    pub(super) fn all(&self) -> Vec<String> {
        self.lock().clone()
    }

    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    pub(super) fn count(&self, text: &str) -> usize {
        self.lock().iter().filter(|it| *it == text).count()
    }

    /// Expects each of these exactly once, and nothing else.
    pub(super) fn expect_each_once(&self, wanted: &[String]) -> Checked {
        let mut all = self.all();
        all.sort_unstable();
        let mut wanted = wanted.to_vec();
        wanted.sort_unstable();
        let lost: Vec<_> = wanted.iter().filter(|it| !all.contains(it)).collect();
        if !lost.is_empty() {
            return broken(format!("lost: {lost:?}"));
        }
        let twice: Vec<_> = all.iter().filter(|it| self.count(it) > 1).collect();
        match twice.is_empty() {
            true => expect("effects", all.len(), wanted.len()),
            false => broken(format!("took effect more than once: {twice:?}")),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The message's payload as text.
pub(super) fn text(message: &Message) -> String {
    String::from_utf8_lossy(&message.payload).into_owned()
}

/// Returns numbered messages and their payloads.
pub(super) fn numbered(count: usize) -> (Vec<Message>, Vec<String>) {
    let texts: Vec<String> = (0..count).map(|number| format!("m{number}")).collect();
    let message = |text: &String| Message::new(text.clone()).with_id(format!("id-{text}"));
    (texts.iter().map(message).collect(), texts)
}

/// Handler result of a message that was processed.
pub(super) fn done() -> Result<Outcome, Failure> {
    Ok(Outcome::new(0, "done"))
}
