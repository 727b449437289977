//! CloudEvents: an event is identified by its source and ID, in any encoding.

use std::borrow::Cow;

use super::{
    Message,
    key::{digest_key, media_type, one_header_of, readable},
};
use crate::{Key, Result, fingerprint::Content, key::Pointer};

/// Prefixes of attribute names in binary mode, by transport.
const PREFIXES: [&str; 4] = ["ce-", "ce_", "cloudEvents:", "cloudEvents_"];
const STRUCTURED: &[u8] = b"application/cloudevents+json";
const BATCH: &[u8] = b"application/cloudevents-batch+json";

/// Returns the key of the event or the batch; `None` if the message is not a CloudEvent.
pub(super) fn find(message: &Message, content: &Content<'_>) -> Result<Option<Key>> {
    let is = |wanted: &[u8]| media_type(message).is_some_and(|given| is_type(given, wanted));
    if is(BATCH) {
        return find_batch(content);
    }
    if is(STRUCTURED) {
        let Some(json) = readable(content)? else {
            return Ok(None);
        };
        let member = |name| json.string(&Pointer::member(name));
        return Ok(match (member("source"), member("id")) {
            (Some(source), Some(id)) => event_key(source.as_bytes(), id.as_bytes()),
            _ => None,
        });
    }
    if message.headers.is_empty() {
        return Ok(None);
    }
    for prefix in PREFIXES {
        let attribute = |name| one_header_of(message, [prefix, name]);
        if let (Some(source), Some(id)) = (attribute("source")?, attribute("id")?) {
            return Ok(event_key(source, id));
        }
    }
    Ok(None)
}

/// Returns `None` if source or ID is empty, which CloudEvents forbids.
fn event_key(source: &[u8], id: &[u8]) -> Option<Key> {
    match source.is_empty() || id.is_empty() {
        true => None,
        false => digest_key("cloudevent:", &[source, id], true),
    }
}

/// Identifying attributes of an event in a batch.
#[derive(serde::Deserialize)]
struct EventIdentity<'a> {
    #[serde(borrow)]
    source: Cow<'a, str>,
    #[serde(borrow)]
    id: Cow<'a, str>,
}

/// Returns no key if one event of the batch has no source or ID.
fn find_batch(content: &Content<'_>) -> Result<Option<Key>> {
    let Some(json) = readable(content)? else {
        return Ok(None);
    };
    let Ok(events) = serde_json::from_str::<Vec<EventIdentity<'_>>>(json.as_str()) else {
        return Ok(None);
    };
    let names = events.iter().flat_map(|event| [&event.source, &event.id]);
    let parts: Vec<&[u8]> = names.map(|name| name.as_bytes()).collect();
    let is_whole = !parts.is_empty() && parts.iter().all(|part| !part.is_empty());
    Ok(match is_whole {
        true => digest_key("cloudevents:", &parts, true),
        false => None,
    })
}

/// Whether a media type equals this one, without parameters.
fn is_type(given: &[u8], wanted: &[u8]) -> bool {
    let end = given.iter().position(|byte| *byte == b';');
    given[..end.unwrap_or(given.len())]
        .trim_ascii()
        .eq_ignore_ascii_case(wanted)
}
