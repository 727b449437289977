//! The consumer: pulls, hands over, and stops in good order.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{Semaphore, watch},
    task::JoinSet,
    time::{sleep, sleep_until, timeout},
};

use super::{
    Backoff, Broker, Count, Delivery, Failure, Guarantees, Job, KeySource, Publisher, Sequence,
    Tally, Worker,
    attempts::Attempts,
    attend::Attended,
    key::invalid,
    lanes::Lanes,
    shared::{Pause, Settings, Shared},
    work::Handled,
};
use crate::{
    Engine, Error, Guarantee, Outcome, Result, Scope, Terms, engine::Probe, fingerprint::Part,
    policy::units::Span, receipts::Witness,
};

/// The most messages that one consumer handles at once.
pub const IN_FLIGHT_MAX: usize = 10_000;
/// How long a pull waits for the first message, and so how long a stop may take to be noticed.
const PULL_WAIT: Duration = Duration::from_secs(1);
/// How much longer a pull is given that does not keep to its time when the consumer stops.
const PULL_GRACE: Duration = Duration::from_secs(1);
/// Where the broker orders, that many times as many may wait for their turn as may be handled at once,
/// so that a group that stands still leaves room for others.
const WAITING_PER_RUNNING: usize = 8;
const NAME_BYTES_MAX: usize = 255;

/// Handles the messages of a queue, each once.
///
/// Each delivery is claimed under the consumer's name and the message's key, handled, settled, and only then acknowledged.
/// Consumers are at-least-once unless [`with_terms`](Self::with_terms) says otherwise.
///
/// ```
/// use std::sync::Arc;
/// use refrain::{Engine, Outcome, consume::{Consumer, Count, Failure, Memory, Message, Publisher}, store};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let broker = Memory::new();
/// let queue = Arc::new(broker.subscribe("orders", "billing"));
/// for _ in 0..2 {
///     broker.publish("orders", &Message::new("7").with_id("order-7")).await?;
/// }
///
/// let consumer = Consumer::new(queue, Engine::new(store::Memory::new()), "billing");
/// let tally = consumer.tally();
/// let stop = async { while tally.get(Count::Duplicate) == 0 { tokio::task::yield_now().await } };
/// consumer.run(|job| async move {
///     let order = std::str::from_utf8(&job.message.payload)?.to_owned();
///     Ok(Outcome::new(0, order))
/// }, stop).await?;
/// assert_eq!(tally.get(Count::Completed), 1);
/// # Ok::<(), refrain::Error>(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct Consumer {
    broker: Arc<dyn Broker>,
    engine: Engine,
    settings: Settings,
    tally: Arc<Tally>,
}

impl Consumer {
    /// A consumer of this name. The name is part of every key's scope: two consumers of one message never shadow each other.
    pub fn new(broker: Arc<dyn Broker>, engine: Engine, name: impl Into<Arc<str>>) -> Self {
        let settings = Settings {
            name: name.into(),
            keys: KeySource::DEFAULT.into(),
            fingerprint: vec![Part::Body],
            terms: Terms {
                guarantee: Guarantee::AtLeastOnce,
                wait: Duration::from_secs(1),
                ..Terms::default()
            },
            backoff: Backoff::default(),
            sequence: None,
            probe: None,
            receipts: None,
            dead_letter: None,
            in_flight_max: 64,
            drain: Duration::from_secs(30),
        };
        Self {
            broker,
            engine,
            settings,
            tally: Arc::default(),
        }
    }

    /// How many messages are handled at once; 64 if nothing is said.
    #[must_use]
    pub fn with_in_flight_max(mut self, in_flight_max: usize) -> Self {
        self.settings.in_flight_max = in_flight_max.clamp(1, IN_FLIGHT_MAX);
        self
    }

    /// Where keys come from: the first source that is present decides. [`KeySource::DEFAULT`] if nothing is said.
    #[must_use]
    pub fn with_key(mut self, sources: impl IntoIterator<Item = KeySource>) -> Self {
        self.settings.keys = sources.into_iter().collect();
        self
    }

    /// The terms on which messages are claimed. The default ones for at-least-once, with a second to wait, if nothing is said.
    ///
    /// [`Terms::timeout`] does not end a handler: it knows best how to end itself.
    #[must_use]
    pub fn with_terms(mut self, terms: Terms) -> Self {
        self.settings.terms = terms;
        self
    }

    /// How often a message is tried before it is a dead letter: the terms' `attempts_max`.
    #[must_use]
    pub fn with_attempts(mut self, attempts: u16) -> Self {
        self.settings.terms.attempts_max = attempts.max(1);
        self
    }

    /// How long a failed message waits before it is tried again.
    #[must_use]
    pub fn with_backoff(mut self, backoff: Backoff) -> Self {
        self.settings.backoff = backoff;
        self
    }

    /// Where dead letters go, at the same broker.
    ///
    /// Without one, what can never be handled is given back with the longest back-off, again and again: nothing is dropped.
    #[must_use]
    pub fn with_dead_letter(self, destination: impl Into<String>) -> Self {
        let publisher: Arc<dyn Publisher> = self.broker.clone();
        self.with_dead_letter_at(publisher, destination)
    }

    /// Where dead letters go, at another broker.
    #[must_use]
    pub fn with_dead_letter_at(
        mut self,
        publisher: Arc<dyn Publisher>,
        destination: impl Into<String>,
    ) -> Self {
        self.settings.dead_letter = Some((publisher, destination.into()));
        self
    }

    /// What tells a redelivery from another message under the same key; the payload if nothing is said.
    ///
    /// For messages `path` is the subject, and `method` and `query` say nothing.
    #[must_use]
    pub fn with_fingerprint(mut self, parts: impl IntoIterator<Item = Part>) -> Self {
        self.settings.fingerprint = parts.into_iter().collect();
        self
    }

    /// Accepts events once and in order.
    #[must_use]
    pub fn with_sequence(mut self, sequence: Sequence) -> Self {
        self.settings.sequence = Some(sequence);
        self
    }

    /// Who learns what became of an indeterminate one.
    #[must_use]
    pub fn with_probe(mut self, probe: Arc<dyn Probe>) -> Self {
        self.settings.probe = Some(probe);
        self
    }

    /// Who knows what was committed, under exactly-once.
    #[must_use]
    pub fn with_receipts(mut self, receipts: Arc<Witness>) -> Self {
        self.settings.receipts = Some(receipts);
        self
    }

    /// How long running handlers are waited for when the consumer stops; 30 seconds if nothing is said.
    #[must_use]
    pub fn with_drain(mut self, drain: Duration) -> Self {
        self.settings.drain = drain;
        self
    }

    /// What becomes of the messages, in numbers.
    #[must_use]
    pub fn tally(&self) -> Arc<Tally> {
        self.tally.clone()
    }

    /// The consumer's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.settings.name
    }

    /// The namespace of the keys of a consumer of this name.
    #[must_use]
    pub fn scope(name: &str) -> Scope {
        Scope::none().with("consumer", name)
    }

    /// Handles messages until `shutdown` is over.
    ///
    /// Then nothing more is pulled, what has not started is given back, and what runs is waited for up to the time to drain.
    /// What still runs then is left: not acknowledged, and in doubt or up for takeover.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) before anything is pulled where the settings do not fit together.
    /// Later only for an error of the broker that waiting does not mend.
    ///
    /// # Cancellation
    /// Dropped, what runs is left as after a drain that takes too long.
    pub async fn run<H, F>(
        self,
        handler: H,
        shutdown: impl Future<Output = ()>,
    ) -> Result<Arc<Tally>>
    where
        H: Fn(Job) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Outcome, Failure>> + Send + 'static,
    {
        let engine = self.engine.clone();
        self.run_with(Handled { engine, handler }, shutdown).await
    }

    /// As [`run`](Self::run), with somebody else to claim, handle and settle.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    ///
    /// # Cancellation
    /// As for [`run`](Self::run).
    pub async fn run_with(
        self,
        worker: impl Worker,
        shutdown: impl Future<Output = ()>,
    ) -> Result<Arc<Tally>> {
        let guarantees = self.broker.guarantees();
        self.check(&guarantees)?;
        let (stop, is_stopping) = watch::channel(false);
        let in_flight_max = self.settings.in_flight_max;
        let shared = Arc::new(Shared {
            scope: Self::scope(&self.settings.name),
            settings: self.settings,
            broker: self.broker,
            guarantees,
            engine: self.engine,
            worker: Box::new(worker),
            tally: self.tally,
            attempts: Attempts::default(),
            pause: Pause::default(),
            running: Semaphore::new(in_flight_max),
            is_stopping,
        });
        let mut running = Consuming {
            held_max: held_max(&shared),
            shared,
            lanes: Lanes::default(),
            tasks: JoinSet::new(),
        };
        let pulled = running.pull_until(shutdown, &stop).await;
        running.drain().await;
        pulled.map(|()| running.shared.tally.clone())
    }

    /// Whether the settings fit together, and fit the broker.
    fn check(&self, guarantees: &Guarantees) -> Result<()> {
        let settings = &self.settings;
        let name = &settings.name;
        let is_plain = !name.chars().any(char::is_control);
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !is_plain {
            return Err(invalid(format!(
                "a consumer's name has 1 to {NAME_BYTES_MAX} bytes and no control characters; rename {name:?}"
            )));
        }
        if settings.keys.is_empty() && settings.sequence.is_none() {
            return Err(invalid(format!(
                "consumer {name}: there is no source of keys; name one, such as `id`"
            )));
        }
        let known = settings
            .terms
            .retention
            .saturating_add(settings.terms.remember);
        match guarantees.age_max {
            Some(age_max) if age_max > known => Err(invalid(format!(
                "consumer {name}: the broker may deliver a message again after {}, but its key is known for {} only (retention and remember together); keep it longer",
                Span(age_max),
                Span(known),
            ))),
            Some(_) => Ok(()),
            None => {
                tracing::info!(consumer = &**name, known = %Span(known), "the broker does not tell how late it may deliver again: what comes later than its key is known runs again");
                Ok(())
            }
        }
    }
}

fn held_max(shared: &Shared) -> usize {
    match shared.guarantees.is_ordered {
        true => shared.settings.in_flight_max * WAITING_PER_RUNNING,
        false => shared.settings.in_flight_max,
    }
}

/// A consumer that runs.
struct Consuming {
    shared: Arc<Shared>,
    /// How many deliveries are held at once.
    held_max: usize,
    lanes: Lanes,
    /// One task for each delivery that is held.
    tasks: JoinSet<()>,
}

impl Consuming {
    /// Pulls until it is to stop, and says so to everybody.
    async fn pull_until(
        &mut self,
        shutdown: impl Future<Output = ()>,
        stop: &watch::Sender<bool>,
    ) -> Result<()> {
        let stopping = async {
            shutdown.await;
            stop.send_replace(true);
            // Who pulls sees it.
            std::future::pending::<()>().await;
        };
        let pulled = tokio::select! {
            pulled = self.pull() => pulled,
            () = stopping => Ok(()),
        };
        stop.send_replace(true);
        pulled
    }

    async fn pull(&mut self) -> Result<()> {
        let mut failures = 0;
        while !self.shared.is_stopping() {
            self.make_room().await;
            let Some(pulled) = self.pull_once().await else {
                return Ok(());
            };
            match pulled {
                Ok(deliveries) => {
                    failures = 0;
                    deliveries.into_iter().for_each(|it| self.take(it));
                }
                Err(error) if error.is_retryable() => {
                    failures += 1;
                    self.wait_for_broker(&error, failures).await;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits until there is room for one more, and until the store is worth asking again.
    async fn make_room(&mut self) {
        while self.tasks.try_join_next().is_some() {}
        let stopping = self.shared.clone();
        if let Some(until) = self.shared.pause.until() {
            tokio::select! {
                () = stopping.stopping() => return,
                () = sleep_until(until) => {}
            }
        }
        while self.tasks.len() >= self.held_max {
            tokio::select! {
                () = stopping.stopping() => return,
                _ = self.tasks.join_next() => {}
            }
        }
    }

    /// One pull; `None` where the consumer stops. A pull that is under way then is waited for,
    /// since what it has fetched would come again only when the broker's patience ends.
    async fn pull_once(&self) -> Option<Result<Vec<Delivery>>> {
        if self.shared.is_stopping() {
            return None;
        }
        let room = match self.shared.pause.is_on() {
            // One is enough to find out whether the store is back.
            true => 1,
            false => self.held_max - self.tasks.len(),
        };
        let mut pulling = self.shared.broker.pull(room, PULL_WAIT);
        tokio::select! {
            pulled = &mut pulling => Some(pulled),
            () = self.shared.stopping() => timeout(PULL_WAIT + PULL_GRACE, pulling).await.ok(),
        }
    }

    async fn wait_for_broker(&self, error: &Error, failures: u32) {
        let shared = &self.shared;
        tracing::warn!(consumer = &*shared.settings.name, %error, "nothing can be pulled");
        tokio::select! {
            () = shared.stopping() => {}
            () = sleep(shared.settings.backoff.pause(failures)) => {}
        }
    }

    /// Hands a delivery to a task of its own. Its place in its group is taken here, in the order of delivery.
    fn take(&mut self, delivery: Delivery) {
        let group = delivery.message.group.as_deref();
        let group = group.filter(|_| self.shared.guarantees.is_ordered);
        let turn = group.map(|group| self.lanes.enter(group));
        let attended = Attended::new(self.shared.clone(), delivery);
        self.tasks.spawn(attended.attend(turn));
    }

    /// Waits for what runs, as long as there is time; then leaves it.
    async fn drain(&mut self) {
        let draining = async { while self.tasks.join_next().await.is_some() {} };
        if timeout(self.shared.settings.drain, draining).await.is_ok() {
            return;
        }
        let left = self.tasks.len();
        let shared = &self.shared;
        tracing::warn!(
            consumer = &*shared.settings.name,
            left,
            "messages are still being handled when the time to drain is over: they are left"
        );
        shared.tally.add(Count::Left, left as u64);
        self.tasks.shutdown().await;
    }
}
