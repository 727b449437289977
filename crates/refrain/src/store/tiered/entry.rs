//! Entries of the front cache: completed records, authenticated with the store's secret.
//!
//! Layout: version, identity (16), fingerprint (16), whether it has a credential, credential (8), fence (16),
//! retention_ends (8), remember_ends (8), time of reading from the store (8), outcome, keyed digest of all of it (16).
//! Sizes are in bytes, numbers are big-endian, times are those of the store's clock.

use bytes::Bytes;

use super::{Fence, Reading, RecordId, Secret, State, Timestamp};
use crate::{
    Fingerprint, Outcome,
    key::Credential,
    record::{Record, Trace},
};

const VERSION: u8 = 2;
const DIGEST_LEN: usize = 16;
const HEAD_LEN: usize = 1 + 16 + 16 + 1 + 8 + 16 + 8 + 8 + 8;
/// The purpose of the digest, so that no other digest of the store is valid here.
const PURPOSE: &str = "front";

/// Encodes and decodes entries.
pub(super) struct FrontEntry;

impl FrontEntry {
    /// Encodes a completed record; `None` for any other record.
    pub(super) fn seal(reading: &Reading, secret: &Secret) -> Option<Bytes> {
        let record = &reading.record;
        let State::Completed {
            fence,
            outcome,
            retention_ends,
            remember_ends,
        } = &record.state
        else {
            return None;
        };
        let outcome = outcome.clone().sealed(reading.id);
        let outcome = outcome.encoded();
        let mut bytes = Vec::with_capacity(HEAD_LEN + outcome.len() + DIGEST_LEN);
        bytes.push(VERSION);
        bytes.extend(reading.id.0);
        bytes.extend(record.fingerprint.0);
        bytes.push(record.credential.is_some().into());
        bytes.extend(record.credential.map_or([0; 8], |credential| credential.0));
        bytes.extend(fence.epoch.to_be_bytes());
        bytes.extend(fence.counter.to_be_bytes());
        bytes.extend(fence.nonce.to_be_bytes());
        bytes.extend(retention_ends.0.to_be_bytes());
        bytes.extend(remember_ends.0.to_be_bytes());
        bytes.extend(reading.now.0.to_be_bytes());
        bytes.extend_from_slice(outcome);
        let digest: [u8; DIGEST_LEN] = secret.digest(PURPOSE, &[&bytes]);
        bytes.extend(digest);
        Some(bytes.into())
    }

    /// Decodes a record and the time at which it was read.
    ///
    /// `None` if the bytes are not authentic, or belong to a record other than `id`.
    pub(super) fn open(bytes: Bytes, id: RecordId, secret: &Secret) -> Option<(Record, Timestamp)> {
        let content_len = bytes.len().checked_sub(DIGEST_LEN)?;
        let (content, digest) = bytes.split_at(content_len);
        if secret.digest::<DIGEST_LEN>(PURPOSE, &[content]) != *digest {
            return None;
        }
        let mut reader = FrontEntryFields(content);
        if reader.next::<1>()? != [VERSION] || reader.next::<16>()? != id.0 {
            return None;
        }
        let fingerprint = Fingerprint(reader.next()?);
        let has_credential = reader.next::<1>()? == [1];
        let credential = Some(Credential(reader.next()?)).filter(|_| has_credential);
        let fence = Fence {
            epoch: u32::from_be_bytes(reader.next()?),
            counter: u64::from_be_bytes(reader.next()?),
            nonce: u32::from_be_bytes(reader.next()?),
        };
        let retention_ends = Timestamp(u64::from_be_bytes(reader.next()?));
        let remember_ends = Timestamp(u64::from_be_bytes(reader.next()?));
        let read_at = Timestamp(u64::from_be_bytes(reader.next()?));
        let outcome = Outcome::decode(bytes.slice(HEAD_LEN..content_len), id).ok();
        let outcome = outcome.filter(|outcome| outcome.fits(fence))?;
        let state = State::Completed {
            fence,
            outcome,
            retention_ends,
            remember_ends,
        };
        let record = Record {
            fingerprint,
            credential,
            state,
            trace: Trace::default(),
        };
        Some((record, read_at))
    }
}

struct FrontEntryFields<'a>(&'a [u8]);

impl FrontEntryFields<'_> {
    fn next<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (front, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*front)
    }
}
