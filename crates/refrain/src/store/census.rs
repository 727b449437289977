//! How many records there are in each state.

use super::StateName;
use crate::{
    Outcome,
    clock::Timestamp,
    record::{Command, Record, step},
};

/// How many records there are in each state, as far as a store knows without reading outcomes.
///
/// In flight and indeterminate are exact, with what time has made of them.
/// A store that does not know when an outcome's retention ends counts it as completed until it is swept;
/// so does one for what is past its time altogether.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Census {
    /// Claimed, their end not known yet.
    pub in_flight: u64,
    /// Ended, outcome kept.
    pub completed: u64,
    /// They may or may not have taken effect.
    pub indeterminate: u64,
    /// Past retention.
    pub tombstones: u64,
    /// Damaged: what they are is not known.
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

    /// Counts a record as time has made it by now.
    pub fn count_at(&mut self, record: &Record<Outcome>, now: Timestamp) {
        let aged = step(Some(record.clone()), Command::Age, now).record;
        if let Some(record) = aged {
            self.count(record.state.name());
        }
    }
}
