//! An address that may hold a password, and shows it to nobody.

use std::fmt;

use serde::{Serialize, Serializer};

use super::redacted;

/// The address of a database. Printed without its password.
///
/// ```
/// use refrain::policy::Address;
/// let address = Address::new("postgres://app:secret@db/app");
/// assert_eq!(address.to_string(), "postgres://app:***@db/app");
/// assert_eq!(address.as_str(), "postgres://app:secret@db/app");
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Address(String);

impl Address {
    /// Takes an address as it is.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// All of it, with its password.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&redacted(&self.0))
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({self})")
    }
}

impl Serialize for Address {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
