//! Turns parsed tables into typed parts, records the position of every value, and reports unknown names.

use std::{collections::HashMap, fmt, ops::Range};

use serde::de::{DeserializeOwned, IntoDeserializer, value::MapDeserializer};
use toml::{
    Spanned,
    de::{DeTable, DeValue, Deserializer},
};

use super::{
    problem::Report,
    typed::{
        Authorization, Encryption, Jwt, OperationHead, Proxy, Relay, Section, Server, Signed, Tls,
        Worker,
    },
};
use crate::policy::suggest;

/// Byte ranges of the values of a table, by name.
pub(super) type Places = HashMap<String, Range<usize>>;

/// A typed table, and the byte ranges of its values.
#[derive(Debug, Default)]
pub(super) struct Part<T> {
    pub(super) values: T,
    pub(super) places: Places,
}

/// Table of the configuration file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConfigTable {
    Top,
    Proxy,
    Jwt,
    Encryption,
    Policy,
    Operation,
    Signature,
    Worker,
    Authorization,
    Relay,
    Tls,
}

impl ConfigTable {
    const ALL: [Self; 11] = [
        Self::Top,
        Self::Proxy,
        Self::Jwt,
        Self::Encryption,
        Self::Policy,
        Self::Operation,
        Self::Signature,
        Self::Worker,
        Self::Authorization,
        Self::Relay,
        Self::Tls,
    ];

    /// Names of the settings that belong in this table.
    fn names(self) -> Vec<&'static str> {
        match self {
            Self::Top => [
                fields::<Server>(),
                &[
                    "proxy",
                    "tls",
                    "admin_tls",
                    "encryption",
                    "jwt",
                    "policy",
                    "operation",
                    "worker",
                    "relay",
                ],
            ]
            .concat(),
            Self::Proxy => fields::<Proxy>().to_vec(),
            Self::Jwt => fields::<Jwt>().to_vec(),
            Self::Encryption => fields::<Encryption>().to_vec(),
            Self::Policy => fields::<Section>().to_vec(),
            Self::Operation => [
                fields::<OperationHead>(),
                fields::<Section>(),
                &["signature", "probe_authorization"],
            ]
            .concat(),
            Self::Signature => fields::<Signed>().to_vec(),
            Self::Worker => [fields::<Worker>(), &["authorization"]].concat(),
            Self::Authorization => fields::<Authorization>().to_vec(),
            Self::Relay => fields::<Relay>().to_vec(),
            Self::Tls => fields::<Tls>().to_vec(),
        }
    }
}

impl fmt::Display for ConfigTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Top => "at the top of the file",
            Self::Proxy => "in [proxy]",
            Self::Jwt => "in [jwt]",
            Self::Encryption => "in [encryption]",
            Self::Policy => "in [policy]",
            Self::Operation => "in [[operation]]",
            Self::Signature => "in `signature`",
            Self::Worker => "in [[worker]]",
            Self::Authorization => "in `authorization` or `probe_authorization`",
            Self::Relay => "in [[relay]]",
            Self::Tls => "in [tls] or [admin_tls]",
        })
    }
}

/// Removes the settings that do not belong in `place`, and reports them.
pub(super) fn refuse_unknown(table: &mut DeTable<'_>, place: ConfigTable, report: &mut Report<'_>) {
    let names = place.names();
    let (known, strangers): (DeTable<'_>, DeTable<'_>) = std::mem::take(table)
        .into_iter()
        .partition(|(name, _)| names.contains(&name.get_ref().as_ref()));
    *table = known;
    for (name, _) in &strangers {
        unknown(name, place, &names, report);
    }
}

fn unknown(
    name: &Spanned<std::borrow::Cow<'_, str>>,
    place: ConfigTable,
    names: &[&str],
    report: &mut Report<'_>,
) {
    let text = name.get_ref().as_ref();
    if text == "key" && place == ConfigTable::Encryption {
        let help =
            "write key_env with the name of an environment variable, or key_file with a path";
        return report.push(name.span(), "this file must not contain a key", help);
    }
    if text == "secret"
        && [
            ConfigTable::Signature,
            ConfigTable::Authorization,
            ConfigTable::Jwt,
        ]
        .contains(&place)
    {
        let help =
            "write secret_env with the name of an environment variable, or secret_file with a path";
        return report.push(name.span(), "this file must not contain a secret", help);
    }
    let elsewhere = ConfigTable::ALL
        .into_iter()
        .find(|other| other.names().contains(&text));
    let help = match (elsewhere, suggest::nearest(text, names.iter().copied())) {
        (Some(ConfigTable::Top), _) => {
            format!("`{text}` belongs at the top of the file, above the first [table]")
        }
        (Some(other), _) => format!("`{text}` belongs {other}"),
        (None, Some(meant)) => format!("did you mean `{meant}`?"),
        (None, None) => format!("the settings here are {}", names.join(", ")),
    };
    report.push(
        name.span(),
        format!("unknown setting `{text}` {place}"),
        help,
    );
}

/// Replaces the settings of `T` that have an override, and their forms `NAME_env` and `NAME_file`.
pub(super) fn replace<T: DeserializeOwned>(table: &mut DeTable<'_>, overrides: &[(&str, &str)]) {
    let fields = fields::<T>();
    for (name, value) in overrides.iter().filter(|(name, _)| fields.contains(name)) {
        for end in ["", "_env", "_file"] {
            table.remove(format!("{name}{end}").as_str());
        }
        let name = Spanned::new(0..0, name.to_string().into());
        let value = DeValue::String(value.to_string().into());
        table.insert(name, Spanned::new(0..0, value));
    }
}

/// Deserialises a table. A value of the wrong type is reported and left out.
pub(super) fn read<T: DeserializeOwned + Default>(
    mut table: DeTable<'_>,
    report: &mut Report<'_>,
) -> Part<T> {
    let places: Places = table
        .iter()
        .map(|(name, value)| (name.get_ref().to_string(), value.span()))
        .collect();
    loop {
        let error = match T::deserialize(Deserializer::from(Spanned::new(0..0, table.clone()))) {
            Ok(values) => return Part { values, places },
            Err(error) => error,
        };
        let at = error.span().unwrap_or_default();
        let holds = |place: &Range<usize>| place.start <= at.start && at.end <= place.end;
        let culprit = places.iter().find(|(_, place)| holds(place));
        report.push(at.clone(), error.message(), "");
        // Retry without it, so that the rest of the table is checked too.
        if culprit
            .and_then(|(name, _)| table.remove(name.as_str()))
            .is_none()
        {
            return Part {
                values: T::default(),
                places,
            };
        }
    }
}

/// Names of the fields of `T`, as listed by its deserializer.
pub(super) fn fields<T: DeserializeOwned>() -> &'static [&'static str] {
    let stranger = MapDeserializer::<_, FieldNames>::new([("", "")].into_iter());
    T::deserialize(stranger).err().map_or(&[], |names| names.0)
}

/// Parses one of the fixed values of `T`; the error lists all of them.
pub(super) fn choose<T: DeserializeOwned>(text: &str) -> Result<T, &'static [&'static str]> {
    let text: serde::de::value::StrDeserializer<'_, FieldNames> = text.into_deserializer();
    T::deserialize(text).map_err(|names| names.0)
}

/// Serde error that carries the expected names.
#[derive(Debug)]
struct FieldNames(&'static [&'static str]);

impl std::error::Error for FieldNames {}

impl fmt::Display for FieldNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(", "))
    }
}

impl serde::de::Error for FieldNames {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self(&[])
    }

    fn unknown_field(_: &str, expected: &'static [&'static str]) -> Self {
        Self(expected)
    }

    fn unknown_variant(_: &str, expected: &'static [&'static str]) -> Self {
        Self(expected)
    }
}
