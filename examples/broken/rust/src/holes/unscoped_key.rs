//! A key means the same record, whoever sends it.
//!
//! Seen in most of the field: "keys are random, nobody guesses them". Keys are made from order numbers, printed in logs
//! and copied into tickets.
//! Cost: somebody else's answer, with whatever is private in it, and no payment of one's own.

use crate::hole::Hole;

pub(crate) struct UnscopedKey;

impl Hole for UnscopedKey {
    fn scope(&self, _: &str) -> String {
        "everybody".into()
    }
}
