//! What names one intended effect, and the namespace in which it is unique.
//!
//! A [`Key`] is sent by the client, derived from the request, or natural.
//! A [`Scope`] keeps one caller's keys apart from another's.
//! Both together give the [`RecordId`], under which stores hold the record.

use std::{
    cell::Cell,
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
};

use crate::{Error, ErrorKind, Result, varint};

mod derive;

mod pointer;
pub use pointer::Pointer;

mod preset;
pub use preset::Sender;

mod scope;
pub use scope::{CredentialPart, ScopePart};

mod source;
pub use source::{Source, Syntax};

mod template;
pub use template::{MEMBERS_MAX, Template};

/// The longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 255;

/// The header that carries a key unless the policy names another one.
pub const KEY_HEADER: &str = "idempotency-key";

/// The version of how a record's identity is made from scope and key.
const DERIVATION: u8 = 1;

/// What names one intended effect: 1 to 255 bytes of visible ASCII. Clones share it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

impl Key {
    /// Checks and takes a key.
    ///
    /// ```
    /// use refrain::Key;
    /// assert_eq!(Key::new("order-7").unwrap().as_str(), "order-7");
    /// assert!(Key::new("two words").is_err());
    /// ```
    ///
    /// # Errors
    /// When it is empty, too long, or holds anything but visible ASCII.
    pub fn new(text: impl AsRef<str>) -> Result<Self> {
        let text = text.as_ref();
        let invalid = |message: String| Err(Error::new(ErrorKind::Invalid, message));
        if text.is_empty() {
            return invalid("the key is empty".into());
        }
        if text.len() > KEY_BYTES_MAX {
            let len = text.len();
            return invalid(format!(
                "the key has {len} bytes, {KEY_BYTES_MAX} at most are taken"
            ));
        }
        match text.bytes().position(|byte| !byte.is_ascii_graphic()) {
            Some(at) => invalid(format!("byte {at} of the key is not visible ASCII")),
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
    /// The identity of a record as a key, for what is done on its behalf.
    fn from(id: RecordId) -> Self {
        Self(id.to_string().into())
    }
}

impl fmt::Debug for Key {
    /// Keys do not belong in logs: only their length is shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({} bytes)", self.0.len())
    }
}

/// The namespace in which a key is unique: tenant, credential, consumer, route.
///
/// Made of parts, each a name and a value, so that no two different lists of parts give the same scope.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Scope(Vec<u8>);

impl Scope {
    /// The scope that everybody shares.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Its parts, which no other scope has.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Narrows the scope by one more part.
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

/// The key of a store's keyed digests, made when the store was created.
///
/// It lives with the records, so that every process that shares them makes the same identities.
#[derive(Clone)]
pub struct Secret {
    bytes: [u8; 32],
    /// Who presents no credential, digested once.
    nobody: Credential,
}

impl Secret {
    /// A secret from the machine's source of randomness.
    #[must_use]
    pub fn random() -> Self {
        rand::random::<[u8; 32]>().into()
    }

    /// The bytes, for a store to keep.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.bytes
    }

    /// Who presents no credential.
    pub(crate) fn nobody(&self) -> Credential {
        self.nobody
    }

    /// Digests `parts` for one `purpose`; the parts cannot run into each other.
    #[must_use]
    pub fn digest<const N: usize>(&self, purpose: &str, parts: &[&[u8]]) -> [u8; N] {
        let mut digest = self.start_digest(purpose);
        parts.iter().for_each(|part| digest.part(part));
        digest.finish()
    }

    /// Starts such a digest, to give it its parts one by one.
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
    /// Where the last digest of this thread was gathered, empty, so that the next one need not allocate.
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Up to about so many bytes are gathered and digested at once, which spares the hasher's two kilobytes of state.
const DIGEST_SHORT_MAX: usize = 4_096;

/// A digest over parts that cannot run into each other: each stands behind its length.
pub(crate) struct Digest {
    secret: [u8; 32],
    short: Vec<u8>,
    /// In place of `short` once there is more.
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

    /// Says of which kind the next part is, or that none follows.
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
        let mut secret = Self { bytes, nobody };
        secret.nobody = Credential::derive(&secret, &[]);
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
    /// As one number: there is no length to tell.
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u128(u128::from_le_bytes(self.0));
    }
}

impl RecordId {
    /// The identity of the record for this scope and key.
    #[must_use]
    pub fn derive(secret: &Secret, scope: &Scope, key: &Key) -> Self {
        Self(secret.digest("record", &[&[DERIVATION], &scope.0, key.0.as_bytes()]))
    }
}

/// Digest of the caller's credential: tells callers apart, shows nothing.
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
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
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
        let bad = || Error::new(ErrorKind::Invalid, "a record id is 32 hexadecimal digits");
        if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(bad());
        }
        let id = u128::from_str_radix(text, 16).map_err(|_| bad())?;
        Ok(Self(id.to_be_bytes()))
    }
}

/// Checks the name of a header field and lowers its case.
pub(crate) fn header_name(name: &str) -> Result<String> {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    match !name.is_empty() && name.bytes().all(is_token) {
        true => Ok(name.to_ascii_lowercase()),
        false => Err(Error::new(
            ErrorKind::Invalid,
            format!("`{name}` is no name of a header field"),
        )),
    }
}
