//! Hash chain: each line ends with the digest of its content, which includes the digest of the previous line.

use std::{fmt, str::FromStr};

use sha2::{Digest as _, Sha256};

use crate::{Error, ErrorKind, Result, key::hex_format};

/// Separator between the content of a line and its digest.
const MARK: &[u8] = br#","hash":""#;
/// The separator, 64 digits, and the end of the line.
const SEAL_LEN: usize = MARK.len() + 64 + 2;

/// SHA-256 of a line, which identifies the log up to that line.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct ChainHash(pub [u8; 32]);

hex_format!(ChainHash);

impl ChainHash {
    /// Predecessor of the first line of a log.
    pub const START: Self = Self([0; 32]);

    pub(super) fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }
}

impl FromStr for ChainHash {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let read = || {
            let (front, back) = text.split_at_checked(32)?;
            let is_hex = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
            let half = |text| u128::from_str_radix(text, 16).ok().filter(|_| is_hex);
            let halves = [half(front)?, half(back)?].map(u128::to_be_bytes);
            let mut bytes = [0; 32];
            bytes.copy_from_slice(halves.as_flattened());
            Some(Self(bytes))
        };
        read().ok_or_else(|| {
            let message = format!("invalid hash `{text}`; write 64 hexadecimal digits");
            Error::new(ErrorKind::Invalid, message)
        })
    }
}

/// Appends the digest to a line; `line` is a serialised JSON object.
pub(super) fn seal(line: &mut Vec<u8>) -> ChainHash {
    debug_assert_eq!(line.last(), Some(&b'}'));
    line.pop();
    let hash = ChainHash::of(line);
    line.extend_from_slice(MARK);
    line.extend_from_slice(hash.to_string().as_bytes());
    line.extend_from_slice(b"\"}\n");
    hash
}

/// Splits a line into content and digest; `None` if it is malformed.
pub(super) fn open(line: &[u8]) -> Option<(&[u8], ChainHash)> {
    let (content, seal) = line.split_at_checked(line.len().checked_sub(SEAL_LEN)?)?;
    let digits = seal.strip_prefix(MARK)?.strip_suffix(b"\"}")?;
    let digits = std::str::from_utf8(digits).ok()?;
    // Reject other spellings of the same hash, such as upper case.
    let hash: ChainHash = digits.parse().ok()?;
    (hash.to_string() == digits).then_some((content, hash))
}
