//! Record counts by state.

use super::StateName;
use crate::{
    Outcome,
    clock::Timestamp,
    record::{Command, Record, step},
};

/// The number of records in each state, as far as a store knows without reading outcomes.
///
/// The counts of in-flight and indeterminate records are exact, lapsed leases included.
/// A store that does not index the times at which records expire counts an expired record in its stored state,
/// completed or tombstone, until it is swept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Census {
    /// Claimed; the outcome is not known yet.
    pub in_flight: u64,
    /// The operation ended, and its outcome is stored.
    pub completed: u64,
    /// The outcome is unknown: the operation may or may not have taken effect.
    pub indeterminate: u64,
    /// Past retention: the key is refused.
    pub tombstones: u64,
    /// Damaged; their state is unknown.
    pub unreadable: u64,
}

impl Census {
    /// Counts one record in this state.
    pub fn count(&mut self, name: StateName) {
        *match name {
            StateName::InFlight => &mut self.in_flight,
            StateName::Completed => &mut self.completed,
            StateName::Indeterminate => &mut self.indeterminate,
            StateName::Tombstone => &mut self.tombstones,
        } += 1;
    }

    /// Counts a record in the state that it has at the time `now`.
    pub fn count_at(&mut self, record: &Record<Outcome>, now: Timestamp) {
        let aged = step(Some(record.clone()), Command::Age, now).record;
        if let Some(record) = aged {
            self.count(record.state.name());
        }
    }
}
