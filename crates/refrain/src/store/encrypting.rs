//! Encrypts what goes to a store, and decrypts what comes from it. See [`encryption`](crate::encryption).
//!
//! The data keys of scopes are cached. A process that shares its store with others reads them again after
//! [`REREAD_AFTER`], so that a key that was erased elsewhere is forgotten.

use std::{
    collections::HashMap,
    sync::{
        Mutex, PoisonError, RwLock, RwLockWriteGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::time::Instant;

use super::{Reading, ScopeKeyCounts, Store, any::StoreObject};
use crate::{
    Encryption, Error, ErrorKind, Outcome, Result,
    encryption::{DataKey, StoredKey, generate},
    key::RecordId,
    outcome::Encrypted,
    record::{Claim, Fence, Record, ScopeDigest, Settlement, State, Trace, Verdict},
};

/// How long a data key is cached if other processes use the same store.
pub const REREAD_AFTER: Duration = Duration::from_secs(10);
/// Maximum number of cached data keys. Above it, the cache starts again empty.
const CACHED_MAX: usize = 10_000;
/// How often a key is replaced or read again because other processes replace it at the same time.
pub(super) const RACES_MAX: u32 = 8;

/// The keys of a store, and the cached data keys of its scopes.
#[derive(Debug)]
pub(super) struct StoreEncryption {
    pub(super) keys: Encryption,
    /// Whether other processes may erase data keys.
    is_shared: bool,
    cache: RwLock<HashMap<ScopeDigest, CachedKey>>,
    /// Number of erased keys. A key that was read before an erasure must not be cached after it.
    erasures: AtomicU64,
    /// The data keys of the store, when they were last counted.
    pub(super) counts: Mutex<Option<ScopeKeyCounts>>,
}

#[derive(Debug)]
struct CachedKey {
    key: DataKey,
    read_at: Instant,
}

impl StoreEncryption {
    pub(super) fn new(keys: Encryption, is_shared: bool) -> Self {
        Self {
            keys,
            is_shared,
            cache: RwLock::default(),
            erasures: AtomicU64::new(0),
            counts: Mutex::default(),
        }
    }

    fn cached(&self, scope: ScopeDigest) -> Option<DataKey> {
        let cache = self.cache.read().unwrap_or_else(PoisonError::into_inner);
        let cached = cache.get(&scope)?;
        let is_fresh = !self.is_shared || cached.read_at.elapsed() < REREAD_AFTER;
        is_fresh.then(|| cached.key.clone())
    }

    fn cache_mut(&self) -> RwLockWriteGuard<'_, HashMap<ScopeDigest, CachedKey>> {
        self.cache.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Caches a key that was read when `erasures` keys were erased.
    fn remember(&self, key: &DataKey, erasures: u64, read_at: Instant) {
        let mut cache = self.cache_mut();
        if self.erasures.load(Ordering::Relaxed) != erasures {
            return;
        }
        if cache.len() >= CACHED_MAX {
            cache.clear();
        }
        let key = key.clone();
        cache.insert(key.scope, CachedKey { key, read_at });
    }

    /// Forgets an erased key.
    pub(super) fn forget(&self, scope: ScopeDigest) {
        let mut cache = self.cache_mut();
        self.erasures.fetch_add(1, Ordering::Relaxed);
        cache.remove(&scope);
    }

    /// The data key that encrypts in this scope, which is created if there is none;
    /// `None` if new records are not encrypted.
    async fn current(
        &self,
        store: &dyn StoreObject,
        scope: ScopeDigest,
    ) -> Result<Option<DataKey>> {
        let Some(master) = self.keys.current() else {
            return Ok(None);
        };
        if let Some(key) = self.cached(scope) {
            return Ok(Some(key));
        }
        let (erasures, read_at) = (self.erasures.load(Ordering::Relaxed), Instant::now());
        let mut stored = store.scope_key(scope).await?;
        for _ in 0..RACES_MAX {
            let found = stored.as_deref().map(|bytes| StoredKey::read(scope, bytes));
            let found = found.transpose()?;
            let opened = found.map(|key| key.open(scope, &self.keys)).transpose()?;
            if let Some(key) = opened.flatten() {
                self.remember(&key, erasures, read_at);
                return Ok(Some(key));
            }
            let generation = found.map_or(0, |key| key.generation().saturating_add(1));
            let fresh = Bytes::from(generate(scope, generation, master)?);
            stored = store.replace_scope_key(scope, stored, fresh).await?;
        }
        Err(contended(scope))
    }

    /// The data key of a scope and generation; `None` if it was erased.
    async fn find(&self, store: &dyn StoreObject, asked: Encrypted) -> Result<Option<DataKey>> {
        let Encrypted { scope, generation } = asked;
        match self.cached(scope) {
            Some(key) if key.generation == generation => return Ok(Some(key)),
            Some(key) if key.generation > generation => return Ok(None),
            _ => {}
        }
        let (erasures, read_at) = (self.erasures.load(Ordering::Relaxed), Instant::now());
        let stored = store.scope_key(scope).await?;
        let stored = stored.ok_or_else(|| lost(asked))?;
        let stored = StoredKey::read(scope, &stored)?;
        if stored.generation() != generation {
            return match stored.generation() > generation {
                true => Ok(None),
                false => Err(lost(asked)),
            };
        }
        let key = stored.open(scope, &self.keys)?;
        if let Some(key) = &key {
            self.remember(key, erasures, read_at);
        }
        Ok(key)
    }

    /// As [`Store::claim`], with an encrypted origin and a decrypted outcome.
    pub(super) async fn claim<S: Store>(&self, store: &S, mut claim: Claim) -> Result<Verdict> {
        let (id, scope) = (claim.id, claim.origin.scope_digest());
        if let Some(key) = self.current(store, scope).await.map_err(Error::unapplied)? {
            claim.origin = claim.origin.encrypted(id, &key);
        }
        match Store::claim(store, claim).await? {
            Verdict::Replay(outcome) => {
                let outcome = self.outcome(store, outcome, id, Some(scope)).await;
                // Nothing was granted.
                let outcome = outcome.map_err(Error::unapplied)?;
                // The key of its scope was erased: the outcome is gone before its retention has ended.
                Ok(outcome.map_or(Verdict::Expired, Verdict::Replay))
            }
            verdict => Ok(verdict),
        }
    }

    /// Encrypts the outcome of a settlement.
    pub(super) async fn settlement(
        &self,
        store: &dyn StoreObject,
        scope: ScopeDigest,
        (id, fence): (RecordId, Fence),
        end: Settlement,
    ) -> Result<Settlement> {
        let Settlement::Complete {
            outcome,
            retention,
            remember,
        } = end
        else {
            return Ok(end);
        };
        let key = self.current(store, scope).await.map_err(Error::unapplied)?;
        let outcome = match key {
            Some(key) if !outcome.is_encrypted() => outcome.encrypted(id, fence, &key)?,
            _ => outcome,
        };
        Ok(Settlement::Complete {
            outcome,
            retention,
            remember,
        })
    }

    /// Decrypts an outcome; `None` if the key of its scope was erased. `scope` is the scope of its record, if it is known.
    async fn outcome(
        &self,
        store: &dyn StoreObject,
        outcome: Outcome,
        id: RecordId,
        scope: Option<ScopeDigest>,
    ) -> Result<Option<Outcome>> {
        let Some(encrypted) = outcome.encryption() else {
            return Ok(Some(outcome));
        };
        if scope.is_some_and(|scope| scope != encrypted.scope) {
            let message = format!("the outcome of record {id} belongs to another scope");
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        let key = self.find(store, encrypted).await?;
        key.map(|key| outcome.decrypted(id, &key)).transpose()
    }

    /// Decrypts a record. Of a record whose key was erased, a tombstone is left.
    pub(super) async fn reading(
        &self,
        store: &dyn StoreObject,
        reading: Reading,
    ) -> Result<Reading> {
        let Reading { id, record, now } = reading;
        let scope = record.trace.scope_digest();
        let trace = self.trace(store, &record.trace, id).await;
        let state = match record.state {
            State::Completed {
                fence,
                outcome,
                retention_ends,
                remember_ends,
            } => match self.outcome(store, outcome, id, Some(scope)).await? {
                Some(outcome) => State::Completed {
                    fence,
                    outcome,
                    retention_ends,
                    remember_ends,
                },
                None => State::Tombstone { remember_ends },
            },
            other => other,
        };
        let record = Record {
            state,
            trace: trace.unwrap_or(record.trace),
            ..record
        };
        Ok(Reading { id, record, now })
    }

    /// The decrypted trace; `None` if it stays as it is. No decision depends on it, so an error hides only its texts.
    async fn trace(&self, store: &dyn StoreObject, trace: &Trace, id: RecordId) -> Option<Trace> {
        let (scope, generation) = trace.encryption()?;
        let key = self.find(store, Encrypted { scope, generation }).await;
        match key {
            Ok(key) => trace.decrypted(id, &key?),
            Err(error) => {
                crate::log_rarely!(warn, record = %id, %error, "cannot decrypt the target of a record");
                None
            }
        }
    }
}

/// The error for an encrypted outcome without any key.
pub(super) fn not_configured(id: RecordId) -> Error {
    let message =
        format!("record {id} is encrypted, and no key is configured: add its key to [encryption]");
    Error::new(ErrorKind::Corrupt, message)
}

/// The error for a data key that is older than the records that need it.
fn lost(asked: Encrypted) -> Error {
    let Encrypted { scope, generation } = asked;
    let message = format!(
        "the data key of scope {scope}, generation {generation}, is missing: the stored data keys are lost \
         or older than the records; restore them from a backup"
    );
    Error::new(ErrorKind::Corrupt, message)
}

pub(super) fn contended(scope: ScopeDigest) -> Error {
    let message = format!(
        "the data key of scope {scope} is replaced by other processes all the time; try again"
    );
    Error::new(ErrorKind::Unavailable, message).unapplied()
}
