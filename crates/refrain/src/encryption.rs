//! Encryption at rest: what a store keeps of requests and responses is encrypted before the store sees it.
//!
//! Every scope has a random data key, which the store keeps encrypted ("wrapped") under the operator's [`MasterKey`].
//! Outcomes, and the texts of a record's trace, are encrypted with the data key of their scope (XChaCha20-Poly1305 with
//! random nonces). Erasing the data key of a scope makes them unreadable.
//!
//! ```
//! use refrain::{encryption::{Encryption, MasterKey}, store::{AnyStore, Memory}};
//! let key = MasterKey::parse(&MasterKey::generate())?;
//! let store = AnyStore::new(Memory::new()).with_encryption(Encryption::new(key));
//! let engine = refrain::Engine::new(store);
//! # drop(engine);
//! # Ok::<(), refrain::Error>(())
//! ```

use std::fmt;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::{Serialize, Serializer};

use crate::{Error, ErrorKind, Result};

mod cipher;
pub(crate) use cipher::{Cipher, OVERHEAD};

mod data_key;
pub(crate) use data_key::{DataKey, StoredKey, generate};

/// The length of a key, in bytes.
pub const KEY_LEN: usize = 32;
/// Maximum number of previous keys.
pub const PREVIOUS_MAX: usize = 16;

/// Identifies a master key without revealing it: a digest of the key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyId(pub [u8; 8]);

crate::key::hex_format!(KeyId);

impl Serialize for KeyId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The operator's key, which encrypts the data keys of all scopes.
#[derive(Clone)]
pub struct MasterKey {
    id: KeyId,
    cipher: Cipher,
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MasterKey({})", self.id)
    }
}

impl MasterKey {
    /// Parses 32 bytes, written as 64 hexadecimal digits or as base64.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for any other text. The message does not contain the text.
    pub fn parse(text: &str) -> Result<Self> {
        let text = text.trim();
        let bytes = from_hex(text).or_else(|| BASE64_STANDARD.decode(text).ok());
        let key = bytes.as_deref().and_then(|bytes| bytes.try_into().ok());
        key.map(Self::new).ok_or_else(|| {
            let length = match &bytes {
                Some(bytes) => format!("it has {} bytes", bytes.len()),
                None => "it is neither hexadecimal nor base64".into(),
            };
            let message = format!(
                "invalid encryption key: {length}; write {KEY_LEN} bytes as 64 hexadecimal digits or as base64, \
                 such as the output of `refrain store generate-key`"
            );
            Error::new(ErrorKind::Invalid, message)
        })
    }

    /// Creates a key from its bytes.
    #[must_use]
    pub fn new(key: [u8; KEY_LEN]) -> Self {
        let digest = blake3::derive_key("refrain 2026 encryption key id", &key);
        let mut id = [0; 8];
        id.copy_from_slice(&digest[..8]);
        Self {
            id: KeyId(id),
            cipher: Cipher::new(&key),
        }
    }

    /// Generates a random key, as text for [`parse`](Self::parse).
    #[must_use]
    pub fn generate() -> String {
        BASE64_STANDARD.encode(rand::random::<[u8; KEY_LEN]>())
    }

    /// The id of the key, as it is stored with everything that the key encrypts.
    #[must_use]
    pub fn id(&self) -> KeyId {
        self.id
    }
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    // Base64 that happens to have only hexadecimal digits has another length than 64.
    let (pairs, rest) = digits.as_chunks::<2>();
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let is_whole = rest.is_empty() && pairs.len() == KEY_LEN;
    is_whole.then(|| pairs.iter().map(byte).collect())?
}

/// The keys of a store: the current one encrypts, and all of them decrypt.
#[derive(Debug, Clone, Default)]
pub struct Encryption {
    current: Option<MasterKey>,
    previous: Vec<MasterKey>,
}

impl Encryption {
    /// Encrypts with this key.
    #[must_use]
    pub fn new(current: MasterKey) -> Self {
        Self {
            current: Some(current),
            previous: Vec::new(),
        }
    }

    /// Decrypts with `previous` keys; without a current key, new records are not encrypted.
    #[must_use]
    pub fn with_previous(mut self, previous: impl IntoIterator<Item = MasterKey>) -> Self {
        self.previous.extend(previous);
        self
    }

    /// The key that encrypts; `None` if new records are not encrypted.
    #[must_use]
    pub fn current(&self) -> Option<&MasterKey> {
        self.current.as_ref()
    }

    /// The ids of the keys that only decrypt.
    pub fn previous(&self) -> impl Iterator<Item = KeyId> {
        self.previous.iter().map(MasterKey::id)
    }

    /// The key with this id.
    pub(crate) fn find(&self, id: KeyId) -> Option<&MasterKey> {
        let mut keys = self.current.iter().chain(&self.previous);
        keys.find(|key| key.id == id)
    }
}

impl Serialize for Encryption {
    /// Shows the ids of the keys only.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Shown {
            key: Option<KeyId>,
            previous: Vec<KeyId>,
        }
        let shown = Shown {
            key: self.current().map(MasterKey::id),
            previous: self.previous().collect(),
        };
        shown.serialize(serializer)
    }
}

#[cfg(test)]
mod tests;
