//! Readings and verdicts in a comparable form:
//! aged to the time of the reading, timestamps as remaining time, those in the trace as past time, outcomes sealed.

use bytes::Bytes;
use refrain::{
    Fence, RecordId, Verdict,
    clock::Timestamp,
    record::{Command, Record, State, Trace, step},
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
    record.trace = with_events(&record.trace, |_, moment, _| {
        let ago = now.0.saturating_sub(u64::from_be_bytes(*moment));
        *moment = ago.to_be_bytes();
    });
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
    record.trace = with_events(&record.trace, |kind, _, rest| {
        if ATTEMPTS.contains(&kind)
            && let Some(fence) = rest.first_chunk_mut::<16>()
        {
            *fence = bytes_of(rename(fence_of(fence)));
        }
    });
    record
}

/// The kinds of events of attempts.
const ATTEMPTS: [u8; 2] = [1, 5];

/// The same trace with its events changed. `change` gets the kind, the time and the rest of each.
fn with_events(trace: &Trace, mut change: impl FnMut(u8, &mut [u8; 8], &mut [u8])) -> Trace {
    let mut bytes = trace.as_bytes().to_vec();
    let origin_len = bytes.first_chunk().copied().map_or(0, u16::from_be_bytes);
    let mut events = bytes.get_mut(2 + usize::from(origin_len)..);
    while let Some([kind, len, rest @ ..]) = events {
        let (event, after) = rest.split_at_mut(usize::from(*len));
        if let Some((moment, rest)) = event.split_first_chunk_mut() {
            change(*kind, moment, rest);
        }
        events = Some(after);
    }
    Bytes::from(bytes).into()
}

fn fence_of(bytes: &[u8; 16]) -> Fence {
    let [one, two, three, four] = [0, 4, 8, 12].map(|at| {
        let word = bytes[at..].first_chunk().copied().unwrap_or_default();
        u32::from_be_bytes(word)
    });
    Fence {
        epoch: one,
        counter: u64::from(two) << 32 | u64::from(three),
        nonce: four,
    }
}

fn bytes_of(fence: Fence) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&fence.epoch.to_be_bytes());
    bytes[4..12].copy_from_slice(&fence.counter.to_be_bytes());
    bytes[12..].copy_from_slice(&fence.nonce.to_be_bytes());
    bytes
}
