//! Digest of the request, to tell a retry from another request under the same key.

use std::fmt;

use crate::key::hex_format;

mod part;
pub use part::Part;

/// Digest of what makes a request this request.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 16]);

hex_format!(Fingerprint);
