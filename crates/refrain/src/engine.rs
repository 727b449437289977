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

use std::sync::{Arc, OnceLock};

use tokio::{sync::Semaphore, time::Instant};

use crate::{
    AuditLog, Fingerprint, Outcome, Result,
    key::{Credential, Key, Scope, Secret},
    policy::Terms,
    receipts::Witness,
    record::{Grant, Settled, Verdict},
    store::{AnyStore, Store},
};

mod asking;
mod attending;
mod audit;
mod care;
mod flight;
mod guard;
mod keeper;
mod live;
mod lost;
mod operator;
mod probe;
mod receipts;
mod standing;
mod tally;

use asking::Asking;
pub(crate) use attending::Attending;
pub(crate) use flight::SentMark;
use flight::{Ended, Flight, Flights, News};
pub use guard::{Guard, Running};
use keeper::Post;
pub use live::Live;
use lost::LostClaims;
pub use operator::{Deed, REASON_BYTES_MAX, Resolution, Resolved};
pub use probe::{Finding, Probe};
pub use tally::{Count, Tally};

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
    /// Claims that may stand in the store although nothing was dispatched for them.
    lost: LostClaims,
    /// What happened so far.
    tally: Tally,
    /// Where dropped guards are settled and leases renewed.
    post: Post,
    /// Turns for probes that are asked in the background.
    probes: Arc<Semaphore>,
    /// Where what is audited is written down, where there is such a place.
    audit: OnceLock<AuditLog>,
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
    /// The same request's fingerprint as earlier versions made it: a record that has this one is a record of this request.
    pub earlier_fingerprint: Option<Fingerprint>,
    /// Who may see the outcome; `None` where the scope alone decides.
    pub credential: Option<Credential>,
    /// Guarantee, lease, retention and the rest.
    pub terms: Terms,
    /// Learns what became of an indeterminate one.
    pub probe: Option<Arc<dyn Probe>>,
    /// Knows what was committed, under exactly-once; without it that is at-most-once.
    pub receipts: Option<Arc<Witness>>,
    /// The name under which each attempt goes into the engine's [audit log](Engine::with_audit); `None` where none does.
    pub audit: Option<Arc<str>>,
}

impl Intent {
    /// An intent on default terms that any request under its key belongs to.
    #[must_use]
    pub fn new(scope: Scope, key: Key) -> Self {
        Self {
            scope,
            key,
            fingerprint: Fingerprint::default(),
            earlier_fingerprint: None,
            credential: None,
            terms: Terms::default(),
            probe: None,
            receipts: None,
            audit: None,
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
    /// It is in flight in this process, and shows its answer as it comes. Only [`Engine::attend`] gives this.
    Live(Live),
}

impl Engine {
    /// An engine on a store.
    pub fn new(store: impl Store) -> Self {
        Self {
            inner: Arc::new(Inner {
                store: AnyStore::new(store),
                flights: Flights::new(),
                lost: LostClaims::new(),
                tally: Tally::default(),
                post: Post::default(),
                probes: Arc::new(Semaphore::new(care::ASKED_AT_ONCE)),
                audit: OnceLock::new(),
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

    /// How many claims this engine holds now.
    #[must_use]
    pub fn running(&self) -> usize {
        self.inner.flights.len()
    }

    /// Asks for the right to run, and waits up to the intent's `wait` while somebody else has it.
    ///
    /// # Errors
    /// When the store cannot answer, or what is audited cannot be written down: then nothing may run.
    ///
    /// # Cancellation
    /// May be dropped: a claim that was granted and could not be handed over is released.
    pub async fn claim(&self, intent: &Intent) -> Result<Verdict<Guard>> {
        self.inner.check_audit(intent)?;
        self.inner.keep();
        self.inner.know_standing(intent).await?;
        let asking = Asking::new(self, intent, false, Instant::now());
        loop {
            // An answer of somebody else's refused run is nobody's verdict: what is left of the time to wait is used.
            let turn = asking.ask().await?;
            self.inner.tally.turn(&turn);
            if let Turn::Verdict(verdict) = turn {
                return Ok(verdict);
            }
        }
    }

    /// As [`claim`](Self::claim), but who waited for one that was refused gets its answer instead of a turn of their own,
    /// and who comes to one that [shows](Running::show) its answer as it comes gets to see it.
    ///
    /// # Errors
    /// When the store cannot answer: then nothing may run.
    ///
    /// # Cancellation
    /// As for [`claim`](Self::claim).
    pub async fn attend(&self, intent: &Intent) -> Result<Turn> {
        let intent = Box::new(intent.clone());
        let (turn, _) = self.attending(intent, Instant::now()).await;
        turn
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
        let mut running = guard.start();
        let outcome = work(running.grant()).await.sealed(running.id());
        while running.complete(outcome.clone()).await? != Settled::Applied {
            // Overtaken: what counts is what the other one made of it.
            running = match self.claim(intent).await? {
                // Nothing, so this one's outcome is stored after all. Its work is done and not done again.
                Verdict::Granted(guard) => guard.start(),
                other => return Ok(other.map(|_| outcome)),
            };
        }
        Ok(Verdict::Granted(outcome))
    }
}

impl<G> Verdict<G> {
    /// The same verdict with another thing granted.
    pub fn map<H>(self, convert: impl FnOnce(G) -> H) -> Verdict<H> {
        self.convert(convert, |outcome| outcome)
    }
}
