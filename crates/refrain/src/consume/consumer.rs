//! The consumer: pulls, hands over, and stops in good order.

use std::{sync::Arc, time::Duration};

use tokio::sync::{Semaphore, watch};

use super::{
    Backoff, Broker, Failure, Guarantees, Job, KeySource, Publisher, Sequence, Tally, Worker,
    attempts::Attempts,
    key::invalid,
    pull::Consuming,
    shared::{Pause, Settings, Shared},
    work::Handled,
};
use crate::{
    Engine, Error, ErrorKind, Guarantee, Outcome, Result, Scope, Terms, engine::Probe,
    fingerprint::Part, policy::units::Span, receipts::Witness, store::Store,
};

/// The most messages that one consumer handles at once.
pub const IN_FLIGHT_MAX: usize = 10_000;
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

    /// How many messages are handled at once; 64 if nothing is said.
    #[must_use]
    pub fn with_in_flight_max(mut self, in_flight_max: usize) -> Self {
        self.settings.in_flight_max = in_flight_max.clamp(1, IN_FLIGHT_MAX);
        self
    }

    /// Has every attempt written into the [audit log](Engine::with_audit) of its engine, under the consumer's name.
    #[must_use]
    pub fn with_audit(mut self) -> Self {
        self.settings.is_audited = true;
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

    /// Runs at-most-once also on a store that may lose claims. It is refused otherwise.
    #[must_use]
    pub fn with_lossy_claims_accepted(mut self) -> Self {
        self.settings.accepts_lossy_claims = true;
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
    /// Before anything is pulled: [`ErrorKind::Invalid`] where the settings do not fit together, or where the broker may
    /// deliver again what retention and remember have forgotten; [`ErrorKind::Unsupported`] where the store may lose claims
    /// and the terms are at-most-once.
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
        self.check()?;
        self.check_store()?;
        self.check_age(&guarantees)?;
        let (stop, is_stopping) = watch::channel(false);
        let in_flight_max = self.settings.in_flight_max;
        let store_lasts = self.engine.store().guarantees().survives_process;
        let shared = Arc::new(Shared {
            scope: Self::scope(&self.settings.name),
            settings: self.settings,
            broker: self.broker,
            guarantees,
            engine: self.engine,
            tally: self.tally,
            attempts: Attempts::default(),
            records_count_attempts: store_lasts && worker.counts_attempts(),
            worker: Box::new(worker),
            pause: Pause::default(),
            running: Semaphore::new(in_flight_max),
            is_stopping,
        });
        let tally = shared.tally.clone();
        let mut consuming = Consuming::new(shared);
        let pulled = consuming.pull_until(shutdown, &stop).await;
        consuming.drain().await;
        pulled.map(|()| tally)
    }

    /// Whether the settings fit together.
    fn check(&self) -> Result<()> {
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
        Ok(())
    }

    /// A store that may lose claims would let what has run under at-most-once run again.
    fn check_store(&self) -> Result<()> {
        let is_strict = self.settings.terms.guarantee == Guarantee::AtMostOnce;
        let is_lossy = self.engine.store().guarantees().lossy_failover;
        if !is_strict || !is_lossy || self.settings.accepts_lossy_claims {
            return Ok(());
        }
        let name = &self.settings.name;
        let message = format!(
            "consumer {name} is at-most-once, and the store may lose claims that it has granted; make the store keep what it acknowledged, choose at-least-once, or accept it"
        );
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    /// A key that is forgotten before the last redelivery lets that one run again.
    fn check_age(&self, guarantees: &Guarantees) -> Result<()> {
        let (name, terms) = (&self.settings.name, &self.settings.terms);
        let known = terms.retention.saturating_add(terms.remember);
        match guarantees.age_max {
            Some(age_max) if age_max > known => Err(invalid(format!(
                "consumer {name}: the broker may deliver a message again after {}, but its key is known for {} only (retention and remember together); keep it longer",
                Span(age_max),
                Span(known),
            ))),
            Some(_) => Ok(()),
            None => {
                tracing::warn!(consumer = &**name, known = %Span(known), "the broker does not tell how late it may deliver again: what comes after its key is forgotten runs again");
                Ok(())
            }
        }
    }
}
