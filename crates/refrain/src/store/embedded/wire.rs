//! Calls to a store and their replies as bytes, for a process that handed its store to another one.
//!
//! Both processes check the version of this format before they use it, so it can change with every release.

use std::time::Duration;

use bytes::Bytes;

use super::frame::{self, ImageKind};
use crate::{
    Credential, Error, ErrorKind, Fence, Fingerprint, Guarantee, Outcome, RecordId, Result,
    clock::Timestamp,
    record::{
        Claim, Claimant, Doubt, Grant, Origin, Reason, Record, ScopeDigest, Settled, Settlement,
        State, Verdict,
    },
    store::{AnyStore, Reading, ScopeKeyPage, Store as _},
    varint::{self, Reader},
};

/// Version of the format of calls, replies and leases.
pub const VERSION: u32 = 1;

/// Stands for the record in replies that are about none.
pub const NO_RECORD: RecordId = RecordId([0; size_of::<RecordId>()]);

/// A call that a process makes to a store that another process holds.
#[derive(Debug, Clone)]
pub enum Call {
    /// [`Store::claim`](crate::Store::claim).
    Claim(Claim),
    /// [`Store::settle`](crate::Store::settle).
    Settle(RecordId, Fence, Settlement),
    /// [`Store::renew`](crate::Store::renew).
    Renew(RecordId, Fence, Duration),
    /// [`Store::read`](crate::Store::read).
    Read(RecordId),
    /// [`Store::scope_key`](crate::Store::scope_key).
    ScopeKey(ScopeDigest),
    /// [`Store::replace_scope_key`](crate::Store::replace_scope_key).
    ReplaceScopeKey(ScopeDigest, Option<Bytes>, Bytes),
    /// [`Store::scope_keys`](crate::Store::scope_keys).
    ScopeKeys(Option<u64>),
}

/// The reply to a [`Call`].
#[derive(Debug)]
pub enum CallReply {
    /// To a claim.
    Verdict(Verdict),
    /// To a settlement or a renewal.
    Settled(Settled),
    /// To a read.
    Reading(Option<Reading>),
    /// To a scope's key, read or replaced.
    ScopeKey(Option<Bytes>),
    /// To a page of the scopes' keys.
    ScopeKeys(ScopeKeyPage),
}

/// A lease in force, which a store that another process opens keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldLease {
    /// The record in flight.
    pub id: RecordId,
    /// The fence of its holder.
    pub fence: Fence,
    /// The caller that holds the claim.
    pub claimant: Claimant,
    /// Time until the lease lapses.
    pub left: Duration,
}

impl Call {
    /// Encodes the call.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Claim(claim) => {
                out.push(1);
                put_claim(&mut out, claim);
            }
            Self::Settle(id, fence, end) => {
                out.push(2);
                out.extend(id.0);
                put_fence(&mut out, *fence);
                put_settlement(&mut out, *id, end);
            }
            Self::Renew(id, fence, lease) => {
                out.push(3);
                out.extend(id.0);
                put_fence(&mut out, *fence);
                put_time(&mut out, *lease);
            }
            Self::Read(id) => {
                out.push(4);
                out.extend(id.0);
            }
            Self::ScopeKey(scope) => {
                out.push(5);
                out.extend(scope.0);
            }
            Self::ReplaceScopeKey(scope, expected, key) => {
                out.push(6);
                out.extend(scope.0);
                put_option(&mut out, expected.as_ref(), put_sized);
                put_sized(&mut out, key);
            }
            Self::ScopeKeys(cursor) => {
                out.push(7);
                put_option(&mut out, *cursor, varint::put);
            }
        }
        out
    }

    /// Decodes a call; `None` if the bytes are malformed.
    #[must_use]
    pub fn decode(bytes: &Bytes) -> Option<Self> {
        let mut reader = Reader(bytes);
        Some(match reader.u8()? {
            1 => Self::Claim(claim(&mut reader)?),
            2 => {
                let id = RecordId(reader.array()?);
                let fence = fence(&mut reader)?;
                Self::Settle(id, fence, settlement(&mut reader, bytes, id)?)
            }
            3 => Self::Renew(
                RecordId(reader.array()?),
                fence(&mut reader)?,
                time(&mut reader)?,
            ),
            4 => Self::Read(RecordId(reader.array()?)),
            5 => Self::ScopeKey(ScopeDigest(reader.array()?)),
            6 => {
                let scope = ScopeDigest(reader.array()?);
                let expected = option(&mut reader, |it| sized(it, bytes))?;
                Self::ReplaceScopeKey(scope, expected, sized(&mut reader, bytes)?)
            }
            7 => Self::ScopeKeys(option(&mut reader, Reader::varint)?),
            _ => return None,
        })
    }

    /// Makes the call, and encodes its reply. Records pass as they are stored: the caller encrypts and decrypts them.
    pub async fn answer(self, store: &AnyStore) -> Vec<u8> {
        let store = &store.as_stored();
        let (id, reply) = match self {
            Self::Claim(claim) => {
                let id = claim.id;
                (id, store.claim(claim).await.map(CallReply::Verdict))
            }
            Self::Settle(id, fence, end) => {
                let settled = store.settle(id, fence, end).await;
                (id, settled.map(CallReply::Settled))
            }
            Self::Renew(id, fence, lease) => {
                let renewed = store.renew(id, fence, lease).await;
                (id, renewed.map(CallReply::Settled))
            }
            Self::Read(id) => (id, store.read(id).await.map(CallReply::Reading)),
            Self::ScopeKey(scope) => {
                let key = store.scope_key(scope).await;
                (NO_RECORD, key.map(CallReply::ScopeKey))
            }
            Self::ReplaceScopeKey(scope, expected, key) => {
                let key = store.replace_scope_key(scope, expected, key).await;
                (NO_RECORD, key.map(CallReply::ScopeKey))
            }
            Self::ScopeKeys(cursor) => {
                let page = store.scope_keys(cursor).await;
                (NO_RECORD, page.map(CallReply::ScopeKeys))
            }
        };
        encode_reply(id, &reply)
    }
}

/// Encodes a reply about a record.
fn encode_reply(id: RecordId, reply: &Result<CallReply>) -> Vec<u8> {
    let mut out = Vec::new();
    match reply {
        Ok(CallReply::Verdict(verdict)) => {
            out.push(1);
            put_verdict(&mut out, verdict);
        }
        Ok(CallReply::Settled(settled)) => {
            out.push(2);
            match settled {
                Settled::Applied => out.push(1),
                Settled::Fenced => out.push(2),
                Settled::TooEarly { left } => {
                    out.push(3);
                    put_time(&mut out, *left);
                }
            }
        }
        Ok(CallReply::Reading(None)) => out.push(3),
        Ok(CallReply::Reading(Some(reading))) => {
            out.push(4);
            put_reading(&mut out, id, reading);
        }
        Ok(CallReply::ScopeKey(key)) => {
            out.push(6);
            put_option(&mut out, key.as_ref(), put_sized);
        }
        Ok(CallReply::ScopeKeys(page)) => {
            out.push(7);
            put_option(&mut out, page.next, varint::put);
            for (scope, key) in &page.keys {
                out.extend(scope.0);
                put_sized(&mut out, key);
            }
        }
        Err(error) => {
            out.push(5);
            out.push(kind_code(error.kind()));
            out.push(error.is_unapplied().into());
            out.extend(error.to_string().bytes());
        }
    }
    out
}

/// Decodes the reply to a call about the record `id`.
///
/// # Errors
/// The error that the store returned; [`ErrorKind::Corrupt`] if the bytes are malformed.
pub fn decode_reply(bytes: &Bytes, id: RecordId) -> Result<CallReply> {
    let malformed = || {
        let message = "the process that holds the store sent a malformed reply";
        Error::new(ErrorKind::Corrupt, message)
    };
    read_reply(bytes, id).unwrap_or_else(|| Err(malformed()))
}

fn read_reply(bytes: &Bytes, id: RecordId) -> Option<Result<CallReply>> {
    let mut reader = Reader(bytes);
    Some(Ok(match reader.u8()? {
        1 => CallReply::Verdict(verdict(&mut reader, bytes, id)?),
        2 => CallReply::Settled(match reader.u8()? {
            1 => Settled::Applied,
            2 => Settled::Fenced,
            3 => Settled::TooEarly {
                left: time(&mut reader)?,
            },
            _ => return None,
        }),
        3 => CallReply::Reading(None),
        4 => CallReply::Reading(Some(reading(&mut reader, bytes, id)?)),
        5 => {
            let kind = kind(reader.u8()?);
            let is_unapplied = reader.u8()? == 1;
            let error = Error::new(kind, String::from_utf8_lossy(reader.0));
            return Some(Err(match is_unapplied {
                true => error.unapplied(),
                false => error,
            }));
        }
        6 => CallReply::ScopeKey(option(&mut reader, |it| sized(it, bytes))?),
        7 => {
            let next = option(&mut reader, Reader::varint)?;
            let mut keys = Vec::new();
            while !reader.0.is_empty() {
                let scope = ScopeDigest(reader.array()?);
                keys.push((scope, sized(&mut reader, bytes)?));
            }
            CallReply::ScopeKeys(ScopeKeyPage { keys, next })
        }
        _ => return None,
    }))
}

/// Encodes leases.
#[must_use]
pub fn encode_leases(leases: &[HeldLease]) -> Vec<u8> {
    let mut out = Vec::new();
    for lease in leases {
        out.extend(lease.id.0);
        put_fence(&mut out, lease.fence);
        out.extend(lease.claimant.0.to_le_bytes());
        put_time(&mut out, lease.left);
    }
    out
}

/// Decodes leases; `None` if the bytes are malformed.
#[must_use]
pub fn decode_leases(bytes: &[u8]) -> Option<Vec<HeldLease>> {
    let mut reader = Reader(bytes);
    let mut leases = Vec::new();
    while !reader.0.is_empty() {
        leases.push(HeldLease {
            id: RecordId(reader.array()?),
            fence: fence(&mut reader)?,
            claimant: Claimant(reader.u64()?),
            left: time(&mut reader)?,
        });
    }
    Some(leases)
}

fn put_claim(out: &mut Vec<u8>, claim: &Claim) {
    out.extend(claim.id.0);
    out.extend(claim.fingerprint.0);
    put_option(out, claim.credential, |out, it| out.extend(it.0));
    out.extend(claim.claimant.0.to_le_bytes());
    out.push(claim.guarantee as u8);
    varint::put(out, claim.attempts_max.into());
    put_option(out, claim.overtakes, put_fence);
    put_time(out, claim.lease);
    put_time(out, claim.settle_after);
    for part in [claim.origin.head(), claim.origin.tail()] {
        varint::put(out, part.len() as u64);
        out.extend_from_slice(part);
    }
}

fn claim(reader: &mut Reader<'_>) -> Option<Claim> {
    Some(Claim {
        id: RecordId(reader.array()?),
        fingerprint: Fingerprint(reader.array()?),
        credential: option(reader, |it| it.array().map(Credential))?,
        claimant: Claimant(reader.u64()?),
        guarantee: match reader.u8()? {
            0 => Guarantee::AtMostOnce,
            1 => Guarantee::AtLeastOnce,
            2 => Guarantee::ExactlyOnce,
            _ => return None,
        },
        attempts_max: reader.varint()?.try_into().ok()?,
        overtakes: option(reader, fence)?,
        lease: time(reader)?,
        settle_after: time(reader)?,
        origin: Origin::from_parts(reader.sized()?, reader.sized()?)?,
    })
}

fn put_settlement(out: &mut Vec<u8>, id: RecordId, end: &Settlement) {
    match end {
        Settlement::Complete {
            outcome,
            retention,
            remember,
        } => {
            out.push(1);
            put_time(out, *retention);
            put_time(out, *remember);
            out.extend_from_slice(outcome.clone().sealed(id).encoded());
        }
        Settlement::Release => out.push(2),
        Settlement::Doubt { reason } => out.extend([3, *reason as u8]),
        Settlement::NeverHappened => out.push(4),
    }
}

fn settlement(reader: &mut Reader<'_>, bytes: &Bytes, id: RecordId) -> Option<Settlement> {
    Some(match reader.u8()? {
        1 => Settlement::Complete {
            retention: time(reader)?,
            remember: time(reader)?,
            outcome: Outcome::decode(bytes.slice_ref(reader.0), id).ok()?,
        },
        2 => Settlement::Release,
        3 => Settlement::Doubt {
            reason: Reason::from_code(reader.u8()?)?,
        },
        4 => Settlement::NeverHappened,
        _ => return None,
    })
}

fn put_verdict(out: &mut Vec<u8>, verdict: &Verdict) {
    match verdict {
        Verdict::Granted(grant) => {
            out.push(1);
            put_fence(out, grant.fence);
            varint::put(out, grant.attempt.into());
        }
        Verdict::Replay(outcome) => {
            out.push(2);
            out.extend_from_slice(outcome.encoded());
        }
        Verdict::InFlight { lease_left } => {
            out.push(3);
            put_time(out, *lease_left);
        }
        Verdict::OtherCredential => out.push(4),
        Verdict::Mismatch => out.push(5),
        Verdict::Indeterminate(doubt) => {
            out.push(6);
            put_fence(out, doubt.fence);
            out.push(doubt.reason as u8);
            put_time(out, doubt.settle_left);
        }
        Verdict::Expired => out.push(7),
    }
}

fn verdict(reader: &mut Reader<'_>, bytes: &Bytes, id: RecordId) -> Option<Verdict> {
    Some(match reader.u8()? {
        1 => Verdict::Granted(Grant {
            fence: fence(reader)?,
            attempt: reader.varint()?.try_into().ok()?,
        }),
        2 => Verdict::Replay(Outcome::decode(bytes.slice_ref(reader.0), id).ok()?),
        3 => Verdict::InFlight {
            lease_left: time(reader)?,
        },
        4 => Verdict::OtherCredential,
        5 => Verdict::Mismatch,
        6 => Verdict::Indeterminate(Doubt {
            fence: fence(reader)?,
            reason: Reason::from_code(reader.u8()?)?,
            settle_left: time(reader)?,
        }),
        7 => Verdict::Expired,
        _ => return None,
    })
}

/// The image of a record in a segment contains neither its lease nor its claimant.
fn put_reading(out: &mut Vec<u8>, id: RecordId, reading: &Reading) {
    let (lease_ends, claimant) = match &reading.record.state {
        State::InFlight { hold, lease_ends } => (*lease_ends, hold.claimant),
        State::Indeterminate { hold, .. } => (Timestamp(0), hold.claimant),
        _ => (Timestamp(0), Claimant(0)),
    };
    out.extend(reading.now.0.to_le_bytes());
    out.extend(lease_ends.0.to_le_bytes());
    out.extend(claimant.0.to_le_bytes());
    out.push(ImageKind::of(Some(&reading.record)) as u8);
    frame::encode(out, id, Some(&reading.record));
}

fn reading(reader: &mut Reader<'_>, bytes: &Bytes, id: RecordId) -> Option<Reading> {
    let now = Timestamp(reader.u64()?);
    let (ends, caller) = (Timestamp(reader.u64()?), Claimant(reader.u64()?));
    let kind = ImageKind::from_code(reader.u8()?)?;
    let mut record: Record = frame::decode(kind, id, &bytes.slice_ref(reader.0))??;
    match &mut record.state {
        State::InFlight { hold, lease_ends } => {
            (hold.claimant, *lease_ends) = (caller, ends);
        }
        State::Indeterminate { hold, .. } => hold.claimant = caller,
        _ => {}
    }
    Some(Reading { id, record, now })
}

fn put_fence(out: &mut Vec<u8>, fence: Fence) {
    out.extend(fence.epoch.to_le_bytes());
    out.extend(fence.counter.to_le_bytes());
    out.extend(fence.nonce.to_le_bytes());
}

fn fence(reader: &mut Reader<'_>) -> Option<Fence> {
    Some(Fence {
        epoch: reader.u32()?,
        counter: reader.u64()?,
        nonce: reader.u32()?,
    })
}

fn put_time(out: &mut Vec<u8>, time: Duration) {
    varint::put(out, u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
}

fn time(reader: &mut Reader<'_>) -> Option<Duration> {
    reader.varint().map(Duration::from_nanos)
}

fn put_sized(out: &mut Vec<u8>, part: &Bytes) {
    varint::put(out, part.len() as u64);
    out.extend_from_slice(part);
}

/// A part of `bytes`, which the reader reads.
fn sized(reader: &mut Reader<'_>, bytes: &Bytes) -> Option<Bytes> {
    reader.sized().map(|part| bytes.slice_ref(part))
}

fn put_option<T>(out: &mut Vec<u8>, value: Option<T>, put: impl FnOnce(&mut Vec<u8>, T)) {
    out.push(value.is_some().into());
    if let Some(value) = value {
        put(out, value);
    }
}

fn option<'a, T>(
    reader: &mut Reader<'a>,
    read: impl FnOnce(&mut Reader<'a>) -> Option<T>,
) -> Option<Option<T>> {
    match reader.u8()? {
        0 => Some(None),
        1 => read(reader).map(Some),
        _ => None,
    }
}

/// The kinds of errors that a store returns, in the order of their numbers.
const KINDS: [ErrorKind; 6] = [
    ErrorKind::Unavailable,
    ErrorKind::Full,
    ErrorKind::Corrupt,
    ErrorKind::Invalid,
    ErrorKind::Held,
    ErrorKind::Unsupported,
];

fn kind_code(kind: ErrorKind) -> u8 {
    KINDS.iter().position(|it| *it == kind).unwrap_or(0) as u8
}

fn kind(code: u8) -> ErrorKind {
    let kind = KINDS.get(usize::from(code));
    kind.copied().unwrap_or(ErrorKind::Unavailable)
}
