//! Parses the signature headers of each sender.

use base64::{Engine as _, engine::general_purpose::STANDARD};

use super::Unverified;
use crate::{fingerprint::Fields, key::Sender};

/// Maximum length of a header value, in bytes.
const HEADER_BYTES_MAX: usize = 4_096;
/// Maximum number of signatures in one delivery.
const SIGNATURES_MAX: usize = 16;

/// One HMAC-SHA256.
type Tag = [u8; 32];

/// Parsed signature headers of a delivery.
pub(super) struct Presented {
    /// Bytes that are signed before the body.
    pub(super) front: Vec<u8>,
    /// Time of signing in seconds since 1970, if the sender signs one.
    pub(super) time: Option<u64>,
    /// Signatures that are well-formed.
    pub(super) tags: Vec<Tag>,
}

impl Presented {
    pub(super) fn read(sender: Sender, headers: &dyn Fields) -> Result<Self, Unverified> {
        match sender {
            Sender::Stripe => stripe(headers),
            Sender::Github => alone(headers, "x-hub-signature-256", |value| {
                hex(value.strip_prefix("sha256=")?)
            }),
            Sender::Shopify => alone(headers, "x-shopify-hmac-sha256", base64),
            Sender::Svix => {
                let names = ["svix-id", "svix-timestamp", "svix-signature"];
                standard(headers, names)
            }
            Sender::StandardWebhooks => {
                let names = ["webhook-id", "webhook-timestamp", "webhook-signature"];
                standard(headers, names)
            }
        }
    }
}

/// One signature over the body alone.
fn alone(
    headers: &dyn Fields,
    name: &'static str,
    read: impl Fn(&str) -> Option<Tag>,
) -> Result<Presented, Unverified> {
    let value = only(headers, name)?;
    let tag = read(&value).ok_or(Unverified::Malformed(name))?;
    Ok(Presented {
        front: Vec::new(),
        time: None,
        tags: vec![tag],
    })
}

/// `t=TIME,v1=HEX,v1=HEX,v0=…` over `TIME.BODY`. Versions other than `v1` are ignored.
fn stripe(headers: &dyn Fields) -> Result<Presented, Unverified> {
    const NAME: &str = "stripe-signature";
    let value = only(headers, NAME)?;
    let (mut times, mut tags) = (Vec::new(), Vec::new());
    for (name, value) in value.split(',').filter_map(|pair| pair.split_once('=')) {
        match name.trim() {
            "t" => times.push(value),
            "v1" => tags.push(value),
            _ => {}
        }
    }
    let &[time] = &times[..] else {
        return Err(Unverified::Malformed(NAME));
    };
    Ok(Presented {
        front: format!("{time}.").into(),
        time: Some(seconds(time).ok_or(Unverified::Malformed(NAME))?),
        tags: verifiable(tags.into_iter(), hex).ok_or(Unverified::Malformed(NAME))?,
    })
}

/// `v1,BASE64 v1,BASE64 v1a,…` over `ID.TIME.BODY`. Versions other than `v1` are ignored.
fn standard(
    headers: &dyn Fields,
    [id, time, signatures]: [&'static str; 3],
) -> Result<Presented, Unverified> {
    let id_value = only(headers, id)?;
    // Otherwise the end of an ID could be taken for the time.
    if id_value.is_empty() || id_value.contains('.') {
        return Err(Unverified::Malformed(id));
    }
    let time_value = only(headers, time)?;
    let value = only(headers, signatures)?;
    let tags = value.split(' ').filter_map(|it| it.strip_prefix("v1,"));
    Ok(Presented {
        front: format!("{id_value}.{time_value}.").into(),
        time: Some(seconds(&time_value).ok_or(Unverified::Malformed(time))?),
        tags: verifiable(tags, base64).ok_or(Unverified::Malformed(signatures))?,
    })
}

/// Returns the only value of a header, if it is short and visible ASCII.
fn only(headers: &dyn Fields, name: &'static str) -> Result<String, Unverified> {
    let (mut count, mut found) = (0_usize, None);
    headers.each(name, &mut |value| {
        count += 1;
        let is_plain = |byte: &u8| byte.is_ascii_graphic() || *byte == b' ';
        let is_fit = value.len() <= HEADER_BYTES_MAX && value.iter().all(is_plain);
        found = is_fit.then(|| String::from_utf8_lossy(value).into_owned());
    });
    match count {
        0 => Err(Unverified::Missing(name)),
        1 => found.ok_or(Unverified::Malformed(name)),
        _ => Err(Unverified::Repeated(name)),
    }
}

/// Returns the well-formed signatures; `None` if there are none, or too many.
fn verifiable<'v>(
    values: impl Iterator<Item = &'v str>,
    read: impl Fn(&str) -> Option<Tag>,
) -> Option<Vec<Tag>> {
    let values: Vec<_> = values.take(SIGNATURES_MAX + 1).collect();
    if values.len() > SIGNATURES_MAX {
        return None;
    }
    let tags: Vec<_> = values.into_iter().filter_map(read).collect();
    (!tags.is_empty()).then_some(tags)
}

/// Parses digits only: a signed timestamp contains neither a sign nor a space.
fn seconds(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

fn base64(text: &str) -> Option<Tag> {
    STANDARD.decode(text).ok()?.try_into().ok()
}

fn hex(text: &str) -> Option<Tag> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let mut tag = Tag::default();
    if text.len() != 2 * tag.len() {
        return None;
    }
    for (byte, pair) in tag.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        let value = digit(&pair[0])? << 4 | digit(&pair[1])?;
        *byte = u8::try_from(value).ok()?;
    }
    Some(tag)
}
