//! Sources of a message's key, in the syntax of the policy.

use std::{fmt, str::FromStr};

use super::{Message, cloudevents};
use crate::{
    Error, ErrorKind, Key, Result,
    fingerprint::{Content, Json, NotJson},
    key::{Sender, Source},
};

/// Source of a message's key.
///
/// A message ID may be any text. If it is not a valid [`Key`], because it is too long or not visible ASCII,
/// the key is `digest:` and the BLAKE3 digest of its bytes in hexadecimal, the same in every process and version.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeySource {
    /// `id`: the transport's message ID, see [`Message::id`].
    Id,
    /// `cloudevents`: source and ID of a CloudEvent, in any of its three encodings.
    ///
    /// In binary mode they are headers with the prefix `ce-`, `ce_`, `cloudEvents:` or `cloudEvents_`; in structured
    /// mode, members of an `application/cloudevents+json` payload. A batch (`application/cloudevents-batch+json`) is
    /// one message, and its key covers all its sources and IDs in order: the same events in another batch are another
    /// message.
    ///
    /// The key is `cloudevent:` (`cloudevents:` for a batch) and the BLAKE3 digest, in hexadecimal, of these texts,
    /// each prefixed with its length as 8 bytes, little-endian.
    CloudEvents,
    /// `position`: log, partition and offset. A last resort, because a message published twice has two positions.
    Position,
    /// `header:NAME`, `body:/pointer` or `natural:{/member}-{/member}`.
    Field(Source),
    /// `preset:NAME`: the fields in which this sender puts its event ID.
    Preset(Sender),
}

impl KeySource {
    /// Default sources: the CloudEvent, the transport's message ID, the position.
    pub const DEFAULT: [Self; 3] = [Self::CloudEvents, Self::Id, Self::Position];

    /// Returns the key from this source, if present.
    fn find(&self, message: &Message, content: &Content<'_>) -> Result<Option<Key>> {
        match self {
            Self::Id => Ok(message.id.as_deref().and_then(text_key)),
            Self::CloudEvents => cloudevents::find(message, content),
            Self::Position => Ok(message
                .position
                .as_ref()
                .and_then(|position| text_key(&format!("position:{position}")))),
            Self::Field(source) => find_field(source, message, content),
            Self::Preset(sender) => sender_sources(*sender)
                .iter()
                .find_map(|source| find_field(source, message, content).transpose())
                .transpose(),
        }
    }
}

/// Fields of a sender's event ID on a queue, tried in order.
fn sender_sources(sender: Sender) -> Vec<Source> {
    let header = |name: &str| Source::Header(name.into());
    match sender {
        // Several Shopify subscriptions share one event ID; with that as the key, all but one would be dropped.
        Sender::Shopify => vec![header("x-shopify-webhook-id"), header("shopify-webhook-id")],
        Sender::Svix | Sender::StandardWebhooks => {
            vec![header("webhook-id"), header("svix-id")]
        }
        other => vec![other.source()],
    }
}

/// Returns the key of a message from the first source that is present.
///
/// ```
/// use refrain::consume::{KeySource, Message, find_key};
/// let message = Message::new("{}").with_id("order-7");
/// let key = find_key(&KeySource::DEFAULT, &message)?.unwrap();
/// assert_eq!(key.as_str(), "order-7");
/// # Ok::<(), refrain::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::Invalid`] if that source is present and ambiguous.
pub fn find_key(sources: &[KeySource], message: &Message) -> Result<Option<Key>> {
    let content = content(message);
    for source in sources {
        if let Some(key) = source.find(message, &content)? {
            return Ok(Some(key));
        }
    }
    Ok(None)
}

/// Returns the payload with its media type.
pub(super) fn content(message: &Message) -> Content<'_> {
    Content::new(media_type(message), &message.payload)
}

/// Returns the media type, from the transport or from a header.
pub(super) fn media_type(message: &Message) -> Option<&[u8]> {
    let told = message.content_type.as_deref().map(str::as_bytes);
    told.or_else(|| message.header("content-type").map(|value| &value[..]))
}

/// Uses the text as a key, or its digest if it is not a valid key; `None` if it is empty.
pub(super) fn text_key(text: &str) -> Option<Key> {
    bytes_key(text.as_bytes())
}

fn bytes_key(bytes: &[u8]) -> Option<Key> {
    if bytes.is_empty() {
        return None;
    }
    let text = std::str::from_utf8(bytes).ok();
    // Text that looks like a digest is digested too, so that it cannot collide with the digest of another text.
    let plain = text.filter(|text| !text.starts_with(DIGEST));
    let key = plain.and_then(|text| Key::new(text).ok());
    key.or_else(|| digest_key(DIGEST, &[bytes], false))
}

const DIGEST: &str = "digest:";

/// Creates a key from the digest of parts, which are length-prefixed if there may be several.
pub(super) fn digest_key(prefix: &str, parts: &[&[u8]], has_lengths: bool) -> Option<Key> {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        if has_lengths {
            hasher.update(&(part.len() as u64).to_le_bytes());
        }
        hasher.update(part);
    }
    Key::new(format!("{prefix}{}", hasher.finalize().to_hex())).ok()
}

fn find_field(source: &Source, message: &Message, content: &Content<'_>) -> Result<Option<Key>> {
    match source {
        Source::Header(name) => Ok(one_header(message, name)?.and_then(bytes_key)),
        Source::Body(pointer) => Ok(readable(content)?
            .and_then(|json| json.text(pointer))
            .and_then(|text| text_key(&text))),
        Source::Natural(template) => match readable(content)? {
            Some(json) => template.render(json),
            None => Ok(None),
        },
        Source::Derive => Ok(None),
    }
}

/// Returns the value of a header; an error if it is repeated, because readers disagree which value counts.
pub(super) fn one_header<'m>(message: &'m Message, name: &str) -> Result<Option<&'m [u8]>> {
    one_header_of(message, ["", name])
}

/// Like [`one_header`], for a name in two pieces.
pub(super) fn one_header_of<'m>(message: &'m Message, name: [&str; 2]) -> Result<Option<&'m [u8]>> {
    let is_named = |(field, _): &&(String, _)| {
        let pieces = field.split_at_checked(name[0].len());
        pieces.is_some_and(|(start, end)| {
            start.eq_ignore_ascii_case(name[0]) && end.eq_ignore_ascii_case(name[1])
        })
    };
    let mut values = message.headers.iter().filter(is_named);
    let first = values.next();
    match values.next() {
        None => Ok(first.map(|(_, value)| &value[..])),
        Some(_) => Err(invalid(format!(
            "the header {} is sent twice; send it once",
            name.concat()
        ))),
    }
}

/// Returns the payload as JSON; `None` if it is not JSON and so has no members.
pub(super) fn readable<'c>(content: &'c Content<'_>) -> Result<Option<&'c Json>> {
    let why = match content.json() {
        Ok(json) => return Ok(Some(json)),
        Err(NotJson::Malformed) => return Ok(None),
        Err(NotJson::DuplicateName) => "it has a duplicate member name",
        Err(NotJson::TooDeep) => "it is nested too deeply",
        Err(NotJson::TooLarge) => "it is too large",
    };
    Err(invalid(format!(
        "cannot read the key from the payload: {why}"
    )))
}

pub(super) fn invalid(message: String) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

impl FromStr for KeySource {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "id" => return Ok(Self::Id),
            "cloudevents" => return Ok(Self::CloudEvents),
            "position" => return Ok(Self::Position),
            _ => {}
        }
        if let Some(name) = text.strip_prefix("preset:") {
            return name.parse().map(Self::Preset);
        }
        match text.parse() {
            Ok(Source::Derive) => {}
            Ok(source) => return Ok(Self::Field(source)),
            // This error is more specific than the one below.
            Err(error) if text.contains(':') => return Err(error),
            Err(_) => {}
        }
        Err(invalid(format!(
            "invalid message key source `{text}`; write id, cloudevents, position, header:NAME, body:/pointer, natural:{{/member}}-{{/member}} or preset:NAME"
        )))
    }
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id => f.write_str("id"),
            Self::CloudEvents => f.write_str("cloudevents"),
            Self::Position => f.write_str("position"),
            Self::Field(source) => source.fmt(f),
            Self::Preset(sender) => write!(f, "preset:{sender}"),
        }
    }
}
