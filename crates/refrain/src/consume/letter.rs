//! Dead letters as listed for an operator before a redrive.

use serde::{Serialize, Serializer};

use super::{
    Message,
    dead::{
        DEAD_ATTEMPTS, DEAD_KEY, DEAD_LAST_FAILURE, DEAD_REASON, DEAD_RECORDS, DEAD_SOURCE,
        redrive_of, text_of,
    },
};
use crate::clock::Timestamp;

/// Number of hexadecimal digits shown of a key's digest.
const DIGEST_CHARS: usize = 16;

/// Summary of a dead letter. The key is shown as a digest, the payload as a size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DeadLetter {
    /// Time at which the broker received it, if known.
    #[serde(serialize_with = "as_rfc3339")]
    pub time: Option<Timestamp>,
    /// Reason, as the name of a [`DeadReason`](super::DeadReason).
    pub reason: Option<String>,
    /// Number of attempts.
    pub attempts: Option<u32>,
    /// Prefix of the BLAKE3 digest of its key.
    pub key_digest: Option<String>,
    /// Its latest record.
    pub record: Option<String>,
    /// Subject of the original delivery.
    pub source: Option<String>,
    /// Last failure of the handler.
    pub last_failure: Option<String>,
    /// Number of redrives so far.
    pub redrives: u32,
    /// Size of the payload, in bytes.
    pub payload_bytes: u64,
}

impl DeadLetter {
    /// Reads the headers of a message that the broker received at this time.
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
