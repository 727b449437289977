//! The consumer: pulls messages, handles them, and drains at shutdown.

use std::{sync::Arc, time::Duration};

use tokio::sync::{Semaphore, watch};

use super::{
    Backoff, Broker, Failure, Guarantees, Job, KeySource, Publisher, Sequence, Tally, Worker,
    key::invalid,
    pull::Consuming,
    shared::{Attempts, ConsumerSettings, ConsumerState, StorePause},
    work::Handled,
};
use crate::{
    Engine, Error, ErrorKind, Guarantee, Outcome, Result, Scope, Terms, engine::Probe,
    fingerprint::Part, policy::units::Span, receipts::Witness, store::Store,
};

/// Maximum number of messages that one consumer handles at a time.
pub const IN_FLIGHT_MAX: usize = 10_000;
const NAME_BYTES_MAX: usize = 255;

/// Handles the messages of a queue and deduplicates redeliveries.
///
/// Each delivery is claimed under the consumer's name and the message's key, handled, settled, and only then
/// acknowledged. Consumers are at-least-once by default; change it with [`with_terms`](Self::with_terms).
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
    settings: ConsumerSettings,
    tally: Arc<Tally>,
}

impl Consumer {
    /// Creates a consumer. Its name is part of every key's scope, so consumers of one message do not affect each other.
    pub fn new(broker: Arc<dyn Broker>, engine: Engine, name: impl Into<Arc<str>>) -> Self {
        let settings = ConsumerSettings {
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
            accepts_lossy_claims: false,
            is_audited: false,
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

    /// Sets the maximum number of messages handled at a time. Default: 64.
    #[must_use]
    pub fn with_in_flight_max(mut self, in_flight_max: usize) -> Self {
        self.settings.in_flight_max = in_flight_max.clamp(1, IN_FLIGHT_MAX);
        self
    }

    /// Writes every attempt to the engine's [audit log](Engine::with_audit), under the consumer's name.
    #[must_use]
    pub fn with_audit(mut self) -> Self {
        self.settings.is_audited = true;
        self
    }

    /// Sets the key sources, tried in order; the first one present is used. Default: [`KeySource::DEFAULT`].
    #[must_use]
    pub fn with_key(mut self, sources: impl IntoIterator<Item = KeySource>) -> Self {
        self.settings.keys = sources.into_iter().collect();
        self
    }

    /// Sets the terms of claims. Default: the default terms with at-least-once and a `wait` of 1 s.
    ///
    /// [`Terms::timeout`] does not cancel a handler; the handler limits its own time.
    #[must_use]
    pub fn with_terms(mut self, terms: Terms) -> Self {
        self.settings.terms = terms;
        self
    }

    /// Sets the maximum number of attempts before a message becomes a dead letter: `attempts_max` of the terms.
    #[must_use]
    pub fn with_attempts(mut self, attempts: u16) -> Self {
        self.settings.terms.attempts_max = attempts.max(1);
        self
    }

    /// Sets the backoff between attempts of a failed message.
    #[must_use]
    pub fn with_backoff(mut self, backoff: Backoff) -> Self {
        self.settings.backoff = backoff;
        self
    }

    /// Sets the dead-letter destination, at the same broker.
    ///
    /// Without one, a message that can never be handled is returned with the longest backoff again and again; none is
    /// dropped.
    #[must_use]
    pub fn with_dead_letter(self, destination: impl Into<String>) -> Self {
        let publisher: Arc<dyn Publisher> = self.broker.clone();
        self.with_dead_letter_at(publisher, destination)
    }

    /// Sets the dead-letter destination, at another broker.
    #[must_use]
    pub fn with_dead_letter_at(
        mut self,
        publisher: Arc<dyn Publisher>,
        destination: impl Into<String>,
    ) -> Self {
        self.settings.dead_letter = Some((publisher, destination.into()));
        self
    }

    /// Sets the parts that distinguish a redelivery from another message with the same key. Default: the payload.
    ///
    /// For messages, `path` is the subject; `method` and `query` are empty.
    #[must_use]
    pub fn with_fingerprint(mut self, parts: impl IntoIterator<Item = Part>) -> Self {
        self.settings.fingerprint = parts.into_iter().collect();
        self
    }

    /// Accepts the events of an aggregate once and in order.
    #[must_use]
    pub fn with_sequence(mut self, sequence: Sequence) -> Self {
        self.settings.sequence = Some(sequence);
        self
    }

    /// Sets the probe that resolves unknown outcomes.
    #[must_use]
    pub fn with_probe(mut self, probe: Arc<dyn Probe>) -> Self {
        self.settings.probe = Some(probe);
        self
    }

    /// Sets the receipts that show what was committed, under exactly-once.
    #[must_use]
    pub fn with_receipts(mut self, receipts: Arc<Witness>) -> Self {
        self.settings.receipts = Some(receipts);
        self
    }

    /// Allows at-most-once with a store that may lose acknowledged claims. [`run`](Self::run) rejects it otherwise.
    #[must_use]
    pub fn with_lossy_claims_accepted(mut self) -> Self {
        self.settings.accepts_lossy_claims = true;
        self
    }

    /// Sets the maximum time to wait for running handlers at shutdown. Default: 30 s.
    #[must_use]
    pub fn with_drain(mut self, drain: Duration) -> Self {
        self.settings.drain = drain;
        self
    }

    /// Returns the counters of this consumer.
    #[must_use]
    pub fn tally(&self) -> Arc<Tally> {
        self.tally.clone()
    }

    /// Returns the consumer's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.settings.name
    }

    /// Returns the scope of the keys of a consumer with this name.
    #[must_use]
    pub fn scope(name: &str) -> Scope {
        Scope::none().with("consumer", name)
    }

    /// Handles messages until `shutdown` completes.
    ///
    /// After that it pulls nothing more, returns messages that have not started, and waits for running handlers up to
    /// the drain time. Handlers that still run then are abandoned: their messages are not acknowledged, and their
    /// records become indeterminate or are taken over.
    ///
    /// # Errors
    /// Before anything is pulled: [`ErrorKind::Invalid`] if the settings contradict each other, or if the broker may
    /// redeliver a message after retention plus remember; [`ErrorKind::Unsupported`] if the store may lose claims and
    /// the terms are at-most-once.
    /// Later, only for an error of the broker that is not retryable.
    ///
    /// # Cancellation
    /// If dropped, running handlers are abandoned as after a drain that takes too long.
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

    /// Like [`run`](Self::run), with a custom [`Worker`] that claims, handles and settles.
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
        self.check()?;
        self.check_store()?;
        self.check_age(&guarantees)?;
        let (stop, is_stopping) = watch::channel(false);
        let in_flight_max = self.settings.in_flight_max;
        let store_lasts = self.engine.store().guarantees().survives_process;
        let shared = Arc::new(ConsumerState {
            scope: Self::scope(&self.settings.name),
            settings: self.settings,
            broker: self.broker,
            guarantees,
            engine: self.engine,
            tally: self.tally,
            attempts: Attempts::default(),
            records_count_attempts: store_lasts && worker.counts_attempts(),
            worker: Box::new(worker),
            pause: StorePause::default(),
            running: Semaphore::new(in_flight_max),
            is_stopping,
        });
        let tally = shared.tally.clone();
        let mut consuming = Consuming::new(shared);
        let pulled = consuming.pull_until(shutdown, &stop).await;
        consuming.drain().await;
        pulled.map(|()| tally)
    }

    /// Checks the name and the key sources.
    fn check(&self) -> Result<()> {
        let settings = &self.settings;
        let name = &settings.name;
        let is_plain = !name.chars().any(char::is_control);
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !is_plain {
            return Err(invalid(format!(
                "invalid consumer name {name:?}; use 1 to {NAME_BYTES_MAX} bytes without control characters"
            )));
        }
        if settings.keys.is_empty() && settings.sequence.is_none() {
            return Err(invalid(format!(
                "consumer {name}: no key source is set; add one, such as `id`"
            )));
        }
        Ok(())
    }

    /// Rejects at-most-once with a store that may lose claims, because a message could be handled twice.
    fn check_store(&self) -> Result<()> {
        let is_strict = self.settings.terms.guarantee == Guarantee::AtMostOnce;
        let is_lossy = self.engine.store().guarantees().lossy_failover;
        if !is_strict || !is_lossy || self.settings.accepts_lossy_claims {
            return Ok(());
        }
        let name = &self.settings.name;
        let message = format!(
            "consumer {name} is at-most-once, but the store may lose granted claims; make the store durable, choose at-least-once, or accept lossy claims"
        );
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    /// Rejects a broker that may redeliver after the key is forgotten, because the message would be handled again.
    fn check_age(&self, guarantees: &Guarantees) -> Result<()> {
        let (name, terms) = (&self.settings.name, &self.settings.terms);
        let known = terms.retention.saturating_add(terms.remember);
        match guarantees.age_max {
            Some(age_max) if age_max > known => Err(invalid(format!(
                "consumer {name}: the broker may redeliver a message after {}, but its key is remembered for {} only (retention plus remember); raise retention or remember",
                Span(age_max),
                Span(known),
            ))),
            Some(_) => Ok(()),
            None => {
                tracing::warn!(consumer = &**name, known = %Span(known), "the broker does not report how late it may redeliver: a message redelivered after its key is forgotten is handled again");
                Ok(())
            }
        }
    }
}
