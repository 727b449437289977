//! The data keys of scopes, as stores keep them: [encrypted](crate::encryption), and opaque to the store.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::record::ScopeDigest;

/// The maximum length of a stored data key, in bytes.
pub const SCOPE_KEY_BYTES_MAX: usize = 112;
/// The number of keys on a page, unless the store decides otherwise.
const PAGE_LEN: usize = 1_000;

/// One page of stored data keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScopeKeyPage {
    /// The scopes, and their stored keys.
    pub keys: Vec<(ScopeDigest, Bytes)>,
    /// The cursor to continue from; `None` on the last page.
    pub next: Option<u64>,
}

/// The stored data keys in memory.
#[derive(Debug, Default)]
pub(crate) struct ScopeKeyTable(BTreeMap<u64, Bytes>);

impl ScopeKeyTable {
    pub(crate) fn get(&self, scope: ScopeDigest) -> Option<Bytes> {
        self.0.get(&number(scope)).cloned()
    }

    pub(crate) fn put(&mut self, scope: ScopeDigest, key: Bytes) {
        self.0.insert(number(scope), key);
    }

    /// As [`Store::replace_scope_key`](super::Store::replace_scope_key).
    pub(crate) fn replace(
        &mut self,
        scope: ScopeDigest,
        expected: Option<&Bytes>,
        key: Bytes,
    ) -> Option<Bytes> {
        if self.0.get(&number(scope)) == expected {
            self.put(scope, key);
        }
        self.get(scope)
    }

    pub(crate) fn page(&self, cursor: Option<u64>) -> ScopeKeyPage {
        let from = cursor.unwrap_or_default();
        let keys = self.0.range(from..).take(PAGE_LEN);
        let keys: Vec<_> = keys
            .map(|(scope, key)| (ScopeDigest(scope.to_be_bytes()), key.clone()))
            .collect();
        let last = keys.last().filter(|_| keys.len() == PAGE_LEN);
        let next = last.and_then(|(scope, _)| number(*scope).checked_add(1));
        ScopeKeyPage { keys, next }
    }
}

fn number(scope: ScopeDigest) -> u64 {
    u64::from_be_bytes(scope.0)
}
