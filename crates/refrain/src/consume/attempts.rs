//! Failed messages that this process remembers.
//!
//! Attempts are counted in the records. This memory is used only when the record has no count: with a store that does
//! not survive its process, with a worker that rolls everything back, and after a release without effect.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::RecordId;

/// Maximum number of messages remembered in each of two generations.
const MESSAGES_MAX: usize = 10_000;

/// What this process remembers about an unfinished message.
#[derive(Debug, Clone, Default)]
pub(super) struct KnownAttempts {
    /// Number of failures of its handler in this process.
    pub(super) failed: u32,
    /// Number of deliveries in this process that were returned without being handled.
    pub(super) spared: u32,
    /// How many of these waited for a predecessor.
    pub(super) held: u32,
    /// Text of the first failure of its handler.
    pub(super) first_failure: Option<String>,
}

impl KnownAttempts {
    /// Attempt number of a delivery. `delivered` is the broker's count, if it has one and the record has none.
    pub(super) fn attempt(&self, delivered: Option<u32>) -> u32 {
        let handed_over = delivered.unwrap_or(1).saturating_sub(self.spared);
        handed_over.max(self.failed.saturating_add(1))
    }
}

/// Messages that did not finish at the first attempt: the few that fail, not the many that succeed.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    known: Mutex<Generations>,
}

/// A full young generation becomes the old one, and the previous old one is dropped.
#[derive(Debug, Default)]
struct Generations {
    young: HashMap<RecordId, KnownAttempts>,
    old: HashMap<RecordId, KnownAttempts>,
}

impl Attempts {
    pub(super) fn get(&self, id: RecordId) -> KnownAttempts {
        let known = self.lock();
        let found = known.young.get(&id).or_else(|| known.old.get(&id));
        found.cloned().unwrap_or_default()
    }

    pub(super) fn note(&self, id: RecordId, change: impl FnOnce(&mut KnownAttempts)) {
        let mut known = self.lock();
        if known.young.len() >= MESSAGES_MAX {
            known.old = std::mem::take(&mut known.young);
        }
        let before = known.old.remove(&id);
        change(
            known
                .young
                .entry(id)
                .or_insert_with(|| before.unwrap_or_default()),
        );
    }

    pub(super) fn forget(&self, id: RecordId) {
        let mut known = self.lock();
        known.young.remove(&id);
        known.old.remove(&id);
    }

    fn lock(&self) -> MutexGuard<'_, Generations> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
