//! JSON pointers (RFC 6901) into a body.

use std::{fmt, str::FromStr};

use crate::{Error, ErrorKind, Result};

/// A JSON pointer that was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pointer(String);

impl FromStr for Pointer {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.starts_with('/') {
            true => Ok(Self(text.into())),
            false => Err(Error::new(
                ErrorKind::Invalid,
                format!("`{text}` is no JSON pointer: it starts with /"),
            )),
        }
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
