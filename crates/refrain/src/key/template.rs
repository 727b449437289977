//! Natural keys: a template over members of the body.

use std::{fmt, str::FromStr};

use crate::{Error, Result};

/// A template over members of the body, such as `{/customer}-{/cart}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template(String);

impl FromStr for Template {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Ok(Self(text.into()))
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
