//! Dead letters: what could not be handled, with the story of why.

use std::fmt;

use super::{
    HEADER_BYTES_MAX, Message, Position,
    attempts::{Known, brief},
};
use crate::{Fingerprint, Key, RecordId};

/// Why it is a dead letter: a [`DeadReason`] by its name.
pub const DEAD_REASON: &str = "Refrain-Dead-Reason";
/// The consumer that gave it up.
pub const DEAD_CONSUMER: &str = "Refrain-Dead-Consumer";
/// How often its handler was started. Deliveries that were given back before that are not counted.
pub const DEAD_ATTEMPTS: &str = "Refrain-Dead-Attempts";
/// The subject that it was delivered under.
pub const DEAD_SOURCE: &str = "Refrain-Dead-Source";
/// The key that it was handled under, if it had one.
pub const DEAD_KEY: &str = "Refrain-Dead-Key";
/// Its records, one for each time that it was let through, with commas between them.
pub const DEAD_RECORDS: &str = "Refrain-Dead-Records";
/// Its fingerprint.
pub const DEAD_FINGERPRINT: &str = "Refrain-Dead-Fingerprint";
/// What its transport called it. A dead letter has an id of its own, lest it be taken for a duplicate of itself.
pub const DEAD_ID: &str = "Refrain-Dead-Id";
/// Where it lay in its log.
pub const DEAD_POSITION: &str = "Refrain-Dead-Position";
/// What the handler said first, as far as the process that gave it up knows.
pub const DEAD_FIRST_FAILURE: &str = "Refrain-Dead-First-Failure";
/// What the handler said last, or why there was nothing to handle.
pub const DEAD_LAST_FAILURE: &str = "Refrain-Dead-Last-Failure";
/// How often it was let through again on purpose.
pub const REDRIVE: &str = "Refrain-Redrive";

/// A message can be let through again that often.
pub const REDRIVES_MAX: u32 = 100;

/// Why a message is a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeadReason {
    /// `attempts-used-up`: it failed as often as it may.
    AttemptsUsedUp,
    /// `rejected`: the handler said that it can never be handled.
    Rejected,
    /// `outcome-unknown`: it may or may not have taken effect, and may not be run again by itself.
    OutcomeUnknown,
    /// `key-reused`: its key was used for another message.
    KeyReused,
    /// `key-missing`: none of the sources names it.
    KeyMissing,
    /// `key-invalid`: what names it can be read in two ways.
    KeyInvalid,
    /// `sequence-invalid`: it has no aggregate or no number, or one before the first.
    SequenceInvalid,
    /// `sequence-gap`: its predecessor did not come.
    SequenceGap,
    /// `record-damaged`: what the store knows of it cannot be read.
    RecordDamaged,
}

impl DeadReason {
    /// As it stands in the header.
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

/// What is told of a dead letter.
pub(super) struct Story<'a> {
    pub(super) consumer: &'a str,
    pub(super) reason: DeadReason,
    pub(super) failure: &'a str,
    pub(super) attempts: u32,
    pub(super) known: &'a Known,
    pub(super) key: Option<&'a Key>,
    pub(super) records: &'a [RecordId],
    pub(super) fingerprint: Fingerprint,
}

/// The dead letter of a message: the same payload and headers, with its story.
pub(super) fn letter(message: &Message, story: &Story<'_>) -> Message {
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
        // What can be spared goes before the letter is refused.
        let is_text = |name: &str| [DEAD_FIRST_FAILURE, DEAD_LAST_FAILURE].contains(&name);
        letter.headers.retain(|(name, _)| !is_text(name));
    }
    letter
}

fn header_bytes(message: &Message) -> usize {
    let sizes = message.headers.iter();
    sizes.map(|(name, value)| name.len() + value.len()).sum()
}

/// The same message given up by the same consumer has the same id, however often it is published.
/// Another consumer's letter, another payload under the same id, and the next redrive have another one.
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

/// How often the message was let through again.
pub(super) fn redrive_of(message: &Message) -> u32 {
    text_of(message, REDRIVE)
        .and_then(|text| text.parse().ok())
        .map_or(0, |number: u32| number.min(REDRIVES_MAX))
}

/// The text of a header, if it is one.
pub(super) fn text_of<'m>(message: &'m Message, name: &str) -> Option<&'m str> {
    message
        .header(name)
        .and_then(|value| std::str::from_utf8(value).ok())
}

/// The message as it was delivered first, if it was let through again: with its own id and position.
pub(super) fn restored(mut message: Message) -> Message {
    if redrive_of(&message) > 0 {
        message.id = text_of(&message, DEAD_ID).map(Into::into);
        let position = text_of(&message, DEAD_POSITION).and_then(read_position);
        message.position = position.or(message.position);
    }
    message
}

/// Reads what [`Position`] shows.
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
