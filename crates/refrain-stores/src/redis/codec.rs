//! Decoder for records in the format of the scripts; `lua/begin.lua` documents the layout.

use std::time::Duration;

use ::redis::Value;
use bytes::Bytes;
use refrain::{
    Credential, Fence, Fingerprint, Guarantee, Outcome, RecordId, Result,
    clock::Timestamp,
    record::{Claimant, Hold, Reason, Record, State},
};

use super::errors;

/// Format version of records with a trace.
pub(super) const VERSION: u8 = 4;
/// Format version of records without one, written by earlier releases.
const VERSION_WITHOUT_TRACE: u8 = 3;

/// Bytes of the fence's stamp, the part that the server creates.
const STAMP: std::ops::Range<usize> = 2..14;

/// Byte for a guarantee in a record.
pub(super) fn guarantee_byte(guarantee: Guarantee) -> u8 {
    match guarantee {
        Guarantee::AtMostOnce => 0,
        Guarantee::AtLeastOnce => 1,
        Guarantee::ExactlyOnce => 2,
    }
}

/// Fence as bytes, as the scripts compare it.
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

/// Fence of a first attempt: the stamp from the server and the nonce of the claim.
pub(super) fn fence_of_new(stamp: &[u8], nonce: u32) -> Option<Fence> {
    let mut reader = Reader(stamp);
    let (epoch, counter) = (reader.u32()?, reader.u64()?);
    reader.0.is_empty().then_some(Fence {
        epoch,
        counter,
        nonce,
    })
}

/// Checksum of a record, over the bytes that the claimant knows.
pub(super) fn digest(body: &[u8]) -> [u8; 8] {
    let digest = sha1_smol::Sha1::from(body).digest().bytes();
    let mut text = [0; 8];
    for (pair, byte) in text.chunks_exact_mut(2).zip(digest) {
        pair.copy_from_slice(&hex(byte));
    }
    text
}

/// Lower-case hex digits of a byte, like the server's `sha1hex`.
pub(super) fn hex(byte: u8) -> [u8; 2] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    [
        DIGITS[usize::from(byte >> 4)],
        DIGITS[usize::from(byte & 15)],
    ]
}

/// Decodes a record without its outcome; `None` if the bytes are invalid. The scripts check the digest.
pub(super) fn record(bytes: &[u8], id: RecordId) -> Option<Record<()>> {
    let mut reader = Reader(bytes);
    let (version, name) = (reader.u8()?, reader.u8()?);
    let fence = reader.fence()?;
    let is_known = version == VERSION || version == VERSION_WITHOUT_TRACE;
    if !is_known || reader.array::<16>()? != id.0 {
        return None;
    }
    let fingerprint = Fingerprint(reader.array()?);
    let has_credential = reader.u8()? == 1;
    let credential = Some(Credential(reader.array()?)).filter(|_| has_credential);
    let mut hold = reader.hold(fence)?;
    reader.array::<8>()?; // the digest
    if bytes.get(STAMP) != Some(&reader.array::<12>()?[..]) {
        return None;
    }
    let (one, two, sum) = (reader.u64()?, reader.u64()?, reader.u64()?);
    let is_whole = one.checked_add(two)?.checked_add(name.into())? == sum;
    if name == b'C' {
        reader.array::<8>()?; // where the outcome lies
    }
    let trace = reader.0;
    if !is_whole || trace.is_empty() != (version == VERSION_WITHOUT_TRACE) {
        return None;
    }
    hold.settles = Timestamp(one);
    let state = match name {
        b'I' | b'i' => State::InFlight {
            hold,
            lease_ends: Timestamp(two),
        },
        b'D' => State::Indeterminate {
            hold,
            reason: Reason::from_code(two.try_into().ok()?)?,
        },
        b'C' => State::Completed {
            fence: hold.fence,
            outcome: (),
            retention_ends: Timestamp(one),
            remember_ends: Timestamp(two),
        },
        _ => return None,
    };
    Some(Record {
        fingerprint,
        credential,
        state,
        trace: Bytes::copy_from_slice(trace).into(),
    })
}

/// Offset of the outcome in its stored form, after a letter and the fence.
const KEPT_BEGINS: usize = 17;

/// Decodes a stored outcome, and checks that it was completed under this fence.
pub(super) fn outcome(kept: Vec<u8>, fence: Fence, id: RecordId) -> Result<Outcome> {
    if kept.get(1..KEPT_BEGINS) != Some(&fence_bytes(fence)[..]) {
        return Err(errors::script_error(b"foreign", id, ""));
    }
    replay(kept, id)
}

/// Decodes a stored outcome that the script has already matched with the record.
pub(super) fn replay(kept: Vec<u8>, id: RecordId) -> Result<Outcome> {
    if kept.len() < KEPT_BEGINS {
        return Err(errors::undecodable_reply(id));
    }
    let fence = fence(&kept[1..KEPT_BEGINS]);
    let outcome = Outcome::decode(Bytes::from(kept).slice(KEPT_BEGINS..), id)?;
    match fence.is_some_and(|fence| outcome.fits(fence)) {
        true => Ok(outcome),
        false => Err(errors::script_error(b"foreign", id, "")),
    }
}

/// Reply of a script: a letter and its values.
pub(super) struct ScriptReply {
    pub(super) letter: u8,
    /// The letter, and the bytes after it if the answer is a single string.
    text: Vec<u8>,
    parts: std::vec::IntoIter<Value>,
}

impl ScriptReply {
    pub(super) fn read(value: Value) -> Option<Self> {
        let (first, parts) = match value {
            Value::BulkString(text) => (text, Vec::new().into_iter()),
            Value::Array(parts) => {
                let mut parts = parts.into_iter();
                match parts.next()? {
                    Value::BulkString(letter) => (letter, parts),
                    _ => return None,
                }
            }
            _ => return None,
        };
        Some(Self {
            letter: *first.first()?,
            text: first,
            parts,
        })
    }

    /// Bytes after the letter, if the answer is a single string.
    pub(super) fn rest(&self) -> &[u8] {
        self.text.get(1..).unwrap_or_default()
    }

    /// The letter and the bytes after it.
    pub(super) fn into_text(self) -> Vec<u8> {
        self.text
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

    fn fence(&mut self) -> Option<Fence> {
        Some(Fence {
            epoch: self.u32()?,
            counter: self.u64()?,
            nonce: self.u32()?,
        })
    }

    /// Reads everything except `settles`.
    fn hold(&mut self, fence: Fence) -> Option<Hold> {
        Some(Hold {
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
            settles: Timestamp::default(),
            fence,
        })
    }
}
