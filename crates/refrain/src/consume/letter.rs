//! Dead letters as an operator lists them, before a redrive.

use serde::{Serialize, Serializer};

use super::{
    Message,
    dead::{
        DEAD_ATTEMPTS, DEAD_KEY, DEAD_LAST_FAILURE, DEAD_REASON, DEAD_RECORDS, DEAD_SOURCE,
        redrive_of, text_of,
    },
};
use crate::clock::Timestamp;

/// How many hexadecimal digits of a key's digest are shown.
const DIGEST_CHARS: usize = 16;

/// What a dead letter says about itself. Its key is shown as a digest, its payload as a size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DeadLetter {
    /// When the broker took it, where the broker tells.
    #[serde(serialize_with = "as_rfc3339")]
    pub time: Option<Timestamp>,
    /// Why it is a dead letter: a [`DeadReason`](super::DeadReason) by its name.
    pub reason: Option<String>,
    /// How often it was tried.
    pub attempts: Option<u32>,
    /// The beginning of the BLAKE3 digest of its key.
    pub key_digest: Option<String>,
    /// Its last record.
    pub record: Option<String>,
    /// The subject that it was delivered under.
    pub source: Option<String>,
    /// What the handler said last.
    pub last_failure: Option<String>,
    /// How often it was let through again already.
    pub redrives: u32,
    /// The size of its payload.
    pub payload_bytes: u64,
}

impl DeadLetter {
    /// What the headers of a message say, which the broker took at this time.
    #[must_use]
    pub fn of(message: &Message, time: Option<Timestamp>) -> Self {
        let text = |name| text_of(message, name).map(str::to_owned);
        let digest = |key: String| blake3::hash(key.as_bytes()).to_hex()[..DIGEST_CHARS].to_owned();
        let records = text(DEAD_RECORDS);
        let last = |records: String| records.rsplit(',').next().map(str::to_owned);
        Self {
            time,
            reason: text(DEAD_REASON),
            attempts: text(DEAD_ATTEMPTS).and_then(|text| text.parse().ok()),
            key_digest: text(DEAD_KEY).map(digest),
            record: records.and_then(last),
            source: text(DEAD_SOURCE),
            last_failure: text(DEAD_LAST_FAILURE),
            redrives: redrive_of(message),
            payload_bytes: message.payload.len() as u64,
        }
    }
}

fn as_rfc3339<S: Serializer>(time: &Option<Timestamp>, serializer: S) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => serializer.serialize_str(&time.rfc3339()),
        None => serializer.serialize_none(),
    }
}
