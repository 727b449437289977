//! The texts of an origin, encrypted: target, key and host. They follow the scope digest, after which earlier releases
//! stop reading: generation of the data key (4, big-endian), nonce (24), encrypted texts, tag (16).
//!
//! Record and scope are authenticated, so the texts decrypt only in the trace of their own record.

use bytes::Bytes;

use super::{Origin, ScopeDigest, Trace, number, text};
use crate::{
    encryption::{DataKey, OVERHEAD},
    key::RecordId,
    varint::Reader,
};

const PURPOSE: &[u8] = b"refrain trace";
/// The length of three empty texts.
const NO_TEXTS: [u8; 6] = [0; 6];

/// An encoded origin in parts.
struct OriginParts<'a> {
    /// The digest of the key, and the operation with its length.
    head: &'a [u8],
    /// Target, key and host, each with its length.
    texts: &'a [u8],
    scope: ScopeDigest,
    /// The generation of the data key, and what is encrypted.
    encrypted: Option<(u32, &'a [u8])>,
    /// What follows the origin.
    rest: &'a [u8],
}

impl<'a> OriginParts<'a> {
    /// `None` if nothing is known of the origin, or if an earlier release wrote it.
    fn read(bytes: &'a [u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let len = number::<2>(&mut reader)?;
        let content = reader.bytes(len as usize)?;
        let mut origin = Reader(content);
        origin.bytes(8)?;
        text(&mut origin)?;
        let (head, after) = content.split_at(content.len() - origin.0.len());
        for _ in 0..3 {
            text(&mut origin)?;
        }
        let texts = &after[..after.len() - origin.0.len()];
        let scope = ScopeDigest(origin.array()?);
        let encrypted = match origin.0.len() < 4 + OVERHEAD {
            true => None,
            false => Some((number::<4>(&mut origin)? as u32, origin.0)),
        };
        Some(Self {
            head,
            texts,
            scope,
            encrypted,
            rest: reader.0,
        })
    }

    /// The bytes with other texts, and whether there is an encrypted part.
    fn with(&self, texts: &[u8], encrypted: &[u8]) -> Vec<u8> {
        let len = self.head.len() + texts.len() + self.scope.0.len() + encrypted.len();
        let parts: [&[u8]; 6] = [
            &(len as u16).to_be_bytes(),
            self.head,
            texts,
            &self.scope.0,
            encrypted,
            self.rest,
        ];
        parts.concat()
    }
}

fn context(id: RecordId, scope: ScopeDigest, generation: [u8; 4]) -> Vec<u8> {
    [PURPOSE, &id.0, &scope.0, &generation].concat()
}

impl Origin {
    /// The digest of the scope; zeros if it is not known.
    pub(crate) fn scope_digest(&self) -> ScopeDigest {
        OriginParts::read(&self.bytes).map_or(ScopeDigest::default(), |it| it.scope)
    }

    /// Encrypts target, key and host for this record. An origin without them stays as it is.
    pub(crate) fn encrypted(self, id: RecordId, key: &DataKey) -> Self {
        let encrypted = OriginParts::read(&self.bytes).and_then(|parts| {
            if parts.texts == NO_TEXTS || parts.encrypted.is_some() {
                return None;
            }
            let generation = key.generation.to_be_bytes();
            let context = context(id, parts.scope, generation);
            let mut encrypted = generation.to_vec();
            key.cipher.encrypt(&context, parts.texts, &mut encrypted)?;
            Some(parts.with(&NO_TEXTS, &encrypted))
        });
        let Some(bytes) = encrypted else { return self };
        let tail = self.bytes.len() - usize::from(self.head);
        Self {
            head: (bytes.len() - tail) as u16,
            bytes: bytes.into(),
        }
    }
}

impl Trace {
    /// The scope whose data key, of this generation, encrypted the texts; `None` if they are not encrypted.
    pub(crate) fn encryption(&self) -> Option<(ScopeDigest, u32)> {
        let parts = OriginParts::read(&self.0)?;
        Some((parts.scope, parts.encrypted?.0))
    }

    /// The digest of the scope; zeros if it is not known.
    pub(crate) fn scope_digest(&self) -> ScopeDigest {
        OriginParts::read(&self.0).map_or(ScopeDigest::default(), |it| it.scope)
    }

    /// Decrypts the texts; `None` unless they were encrypted with this key, for this record.
    pub(crate) fn decrypted(&self, id: RecordId, key: &DataKey) -> Option<Self> {
        let parts = OriginParts::read(&self.0)?;
        let (generation, encrypted) = parts.encrypted?;
        let context = context(id, parts.scope, generation.to_be_bytes());
        let texts = key.cipher.decrypt(&context, encrypted)?;
        Some(Self(Bytes::from(parts.with(&texts, &[]))))
    }
}

#[cfg(test)]
mod tests {
    //! A path and a key may name a person.

    use super::*;
    use crate::{
        clock::Timestamp,
        encryption::Cipher,
        record::{Fence, Grant, KeyDigest, OriginFields},
    };

    const ID: RecordId = RecordId([7; 16]);

    fn key(byte: u8) -> DataKey {
        DataKey {
            scope: ScopeDigest([5; 8]),
            generation: 3,
            cipher: Cipher::new(&[byte; 32]),
        }
    }

    fn fields(target: &'static str) -> OriginFields<'static> {
        OriginFields {
            operation: "payments",
            method: "POST",
            target,
            key_digest: KeyDigest([3; 8]),
            key: "canary-key",
            host: "canary.example",
            scope_digest: ScopeDigest([5; 8]),
            node: "node-1",
            trace_id: [9; 16],
        }
    }

    fn trace(origin: &Origin) -> Trace {
        let fence = Fence {
            epoch: 1,
            counter: 2,
            nonce: 3,
        };
        let grant = Grant { fence, attempt: 1 };
        Trace::default().with_attempt(origin, grant, Timestamp(10))
    }

    #[test]
    fn an_encrypted_trace_tells_operation_and_attempts_only() {
        let origin = Origin::new(&fields("/v1/canary?canary=1"));
        let plain = trace(&origin);
        assert_eq!(plain.encryption(), None);
        let stored = trace(&origin.clone().encrypted(ID, &key(1)));
        assert!(!String::from_utf8_lossy(stored.as_bytes()).contains("canary"));
        let history = stored.read().unwrap();
        assert_eq!((&*history.operation, &*history.target), ("payments", ""));
        assert_eq!((history.key, history.host), (None, None));
        assert_eq!(history.scope_digest, Some(ScopeDigest([5; 8])));
        assert_eq!(history.key_digest, Some(KeyDigest([3; 8])));
        assert_eq!(history.attempts, plain.read().unwrap().attempts);
        assert_eq!(stored.encryption(), Some((ScopeDigest([5; 8]), 3)));
        assert_eq!(origin.scope_digest(), ScopeDigest([5; 8]));
        assert_eq!(stored.decrypted(ID, &key(1)).unwrap(), plain);
    }

    #[test]
    fn a_trace_decrypts_in_its_own_record_only() {
        let stored = trace(&Origin::new(&fields("/v1/canary")).encrypted(ID, &key(1)));
        assert_eq!(stored.decrypted(RecordId([8; 16]), &key(1)), None);
        assert_eq!(stored.decrypted(ID, &key(2)), None);
        let encrypted = OriginParts::read(&stored.0).unwrap().encrypted.unwrap().1;
        let start = encrypted.as_ptr() as usize - stored.0.as_ptr() as usize;
        // The scope digest and the generation come before the nonce.
        for at in start - 12..start + encrypted.len() {
            let mut bytes = stored.0.to_vec();
            bytes[at] ^= 1;
            assert_eq!(
                Trace(bytes.into()).decrypted(ID, &key(1)),
                None,
                "byte {at}"
            );
        }
    }

    #[test]
    fn an_origin_without_texts_stays_as_it_is() {
        let bare = OriginFields {
            key: "",
            host: "",
            method: "",
            ..fields("")
        };
        for origin in [Origin::default(), Origin::new(&bare)] {
            assert_eq!(origin.clone().encrypted(ID, &key(1)), origin);
        }
        assert_eq!(Origin::default().scope_digest(), ScopeDigest::default());
    }
}
