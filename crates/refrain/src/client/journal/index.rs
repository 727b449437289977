//! Index of a journal's calls: position of the last record of each call, and retention of finished ones.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use super::{codec::Record, file::RecordPosition};
use crate::{Fingerprint, Key, client::moment::Moment};

/// State of one call.
#[derive(Debug, Clone, Copy)]
pub(super) struct CallSlot {
    pub(super) fingerprint: Fingerprint,
    pub(super) place: RecordPosition,
    pub(super) state: CallState,
}

/// Progress of a call.
#[derive(Debug, Clone, Copy)]
pub(super) enum CallState {
    Open,
    Ended { at: Moment, number: u64 },
}

/// Limits for finished calls.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kept {
    pub(super) retention: Duration,
    pub(super) calls_max: usize,
    pub(super) bytes_max: u64,
}

/// Index of all live calls.
#[derive(Debug, Default)]
pub(super) struct Index {
    slots: HashMap<Key, CallSlot>,
    open: usize,
    /// Finished calls, the oldest first. An entry whose number no longer matches its slot is stale.
    finished: VecDeque<(Key, u64)>,
    finished_bytes: u64,
    /// Size of all live records, in bytes.
    bytes: u64,
    number: u64,
}

impl Index {
    pub(super) fn get(&self, key: &Key) -> Option<&CallSlot> {
        self.slots.get(key)
    }

    /// Number of live calls.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn open(&self) -> usize {
        self.open
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Applies a record that is durable at `place`.
    pub(super) fn apply(&mut self, record: &Record, place: RecordPosition) {
        match record {
            Record::Intent(intent) => {
                let slot = CallSlot {
                    fingerprint: intent.fingerprint,
                    place,
                    state: CallState::Open,
                };
                self.put(&intent.key, slot);
            }
            Record::Answered(answered) => {
                self.number += 1;
                let (at, number) = (answered.at, self.number);
                let slot = CallSlot {
                    fingerprint: answered.fingerprint,
                    place,
                    state: CallState::Ended { at, number },
                };
                self.put(&answered.key, slot);
                self.finished.push_back((answered.key.clone(), number));
            }
            Record::Dropped { key, .. } => self.remove(key),
        }
    }

    fn put(&mut self, key: &Key, slot: CallSlot) {
        self.remove(key);
        let len = u64::from(slot.place.len);
        self.bytes += len;
        match slot.state {
            CallState::Open => self.open += 1,
            CallState::Ended { .. } => self.finished_bytes += len,
        }
        self.slots.insert(key.clone(), slot);
    }

    fn remove(&mut self, key: &Key) {
        let Some(slot) = self.slots.remove(key) else {
            return;
        };
        let len = u64::from(slot.place.len);
        self.bytes -= len;
        match slot.state {
            CallState::Open => self.open -= 1,
            CallState::Ended { .. } => self.finished_bytes -= len,
        }
    }

    /// Removes finished calls that are past retention or over the limits, the oldest first.
    pub(super) fn sweep(&mut self, kept: Kept, now: Moment) {
        while let Some((key, number)) = self.finished.front() {
            let slot = self.slots.get(key).map(|slot| slot.state);
            let is_over = match slot {
                Some(CallState::Ended { at, number: it }) if it == *number => {
                    at.steadily_until(now) >= kept.retention
                        || self.slots.len() - self.open > kept.calls_max
                        || self.finished_bytes > kept.bytes_max
                }
                _ => {
                    self.finished.pop_front();
                    continue;
                }
            };
            if !is_over {
                return;
            }
            let key = key.clone();
            self.finished.pop_front();
            self.remove(&key);
        }
    }

    /// Returns the positions of open calls, the oldest first.
    pub(super) fn open_places(&self) -> Vec<RecordPosition> {
        let open = |slot: &&CallSlot| matches!(slot.state, CallState::Open);
        let mut places: Vec<_> = self
            .slots
            .values()
            .filter(open)
            .map(|slot| slot.place)
            .collect();
        places.sort_by_key(|place| place.offset);
        places
    }

    /// Returns every live record, in file order.
    pub(super) fn live(&self) -> Vec<(Key, RecordPosition)> {
        let place = |(key, slot): (&Key, &CallSlot)| (key.clone(), slot.place);
        let mut live: Vec<_> = self.slots.iter().map(place).collect();
        live.sort_by_key(|(_, place)| place.offset);
        live
    }

    /// Updates the positions of records after a rewrite.
    pub(super) fn moved(&mut self, to: impl IntoIterator<Item = (Key, RecordPosition)>) {
        for (key, place) in to {
            if let Some(slot) = self.slots.get_mut(&key) {
                slot.place = place;
            }
        }
    }
}
