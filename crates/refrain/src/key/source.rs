//! Where a request's key comes from, as a policy writes it.

use std::{fmt, str::FromStr};

use super::{pointer::Pointer, template::Template};
use crate::{Error, ErrorKind, Result};

/// Where a request's key comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// `header:NAME`: sent by the client. The name is in lower case.
    Header(String),
    /// `body:/pointer`: a member of the JSON body.
    Body(Pointer),
    /// `derive`: made from what is asked, so that equal requests have equal keys.
    Derive,
    /// `natural:{/customer}-{/cart}`: business identifiers from the JSON body.
    Natural(Template),
}

/// How a key header is written.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    serde::Deserialize,
    serde::Serialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Syntax {
    /// `"abc"` and `abc` are the same key.
    #[default]
    Both,
    /// Only the quoted form is taken.
    Strict,
    /// The header's bytes are the key, quotes included.
    Raw,
}

impl FromStr for Source {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.split_once(':') {
            None if text == "derive" => Ok(Self::Derive),
            Some(("header", name)) => super::header_name(name).map(Self::Header),
            Some(("body", pointer)) => pointer.parse().map(Self::Body),
            Some(("natural", template)) => template.parse().map(Self::Natural),
            _ => Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "`{text}` is no source of keys; write header:NAME, body:/pointer, derive or natural:{{/member}}-{{/member}}"
                ),
            )),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Body(pointer) => write!(f, "body:{pointer}"),
            Self::Derive => f.write_str("derive"),
            Self::Natural(template) => write!(f, "natural:{template}"),
        }
    }
}
