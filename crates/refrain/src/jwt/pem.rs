//! Public keys in PEM: one `SubjectPublicKeyInfo` (RFC 5280) between `BEGIN PUBLIC KEY` and `END PUBLIC KEY`.

use base64::{Engine as _, prelude::BASE64_STANDARD};

use super::keys::{KeyMaterial, invalid};
use crate::Result;

const BEGIN: &str = "-----BEGIN PUBLIC KEY-----";
const END: &str = "-----END PUBLIC KEY-----";

// Tags of DER.
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OBJECT_ID: u8 = 0x06;
const SEQUENCE: u8 = 0x30;

// Object identifiers, as DER encodes them.
const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1];
const EC: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1];
const P256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7];
const P384: &[u8] = &[0x2b, 0x81, 0x04, 0, 0x22];
const ED25519: &[u8] = &[0x2b, 0x65, 0x70];

/// Parses the public key.
pub(super) fn public_key(text: &str) -> Result<KeyMaterial> {
    let no_key = || {
        invalid(format!(
            "it has no line `{BEGIN}`; convert the key with `openssl pkey -in KEY -pubout`, \
             or a certificate with `openssl x509 -in CERTIFICATE -pubkey -noout`"
        ))
    };
    let (_, rest) = text.split_once(BEGIN).ok_or_else(no_key)?;
    let (body, rest) = rest.split_once(END).ok_or_else(no_key)?;
    if rest.contains(BEGIN) {
        return Err(invalid("it has more than one key; write one file for each"));
    }
    let body: String = body.split_ascii_whitespace().collect();
    let der = BASE64_STANDARD.decode(body).ok();
    let key = der.and_then(|der| key(&mut &der[..]));
    key.ok_or_else(|| {
        invalid("its key is damaged or of another type than RSA (2048 to 8192 bits), P-256, P-384 or Ed25519")
    })
}

fn key(der: &mut &[u8]) -> Option<KeyMaterial> {
    let mut info = whole(der, SEQUENCE)?;
    let mut algorithm = element(&mut info, SEQUENCE)?;
    let kind = element(&mut algorithm, OBJECT_ID)?;
    let [0, bits @ ..] = whole(&mut info, BIT_STRING)? else {
        return None;
    };
    match kind {
        RSA => {
            let mut numbers = whole(&mut &*bits, SEQUENCE)?;
            let n = element(&mut numbers, INTEGER)?;
            KeyMaterial::rsa(n, whole(&mut numbers, INTEGER)?)
        }
        EC => {
            let curve = match whole(&mut algorithm, OBJECT_ID)? {
                P256 => "P-256",
                P384 => "P-384",
                _ => return None,
            };
            KeyMaterial::on_curve(curve, bits.to_vec())
        }
        ED25519 => KeyMaterial::on_curve("Ed25519", bits.to_vec()),
        _ => None,
    }
}

/// The content of the next element, which must have this tag and be the last one.
fn whole<'d>(der: &mut &'d [u8], tag: u8) -> Option<&'d [u8]> {
    let content = element(der, tag)?;
    der.is_empty().then_some(content)
}

/// The content of the next element, which must have this tag.
fn element<'d>(der: &mut &'d [u8], tag: u8) -> Option<&'d [u8]> {
    let (found, rest) = der.split_first()?;
    let (length, rest) = rest.split_first()?;
    let (length, rest) = match length {
        0..=0x7f => (usize::from(*length), rest),
        0x81 => (usize::from(*rest.first()?), &rest[1..]),
        0x82 => {
            let (bytes, rest) = rest.split_first_chunk()?;
            (usize::from(u16::from_be_bytes(*bytes)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    *der = rest;
    (*found == tag).then_some(content)
}
