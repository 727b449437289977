//! Which calls a journal knows: where the last record of each lies, and what is past its time.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use super::{codec::Record, file::Place};
use crate::{Fingerprint, Key, client::moment::Moment};

/// What is known of one call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    pub(super) fingerprint: Fingerprint,
    pub(super) place: Place,
    pub(super) state: State,
}

/// How far it is.
#[derive(Debug, Clone, Copy)]
pub(super) enum State {
    Open,
    Ended { at: Moment, number: u64 },
}

/// How much of what is finished is kept.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kept {
    pub(super) retention: Duration,
    pub(super) calls_max: usize,
    pub(super) bytes_max: u64,
}

/// Every call that counts.
#[derive(Debug, Default)]
pub(super) struct Index {
    slots: HashMap<Key, Slot>,
    open: usize,
    /// The finished ones, the oldest first; one whose number has changed since is another call's.
    finished: VecDeque<(Key, u64)>,
    finished_bytes: u64,
    /// What the last records of all take.
    bytes: u64,
    number: u64,
}

impl Index {
    pub(super) fn get(&self, key: &Key) -> Option<&Slot> {
        self.slots.get(key)
    }

    /// How many calls there are.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn open(&self) -> usize {
        self.open
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes in a record that is durable at `place`.
    pub(super) fn apply(&mut self, record: &Record, place: Place) {
        match record {
            Record::Intent(intent) => {
                let slot = Slot {
                    fingerprint: intent.fingerprint,
                    place,
                    state: State::Open,
                };
                self.put(&intent.key, slot);
            }
            Record::Answered(answered) => {
                self.number += 1;
                let (at, number) = (answered.at, self.number);
                let slot = Slot {
                    fingerprint: answered.fingerprint,
                    place,
                    state: State::Ended { at, number },
                };
                self.put(&answered.key, slot);
                self.finished.push_back((answered.key.clone(), number));
            }
            Record::Dropped { key, .. } => self.remove(key),
        }
    }

    fn put(&mut self, key: &Key, slot: Slot) {
        self.remove(key);
        let len = u64::from(slot.place.len);
        self.bytes += len;
        match slot.state {
            State::Open => self.open += 1,
            State::Ended { .. } => self.finished_bytes += len,
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
            State::Open => self.open -= 1,
            State::Ended { .. } => self.finished_bytes -= len,
        }
    }

    /// Drops finished calls that are past their time or too many, the oldest first.
    pub(super) fn sweep(&mut self, kept: Kept, now: Moment) {
        while let Some((key, number)) = self.finished.front() {
            let slot = self.slots.get(key).map(|slot| slot.state);
            let is_over = match slot {
                Some(State::Ended { at, number: it }) if it == *number => {
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

    /// The open calls, the oldest first.
    pub(super) fn open_places(&self) -> Vec<Place> {
        let open = |slot: &&Slot| matches!(slot.state, State::Open);
        let mut places: Vec<_> = self
            .slots
            .values()
            .filter(open)
            .map(|slot| slot.place)
            .collect();
        places.sort_by_key(|place| place.offset);
        places
    }

    /// Every record that counts, in the order of the file.
    pub(super) fn live(&self) -> Vec<(Key, Place)> {
        let place = |(key, slot): (&Key, &Slot)| (key.clone(), slot.place);
        let mut live: Vec<_> = self.slots.iter().map(place).collect();
        live.sort_by_key(|(_, place)| place.offset);
        live
    }

    /// The records lie elsewhere now.
    pub(super) fn moved(&mut self, to: impl IntoIterator<Item = (Key, Place)>) {
        for (key, place) in to {
            if let Some(slot) = self.slots.get_mut(&key) {
                slot.place = place;
            }
        }
    }
}
