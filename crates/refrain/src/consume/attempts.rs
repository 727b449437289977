//! What this process knows of messages that it has met and not done with.
//!
//! Attempts are counted in the records. What is known here decides only where there is none: on a store that forgets with its
//! process, where a worker rolls everything back, and where an attempt without effect was released.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::RecordId;

/// How many messages are remembered in each of two generations.
const MESSAGES_MAX: usize = 10_000;
/// How much of a failure's text is kept.
pub(super) const TEXT_BYTES_MAX: usize = 500;

/// What this process knows of a message that it has met and not done with.
#[derive(Debug, Clone, Default)]
pub(super) struct Known {
    /// How often its handler failed here.
    pub(super) failed: u32,
    /// How often it was delivered here and given back without being handled.
    pub(super) spared: u32,
    /// Among these, how often it was held for its predecessor.
    pub(super) held: u32,
    /// What its handler said when it failed first.
    pub(super) first_failure: Option<String>,
}

impl Known {
    /// Which attempt a delivery is; `delivered` is the broker's count, where it has one and no record counts.
    pub(super) fn attempt(&self, delivered: Option<u32>) -> u32 {
        let handed_over = delivered.unwrap_or(1).saturating_sub(self.spared);
        handed_over.max(self.failed.saturating_add(1))
    }
}

/// Messages that were not done with at once: the few that fail, not the many that pass.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    known: Mutex<Generations>,
}

/// When the young generation is full it becomes the old one, and the old one is forgotten.
#[derive(Debug, Default)]
struct Generations {
    young: HashMap<RecordId, Known>,
    old: HashMap<RecordId, Known>,
}

impl Attempts {
    pub(super) fn get(&self, id: RecordId) -> Known {
        let known = self.lock();
        let found = known.young.get(&id).or_else(|| known.old.get(&id));
        found.cloned().unwrap_or_default()
    }

    pub(super) fn note(&self, id: RecordId, change: impl FnOnce(&mut Known)) {
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

/// A failure's text, short enough to be kept and carried in a header: one line.
pub(crate) fn brief(text: &str) -> String {
    let plain = text.chars().map(|char| match char.is_control() {
        true => ' ',
        false => char,
    });
    let mut brief = String::new();
    for char in plain {
        if brief.len() + char.len_utf8() > TEXT_BYTES_MAX {
            break;
        }
        brief.push(char);
    }
    brief
}
