//! In-memory table of records, sharded into many small maps, each with its own lock.
//! The memory store and the embedded store use it.
//!
//! Small maps keep the pauses short when a map grows. Shards by the first byte of the identity keep lists in order.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::key::RecordId;

type Shard<V> = HashMap<RecordId, V, BuildHasherDefault<IdHasher>>;

/// Map from record identity to value.
#[derive(Debug)]
pub(crate) struct Table<V> {
    shards: Box<[Mutex<Shard<V>>]>,
}

impl<V> Table<V> {
    /// Creates a table for many values.
    pub(crate) fn new() -> Self {
        Self::with_shards(256)
    }

    /// Creates a table for a few short-lived values: with fewer shards, it stays in the processor's cache.
    pub(crate) fn small() -> Self {
        Self::with_shards(16)
    }

    fn with_shards(count: usize) -> Self {
        let shards = (0..count).map(|_| Mutex::default()).collect();
        Self { shards }
    }

    /// Makes room for about this number of values.
    pub(crate) fn reserve(&self, values: usize) {
        let each = values / self.shards.len();
        for place in 0..self.shards.len() {
            self.shard(place).reserve(each);
        }
    }

    /// Calls `work` with the entry of `id`, while its shard is locked.
    pub(crate) fn with<R>(
        &self,
        id: RecordId,
        work: impl FnOnce(&mut TableEntry<'_, V>) -> R,
    ) -> R {
        let mut shard = self.shard(self.place(id));
        work(&mut TableEntry {
            shard: &mut shard,
            id,
        })
    }

    /// Returns a copy of the value of `id`.
    pub(crate) fn get(&self, id: RecordId) -> Option<V>
    where
        V: Clone,
    {
        self.shard(self.place(id)).get(&id).cloned()
    }

    /// Returns identities after `after`, in order, from one shard at a time to keep locks short.
    /// The list is empty only at the end of the table.
    pub(crate) fn ids_after(
        &self,
        after: Option<RecordId>,
        fits: impl Fn(&V) -> bool,
    ) -> Vec<RecordId> {
        let first = after.map_or(0, |id| self.place(id));
        for place in first..self.shards.len() {
            let shard = self.shard(place);
            let mut ids: Vec<_> = shard
                .iter()
                .filter(|(id, value)| after.is_none_or(|after| **id > after) && fits(value))
                .map(|(id, _)| *id)
                .collect();
            drop(shard);
            if !ids.is_empty() {
                ids.sort_unstable();
                return ids;
            }
        }
        Vec::new()
    }

    /// Calls `show` with every value, locking one shard at a time.
    pub(crate) fn each(&self, mut show: impl FnMut(RecordId, &V)) {
        for place in 0..self.shards.len() {
            let shard = self.shard(place);
            shard.iter().for_each(|(id, value)| show(*id, value));
        }
    }

    pub(crate) fn len(&self) -> usize {
        (0..self.shards.len())
            .map(|place| self.shard(place).len())
            .sum()
    }

    /// The index of the shard that holds `id`. Shards are in the order of identities.
    fn place(&self, id: RecordId) -> usize {
        usize::from(id.0[0]) * self.shards.len() / 256
    }

    fn shard(&self, place: usize) -> MutexGuard<'_, Shard<V>> {
        // A panic cannot leave a map in an inconsistent state, because each change is one call.
        self.shards[place]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// A locked entry of the table.
#[derive(Debug)]
pub(crate) struct TableEntry<'a, V> {
    shard: &'a mut Shard<V>,
    id: RecordId,
}

impl<V> TableEntry<'_, V> {
    pub(crate) fn get(&self) -> Option<&V> {
        self.shard.get(&self.id)
    }

    pub(crate) fn get_mut(&mut self) -> Option<&mut V> {
        self.shard.get_mut(&self.id)
    }

    pub(crate) fn take(&mut self) -> Option<V> {
        let value = self.shard.remove(&self.id);
        if self.shard.len() * 4 < self.shard.capacity() && self.shard.capacity() > 4_096 {
            self.shard.shrink_to(self.shard.len() * 2);
        }
        value
    }

    pub(crate) fn put(&mut self, value: V) {
        self.shard.insert(self.id, value);
    }
}

/// Hasher for record identities. They are keyed digests, so their own bytes are already well distributed.
#[derive(Debug, Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, word: u64) {
        let mixed = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }

    fn write_u128(&mut self, id: u128) {
        self.write_u64(id as u64);
        self.write_u64((id >> 64) as u64);
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }
}
