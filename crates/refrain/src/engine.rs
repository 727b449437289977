//! Runs claims from start to end: sends them to the store, grants the right to run, renews leases, wakes waiting duplicates.
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
    sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use tokio::{sync::Semaphore, time::Instant};

use crate::{
    AuditLog, Fingerprint, Outcome, Result,
    key::{Credential, Key, RecordId, Scope, Secret},
    policy::Terms,
    receipts::Witness,
    record::{Grant, KeyDigest, Origin, OriginFields, ScopeDigest, Settled, Verdict},
    store::{AnyStore, Store},
};

mod audit;
mod background;
mod claiming;
mod flight;
mod guard;
mod lost;
mod operator;
mod probe;
mod receipts;
mod resume;
mod tally;

use background::BackgroundRuntime;
use claiming::ClaimLoop;
#[cfg(feature = "http")]
pub(crate) use claiming::ClaimResult;
pub use flight::Live;
pub(crate) use flight::SentMark;
use flight::{Ended, Flight, Flights};
pub use guard::{Guard, Running};
use lost::LostClaims;
pub use operator::{OperatorAction, REASON_BYTES_MAX, Resolution, Resolved};
pub use probe::{Finding, Probe};
use resume::ProbeSources;
pub use resume::{ProbeSource, Unprobed};
pub use tally::{Count, Tally};

/// Interval at which [`Engine::settled`] looks.
const SETTLED_LOOK: Duration = Duration::from_millis(20);
/// How long a claim that a full store refused is reported.
const REFUSED_FOR: Duration = Duration::from_secs(10);

/// Runs operations once. Clones share all state.
#[derive(Debug, Clone)]
pub struct Engine {
    inner: Arc<EngineState>,
}

#[derive(Debug)]
struct EngineState {
    store: AnyStore,
    /// Claims that this engine holds: duplicates that wait for one of them are woken, and need not poll.
    flights: Flights,
    /// Claims that the store may have granted although nothing was dispatched for them.
    lost: LostClaims,
    /// Counters and gauges.
    tally: Tally,
    /// Runtime of the background task, where leases are renewed and dropped guards are settled.
    post: BackgroundRuntime,
    /// Limits the number of concurrent background probes about records of this process.
    probes: Arc<Semaphore>,
    /// Limits the number of concurrent background probes about records of earlier processes.
    resumed_probes: Arc<Semaphore>,
    /// Where the probes of records of earlier processes come from.
    sources: ProbeSources,
    /// The audit log, if there is one.
    audit: OnceLock<AuditLog>,
    /// The name of this process, if it was given one.
    node: OnceLock<Arc<str>>,
    /// What executes the operations, for log lines.
    upstream: OnceLock<Arc<str>>,
    /// When the store last refused a claim because it is full, and why.
    refused: Mutex<Option<(Instant, String)>>,
}

impl EngineState {
    /// The name of this process in the records.
    fn node(&self) -> &str {
        match self.node.get() {
            Some(node) => node,
            None => host_name(),
        }
    }
}

/// One intended effect: the key to run once, and the terms.
#[derive(Debug, Clone)]
pub struct Intent {
    /// The namespace of the key.
    pub scope: Scope,
    /// The idempotency key, which names the effect.
    pub key: Key,
    /// Digest that tells a retry from another request under the same key.
    pub fingerprint: Fingerprint,
    /// The request's fingerprint as earlier versions computed it: a record with this fingerprint belongs to the request, too.
    pub earlier_fingerprint: Option<Fingerprint>,
    /// The credential that may see the outcome; `None` if the scope alone decides.
    pub credential: Option<Credential>,
    /// Guarantee, lease, retention and the rest.
    pub terms: Terms,
    /// Looks up the outcome of an indeterminate record.
    pub probe: Option<Arc<dyn Probe>>,
    /// Reads receipts, for exactly-once; without it the guarantee is at-most-once.
    pub receipts: Option<Arc<Witness>>,
    /// The operation's name in the engine's [audit log](Engine::with_audit); `None` if it is not audited.
    pub audit: Option<Arc<str>>,
    /// The facts for operators that are stored with the record; `None` stores the digest of the key and the name of the process.
    pub origin: Option<Origin>,
}

impl Intent {
    /// An intent with default terms. All requests under its key count as the same.
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
            origin: None,
        }
    }

    /// What stores keep with the record. `node` is the name of this process.
    #[must_use]
    pub fn origin(&self, secret: &Secret, node: &str) -> Origin {
        let fields = || OriginFields {
            key_digest: KeyDigest::derive(secret, &self.key),
            scope_digest: ScopeDigest::derive(secret, &self.scope),
            node,
            ..OriginFields::default()
        };
        let origin = self.origin.clone();
        origin.unwrap_or_else(|| Origin::new(&fields()))
    }
}

/// The name of this host: the usual name of a node.
#[must_use]
pub fn host_name() -> &'static str {
    static NAME: LazyLock<String> =
        LazyLock::new(|| rustix::system::uname().nodename().to_string_lossy().into());
    &NAME
}

/// Reply to a claim, after waiting for the request in flight if necessary.
#[derive(Debug)]
#[must_use]
pub enum ClaimReply {
    /// The verdict on the claim.
    Verdict(Verdict<Guard>),
    /// The response of the request that this one waited for, which was released without effect.
    /// It is not stored, and another claim may run the operation.
    Refused(Outcome),
    /// The operation is in flight in this process, and streams its response. Only [`Engine::attend`] returns this.
    Live(Live),
}

impl Engine {
    /// An engine on a store.
    pub fn new(store: impl Store) -> Self {
        Self {
            inner: Arc::new(EngineState {
                store: AnyStore::new(store),
                flights: Flights::new(),
                lost: LostClaims::new(),
                tally: Tally::default(),
                post: BackgroundRuntime::default(),
                probes: Arc::new(Semaphore::new(probe::PROBES_MAX)),
                resumed_probes: Arc::new(Semaphore::new(probe::RESUMED_MAX)),
                sources: ProbeSources::default(),
                audit: OnceLock::new(),
                node: OnceLock::new(),
                upstream: OnceLock::new(),
                refused: Mutex::default(),
            }),
        }
    }

    /// Names this process in the records that it claims; by default it is the name of the host.
    /// The first name stays.
    #[must_use]
    pub fn with_node(self, name: &str) -> Self {
        let _ = self.inner.node.set(name.into());
        self
    }

    /// Names what executes the operations in log lines, such as the address of an upstream. The first name stays.
    #[must_use]
    pub fn with_upstream(self, address: &str) -> Self {
        let _ = self.inner.upstream.set(address.into());
        self
    }

    /// The store of the engine.
    #[must_use]
    pub fn store(&self) -> &AnyStore {
        &self.inner.store
    }

    /// Why the store accepts no new claims now, if that is known. It may still answer duplicates.
    ///
    /// Some stores find out only from a claim; a refusal is then reported for ten seconds.
    #[must_use]
    pub fn claims_refused(&self) -> Option<String> {
        if let Err(error) = self.store().accepts_claims() {
            return Some(error.to_string());
        }
        let refused = self.inner.refused.lock();
        let refused = refused.unwrap_or_else(PoisonError::into_inner);
        let recent = refused
            .as_ref()
            .filter(|(at, _)| at.elapsed() < REFUSED_FOR);
        recent.map(|(_, why)| why.clone())
    }

    /// The identity of the record of an intent.
    #[must_use]
    pub fn record_id(&self, intent: &Intent) -> RecordId {
        RecordId::derive(self.secret(), &intent.scope, &intent.key)
    }

    /// The key of the store's keyed digests.
    #[must_use]
    pub fn secret(&self) -> &Secret {
        self.inner.store.secret()
    }

    /// The facts for operators about a request under this scope and key, with the digests of both and the name of this process.
    #[must_use]
    pub fn origin(&self, scope: &Scope, key: &Key, fields: &OriginFields<'_>) -> Origin {
        Origin::new(&OriginFields {
            key_digest: KeyDigest::derive(self.secret(), key),
            scope_digest: ScopeDigest::derive(self.secret(), scope),
            node: self.inner.node(),
            ..*fields
        })
    }

    /// Counters and gauges of the engine.
    #[must_use]
    pub fn tally(&self) -> &Tally {
        &self.inner.tally
    }

    /// Number of claims that this engine holds now.
    #[must_use]
    pub fn running(&self) -> usize {
        self.inner.flights.len()
    }

    /// Waits until every claim of this engine is settled: none is running, waits for the store to take its end, or is
    /// lost.
    ///
    /// A process that stops gracefully waits for this with a timeout, because it alone knows that nothing was dispatched
    /// for a lost claim.
    ///
    /// # Cancellation
    /// May be dropped.
    pub async fn settled(&self) {
        while self.running() > 0 || self.tally().lost_now() > 0 {
            tokio::time::sleep(SETTLED_LOOK).await;
        }
    }

    /// Claims the right to run, and waits up to the intent's `wait` while another request holds it.
    ///
    /// # Errors
    /// When the store cannot answer, or the audit log of an audited intent cannot be written: then nothing may run.
    ///
    /// # Cancellation
    /// May be dropped: a claim that is granted afterwards is released.
    pub async fn claim(&self, intent: &Intent) -> Result<Verdict<Guard>> {
        if intent.audit.is_some() {
            self.inner.check_audit()?;
        }
        self.inner.start_background();
        if let Some(witness) = &intent.receipts {
            self.inner.know_standing(witness).await?;
        }
        let claim = self.inner.claim_of(intent, self.record_id(intent));
        let claims = ClaimLoop::new(self, intent, false, Instant::now(), claim);
        loop {
            // The response of a released run is not a verdict: claim again, for the rest of `wait`.
            let reply = claims.request(None).await?;
            self.inner.tally.count_reply(&reply);
            if let ClaimReply::Verdict(verdict) = reply {
                return Ok(verdict);
            }
        }
    }

    /// As [`claim`](Self::claim), but a duplicate that waited for a request that was released gets its response,
    /// and a duplicate of an operation that [shows](Running::show) its response while it is produced gets that.
    ///
    /// # Errors
    /// As for [`claim`](Self::claim).
    ///
    /// # Cancellation
    /// As for [`claim`](Self::claim).
    pub async fn attend(&self, intent: &Intent) -> Result<ClaimReply> {
        let (record, intent) = (self.record_id(intent), Box::new(intent.clone()));
        let claimed = self.send_claim(intent, record, Instant::now()).await;
        claimed.reply
    }

    /// Claims, runs `work` and stores its outcome: [`Verdict::Granted`] holds the fresh outcome.
    ///
    /// # Errors
    /// When the store cannot answer. If that happens after the work, its outcome is held and stored as soon as possible.
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
            // Overtaken: the outcome of the other attempt counts.
            running = match self.claim(intent).await? {
                // The other attempt has no outcome, so this one is stored. The work is not run again.
                Verdict::Granted(guard) => guard.start(),
                other => return Ok(other.map(|_| outcome)),
            };
        }
        Ok(Verdict::Granted(outcome))
    }
}

impl<G> Verdict<G> {
    /// Converts the granted value.
    pub fn map<H>(self, convert: impl FnOnce(G) -> H) -> Verdict<H> {
        self.convert(convert, |outcome| outcome)
    }
}

/// The part of a target that may be logged: a query may contain secrets, also where records keep it.
fn without_query(target: &str) -> &str {
    target.split_once('?').map_or(target, |(path, _)| path)
}
