//! Stands in for `signature.rs` in a build without the feature `jwt`, which verifies no token.

use super::{Algorithm, keys::KeyMaterial};

/// Whether this build can verify signatures.
pub(super) const IS_SUPPORTED: bool = false;

/// No signature is valid.
pub(super) fn is_valid(_: &KeyMaterial, _: Algorithm, _: &[u8], _: &[u8]) -> bool {
    false
}
