//! From a claim to its end: asks the store, hands out the right to run, keeps the lease alive, wakes who waits.
//!
//! ```
//! use refrain::{Engine, Intent, Key, Outcome, Scope, Verdict, store::Memory};
//!
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! let engine = Engine::new(Memory::new());
//! let intent = Intent::new(Scope::none(), Key::new("order-7")?);
//! for attempt in 0..2 {
//!     match engine.claim(&intent).await? {
//!         Verdict::Granted(guard) => {
//!             assert_eq!(attempt, 0);
//!             let running = guard.start();
//!             // The effect happens here, once.
//!             running.complete(Outcome::new(201, "charged")).await?;
//!         }
//!         Verdict::Replay(outcome) => assert_eq!(outcome.status(), 201),
//!         other => panic!("{other:?}"),
//!     }
//! }
//! # Ok::<(), refrain::Error>(())
//! # }).unwrap();
//! ```

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use tokio::time::{Instant, sleep, timeout_at};

use crate::{
    Error, ErrorKind, Fingerprint, Outcome, Result,
    key::{Credential, Key, RecordId, Scope, Secret},
    policy::Terms,
    record::{Claim, Claimant, Doubt, Grant, Settled, Settlement, Verdict},
    store::{AnyStore, Store},
};

mod flight;
mod guard;
mod keeper;
mod probe;
mod tally;

use flight::{Ended, Flight, Flights};
pub use guard::{Guard, Running};
pub use probe::{Finding, Probe};
pub use tally::{Count, Tally};

/// The first pause before asking again about a record that another process holds.
const POLL_FIRST: Duration = Duration::from_millis(2);
const POLL_MAX: Duration = Duration::from_millis(200);

/// Runs operations once. Clones share everything.
#[derive(Debug, Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    store: AnyStore,
    /// What this engine runs now: who waits for one of these is woken, not left to poll.
    flights: Flights,
    /// What happened so far.
    tally: Tally,
    /// Set by the first claim: where dropped guards are settled and leases renewed.
    runtime: OnceLock<tokio::runtime::Handle>,
}

/// One intended effect: what is to run once, and on which terms.
#[derive(Debug, Clone)]
pub struct Intent {
    /// The namespace of the key.
    pub scope: Scope,
    /// What names the effect.
    pub key: Key,
    /// What tells a retry from another request.
    pub fingerprint: Fingerprint,
    /// Who may see the outcome; `None` where the scope alone decides.
    pub credential: Option<Credential>,
    /// Guarantee, lease, retention and the rest.
    pub terms: Terms,
    /// Learns what became of an indeterminate one.
    pub probe: Option<Arc<dyn Probe>>,
}

impl Intent {
    /// An intent on default terms that any request under its key belongs to.
    #[must_use]
    pub fn new(scope: Scope, key: Key) -> Self {
        Self {
            scope,
            key,
            fingerprint: Fingerprint::default(),
            credential: None,
            terms: Terms::default(),
            probe: None,
        }
    }
}

/// What came of asking and, where need be, waiting.
#[derive(Debug)]
#[must_use]
pub enum Turn {
    /// The answer to the claim.
    Verdict(Verdict<Guard>),
    /// The one that was waited for was refused before it took effect; this was its answer.
    /// It is not stored, and asking again runs it again.
    Refused(Outcome),
}

impl Engine {
    /// An engine on a store.
    pub fn new(store: impl Store) -> Self {
        Self {
            inner: Arc::new(Inner {
                store: AnyStore::new(store),
                flights: Flights::new(),
                tally: Tally::default(),
                runtime: OnceLock::new(),
            }),
        }
    }

    /// The store that it runs on.
    #[must_use]
    pub fn store(&self) -> &AnyStore {
        &self.inner.store
    }

    /// The key of the store's keyed digests.
    #[must_use]
    pub fn secret(&self) -> &Secret {
        self.inner.store.secret()
    }

    /// What happened so far.
    #[must_use]
    pub fn tally(&self) -> &Tally {
        &self.inner.tally
    }

    /// Asks for the right to run, and waits up to the intent's `wait` while somebody else has it.
    ///
    /// # Errors
    /// When the store cannot answer: then nothing may run.
    ///
    /// # Cancellation
    /// May be dropped: a claim that was granted and could not be handed over is released.
    pub async fn claim(&self, intent: &Intent) -> Result<Verdict<Guard>> {
        loop {
            if let Turn::Verdict(verdict) = self.attend(intent).await? {
                return Ok(verdict);
            }
        }
    }

    /// As [`claim`](Self::claim), but who waited for one that was refused gets its answer instead of a turn of their own.
    ///
    /// # Errors
    /// When the store cannot answer: then nothing may run.
    pub async fn attend(&self, intent: &Intent) -> Result<Turn> {
        self.inner.keep();
        let asking = Asking::new(self, intent);
        let turn = asking.ask().await?;
        self.inner.tally.turn(&turn);
        Ok(turn)
    }

    /// Runs `work` once, in one line: [`Verdict::Granted`] holds what it made just now.
    ///
    /// # Errors
    /// When the store cannot answer; if that happens behind the work, its outcome is held and stored as soon as it can be.
    ///
    /// # Cancellation
    /// Dropped while `work` runs, the record becomes indeterminate.
    pub async fn run<F, W>(&self, intent: &Intent, work: F) -> Result<Verdict<Outcome>>
    where
        F: FnOnce(Grant) -> W,
        W: Future<Output = Outcome>,
    {
        let guard = match self.claim(intent).await? {
            Verdict::Granted(guard) => guard,
            Verdict::Replay(outcome) => return Ok(Verdict::Replay(outcome)),
            Verdict::InFlight { lease_left } => return Ok(Verdict::InFlight { lease_left }),
            Verdict::OtherCredential => return Ok(Verdict::OtherCredential),
            Verdict::Mismatch => return Ok(Verdict::Mismatch),
            Verdict::Indeterminate(doubt) => return Ok(Verdict::Indeterminate(doubt)),
            Verdict::Expired => return Ok(Verdict::Expired),
        };
        let running = guard.start();
        let outcome = work(running.grant()).await.sealed(running.id());
        match running.complete(outcome.clone()).await? {
            Settled::Applied => Ok(Verdict::Granted(outcome)),
            // Overtaken: what counts is what the other one makes of it.
            Settled::Fenced | Settled::TooEarly { .. } => {
                let verdict = self.claim(intent).await?;
                Ok(verdict.map(|_released| outcome))
            }
        }
    }
}

impl<G> Verdict<G> {
    /// The same verdict with another thing granted.
    pub fn map<H>(self, convert: impl FnOnce(G) -> H) -> Verdict<H> {
        match self {
            Self::Granted(granted) => Verdict::Granted(convert(granted)),
            Self::Replay(outcome) => Verdict::Replay(outcome),
            Self::InFlight { lease_left } => Verdict::InFlight { lease_left },
            Self::OtherCredential => Verdict::OtherCredential,
            Self::Mismatch => Verdict::Mismatch,
            Self::Indeterminate(doubt) => Verdict::Indeterminate(doubt),
            Self::Expired => Verdict::Expired,
        }
    }
}

/// One caller who asks until there is an answer or the time to wait is over.
struct Asking<'a> {
    engine: &'a Engine,
    intent: &'a Intent,
    claim: Claim,
    deadline: Instant,
}

/// What waiting for a record in flight came to.
enum Waited {
    Turn(Turn),
    /// Something has changed, or may have: ask again.
    AskAgain,
    TimeIsUp,
}

impl<'a> Asking<'a> {
    fn new(engine: &'a Engine, intent: &'a Intent) -> Self {
        let terms = &intent.terms;
        let claim = Claim {
            id: RecordId::derive(engine.secret(), &intent.scope, &intent.key),
            fingerprint: intent.fingerprint,
            credential: intent.credential,
            claimant: Claimant::random(),
            guarantee: terms.guarantee,
            attempts_max: terms.attempts_max,
            lease: terms.lease,
            settle_after: terms.settle_after,
        };
        Self {
            engine,
            intent,
            claim,
            deadline: Instant::now() + terms.wait,
        }
    }

    async fn ask(&self) -> Result<Turn> {
        let mut pause = POLL_FIRST;
        loop {
            match self.ask_store().await? {
                Verdict::Granted(grant) => {
                    let guard = self
                        .engine
                        .inner
                        .grant(self.claim.id, grant, &self.intent.terms);
                    return Ok(Turn::Verdict(Verdict::Granted(guard)));
                }
                Verdict::InFlight { lease_left } => match self.wait(&mut pause, lease_left).await {
                    Waited::Turn(turn) => return Ok(turn),
                    Waited::AskAgain => {}
                    Waited::TimeIsUp => {
                        return Ok(Turn::Verdict(Verdict::InFlight { lease_left }));
                    }
                },
                Verdict::Indeterminate(doubt) => {
                    if let Some(turn) = self.resolve(doubt).await {
                        return Ok(turn);
                    }
                }
                Verdict::Replay(outcome) => return Ok(Turn::Verdict(Verdict::Replay(outcome))),
                Verdict::OtherCredential => return Ok(Turn::Verdict(Verdict::OtherCredential)),
                Verdict::Mismatch => return Ok(Turn::Verdict(Verdict::Mismatch)),
                Verdict::Expired => return Ok(Turn::Verdict(Verdict::Expired)),
            }
        }
    }

    async fn ask_store(&self) -> Result<Verdict> {
        let claims = std::slice::from_ref(&self.claim);
        let mut verdicts = self.engine.inner.store.claim(claims).await?;
        verdicts.pop().unwrap_or_else(|| {
            Err(Error::new(
                ErrorKind::Unavailable,
                "the store gave no answer to a claim",
            ))
        })
    }

    async fn wait(&self, pause: &mut Duration, lease_left: Duration) -> Waited {
        if Instant::now() >= self.deadline {
            return Waited::TimeIsUp;
        }
        if let Some(flight) = self.engine.inner.flights.get(self.claim.id) {
            let _waiting = self.engine.inner.tally.waiting();
            return match timeout_at(self.deadline, flight.ended()).await {
                Err(_) => Waited::TimeIsUp,
                Ok(Ended::Completed(outcome)) => {
                    Waited::Turn(Turn::Verdict(Verdict::Replay(outcome)))
                }
                Ok(Ended::Released(Some(answer))) => Waited::Turn(Turn::Refused(answer)),
                Ok(Ended::Released(None) | Ended::Unknown) => Waited::AskAgain,
            };
        }
        // Held elsewhere, or about to be known here: look again soon, and no later than the lease lapses.
        let _waiting = self.engine.inner.tally.waiting();
        let nap = (*pause).min(lease_left.max(POLL_FIRST));
        *pause = (*pause * 2).min(POLL_MAX);
        let _ = timeout_at(self.deadline, sleep(nap)).await;
        Waited::AskAgain
    }

    /// Asks the probe; `None` means that the key is free again.
    async fn resolve(&self, doubt: Doubt) -> Option<Turn> {
        let unknown = Turn::Verdict(Verdict::Indeterminate(doubt));
        let Some(probe) = &self.intent.probe else {
            return Some(unknown);
        };
        let id = self.claim.id;
        // Before that the old attempt may still act, and two probes at once learn no more than one.
        if !doubt.settle_left.is_zero() || !self.engine.inner.flights.start_probe(id) {
            return Some(unknown);
        }
        let finding = probe.probe(self.intent, doubt).await;
        self.engine.inner.flights.end_probe(id);
        let end = match finding {
            Finding::Unknown => return Some(unknown),
            Finding::NeverHappened => Settlement::NeverHappened,
            Finding::Happened(outcome) => Settlement::Complete {
                outcome: outcome.sealed(id),
                retention: self.intent.terms.retention,
                remember: self.intent.terms.remember,
            },
        };
        self.engine.inner.tally.count(Count::Resolved);
        match self.engine.inner.store.settle(id, doubt.fence, end).await {
            // What the store holds now is asked for, also if somebody else was faster.
            Ok(Settled::Applied | Settled::Fenced) => None,
            Ok(Settled::TooEarly { .. }) => Some(unknown),
            Err(error) => {
                tracing::warn!(record = %id, %error, "what the probe learnt could not be stored");
                Some(unknown)
            }
        }
    }
}
