//! The parts of a fingerprint, as a policy writes them.

use std::{fmt, str::FromStr};

use crate::{Error, ErrorKind, Result, key::Pointer};

/// One part of a fingerprint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// `method`.
    Method,
    /// `path`.
    Path,
    /// `query`.
    Query,
    /// `body`: the whole body, in canonical form if it is JSON.
    Body,
    /// `body:/pointer`: one member of the JSON body.
    Member(Pointer),
    /// `header:NAME`: the values of a header. The name is in lower case.
    Header(String),
    /// `host`: the authority of the request, in normal form.
    Host,
}

impl Part {
    /// The parts that are used unless the policy names others.
    pub const DEFAULT: [Self; 5] = [
        Self::Method,
        Self::Path,
        Self::Query,
        Self::Body,
        Self::Host,
    ];
}

impl FromStr for Part {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.split_once(':') {
            None if text == "method" => Ok(Self::Method),
            None if text == "path" => Ok(Self::Path),
            None if text == "query" => Ok(Self::Query),
            None if text == "body" => Ok(Self::Body),
            None if text == "host" => Ok(Self::Host),
            Some(("body", pointer)) => pointer.parse().map(Self::Member),
            Some(("header", name)) => header(name),
            _ => Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "invalid fingerprint part `{text}`; write method, path, query, body, host, body:/pointer or header:NAME"
                ),
            )),
        }
    }
}

/// Accepts any header but those that carry credentials: a retry with a renewed credential is still the same request.
fn header(name: &str) -> Result<Part> {
    let name = crate::key::header_name(name)?;
    match name.as_str() {
        "authorization" | "proxy-authorization" => Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "header:{name} is never part of a fingerprint, because a retry may carry a renewed credential; name it in `credential` instead"
            ),
        )),
        _ => Ok(Part::Header(name)),
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Method => f.write_str("method"),
            Self::Path => f.write_str("path"),
            Self::Query => f.write_str("query"),
            Self::Body => f.write_str("body"),
            Self::Member(pointer) => write!(f, "body:{pointer}"),
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Host => f.write_str("host"),
        }
    }
}
