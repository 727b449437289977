//! Data keys: one for each scope, as used and as stored.
//!
//! Layout of a stored key: version (1), generation (4, little-endian); unless the key was erased also
//! id of the master key (8), and the encrypted data key (24 + 32 + 16). Sizes are in bytes.

use super::{Cipher, Encryption, KEY_LEN, KeyId, MasterKey, cipher::OVERHEAD};
use crate::{Error, ErrorKind, Result, record::ScopeDigest};

const VERSION: u8 = 1;
const HEAD_LEN: usize = 1 + 4;
const WRAPPED_LEN: usize = HEAD_LEN + 8 + KEY_LEN + OVERHEAD;
const PURPOSE: &[u8] = b"refrain data key";

/// The data key of a scope.
#[derive(Debug, Clone)]
pub(crate) struct DataKey {
    pub(crate) scope: ScopeDigest,
    /// Counts the keys that the scope has had: erasing a key ends its generation.
    pub(crate) generation: u32,
    pub(crate) cipher: Cipher,
}

/// A data key as stores keep it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoredKey<'a> {
    /// Wrapped by the master key with this id.
    Wrapped {
        generation: u32,
        master: KeyId,
        bytes: &'a [u8],
    },
    /// All generations up to this one were erased.
    Erased { generation: u32 },
}

impl<'a> StoredKey<'a> {
    /// Decodes a stored key.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if it is damaged, [`ErrorKind::Unsupported`] for an unknown format version.
    pub(crate) fn read(scope: ScopeDigest, bytes: &'a [u8]) -> Result<Self> {
        let damaged = || corrupt(scope, "is damaged");
        let (&version, rest) = bytes.split_first().ok_or_else(damaged)?;
        if version != VERSION {
            let message = format!(
                "the data key of scope {scope} has format version {version}; this build reads version {VERSION}"
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let (generation, rest) = rest.split_first_chunk().ok_or_else(damaged)?;
        let generation = u32::from_le_bytes(*generation);
        if rest.is_empty() {
            return Ok(Self::Erased { generation });
        }
        let (master, _) = rest.split_first_chunk().ok_or_else(damaged)?;
        match bytes.len() == WRAPPED_LEN {
            true => Ok(Self::Wrapped {
                generation,
                master: KeyId(*master),
                bytes,
            }),
            false => Err(damaged()),
        }
    }

    /// The bytes of an erased key.
    pub(crate) fn erased(generation: u32) -> Vec<u8> {
        head(generation)
    }

    pub(crate) fn generation(self) -> u32 {
        match self {
            Self::Wrapped { generation, .. } | Self::Erased { generation } => generation,
        }
    }

    /// Decrypts the data key; `None` if it was erased.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if its master key is not configured, or it does not decrypt.
    pub(crate) fn open(self, scope: ScopeDigest, keys: &Encryption) -> Result<Option<DataKey>> {
        let generation = self.generation();
        let key = self.decrypt(scope, keys)?;
        Ok(key.map(|key| DataKey {
            scope,
            generation,
            cipher: Cipher::new(&key),
        }))
    }

    /// The same data key, wrapped by another master key; `None` if it was erased.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub(crate) fn rewrap(
        self,
        scope: ScopeDigest,
        keys: &Encryption,
        to: &MasterKey,
    ) -> Result<Option<Vec<u8>>> {
        let key = self.decrypt(scope, keys)?;
        let wrapped = key.map(|key| wrap(scope, self.generation(), &key, to));
        wrapped.transpose()
    }

    fn decrypt(self, scope: ScopeDigest, keys: &Encryption) -> Result<Option<[u8; KEY_LEN]>> {
        let Self::Wrapped { master, bytes, .. } = self else {
            return Ok(None);
        };
        let key = keys.find(master).ok_or_else(|| missing(scope, master))?;
        let (head, wrapped) = bytes.split_at(HEAD_LEN + master.0.len());
        let plain = key.cipher.decrypt(&context(scope, head), wrapped);
        let plain = plain.and_then(|plain| plain.try_into().ok());
        let plain = plain.ok_or_else(|| corrupt(scope, "does not decrypt, so it is damaged"))?;
        Ok(Some(plain))
    }
}

/// Generates a data key; returns it as it is stored.
pub(crate) fn generate(scope: ScopeDigest, generation: u32, master: &MasterKey) -> Result<Vec<u8>> {
    let key: [u8; KEY_LEN] = rand::random();
    wrap(scope, generation, &key, master)
}

fn wrap(scope: ScopeDigest, generation: u32, key: &[u8], master: &MasterKey) -> Result<Vec<u8>> {
    let mut bytes = head(generation);
    bytes.extend(master.id.0);
    let context = context(scope, &bytes);
    let wrapped = master.cipher.encrypt(&context, key, &mut bytes);
    wrapped.ok_or_else(|| corrupt(scope, "cannot be encrypted"))?;
    Ok(bytes)
}

fn head(generation: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(WRAPPED_LEN);
    bytes.push(VERSION);
    bytes.extend(generation.to_le_bytes());
    bytes
}

fn context(scope: ScopeDigest, head: &[u8]) -> Vec<u8> {
    [PURPOSE, &scope.0, head].concat()
}

fn corrupt(scope: ScopeDigest, what: &str) -> Error {
    let message = format!("the data key of scope {scope} {what}; restore it from a backup");
    Error::new(ErrorKind::Corrupt, message)
}

fn missing(scope: ScopeDigest, master: KeyId) -> Error {
    let message = format!(
        "the data key of scope {scope} is encrypted under the key {master}, which is not configured: \
         add that key to [encryption], as a previous key if it was replaced"
    );
    Error::new(ErrorKind::Corrupt, message)
}
