//! Operations on the data keys of all scopes, or of one: checks at start, rotation of the master key, erasure.

use std::{collections::BTreeMap, sync::PoisonError};

use bytes::Bytes;

use super::{
    AnyStore, Store,
    encrypting::{RACES_MAX, contended},
};
use crate::{
    Encryption, Error, ErrorKind, Result,
    encryption::{KeyId, StoredKey},
    record::ScopeDigest,
};

/// The stored data keys, counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScopeKeyCounts {
    /// Scopes with a data key, by the master key that encrypts it.
    pub scopes: BTreeMap<KeyId, u64>,
    /// Scopes whose data key was erased, and that have no new one.
    pub erased: u64,
    /// Data keys that were encrypted again, under the current master key.
    pub renewed: u64,
}

impl ScopeKeyCounts {
    /// The number of scopes with a data key.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.scopes.values().sum()
    }

    /// The ids of the master keys that are needed, but not among `keys`.
    pub fn missing<'a>(&'a self, keys: &'a Encryption) -> impl Iterator<Item = KeyId> + 'a {
        let ids = self.scopes.keys().copied();
        ids.filter(|id| keys.find(*id).is_none())
    }
}

impl AnyStore {
    /// Checks that the keys of this store can decrypt the data keys in it. Reads the first page of them.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if a needed key is not configured; otherwise if the store cannot answer.
    pub async fn check_encryption(&self) -> Result<()> {
        let mut counts = ScopeKeyCounts::default();
        for (scope, bytes) in self.scope_keys(None).await?.keys {
            counts.count(StoredKey::read(scope, &bytes)?);
        }
        let none = Encryption::default();
        let missing = counts.missing(self.encryption().unwrap_or(&none)).next();
        let Some(id) = missing else { return Ok(()) };
        let message = format!(
            "the records of this store are encrypted under the key {id}, which is not configured: \
             add it to [encryption], as key_file or key_env, or to previous_key_files or previous_key_envs if it was replaced"
        );
        Err(Error::new(ErrorKind::Invalid, message))
    }

    /// Counts the stored data keys, and encrypts those of previous master keys again, under the current one.
    ///
    /// A previous master key can be removed once no scope is counted for it.
    ///
    /// # Errors
    /// If the store cannot answer, or a data key is damaged.
    ///
    /// # Cancellation
    /// May be dropped; keys that were renewed stay so.
    pub async fn renew_scope_keys(&self) -> Result<ScopeKeyCounts> {
        let mut counts = ScopeKeyCounts::default();
        let mut cursor = None;
        loop {
            let page = self.scope_keys(cursor).await?;
            for (scope, bytes) in page.keys {
                let renewed = self.renew(scope, &bytes).await?;
                counts.renewed += u64::from(renewed.is_some());
                counts.count(StoredKey::read(scope, &renewed.unwrap_or(bytes))?);
            }
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        if let Some(encrypting) = self.encrypting() {
            let last = encrypting.counts.lock();
            *last.unwrap_or_else(PoisonError::into_inner) = Some(counts.clone());
        }
        Ok(counts)
    }

    /// Encrypts a data key again; returns it if it was not under the current master key, but can be.
    async fn renew(&self, scope: ScopeDigest, stored: &Bytes) -> Result<Option<Bytes>> {
        let Some(keys) = self.encryption() else {
            return Ok(None);
        };
        let key = StoredKey::read(scope, stored)?;
        let (StoredKey::Wrapped { master, .. }, Some(current)) = (key, keys.current()) else {
            return Ok(None);
        };
        if master == current.id() || keys.find(master).is_none() {
            return Ok(None);
        }
        let Some(renewed) = key.rewrap(scope, keys, current)?.map(Bytes::from) else {
            return Ok(None);
        };
        // Another process that was faster has renewed or erased it.
        self.replace_scope_key(scope, Some(stored.clone()), renewed)
            .await
    }

    /// Erases the data key of a scope: what was encrypted with it can never be decrypted again.
    /// Returns whether there was one. A new claim in the scope creates a new key.
    ///
    /// Other processes on a shared store may use the erased key for up to
    /// [`REREAD_AFTER`](super::REREAD_AFTER) from their last read of it.
    ///
    /// # Errors
    /// If the store cannot answer: then the key may have been erased or not.
    ///
    /// # Cancellation
    /// May be dropped: the key may have been erased or not.
    pub async fn erase_scope_key(&self, scope: ScopeDigest) -> Result<bool> {
        let mut stored = self.scope_key(scope).await?;
        for _ in 0..RACES_MAX {
            let Some(bytes) = stored else {
                return Ok(false);
            };
            let StoredKey::Wrapped { generation, .. } = StoredKey::read(scope, &bytes)? else {
                return Ok(false);
            };
            let erased = Bytes::from(StoredKey::erased(generation));
            let replaced = self.replace_scope_key(scope, Some(bytes), erased.clone());
            stored = replaced.await?;
            if stored.as_ref() == Some(&erased) {
                self.forget_scope_key(scope);
                return Ok(true);
            }
        }
        Err(contended(scope))
    }

    /// The result of the last [`renew_scope_keys`](Self::renew_scope_keys); `None` if records are not encrypted.
    #[must_use]
    pub fn scope_key_counts(&self) -> Option<ScopeKeyCounts> {
        let counts = self.encrypting()?.counts.lock();
        counts.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl ScopeKeyCounts {
    fn count(&mut self, key: StoredKey<'_>) {
        match key {
            StoredKey::Wrapped { master, .. } => *self.scopes.entry(master).or_default() += 1,
            StoredKey::Erased { .. } => self.erased += 1,
        }
    }
}
