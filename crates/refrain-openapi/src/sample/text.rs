//! Generates a string that satisfies pattern, format and length, or else suits the member's name.

use super::{
    Options, pattern,
    value::{count, keyword},
};
use crate::{Node, Schema};

/// Largest `minLength` that a generated string satisfies, in characters.
const TEXT_CHARS_MAX: usize = 10_000;
/// Length in characters of the unique word that replaces the placeholder.
const WORD_CHARS: usize = 18;

/// Members that must be unique in most services; lower case, without separators.
const ONCE: [&str; 20] = [
    "email",
    "emailaddress",
    "username",
    "login",
    "handle",
    "slug",
    "sku",
    "reference",
    "referenceid",
    "externalid",
    "externalreference",
    "clientreference",
    "merchantreference",
    "ordernumber",
    "orderreference",
    "invoicenumber",
    "serialnumber",
    "nonce",
    "requestid",
    "correlationid",
];

/// Values for members with a well-known name.
const NAMED: [(&str, &str); 18] = [
    ("currency", "EUR"),
    ("country", "DE"),
    ("language", "en"),
    ("locale", "en-US"),
    ("timezone", "Europe/Berlin"),
    ("iban", "DE89370400440532013000"),
    ("bic", "COBADEFFXXX"),
    ("phone", "+4930123456"),
    ("mobile", "+4915112345678"),
    ("postalcode", "10115"),
    ("zip", "10115"),
    ("city", "Berlin"),
    ("email", "sample@example.com"),
    ("url", "https://example.com/sample"),
    ("uri", "https://example.com/sample"),
    ("amount", "10.00"),
    ("price", "10.00"),
    ("date", "2030-01-15"),
];

/// Unique value, if the name of the member says that it must be unique.
pub(super) fn unique(schema: Schema<'_>, name: &str, options: &Options) -> Option<String> {
    let simple = simple(name);
    let is_text = schema.is("string") || schema.parts().iter().all(|it| it.types().is_empty());
    if !ONCE.contains(&&*simple) || !is_text || !schema.variants().is_empty() {
        return None;
    }
    let word = match &options.unique {
        Some(word) => word.clone(),
        None => format!("rv{:016x}", mixed(options.seed, name)),
    };
    let format = keyword(schema, "format").and_then(Node::as_str);
    let (made, length) = match format {
        Some("uuid") => return Some(uuid(mixed(options.seed, name))),
        Some("email") => (format!("{word}@example.com"), WORD_CHARS + 12),
        None if simple.starts_with("email") => (format!("{word}@example.com"), WORD_CHARS + 12),
        None => (word, WORD_CHARS),
        Some(_) => return None,
    };
    let fits = count(schema, "maxLength").is_none_or(|most| length <= most)
        && count(schema, "minLength").is_none_or(|least| length >= least)
        && keyword(schema, "pattern").is_none();
    fits.then_some(made)
}

/// Whether the member turns on a dry run.
pub(super) fn is_pretending(name: &str) -> bool {
    let simple = simple(name);
    ["dryrun", "validateonly", "simulate", "preview", "testmode"].contains(&&*simple)
}

/// String that satisfies this schema.
pub(super) fn fitting(schema: Schema<'_>, name: &str, options: &Options) -> String {
    let least = count(schema, "minLength").unwrap_or(0).min(TEXT_CHARS_MAX);
    let most = count(schema, "maxLength").unwrap_or(usize::MAX);
    let written = keyword(schema, "pattern").and_then(Node::as_str);
    if let Some(made) = written.and_then(|it| pattern::fitting(it, least, most)) {
        return made;
    }
    let format = keyword(schema, "format").and_then(Node::as_str);
    if let Some(made) = format.and_then(|format| formatted(format, name, options)) {
        return made;
    }
    let simple = simple(name);
    let named = NAMED.iter().find(|(word, _)| simple.ends_with(word));
    let named = named.map(|(_, text)| (*text).to_owned());
    let fits = |text: &String| (least..=most).contains(&text.chars().count());
    named.filter(fits).unwrap_or_else(|| sized(least, most))
}

fn sized(least: usize, most: usize) -> String {
    const WORD: &str = "sample";
    let length = WORD.len().max(least).min(most);
    WORD.chars().cycle().take(length).collect()
}

fn formatted(format: &str, name: &str, options: &Options) -> Option<String> {
    let is_past = simple(name).contains("birth");
    let year = if is_past { 1990 } else { 2030 };
    Some(match format {
        "date" => format!("{year}-01-15"),
        "date-time" => format!("{year}-01-15T12:00:00Z"),
        "time" => "12:00:00Z".into(),
        "duration" => "PT1H".into(),
        "email" | "idn-email" => "sample@example.com".into(),
        "uuid" => uuid(mixed(options.seed, name)),
        "uri" | "url" | "iri" => "https://example.com/sample".into(),
        "uri-reference" | "iri-reference" => "/sample".into(),
        "hostname" | "idn-hostname" => "example.com".into(),
        "ipv4" | "ip" => "192.0.2.1".into(),
        "ipv6" => "2001:db8::1".into(),
        "byte" => "c2FtcGxl".into(),
        "password" => "Sample-1234-word".into(),
        "json-pointer" => "/sample".into(),
        "decimal" => "10.00".into(),
        _ => return None,
    })
}

/// Name in lower case, letters and digits only.
fn simple(name: &str) -> String {
    let kept = name.chars().filter(char::is_ascii_alphanumeric);
    kept.map(|it| it.to_ascii_lowercase()).collect()
}

fn uuid(number: u64) -> String {
    let (high, low) = (number, mixed(number, "low"));
    format!(
        "{:08x}-{:04x}-4{:03x}-8{:03x}-{:012x}",
        high >> 32,
        high >> 16 & 0xffff,
        high & 0xfff,
        low >> 52,
        low & 0xffff_ffff_ffff
    )
}

/// Hash of seed and name (FNV-1a, then the finalizer of SplitMix64).
fn mixed(seed: u64, name: &str) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325_u64 ^ seed;
    let folded = name.bytes().fold(start, |so_far, byte| {
        (so_far ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut z = folded.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
