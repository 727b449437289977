//! Where a message's key comes from, as a policy writes it.

use std::{fmt, str::FromStr};

use super::{Message, cloudevents};
use crate::{
    Error, ErrorKind, Key, Result,
    fingerprint::{Content, Json, NotJson},
    key::{Sender, Source},
};

/// Where a message's key comes from.
///
/// Identifiers of messages may be any text. One that is no [`Key`], since it is too long or not visible ASCII,
/// is taken by its digest: `digest:` and BLAKE3 of its bytes in hexadecimal, the same in every process and version.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeySource {
    /// `id`: what the transport itself calls the message, see [`Message::id`].
    Id,
    /// `cloudevents`: source and id of a CloudEvent in any of its three encodings.
    ///
    /// In binary mode they are headers behind `ce-`, `ce_`, `cloudEvents:` or `cloudEvents_`; in structured mode members of
    /// an `application/cloudevents+json` payload. A batch (`application/cloudevents-batch+json`) is handled as a whole, and
    /// its key is made of all its sources and ids in order: the same events in another batch are another message.
    ///
    /// The key is `cloudevent:` (`cloudevents:` for a batch) and BLAKE3, in hexadecimal, of these texts,
    /// each behind its length in 8 bytes, least first.
    CloudEvents,
    /// `position`: log, partition and offset. A message published twice lies at two positions, so this is the last resort.
    Position,
    /// `header:NAME`, `body:/pointer` or `natural:{/member}-{/member}`.
    Field(Source),
    /// `preset:NAME`, where the sender of that name puts it.
    Preset(Sender),
}

impl KeySource {
    /// Where keys come from unless something else is said: the CloudEvent, the transport's id, the position.
    pub const DEFAULT: [Self; 3] = [Self::CloudEvents, Self::Id, Self::Position];

    /// What this source names the message.
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

/// Where a sender's events have their names, as they come over a queue: the first that is present counts.
fn sender_sources(sender: Sender) -> Vec<Source> {
    let header = |name: &str| Source::Header(name.into());
    match sender {
        // Several subscriptions share the id of an event, and all but one would be lost.
        Sender::Shopify => vec![header("x-shopify-webhook-id"), header("shopify-webhook-id")],
        Sender::Svix | Sender::StandardWebhooks => {
            vec![header("webhook-id"), header("svix-id")]
        }
        other => vec![other.source()],
    }
}

/// The key of a message: the first of the sources that is present decides, and the others are not looked at.
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
/// [`ErrorKind::Invalid`] where that source is present and what it holds is ambiguous.
pub fn find_key(sources: &[KeySource], message: &Message) -> Result<Option<Key>> {
    let content = content(message);
    for source in sources {
        if let Some(key) = source.find(message, &content)? {
            return Ok(Some(key));
        }
    }
    Ok(None)
}

/// The payload with what is said of it.
pub(super) fn content(message: &Message) -> Content<'_> {
    Content::new(media_type(message), &message.payload)
}

/// The media type, from the transport or from a header.
pub(super) fn media_type(message: &Message) -> Option<&[u8]> {
    let told = message.content_type.as_deref().map(str::as_bytes);
    told.or_else(|| message.header("content-type").map(|value| &value[..]))
}

/// The text as a key, or its digest where it is none; `None` where it is empty.
pub(super) fn text_key(text: &str) -> Option<Key> {
    bytes_key(text.as_bytes())
}

fn bytes_key(bytes: &[u8]) -> Option<Key> {
    if bytes.is_empty() {
        return None;
    }
    let text = std::str::from_utf8(bytes).ok();
    // What looks like a digest is digested, too: nobody takes another one's key by writing it down.
    let plain = text.filter(|text| !text.starts_with(DIGEST));
    let key = plain.and_then(|text| Key::new(text).ok());
    key.or_else(|| digest_key(DIGEST, &[bytes], false))
}

const DIGEST: &str = "digest:";

/// A key made of the digest of parts, which stand behind their lengths where there may be several.
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

/// The value of a header that must not stand twice: readers would not agree which one counts.
pub(super) fn one_header<'m>(message: &'m Message, name: &str) -> Result<Option<&'m [u8]>> {
    one_header_of(message, ["", name])
}

/// The same, for a name in two pieces.
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
            "the header {} stands twice; send it once",
            name.concat()
        ))),
    }
}

/// The payload as JSON; `None` where it is something else and so holds no members.
pub(super) fn readable<'c>(content: &'c Content<'_>) -> Result<Option<&'c Json>> {
    let why = match content.json() {
        Ok(json) => return Ok(Some(json)),
        Err(NotJson::Malformed) => return Ok(None),
        Err(NotJson::DuplicateName) => "it names a member twice",
        Err(NotJson::TooDeep) => "it is nested too deep",
        Err(NotJson::TooLarge) => "it is too large",
    };
    Err(invalid(format!(
        "the key cannot be read from the payload: {why}"
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
            // It says more than that it is unknown.
            Err(error) if text.contains(':') => return Err(error),
            Err(_) => {}
        }
        Err(invalid(format!(
            "`{text}` is no source of a message's key; write id, cloudevents, position, header:NAME, body:/pointer, natural:{{/member}}-{{/member}} or preset:NAME"
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
