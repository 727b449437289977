//! Redis store (`redis://…`): records on a Redis server, a Cluster or a Sentinel's primary, shared by many processes.
//!
//! Lua scripts make every transition atomic on the server and use its clock. They decide like
//! [`record::step`](refrain::record::step).
//! A record is one key, `PREFIX{identity}`. Its outcome is another key in the same slot, `PREFIX{identity}o…`, to which
//! the completed record points.
//! Keys of ended records expire: the outcome one minute after its retention, the record when `remember` ends.
//! Records in flight or indeterminate never expire.
//!
//! A server that evicts keys is rejected. A server that may lose acknowledged writes is reported in the
//! [guarantees](refrain::store::Guarantees::lossy_failover), with the reasons in [`Redis::losses`].
//!
//! ```no_run
//! # async fn run() -> refrain::Result<()> {
//! let store = refrain_stores::redis::Redis::open("redis://127.0.0.1/?prefix=shop:").await?;
//! let engine = refrain::Engine::new(store);
//! # Ok(())
//! # }
//! ```
//!
//! Retrying a claim is safe: the same claimant gets the same grant again. So is retrying a completion.
//! The driver never retries by itself; the engine retries only where that is safe.

use std::{fmt, pin::Pin, sync::Arc, time::Duration};

use ::redis::{Cmd, Value};
use bytes::Bytes;
use futures_util::future::join_all;
use refrain::{
    Claim, Fence, RecordId, Result, Secret, Settled, Settlement, Store, Verdict,
    clock::Timestamp,
    record::{Erased, ScopeDigest},
    store::{AnyStore, Census, Guarantees, Page, Query, Reading, ScopeKeyPage, Watch},
};
use tokio::runtime::Handle;

mod address;
mod answers;
mod calls;
mod cluster;
mod codec;
mod connection;
mod errors;
mod front;
mod lane;
mod listen;
mod loss;
mod mark;
mod opening;
mod reception;
mod scan;
mod scope_keys;
mod scripts;

use address::Address;
use answers::{reading, settled, verdict};
use calls::{Asking, Calls, SettleCall};
use cluster::Cluster;
use codec::ScriptReply;
use connection::{Patience, RedisCallError};
pub use front::RedisFront;
use lane::Lanes;
use listen::SettlementListener;
use opening::{Met, choose_crypto, connect, dial};
use reception::Node;
use scripts::Name;

/// Maximum number of commands in one pipeline.
const BATCH_MAX: usize = 500;
/// Longer durations are truncated to this: Lua numbers are exact up to 2^53.
const SPAN_MAX: Duration = Duration::from_millis(1 << 50);

/// Opens the store at a `redis` address; see [`Redis::open`].
///
/// # Errors
/// As [`Redis::open`].
pub async fn open(address: &str) -> Result<AnyStore> {
    let store = Redis::open(address).await?;
    let losses = store.losses().join("; ");
    Ok(AnyStore::new(store).with_losses(losses))
}

/// Store on Redis. Clones share its connections.
#[derive(Clone)]
pub struct Redis {
    shared: Arc<RedisState>,
}

/// Replaces the server's clock in tests.
type TestClock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Options for opening a Redis store.
#[derive(Clone)]
#[non_exhaustive]
pub struct Options {
    /// Limit for connecting.
    pub connect_timeout: Duration,
    /// Limit for an answer.
    pub answer_timeout: Duration,
    clock: Option<TestClock>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(2),
            answer_timeout: Duration::from_secs(5),
            clock: None,
        }
    }
}

impl Options {
    /// For tests: replaces the server's clock, and disables key expiry.
    #[must_use]
    pub fn with_clock(mut self, now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        self.clock = Some(Arc::new(now));
        self
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("connect_timeout", &self.connect_timeout)
            .field("answer_timeout", &self.answer_timeout)
            .finish_non_exhaustive()
    }
}

struct RedisState {
    link: RedisDeployment,
    calls: Arc<Calls>,
    /// Address without the password.
    shown: String,
    /// `None` in a cluster, where every settlement would be published on every node.
    ear: Option<SettlementListener>,
}

/// Connection to the server or the cluster.
enum RedisDeployment {
    Single(Lanes),
    Cluster(Cluster),
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RedisState { shown, calls, .. } = &*self.shared;
        f.debug_struct("Redis")
            .field("address", shown)
            .field("prefix", &calls.prefix)
            .finish_non_exhaustive()
    }
}

impl Redis {
    /// Opens the store at `redis://…` or `rediss://…`, or at either scheme with the suffix `+cluster` or `+sentinel`.
    ///
    /// Must be called within a tokio runtime; the connections live there.
    ///
    /// # Errors
    /// If the address is invalid; if the server is unreachable, rejects the user, evicts keys, is a replica or is too
    /// old; if the prefix holds data of another application or of another format version; or if the server has visibly
    /// lost the records of this store and the address does not contain `accept_lost_records=true`.
    ///
    /// # Cancellation
    /// Safe to drop.
    pub async fn open(address: &str) -> Result<Self> {
        Self::open_with(address, Options::default()).await
    }

    /// Opens the store as [`open`](Self::open) does, with these options.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    ///
    /// # Cancellation
    /// As [`open`](Self::open).
    pub async fn open_with(address: &str, options: Options) -> Result<Self> {
        let address = Address::parse(address)?;
        choose_crypto();
        let runtime = Handle::current();
        let patience = Patience {
            connect: options.connect_timeout,
            answer: options.answer_timeout,
        };
        // Type-erased: the nested type is too deep for the compiler in callers.
        let connecting: Pin<Box<dyn Future<Output = _> + Send>> =
            Box::pin(connect(&address, patience, &runtime));
        let (place, known) = connecting.await?;
        let calls = Arc::new(Calls {
            prefix: address.prefix,
            clock: options.clock,
            known,
            is_cluster: matches!(place, Met::Cluster(_)),
        });
        let (link, ear) = match place {
            Met::Cluster(cluster) => (RedisDeployment::Cluster(cluster), None),
            Met::One(line) => {
                let ear = SettlementListener::new(line.clone(), &calls.prefix, &runtime);
                (
                    RedisDeployment::Single(Lanes::new(line, &calls, &runtime)),
                    Some(ear),
                )
            }
        };
        Ok(Self {
            shared: Arc::new(RedisState {
                link,
                calls,
                shown: address.shown,
                ear,
            }),
        })
    }

    /// Reasons why the server may lose acknowledged writes, read when the store was opened; empty if there are none.
    #[must_use]
    pub fn losses(&self) -> &[String] {
        &self.shared.calls.known.losses
    }
}

impl RedisState {
    /// Runs a script. If the server does not have the script, nothing ran: load it and try again.
    async fn run_script(&self, call: &Cmd) -> Result<Value, RedisCallError> {
        let answer = self.send_command(call).await;
        if !answer.as_ref().is_err_and(RedisCallError::is_no_script) {
            return answer;
        }
        for script in self.calls.known.scripts.load() {
            self.send_command(&script).await?;
        }
        self.send_command(call).await
    }

    async fn run(&self, call: &Cmd, id: RecordId) -> Result<ScriptReply> {
        self.answer(self.run_script(call).await, id)
    }

    /// Runs many scripts in pipelines; the answers have the same order.
    async fn run_all(&self, calls: &[(RecordId, Cmd)]) -> Result<Vec<Result<ScriptReply>>> {
        let mut answers = Vec::with_capacity(calls.len());
        for batch in calls.chunks(BATCH_MAX) {
            let commands: Vec<_> = batch.iter().map(|(_, call)| call.clone()).collect();
            let asked = match &self.link {
                RedisDeployment::Single(lanes) => lanes.line.send_commands(&commands).await,
                RedisDeployment::Cluster(_) => {
                    Ok(join_all(commands.iter().map(|call| self.send_command(call))).await)
                }
            };
            let asked = asked.map_err(|trouble| trouble.error(&self.shown))?;
            for ((id, call), answer) in batch.iter().zip(asked) {
                answers.push(match answer {
                    Err(trouble) if trouble.is_no_script() => self.run(call, *id).await,
                    answer => self.answer(answer, *id),
                });
            }
        }
        Ok(answers)
    }

    fn answer(&self, answer: Result<Value, RedisCallError>, id: RecordId) -> Result<ScriptReply> {
        let value = answer.map_err(|trouble| trouble.error(&self.shown))?;
        let answer = ScriptReply::read(value).ok_or_else(|| errors::undecodable_reply(id))?;
        match answer.letter {
            b'!' => Err(errors::script_error(answer.rest(), id, &self.shown)),
            _ => Ok(answer),
        }
    }

    async fn send_command(&self, command: &Cmd) -> Result<Value, RedisCallError> {
        match &self.link {
            RedisDeployment::Single(lanes) => lanes.line.send_command(command).await,
            RedisDeployment::Cluster(cluster) => Ok(cluster.send_command(command).await?),
        }
    }

    /// Servers that hold records.
    async fn nodes(&self) -> Result<Vec<Node>> {
        match &self.link {
            RedisDeployment::Single(lanes) => Ok(vec![Node::One(lanes.line.current().await?)]),
            RedisDeployment::Cluster(cluster) => {
                let nodes = cluster.primaries().await;
                nodes.map_err(|error| errors::convert_error(error, &self.shown))
            }
        }
    }

    async fn read_all(&self, ids: &[RecordId]) -> Result<Vec<Result<Option<Reading>>>> {
        let call = |id: &RecordId| (*id, self.calls.one(Name::Read, *id));
        let calls: Vec<_> = ids.iter().map(call).collect();
        let answers = self.run_all(&calls).await?;
        let read = |(id, answer): (&RecordId, Result<ScriptReply>)| reading(answer?, *id);
        Ok(ids.iter().zip(answers).map(read).collect())
    }

    /// Writes the mark again on a server that was already known to lose data.
    async fn mark_again(&self) -> Result<()> {
        tracing::warn!(
            "the Redis server at {} has lost its records; the store continues without them, because the server was known to lose data when the store was opened",
            self.shown
        );
        let marked = self
            .send_command(&self.calls.known.mark.write_command())
            .await;
        marked
            .map(drop)
            .map_err(|trouble| trouble.error(&self.shown))
    }

    /// Checks that the mark still exists. If it does not, the loss is recorded for processes that start later. A server
    /// that was known to lose data gets a new mark, and works again with the next call.
    async fn check_mark(&self) -> Result<()> {
        let mark = &self.calls.known.mark;
        let convert = |trouble: RedisCallError| trouble.error(&self.shown);
        match self
            .send_command(&mark.read_command())
            .await
            .map_err(convert)?
        {
            Value::BulkString(text) if text == mark.text.as_bytes() => Ok(()),
            Value::Nil if self.calls.known.is_lossy() => {
                self.mark_again().await?;
                Err(errors::mark_lost(&self.shown))
            }
            Value::Nil => {
                self.note_loss().await;
                Err(errors::mark_lost(&self.shown))
            }
            _ => Err(errors::store_replaced(&self.shown)),
        }
    }

    /// Best effort: every process that finds the mark missing tries to record the loss.
    async fn note_loss(&self) {
        if let Err(trouble) = self.send_command(&self.calls.known.mark.note_loss()).await {
            let error = trouble.error(&self.shown);
            tracing::debug!(%error, "cannot record the loss of the records on the Redis server");
        }
    }

    async fn claim(&self, claim: Claim) -> Result<Verdict> {
        let (id, nonce) = (claim.id, rand::random());
        let ask = || {
            let claim = claim.clone();
            self.send_claim(Asking { claim, nonce })
        };
        let mut answer = ask().await;
        if answer.as_ref().is_ok_and(is_lost) {
            if self.calls.known.is_lossy() {
                self.mark_again().await?;
                answer = ask().await;
            } else {
                self.note_loss().await;
            }
        }
        // Terminates: every call answers at least one claim.
        while answer.as_ref().is_ok_and(is_later) {
            answer = ask().await;
        }
        verdict(self.answer(answer, id)?, id, nonce)
    }

    async fn send_claim(&self, asking: Asking) -> Result<Value, RedisCallError> {
        match &self.link {
            RedisDeployment::Single(lanes) => lanes.claims.request(asking).await,
            RedisDeployment::Cluster(_) => {
                let call = self.calls.claims([&asking].into_iter());
                self.run_single(&call).await
            }
        }
    }

    async fn settle(&self, ending: SettleCall) -> Result<Settled> {
        let id = ending.id;
        let answer = match &self.link {
            RedisDeployment::Single(lanes) => lanes.settlements.request(ending).await,
            RedisDeployment::Cluster(_) => {
                let call = self.calls.settlements([&ending].into_iter());
                self.run_single(&call).await
            }
        };
        settled(self.answer(answer, id)?, id)
    }

    /// Runs a batch script with one item, and returns its only answer.
    async fn run_single(&self, call: &Cmd) -> Result<Value, RedisCallError> {
        match self.run_script(call).await? {
            Value::Array(mut answers) if answers.len() == 1 => Ok(answers.remove(0)),
            _ => Err(RedisCallError::Told(errors::wrong_reply_count())),
        }
    }
}

/// Whether a script found that the store's mark is missing.
fn is_lost(value: &Value) -> bool {
    matches!(value, Value::BulkString(text) if text == b"!lost")
}

/// Whether the call contained too many outcomes, so that this claim has to be retried.
fn is_later(value: &Value) -> bool {
    matches!(value, Value::BulkString(text) if text == b"~")
}

/// Rounds up: nothing is shorter than requested.
fn millis(span: Duration) -> u64 {
    (Timestamp(0) + span.min(SPAN_MAX)).0
}

impl Store for Redis {
    async fn claim(&self, claim: Claim) -> Result<Verdict> {
        self.shared.claim(claim).await
    }

    async fn settle(&self, id: RecordId, fence: Fence, end: Settlement) -> Result<Settled> {
        let end = end.sealed(id);
        self.shared.settle(SettleCall { id, fence, end }).await
    }

    async fn renew(&self, id: RecordId, fence: Fence, lease: Duration) -> Result<Settled> {
        let mut call = self.shared.calls.one(Name::Renew, id);
        call.arg(&codec::fence_bytes(fence)[..]).arg(millis(lease));
        settled(self.shared.run(&call, id).await?, id)
    }

    async fn read(&self, id: RecordId) -> Result<Option<Reading>> {
        let call = self.shared.calls.one(Name::Read, id);
        let found = reading(self.shared.run(&call, id).await?, id)?;
        if found.is_none() {
            // Distinguishes an absent record from a lost store.
            self.shared.check_mark().await?;
        }
        Ok(found)
    }

    async fn list(&self, query: &Query) -> Result<Page> {
        self.shared.list(query).await
    }

    async fn erase(&self, id: RecordId) -> Result<Erased> {
        let call = self.shared.calls.one(Name::Erase, id);
        match self.shared.run(&call, id).await?.letter {
            b'A' => Ok(Erased::Gone),
            b'N' => Ok(Erased::Absent),
            b'I' => Ok(Erased::InFlight),
            b'D' => Ok(Erased::Indeterminate),
            _ => Err(errors::undecodable_reply(id)),
        }
    }

    async fn census(&self) -> Result<Census> {
        self.shared.census().await
    }

    /// Nothing to do: keys expire on the server.
    async fn sweep(&self, _: u32) -> Result<u32> {
        Ok(0)
    }

    async fn scope_key(&self, scope: ScopeDigest) -> Result<Option<Bytes>> {
        self.shared.scope_key(scope).await
    }

    async fn replace_scope_key(
        &self,
        scope: ScopeDigest,
        expected: Option<Bytes>,
        key: Bytes,
    ) -> Result<Option<Bytes>> {
        self.shared.replace_scope_key(scope, expected, key).await
    }

    async fn scope_keys(&self, cursor: Option<u64>) -> Result<ScopeKeyPage> {
        self.shared.scope_keys(cursor).await
    }

    fn guarantees(&self) -> Guarantees {
        let is_lossy = self.shared.calls.known.is_lossy();
        Guarantees {
            survives_process: true,
            survives_power: !is_lossy,
            lossy_failover: is_lossy,
            shared: true,
        }
    }

    fn watch(&self, id: RecordId) -> Option<Watch> {
        self.shared.ear.as_ref().map(|ear| ear.watch(id))
    }

    fn secret(&self) -> &Secret {
        self.shared.calls.known.secret()
    }
}
