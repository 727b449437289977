//! Settings that can be written in more than one form.

use std::fmt;

use schemars::JsonSchema;
use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer},
};

use super::{schema, typed::List};

/// `fingerprint`: a list of parts, or a table that also includes or excludes the host.
#[derive(Debug, Default)]
pub(super) struct Fingerprint {
    pub(super) parts: Option<List>,
    pub(super) host: Option<bool>,
}

/// The table `fingerprint`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FingerprintTable {
    /// Parts of the request, besides the host. Default: method, path, query and body.
    #[schemars(with = "Option<schema::OneOrMore<schema::FingerprintText>>")]
    parts: Option<List>,
    /// Include the host that a request is addressed to. Default: true.
    host: Option<bool>,
}

/// `audit`: true, false or `required`.
#[derive(Debug)]
pub(super) enum Audit {
    Is(bool),
    Word(String),
}

impl<'de> Deserialize<'de> for Fingerprint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FingerprintVisitor)
    }
}

struct FingerprintVisitor;

impl<'de> Visitor<'de> for FingerprintVisitor {
    type Value = Fingerprint;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, a list of strings, or a table of `parts` and `host`")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Fingerprint, E> {
        Ok(Fingerprint {
            parts: Some(List(vec![(text.into(), None)])),
            host: None,
        })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, members: A) -> Result<Fingerprint, A::Error> {
        Ok(Fingerprint {
            parts: Some(List::of(members)?),
            host: None,
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<Fingerprint, A::Error> {
        let table = FingerprintTable::deserialize(MapAccessDeserializer::new(table))?;
        Ok(Fingerprint {
            parts: table.parts,
            host: table.host,
        })
    }
}

impl<'de> Deserialize<'de> for Audit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AuditVisitor)
    }
}

struct AuditVisitor;

impl Visitor<'_> for AuditVisitor {
    type Value = Audit;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("true, false or \"required\"")
    }

    fn visit_bool<E: Error>(self, is: bool) -> Result<Audit, E> {
        Ok(Audit::Is(is))
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<Audit, E> {
        Ok(Audit::Word(word.into()))
    }
}
