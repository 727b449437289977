//! Encrypted outcomes.
//!
//! Layout: version, flags, identity (16), fence (16, little-endian), scope digest (8), generation of the data key (4),
//! nonce (24), the whole plain outcome encrypted, tag (16), CRC-32 (4). Sizes are in bytes.
//! Everything before the nonce is authenticated, so an outcome decrypts only for its own record, scope and fence.

use std::ops::Range;

use bytes::Bytes;

use super::{ENCRYPTED, ID, Outcome, seal};
use crate::{
    Error, ErrorKind, RecordId, Result,
    encryption::{DataKey, OVERHEAD},
    record::{Fence, ScopeDigest},
};

const FENCE: Range<usize> = ID.end..ID.end + 16;
const SCOPE: Range<usize> = FENCE.end..FENCE.end + 8;
const GENERATION: Range<usize> = SCOPE.end..SCOPE.end + 4;
const HEAD_LEN: usize = GENERATION.end;
const SUM_LEN: usize = 4;

/// What an encrypted outcome tells without its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Encrypted {
    pub(crate) scope: ScopeDigest,
    pub(crate) generation: u32,
}

/// Returns whether the bytes are long enough.
pub(super) fn is_whole(encoded: &[u8]) -> bool {
    encoded.len() >= HEAD_LEN + OVERHEAD + SUM_LEN
}

/// Returns whether the bytes contain this fence.
pub(super) fn has_fence(encoded: &[u8], fence: Fence) -> bool {
    encoded.get(FENCE) == Some(&fence_bytes(fence)[..])
}

fn fence_bytes(fence: Fence) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&fence.epoch.to_le_bytes());
    bytes[4..12].copy_from_slice(&fence.counter.to_le_bytes());
    bytes[12..].copy_from_slice(&fence.nonce.to_le_bytes());
    bytes
}

impl Outcome {
    /// Encrypts the outcome for its record.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if it is too long.
    pub(crate) fn encrypted(&self, id: RecordId, fence: Fence, key: &DataKey) -> Result<Self> {
        let plain = self.clone().sealed(id);
        let plain = plain.encoded();
        let mut bytes = Vec::with_capacity(HEAD_LEN + plain.len() + OVERHEAD + SUM_LEN);
        bytes.extend([ENCRYPTED, 0]);
        bytes.extend(id.0);
        bytes.extend(fence_bytes(fence));
        bytes.extend(key.scope.0);
        bytes.extend(key.generation.to_le_bytes());
        let mut head = [0; HEAD_LEN];
        head.copy_from_slice(&bytes);
        let encrypted = key.cipher.encrypt(&head, plain, &mut bytes);
        encrypted.ok_or_else(|| {
            let message = format!("the outcome of record {id} is too long to be encrypted");
            Error::new(ErrorKind::Invalid, message)
        })?;
        bytes.extend([0; SUM_LEN]);
        seal(&mut bytes, id);
        Ok(Self {
            encoded: bytes.into(),
            body: 0..0,
        })
    }

    /// What an encrypted outcome tells without its key; `None` if it is not encrypted.
    pub(crate) fn encryption(&self) -> Option<Encrypted> {
        let scope = self.encoded.get(SCOPE).filter(|_| self.is_encrypted())?;
        let generation = self.encoded.get(GENERATION)?;
        Some(Encrypted {
            scope: ScopeDigest(scope.try_into().ok()?),
            generation: u32::from_le_bytes(generation.try_into().ok()?),
        })
    }

    /// Decrypts the outcome of this record.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] unless it was encrypted with this key, for this record.
    pub(crate) fn decrypted(&self, id: RecordId, key: &DataKey) -> Result<Self> {
        let parts = || {
            let (head, rest) = self.encoded.split_at_checked(HEAD_LEN)?;
            let sealed = rest.get(..rest.len().checked_sub(SUM_LEN)?)?;
            key.cipher.decrypt(head, sealed)
        };
        let plain = parts().ok_or_else(|| {
            let message = format!(
                "the outcome of record {id} does not decrypt: it is damaged, belongs to another record, \
                 or the data key of its scope {} is not the one that encrypted it",
                key.scope
            );
            Error::new(ErrorKind::Corrupt, message)
        })?;
        Self::decode(Bytes::from(plain), id)
    }
}

#[cfg(test)]
mod tests;
