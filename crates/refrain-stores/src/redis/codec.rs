//! Records as the scripts keep them, read back; the layout is told in `lua/record.lua`.

use std::time::Duration;

use ::redis::Value;
use bytes::Bytes;
use refrain::{
    Credential, Fence, Fingerprint, Guarantee, Outcome, RecordId, Result,
    clock::Timestamp,
    record::{Claimant, Hold, Reason, Record, State},
};

use super::trouble;

const VERSION: u8 = 1;
const DIGEST_LEN: usize = 8;

/// What the server is told for these guarantees.
pub(super) fn guarantee_code(guarantee: Guarantee) -> u8 {
    match guarantee {
        Guarantee::AtMostOnce => 0,
        Guarantee::AtLeastOnce => 1,
        Guarantee::ExactlyOnce => 2,
    }
}

/// The fence as the scripts compare it.
pub(super) fn fence_bytes(fence: Fence) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&fence.epoch.to_be_bytes());
    bytes[4..12].copy_from_slice(&fence.counter.to_be_bytes());
    bytes[12..].copy_from_slice(&fence.nonce.to_be_bytes());
    bytes
}

pub(super) fn fence(bytes: &[u8]) -> Option<Fence> {
    let mut reader = Reader(bytes);
    let fence = reader.fence()?;
    reader.0.is_empty().then_some(fence)
}

/// Fingerprint and credential as they stand in a head.
pub(super) fn subject(fingerprint: Fingerprint, credential: Option<Credential>) -> [u8; 25] {
    let mut bytes = [0; 25];
    bytes[..16].copy_from_slice(&fingerprint.0);
    if let Some(credential) = credential {
        bytes[16] = 1;
        bytes[17..].copy_from_slice(&credential.0);
    }
    bytes
}

/// A record without its outcome. `None` where the bytes are none; their digest is the scripts' business.
pub(super) fn record(bytes: &[u8], id: RecordId) -> Option<Record<()>> {
    let content = bytes.get(..bytes.len().checked_sub(DIGEST_LEN)?)?;
    let mut reader = Reader(content);
    let version = reader.u8()?;
    let state = reader.u8()?;
    if version != VERSION || reader.array::<16>()? != id.0 {
        return None;
    }
    let fingerprint = Fingerprint(reader.array()?);
    let has_credential = reader.u8()? == 1;
    let credential = Some(Credential(reader.array()?)).filter(|_| has_credential);
    let state = match state {
        b'I' => State::InFlight {
            hold: reader.hold()?,
            lease_ends: reader.moment()?,
        },
        b'D' => State::Indeterminate {
            hold: reader.hold()?,
            reason: Reason::from_code(reader.u8()?)?,
        },
        b'C' => State::Completed {
            fence: reader.fence()?,
            outcome: (),
            retention_ends: reader.moment()?,
            remember_ends: reader.moment()?,
        },
        b'T' => State::Tombstone {
            remember_ends: reader.moment()?,
        },
        _ => return None,
    };
    let record = Record {
        fingerprint,
        credential,
        state,
    };
    reader.0.is_empty().then_some(record)
}

/// An outcome behind the fence that it was completed under.
pub(super) fn outcome(bytes: Vec<u8>, fence: Fence, id: RecordId) -> Result<Outcome> {
    let bytes = Bytes::from(bytes);
    if bytes.get(..16) != Some(&fence_bytes(fence)[..]) {
        return Err(trouble::found(b"foreign", id, ""));
    }
    Outcome::decode(bytes.slice(16..), id)
}

/// What a script answers: a letter, and what belongs to it.
pub(super) struct Answer {
    pub(super) letter: u8,
    parts: std::vec::IntoIter<Value>,
}

impl Answer {
    pub(super) fn read(value: Value) -> Option<Self> {
        let Value::Array(parts) = value else {
            return None;
        };
        let mut parts = parts.into_iter();
        match parts.next()? {
            Value::BulkString(letter) if letter.len() == 1 => Some(Self {
                letter: letter[0],
                parts,
            }),
            _ => None,
        }
    }

    pub(super) fn bytes(&mut self) -> Option<Vec<u8>> {
        match self.parts.next()? {
            Value::BulkString(bytes) => Some(bytes),
            _ => None,
        }
    }

    pub(super) fn number<N: TryFrom<i64>>(&mut self) -> Option<N> {
        match self.parts.next()? {
            Value::Int(number) => N::try_from(number).ok(),
            _ => None,
        }
    }

    pub(super) fn millis(&mut self) -> Option<Duration> {
        self.number().map(Duration::from_millis)
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (front, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*front)
    }

    fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    fn moment(&mut self) -> Option<Timestamp> {
        self.u64().map(Timestamp)
    }

    fn fence(&mut self) -> Option<Fence> {
        Some(Fence {
            epoch: self.u32()?,
            counter: self.u64()?,
            nonce: self.u32()?,
        })
    }

    fn hold(&mut self) -> Option<Hold> {
        Some(Hold {
            fence: self.fence()?,
            claimant: Claimant(self.u64()?),
            guarantee: match self.u8()? {
                0 => Guarantee::AtMostOnce,
                1 => Guarantee::AtLeastOnce,
                2 => Guarantee::ExactlyOnce,
                _ => return None,
            },
            attempts: self.u16()?,
            attempts_max: self.u16()?,
            settle_after: Duration::from_millis(self.u64()?),
            settles: self.moment()?,
        })
    }
}
