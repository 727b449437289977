//! A key names the same record for every caller.
//!
//! Seen in most libraries, with the argument that keys are random and cannot be guessed. In practice keys
//! are derived from order numbers, printed in logs and copied into tickets.
//! Cost: a caller gets another caller's response, with its private data, and its own payment is not made.

use crate::hole::Hole;

pub(crate) struct UnscopedKey;

impl Hole for UnscopedKey {
    fn scope(&self, _: &str) -> String {
        "everybody".into()
    }
}
