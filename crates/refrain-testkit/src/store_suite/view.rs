//! Readings and verdicts in a comparable form:
//! aged to the time of the reading, timestamps as remaining time, outcomes sealed.

use refrain::{
    Fence, RecordId, Verdict,
    clock::Timestamp,
    record::{Command, Record, State, step},
    store::Reading,
};

/// The record of a reading, aged: a store may or may not have applied lapsed leases and ended retention yet.
pub(super) fn of_reading(reading: Reading) -> Option<Record> {
    let Reading { id, record, now } = reading;
    let record = record.map(|outcome| outcome.sealed(id));
    let mut record = step(Some(record), Command::Age, now).record?;
    let left = |moment: &mut Timestamp| *moment = Timestamp(moment.0.saturating_sub(now.0));
    match &mut record.state {
        State::InFlight { hold, lease_ends } => {
            left(lease_ends);
            left(&mut hold.settles);
        }
        State::Indeterminate { hold, .. } => left(&mut hold.settles),
        State::Completed {
            retention_ends,
            remember_ends,
            ..
        } => {
            left(retention_ends);
            left(remember_ends);
        }
        State::Tombstone { remember_ends } => left(remember_ends),
    }
    Some(record)
}

/// The verdict with its outcome sealed: a store may return it sealed or not.
pub(super) fn of_verdict(verdict: Verdict, id: RecordId) -> Verdict {
    match verdict {
        Verdict::Replay(outcome) => Verdict::Replay(outcome.sealed(id)),
        other => other,
    }
}

/// The same record with its fences renamed.
pub(super) fn renamed(mut record: Record, rename: impl Fn(Fence) -> Fence) -> Record {
    match &mut record.state {
        State::InFlight { hold, .. } | State::Indeterminate { hold, .. } => {
            hold.fence = rename(hold.fence);
        }
        State::Completed { fence, .. } => *fence = rename(*fence),
        State::Tombstone { .. } => (),
    }
    record
}
