//! Dead letters: messages that could not be handled, with their history in headers, and their summary for operators.

use std::fmt;

use serde::{Serialize, Serializer};

use super::{HEADER_BYTES_MAX, Message, Position, shared::KnownAttempts};
use crate::{Fingerprint, Key, RecordId, clock::Timestamp, failure::brief};

/// Reason, as the name of a [`DeadReason`].
pub const DEAD_REASON: &str = "Refrain-Dead-Reason";
/// Consumer that gave up the message.
pub const DEAD_CONSUMER: &str = "Refrain-Dead-Consumer";
/// Number of times that its handler was started. Deliveries returned before that are not counted.
pub const DEAD_ATTEMPTS: &str = "Refrain-Dead-Attempts";
/// Subject of the original delivery.
pub const DEAD_SOURCE: &str = "Refrain-Dead-Source";
/// Key of the message, if it has one.
pub const DEAD_KEY: &str = "Refrain-Dead-Key";
/// Records of the message, one for each redrive, separated by commas.
pub const DEAD_RECORDS: &str = "Refrain-Dead-Records";
/// Fingerprint of the message.
pub const DEAD_FINGERPRINT: &str = "Refrain-Dead-Fingerprint";
/// Original transport ID. The dead letter has its own ID, so that the broker does not drop it as a duplicate.
pub const DEAD_ID: &str = "Refrain-Dead-Id";
/// Original position in the log.
pub const DEAD_POSITION: &str = "Refrain-Dead-Position";
/// First failure of the handler, as far as this process knows.
pub const DEAD_FIRST_FAILURE: &str = "Refrain-Dead-First-Failure";
/// Last failure of the handler, or the reason why it was not started.
pub const DEAD_LAST_FAILURE: &str = "Refrain-Dead-Last-Failure";
/// Number of redrives of the message.
pub const REDRIVE: &str = "Refrain-Redrive";

/// Maximum number of redrives of a message.
pub const REDRIVES_MAX: u32 = 100;

/// Reason why a message is a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeadReason {
    /// `attempts-used-up`: the message failed the maximum number of times.
    AttemptsUsedUp,
    /// `rejected`: the handler rejected it permanently.
    Rejected,
    /// `outcome-unknown`: it may or may not have taken effect, so it is not handled again automatically.
    OutcomeUnknown,
    /// `key-reused`: another message already used its key.
    KeyReused,
    /// `key-missing`: none of the key sources is present.
    KeyMissing,
    /// `key-invalid`: its key is ambiguous.
    KeyInvalid,
    /// `sequence-invalid`: its aggregate or number is missing, or the number is less than 1.
    SequenceInvalid,
    /// `sequence-gap`: its predecessor did not arrive.
    SequenceGap,
    /// `record-damaged`: its record in the store cannot be read.
    RecordDamaged,
}

impl DeadReason {
    /// Returns the value of the header.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::AttemptsUsedUp => "attempts-used-up",
            Self::Rejected => "rejected",
            Self::OutcomeUnknown => "outcome-unknown",
            Self::KeyReused => "key-reused",
            Self::KeyMissing => "key-missing",
            Self::KeyInvalid => "key-invalid",
            Self::SequenceInvalid => "sequence-invalid",
            Self::SequenceGap => "sequence-gap",
            Self::RecordDamaged => "record-damaged",
        }
    }
}

impl fmt::Display for DeadReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// History of a dead letter.
pub(super) struct LetterHistory<'a> {
    pub(super) consumer: &'a str,
    pub(super) reason: DeadReason,
    pub(super) failure: &'a str,
    pub(super) attempts: u32,
    pub(super) known: &'a KnownAttempts,
    pub(super) key: Option<&'a Key>,
    pub(super) records: &'a [RecordId],
    pub(super) fingerprint: Fingerprint,
}

/// Creates the dead letter of a message: the same payload and headers, plus its history.
pub(super) fn letter(message: &Message, story: &LetterHistory<'_>) -> Message {
    let mut letter = message.clone();
    letter.id = Some(letter_id(message, story.consumer));
    letter.position = None;
    let mut tell = |name: &str, value: String| letter.set_header(name, value);
    tell(DEAD_REASON, story.reason.to_string());
    tell(DEAD_CONSUMER, story.consumer.to_owned());
    tell(DEAD_ATTEMPTS, story.attempts.to_string());
    tell(DEAD_SOURCE, brief(&message.subject));
    tell(DEAD_FINGERPRINT, story.fingerprint.to_string());
    let records: Vec<String> = story.records.iter().map(RecordId::to_string).collect();
    let maybe = [
        (
            DEAD_RECORDS,
            (!records.is_empty()).then(|| records.join(",")),
        ),
        (DEAD_KEY, story.key.map(|key| key.as_str().to_owned())),
        (DEAD_ID, message.id.clone()),
        (
            DEAD_POSITION,
            message.position.as_ref().map(Position::to_string),
        ),
    ];
    for (name, value) in maybe {
        match value {
            Some(value) => letter.set_header(name, value),
            None => letter.remove_header(name),
        }
    }
    let first = story.known.first_failure.as_deref();
    let last = brief(story.failure);
    letter.set_header(DEAD_FIRST_FAILURE, first.unwrap_or(&last).to_owned());
    letter.set_header(DEAD_LAST_FAILURE, last);
    if header_bytes(&letter) > HEADER_BYTES_MAX {
        // Drop the failure texts first, so that the broker does not reject the letter for its headers.
        let is_text = |name: &str| [DEAD_FIRST_FAILURE, DEAD_LAST_FAILURE].contains(&name);
        letter.headers.retain(|(name, _)| !is_text(name));
    }
    letter
}

fn header_bytes(message: &Message) -> usize {
    let sizes = message.headers.iter();
    sizes.map(|(name, value)| name.len() + value.len()).sum()
}

/// ID of a dead letter. A message given up by one consumer always gets the same ID.
/// Another consumer, another payload under the same message ID, or the next redrive yields another one.
fn letter_id(message: &Message, consumer: &str) -> String {
    let position = message.position.as_ref().map(Position::to_string);
    let redrive = redrive_of(message).to_string();
    let mut hasher = blake3::Hasher::new();
    for part in [
        consumer.as_bytes(),
        message.id.as_deref().unwrap_or_default().as_bytes(),
        position.unwrap_or_default().as_bytes(),
        redrive.as_bytes(),
        &message.payload,
    ] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    format!("dead-{}", &hasher.finalize().to_hex()[..32])
}

/// Number of redrives of the message.
pub(super) fn redrive_of(message: &Message) -> u32 {
    text_of(message, REDRIVE)
        .and_then(|text| text.parse().ok())
        .map_or(0, |number: u32| number.min(REDRIVES_MAX))
}

/// Returns the value of a header, if it is UTF-8.
pub(super) fn text_of<'m>(message: &'m Message, name: &str) -> Option<&'m str> {
    message
        .header(name)
        .and_then(|value| std::str::from_utf8(value).ok())
}

/// Restores the original ID and position of a redriven message.
pub(super) fn restored(mut message: Message) -> Message {
    if redrive_of(&message) > 0 {
        message.id = text_of(&message, DEAD_ID).map(Into::into);
        let position = text_of(&message, DEAD_POSITION).and_then(read_position);
        message.position = position.or(message.position);
    }
    message
}

/// Parses the Display form of [`Position`].
fn read_position(text: &str) -> Option<Position> {
    let mut parts = text.rsplitn(3, '/');
    let offset = parts.next()?.to_owned();
    let partition = parts.next()?.parse().ok()?;
    let log = parts.next()?.to_owned();
    Some(Position {
        log,
        partition,
        offset,
    })
}

/// Number of hexadecimal digits shown of a key's digest.
const DIGEST_CHARS: usize = 16;

/// Summary of a dead letter. The key is shown as a digest, the payload as a size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DeadLetter {
    /// Time at which the broker received it, if known.
    #[serde(serialize_with = "as_rfc3339")]
    pub time: Option<Timestamp>,
    /// Reason, as the name of a [`DeadReason`](DeadReason).
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
