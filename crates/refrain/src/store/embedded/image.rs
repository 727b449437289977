//! Encoding of one record in the log: its whole state after a `step`.
//!
//! Every image is complete. So only the last image of a record counts, and compaction needs no other.
//! The checksum of an image covers the identity of the record, so an image read from a wrong position is detected.
//! Times are encoded relative to a fixed day, which keeps them short.

use std::time::Duration;

use bytes::Bytes;

use crate::{
    Fingerprint, Outcome,
    clock::Timestamp,
    key::{Credential, RecordId},
    record::{Claimant, Fence, Guarantee, Hold, Reason, Record, State},
    varint::{self, Reader},
};

/// The content of a log entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum ImageKind {
    InFlight = 1,
    Completed = 2,
    Indeterminate = 3,
    /// The record is absent: released, or resolved as never happened.
    Absent = 4,
    Tombstone = 5,
    /// The end of the previous segment; not a record.
    Sealed = 6,
}

impl ImageKind {
    pub(super) fn from_code(code: u8) -> Option<Self> {
        use ImageKind::{Absent, Completed, InFlight, Indeterminate, Sealed, Tombstone};
        [
            InFlight,
            Completed,
            Indeterminate,
            Absent,
            Tombstone,
            Sealed,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == code)
    }

    pub(super) fn of(record: Option<&Record>) -> Self {
        match record.map(|record| &record.state) {
            None => Self::Absent,
            Some(State::InFlight { .. }) => Self::InFlight,
            Some(State::Completed { .. }) => Self::Completed,
            Some(State::Indeterminate { .. }) => Self::Indeterminate,
            Some(State::Tombstone { .. }) => Self::Tombstone,
        }
    }

    /// Returns whether the image expires by time alone, without a later image.
    pub(super) fn ends_by_time(self) -> bool {
        matches!(self, Self::Completed | Self::Tombstone)
    }
}

/// 1 January 2026. Earlier times can be encoded, but take more bytes.
const DAY_ZERO: Timestamp = Timestamp(1_767_225_600_000);
const WITH_CREDENTIAL: u8 = 1;

/// Appends the image of a record.
pub(super) fn encode(out: &mut Vec<u8>, id: RecordId, record: Option<&Record>) {
    let start = out.len();
    let kind = ImageKind::of(record);
    if let Some(record) = record {
        put_head(out, record);
        match &record.state {
            State::InFlight { hold, .. } => put_hold(out, hold),
            State::Indeterminate { hold, reason } => {
                put_hold(out, hold);
                out.push(*reason as u8);
            }
            State::Completed {
                fence,
                retention_ends,
                remember_ends,
                ..
            } => {
                put_fence(out, *fence);
                put_time(out, *retention_ends, DAY_ZERO);
                put_time(out, *remember_ends, *retention_ends);
            }
            State::Tombstone { remember_ends } => put_time(out, *remember_ends, DAY_ZERO),
        }
    }
    let sum = checksum(kind, id, &out[start..]);
    out.extend(sum.to_le_bytes());
    if let Some(State::Completed { outcome, .. }) = record.map(|record| &record.state) {
        debug_assert_eq!(
            outcome.clone().sealed(id),
            *outcome,
            "sealed before it is stored"
        );
        out.extend_from_slice(outcome.encoded());
    }
}

/// Decodes an image; `None` if it is damaged or belongs to another record.
///
/// Leases are not stored: when the log is read, the holders of all leases are gone.
pub(super) fn decode(kind: ImageKind, id: RecordId, image: &Bytes) -> Option<Option<Record>> {
    let mut reader = Reader(image);
    if kind == ImageKind::Absent {
        check(kind, id, image, &mut reader)?;
        return Some(None);
    }
    let (fingerprint, credential) = head(&mut reader)?;
    let state = match kind {
        ImageKind::InFlight => State::InFlight {
            hold: hold(&mut reader)?,
            lease_ends: Timestamp(0),
        },
        ImageKind::Indeterminate => State::Indeterminate {
            hold: hold(&mut reader)?,
            reason: Reason::from_code(reader.u8()?)?,
        },
        ImageKind::Tombstone => State::Tombstone {
            remember_ends: time(&mut reader, DAY_ZERO)?,
        },
        ImageKind::Completed => {
            let fence = fence(&mut reader)?;
            let retention_ends = time(&mut reader, DAY_ZERO)?;
            let remember_ends = time(&mut reader, retention_ends)?;
            check(kind, id, image, &mut reader)?;
            let outcome = Outcome::decode(image.slice_ref(reader.0), id).ok()?;
            let state = State::Completed {
                fence,
                outcome,
                retention_ends,
                remember_ends,
            };
            return Some(Some(Record {
                fingerprint,
                credential,
                state,
            }));
        }
        ImageKind::Absent | ImageKind::Sealed => return None,
    };
    check(kind, id, image, &mut reader)?;
    Some(Some(Record {
        fingerprint,
        credential,
        state,
    }))
}

/// Appends an entry that the segment `segment` ended at `len`.
pub(super) fn encode_sealed(out: &mut Vec<u8>, segment: u32, len: u64) {
    let start = out.len();
    out.extend(segment.to_le_bytes());
    out.extend(len.to_le_bytes());
    let sum = checksum(ImageKind::Sealed, RecordId::default(), &out[start..]);
    out.extend(sum.to_le_bytes());
}

/// Decodes the number and the length of a sealed segment; `None` if the entry is damaged.
pub(super) fn decode_sealed(note: &[u8]) -> Option<(u32, u64)> {
    let mut reader = Reader(note);
    let sealed = (reader.u32()?, reader.u64()?);
    check(ImageKind::Sealed, RecordId::default(), note, &mut reader)?;
    Some(sealed)
}

fn checksum(kind: ImageKind, id: RecordId, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&[kind as u8]);
    hasher.update(&id.0);
    hasher.update(bytes);
    hasher.finalize()
}

/// Verifies the checksum that comes next, over everything read before it.
fn check(kind: ImageKind, id: RecordId, image: &[u8], reader: &mut Reader<'_>) -> Option<()> {
    let read = image.len() - reader.0.len();
    let sum = reader.u32()?;
    (checksum(kind, id, &image[..read]) == sum).then_some(())
}

fn put_head(out: &mut Vec<u8>, record: &Record) {
    out.push(record.credential.map_or(0, |_| WITH_CREDENTIAL));
    out.extend(record.fingerprint.0);
    out.extend(record.credential.iter().flat_map(|credential| credential.0));
}

fn head(reader: &mut Reader<'_>) -> Option<(Fingerprint, Option<Credential>)> {
    let flags = reader.u8()?;
    let fingerprint = Fingerprint(reader.array()?);
    let credential = match flags {
        0 => None,
        WITH_CREDENTIAL => Some(Credential(reader.array()?)),
        _ => return None,
    };
    Some((fingerprint, credential))
}

fn put_hold(out: &mut Vec<u8>, hold: &Hold) {
    put_fence(out, hold.fence);
    out.push(hold.guarantee as u8);
    varint::put(out, hold.attempts.into());
    varint::put(out, hold.attempts_max.into());
    varint::put(out, millis(hold.settle_after));
    put_time(out, hold.settles, DAY_ZERO);
}

fn hold(reader: &mut Reader<'_>) -> Option<Hold> {
    Some(Hold {
        fence: fence(reader)?,
        claimant: Claimant::default(),
        guarantee: match reader.u8()? {
            0 => Guarantee::AtMostOnce,
            1 => Guarantee::AtLeastOnce,
            2 => Guarantee::ExactlyOnce,
            _ => return None,
        },
        attempts: reader.varint()?.try_into().ok()?,
        attempts_max: reader.varint()?.try_into().ok()?,
        settle_after: Duration::from_millis(reader.varint()?),
        settles: time(reader, DAY_ZERO)?,
    })
}

fn put_fence(out: &mut Vec<u8>, fence: Fence) {
    varint::put(out, fence.epoch.into());
    varint::put(out, fence.counter);
    out.extend(fence.nonce.to_le_bytes());
}

fn fence(reader: &mut Reader<'_>) -> Option<Fence> {
    Some(Fence {
        epoch: reader.varint()?.try_into().ok()?,
        counter: reader.varint()?,
        nonce: reader.u32()?,
    })
}

fn put_time(out: &mut Vec<u8>, time: Timestamp, base: Timestamp) {
    varint::put(out, time.0.wrapping_sub(base.0));
}

fn time(reader: &mut Reader<'_>, base: Timestamp) -> Option<Timestamp> {
    Some(Timestamp(base.0.wrapping_add(reader.varint()?)))
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
