//! Idempotency keys, their scopes, and the record identities derived from both.
//!
//! A [`Key`] names one intended effect. It is sent by the client, derived from the request, or natural.
//! A [`Scope`] is the namespace in which a key is unique; it separates the keys of different callers.
//! Scope and key together give the [`RecordId`], under which stores hold the record.

use std::{
    borrow::Cow,
    cell::Cell,
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
};

use siphasher::sip::SipHasher24;

use crate::{Error, ErrorKind, Result, varint};

mod derive;

mod pointer;
pub use pointer::Pointer;

mod source;
pub(crate) use source::TLS_SUBJECT;
pub use source::{CredentialPart, ScopePart, Sender, Source};

mod template;
pub use template::{MEMBERS_MAX, Template};

/// The longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 255;

/// The header that carries the key, unless the policy names another one.
pub const KEY_HEADER: &str = "idempotency-key";

/// Version of the derivation of record identities from scope and key.
const DERIVATION: u8 = 1;

/// Idempotency key: names one intended effect. 1 to 255 bytes of visible ASCII. Clones share the text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

impl Key {
    /// Validates the text and creates a key.
    ///
    /// ```
    /// use refrain::Key;
    /// assert_eq!(Key::new("order-7").unwrap().as_str(), "order-7");
    /// assert!(Key::new("two words").is_err());
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the text is empty, too long, or contains anything but visible ASCII.
    pub fn new(text: impl AsRef<str>) -> Result<Self> {
        let text = text.as_ref();
        if text.is_empty() {
            return Err(invalid("the key is empty"));
        }
        if text.len() > KEY_BYTES_MAX {
            let len = text.len();
            return Err(invalid(format!(
                "the key has {len} bytes, more than the maximum of {KEY_BYTES_MAX}"
            )));
        }
        match text.bytes().position(|byte| !byte.is_ascii_graphic()) {
            Some(at) => Err(invalid(format!(
                "byte {at} of the key is not visible ASCII"
            ))),
            None => Ok(Self(text.into())),
        }
    }

    /// The key as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<RecordId> for Key {
    /// Uses a record's identity as the key, for work done on behalf of that record.
    fn from(id: RecordId) -> Self {
        Self(id.to_string().into())
    }
}

impl fmt::Debug for Key {
    /// Shows only the length: keys must not reach logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({} bytes)", self.0.len())
    }
}

/// How a key header is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[cfg_attr(feature = "policy-file", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Syntax {
    /// `"abc"` and `abc` are the same key.
    #[default]
    Both,
    /// Only the quoted form is accepted.
    Strict,
    /// The header's bytes are the key, quotes included.
    Raw,
}

impl Syntax {
    /// Parses the key from the value of one header field; surrounding white space is ignored.
    ///
    /// The quoted form is an RFC 9651 string, with `\\"` and `\\\\` as its only escapes and without parameters.
    ///
    /// ```
    /// use refrain::key::Syntax;
    /// let quoted = Syntax::Both.read(br#""order-7""#)?;
    /// assert_eq!(quoted, Syntax::Both.read(b"order-7")?);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the value does not match the syntax, or is not a valid [`Key`].
    pub fn read(self, value: &[u8]) -> Result<Key> {
        let text = std::str::from_utf8(trimmed(value))
            .map_err(|_| invalid("the key contains bytes that are not visible ASCII"))?;
        match (self, text.strip_prefix('"')) {
            (Self::Raw, _) | (Self::Both, None) => Key::new(text),
            (Self::Both | Self::Strict, Some(rest)) => Key::new(unquoted(rest)?),
            (Self::Strict, None) => Err(invalid(
                "the key is not quoted; write it as \"KEY\", with the quotes",
            )),
        }
    }
}

/// Removes the white space around a header value.
fn trimmed(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// Parses a quoted string, given without its opening quote.
fn unquoted(rest: &str) -> Result<Cow<'_, str>> {
    let end = rest
        .find(['"', '\\'])
        .ok_or_else(|| invalid("the key has no closing quote"))?;
    match &rest[end..] {
        "\"" => Ok(Cow::Borrowed(&rest[..end])),
        tail if tail.starts_with('"') => Err(trailing()),
        _ => unescaped(rest).map(Cow::Owned),
    }
}

fn unescaped(rest: &str) -> Result<String> {
    let mut text = String::with_capacity(rest.len());
    let mut chars = rest.chars();
    while let Some(char) = chars.next() {
        match char {
            '"' if chars.as_str().is_empty() => return Ok(text),
            '"' => return Err(trailing()),
            '\\' => match chars.next() {
                Some(escaped @ ('"' | '\\')) => text.push(escaped),
                _ => return Err(invalid("in a quoted key, only \" and \\ may follow \\")),
            },
            _ => text.push(char),
        }
    }
    Err(invalid("the key has no closing quote"))
}

fn trailing() -> Error {
    invalid("text follows the key's closing quote; send one key, without parameters")
}

/// The namespace in which a key is unique: tenant, credential, consumer, route.
///
/// A scope is a list of parts, each with a name and a value. Different lists never encode to the same scope.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Scope(Vec<u8>);

impl Scope {
    /// The scope that all callers share.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// The encoded parts, unique to this scope.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Adds one more part to the scope.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        let value = value.as_ref();
        self.0
            .reserve(2 * varint::LEN_MAX + name.len() + value.len());
        for part in [name.as_bytes(), value] {
            varint::put(&mut self.0, part.len() as u64);
            self.0.extend_from_slice(part);
        }
        self
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scope({} bytes)", self.0.len())
    }
}

/// The secret key of a store's keyed digests, created with the store.
///
/// It is stored with the records, so that every process that shares the store derives the same identities.
#[derive(Clone)]
pub struct Secret {
    bytes: [u8; 32],
    /// Digest for callers without a credential, computed once.
    nobody: Credential,
    /// The hasher of keys alone, with a key of its own.
    keys: SipHasher24,
}

impl Secret {
    /// Creates a secret from the system's random number generator.
    #[must_use]
    pub fn random() -> Self {
        rand::random::<[u8; 32]>().into()
    }

    /// The bytes, for a store to persist.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.bytes
    }

    /// The digest for callers without a credential.
    pub(crate) fn nobody(&self) -> Credential {
        self.nobody
    }

    /// A short keyed hash of a key alone. It is computed for every request, and is much faster than a digest.
    pub(crate) fn hash_of_key(&self, key: &Key) -> u64 {
        self.keys.hash(key.0.as_bytes())
    }

    /// A short keyed hash of a scope alone, as fast as that of a key.
    pub(crate) fn hash_of_scope(&self, scope: &Scope) -> u64 {
        self.keys.hash(scope.as_bytes())
    }

    /// Computes a keyed digest of `parts` for one `purpose`. Parts are length-prefixed, so they cannot run together.
    #[must_use]
    pub fn digest<const N: usize>(&self, purpose: &str, parts: &[&[u8]]) -> [u8; N] {
        let mut digest = self.start_digest(purpose);
        parts.iter().for_each(|part| digest.part(part));
        digest.finish()
    }

    /// Starts a keyed digest whose parts are added one by one.
    pub(crate) fn start_digest(&self, purpose: &str) -> Digest {
        let mut digest = Digest {
            secret: self.bytes,
            short: BUFFER.take(),
            long: None,
        };
        digest.part(purpose.as_bytes());
        digest
    }
}

thread_local! {
    /// The buffer of this thread's last digest, emptied for reuse, so that the next digest need not allocate.
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Inputs up to about this many bytes are buffered and hashed in one call, which avoids the hasher's 2 KiB of state.
const DIGEST_SHORT_MAX: usize = 4_096;

/// An incremental keyed digest. Each part is length-prefixed, so parts cannot run together.
pub(crate) struct Digest {
    secret: [u8; 32],
    short: Vec<u8>,
    /// Replaces `short` once the input exceeds `DIGEST_SHORT_MAX`.
    long: Option<Box<blake3::Hasher>>,
}

impl Digest {
    pub(crate) fn part(&mut self, part: &[u8]) {
        if self.long.is_none() && self.short.len() + part.len() < DIGEST_SHORT_MAX {
            varint::put(&mut self.short, part.len() as u64);
            return self.short.extend_from_slice(part);
        }
        let mut len = Vec::with_capacity(varint::LEN_MAX);
        varint::put(&mut len, part.len() as u64);
        self.update(&len);
        self.update(part);
    }

    /// Adds a tag byte: the kind of the next part, or the end of a list.
    pub(crate) fn tag(&mut self, tag: u8) {
        match self.long {
            None => self.short.push(tag),
            Some(_) => self.update(&[tag]),
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        let long = self.long.get_or_insert_with(|| {
            let mut hasher = blake3::Hasher::new_keyed(&self.secret);
            hasher.update(&self.short);
            Box::new(hasher)
        });
        long.update(bytes);
    }

    pub(crate) fn finish<const N: usize>(self) -> [u8; N] {
        const { assert!(N <= blake3::OUT_LEN) };
        let digest = match self.long {
            Some(hasher) => hasher.finalize(),
            None => blake3::keyed_hash(&self.secret, &self.short),
        };
        let mut buffer = self.short;
        buffer.clear();
        BUFFER.set(buffer);
        let mut short = [0; N];
        short.copy_from_slice(&digest.as_bytes()[..N]);
        short
    }
}

impl From<[u8; 32]> for Secret {
    fn from(bytes: [u8; 32]) -> Self {
        let nobody = Credential([0; 8]);
        let mut secret = Self {
            bytes,
            nobody,
            keys: SipHasher24::new(),
        };
        secret.nobody = Credential::derive(&secret, &[]);
        secret.keys = SipHasher24::new_with_key(&secret.digest("keys", &[]));
        secret
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// The identity of a record: a keyed digest of its scope and key.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordId(pub [u8; 16]);

impl Hash for RecordId {
    /// Hashes all 16 bytes as one number; the length is fixed, so it is not hashed.
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u128(u128::from_le_bytes(self.0));
    }
}

impl RecordId {
    /// Derives the identity of the record for this scope and key.
    #[must_use]
    pub fn derive(secret: &Secret, scope: &Scope, key: &Key) -> Self {
        Self(secret.digest("record", &[&[DERIVATION], &scope.0, key.0.as_bytes()]))
    }
}

/// Keyed digest of the caller's credential: tells callers apart without revealing the credential.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Credential(pub [u8; 8]);

impl Credential {
    /// Digests a credential given in parts.
    #[must_use]
    pub fn derive(secret: &Secret, parts: &[&[u8]]) -> Self {
        Self(secret.digest("credential", parts))
    }
}

macro_rules! hex_format {
    ($type:ident) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let (words, _) = self.0.as_chunks();
                let mut words = words.iter().map(|word| u64::from_be_bytes(*word));
                words.try_for_each(|word| write!(f, "{word:016x}"))
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($type), "({})"), self)
            }
        }
    };
}
pub(crate) use hex_format;

hex_format!(RecordId);
hex_format!(Credential);

impl std::str::FromStr for RecordId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = || invalid("invalid record id; it has 32 hexadecimal digits");
        if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(bad());
        }
        let id = u128::from_str_radix(text, 16).map_err(|_| bad())?;
        Ok(Self(id.to_be_bytes()))
    }
}

/// Validates the name of a header field and converts it to lower case.
pub(crate) fn header_name(name: &str) -> Result<String> {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    match !name.is_empty() && name.bytes().all(is_token) {
        true => Ok(name.to_ascii_lowercase()),
        false => Err(invalid(format!("invalid header name `{name}`"))),
    }
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, message)
}
