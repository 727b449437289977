//! XChaCha20-Poly1305 over whole buffers: a random nonce, the ciphertext, and the tag.
//!
//! Nonces have 192 random bits, so that one key can encrypt any number of buffers.

use std::{fmt, sync::Arc};

use chacha20poly1305::{AeadInOut, Key, KeyInit, Tag, XChaCha20Poly1305, XNonce};

use super::KEY_LEN;

const NONCE_LEN: usize = 24;
const TAG_LEN: usize = 16;

/// The length that encryption adds, in bytes.
pub(crate) const OVERHEAD: usize = NONCE_LEN + TAG_LEN;

/// Encrypts and decrypts with one key. Clones share the key, which is overwritten in memory when the last one is dropped.
#[derive(Clone)]
pub(crate) struct Cipher(Arc<XChaCha20Poly1305>);

impl fmt::Debug for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cipher")
    }
}

impl Cipher {
    pub(crate) fn new(key: &[u8; KEY_LEN]) -> Self {
        Self(Arc::new(XChaCha20Poly1305::new(&Key::from(*key))))
    }

    /// Appends nonce, encrypted `plain` and tag to `out`. `context` is authenticated, but not stored.
    /// `None` only for a text of more than 256 GiB.
    pub(crate) fn encrypt(&self, context: &[u8], plain: &[u8], out: &mut Vec<u8>) -> Option<()> {
        let nonce: [u8; NONCE_LEN] = rand::random();
        out.reserve(plain.len() + OVERHEAD);
        out.extend(nonce);
        let start = out.len();
        out.extend_from_slice(plain);
        let text = (&mut out[start..]).into();
        let sealed = self
            .0
            .encrypt_inout_detached(&XNonce::from(nonce), context, text);
        match sealed {
            Ok(tag) => out.extend_from_slice(&tag),
            Err(_) => {
                out.truncate(start - NONCE_LEN);
                return None;
            }
        }
        Some(())
    }

    /// Decrypts nonce, ciphertext and tag; `None` unless they were encrypted with this key and this context.
    pub(crate) fn decrypt(&self, context: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
        let (nonce, rest) = sealed.split_first_chunk::<NONCE_LEN>()?;
        let (text, tag) = rest.split_last_chunk::<TAG_LEN>()?;
        let mut plain = text.to_vec();
        let opened = self.0.decrypt_inout_detached(
            &XNonce::from(*nonce),
            context,
            plain.as_mut_slice().into(),
            &Tag::from(*tag),
        );
        opened.ok().map(|()| plain)
    }
}
