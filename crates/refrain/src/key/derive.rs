//! Derived keys: computed from the request, so that equal requests have equal keys.

use super::{KEY_BYTES_MAX, Key};
use crate::fingerprint::{Json, RequestView, json};

/// Version of the key derivation; part of every derived key.
const VERSION: &[u8] = b"refrain-key-1";
/// Maximum length of the entity as shown in the key, in bytes. The digest covers the whole entity and action.
const ENTITY_SHOWN_MAX: usize = 120;
const ACTION_SHOWN_MAX: usize = 60;
const DIGEST_LEN: usize = 64;
const _: () = assert!(ENTITY_SHOWN_MAX + ACTION_SHOWN_MAX + DIGEST_LEN + 2 <= KEY_BYTES_MAX);

impl Key {
    /// Creates a random key: a version 4 UUID with 122 random bits.
    ///
    /// Use it if no business identifier names the intended effect.
    /// Create it once, and store it before the first attempt, so that retries use the same key.
    ///
    /// ```
    /// use refrain::Key;
    /// assert_ne!(Key::random(), Key::random());
    /// ```
    #[must_use]
    pub fn random() -> Self {
        const VERSION_4: u128 = 0x4000 << 64;
        const VARIANT: u128 = 0b10 << 62;
        let free = !(0xf000 << 64 | 0b11 << 62);
        let digits = format!(
            "{:032x}",
            rand::random::<u128>() & free | VERSION_4 | VARIANT
        );
        let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]);
        Self(parts.join("-").into())
    }

    /// Derives the key for performing `action` on `entity` with these parameters, given as JSON.
    ///
    /// The same arguments give the same key, in every process and every version: no clock, no randomness, no secret.
    /// Different arguments give different keys.
    /// The parameters are hashed in canonical form (see [`Json`]), or byte for byte if they have none.
    ///
    /// The format is `entity:action:digest`. The digest is BLAKE3, in hexadecimal, over `refrain-key-1`, the entity,
    /// the action, `json` or `bytes`, and the parameters.
    /// Each of these five is prefixed with its length as 8 bytes, little-endian.
    /// The key shows up to 120 bytes of the entity and 60 bytes of the action,
    /// with `_` in place of `:` and of anything that is not visible ASCII.
    ///
    /// ```
    /// use refrain::Key;
    /// let key = Key::derive("invoice-7", "pay", br#"{"amount": 5, "currency": "EUR"}"#);
    /// assert_eq!(key, Key::derive("invoice-7", "pay", br#"{"currency":"EUR","amount":5}"#));
    /// assert!(key.as_str().starts_with("invoice-7:pay:"));
    /// ```
    #[must_use]
    pub fn derive(entity: &str, action: &str, params: &[u8]) -> Self {
        match Json::parse(params) {
            Ok(json) => derive(entity, action, "json", &[json.as_str().as_bytes()]),
            Err(_) => derive(entity, action, "bytes", &[params]),
        }
    }

    /// Derives the key of a request: the entity is its path, the action its method,
    /// and the parameters are the object `{"body": …, "query": "…"}`.
    ///
    /// A request without a query, or with an empty body, lacks that member.
    /// A body that does not count as JSON (see [`Content`](crate::fingerprint::Content)) becomes the member
    /// `body_bytes`: its BLAKE3 digest, in hexadecimal.
    /// So a client can compute the same key in advance with [`Key::derive`].
    #[must_use]
    pub fn derive_from_request(request: &RequestView<'_>) -> Self {
        let mut params: Vec<&[u8]> = Vec::with_capacity(7);
        let digest;
        let query = request.query.map(json::quoted);
        params.push(b"{");
        if let Some(json) = request.content.canonical() {
            params.extend([b"\"body\":", json.as_str().as_bytes()]);
        } else if !request.content.bytes().is_empty() {
            digest = blake3::hash(request.content.bytes()).to_hex();
            params.extend([b"\"body_bytes\":\"", digest.as_bytes(), b"\""]);
        }
        if let Some(query) = &query {
            params.push(if params.len() > 1 { b"," } else { b"" });
            params.extend([b"\"query\":", query.as_bytes()]);
        }
        params.push(b"}");
        derive(request.path, request.method, "json", &params)
    }
}

/// Computes the key. The parameters come in pieces, so that the body is not copied.
fn derive(entity: &str, action: &str, kind: &str, params: &[&[u8]]) -> Key {
    let mut hasher = blake3::Hasher::new();
    for part in [
        VERSION,
        entity.as_bytes(),
        action.as_bytes(),
        kind.as_bytes(),
    ] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    let len: usize = params.iter().map(|piece| piece.len()).sum();
    hasher.update(&(len as u64).to_le_bytes());
    for piece in params {
        hasher.update(piece);
    }
    let mut text = String::with_capacity(KEY_BYTES_MAX);
    text.extend(printable(entity, ENTITY_SHOWN_MAX));
    text.push(':');
    text.extend(printable(action, ACTION_SHOWN_MAX));
    text.push(':');
    text.push_str(&hasher.finalize().to_hex());
    Key(text.into())
}

fn printable(text: &str, len_max: usize) -> impl Iterator<Item = char> {
    let show = |byte: u8| match byte.is_ascii_graphic() && byte != b':' {
        true => char::from(byte),
        false => '_',
    };
    text.bytes().take(len_max).map(show)
}
