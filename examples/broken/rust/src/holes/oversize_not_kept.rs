//! An answer that is too large for the store is passed on and not kept.
//!
//! Seen where the store's limit (a column, an item, a cache entry) was met with "then we cannot cache it".
//! Cost: the orders with the longest answers, which are the largest orders, run again with each retry.

use crate::hole::Hole;

const ITEM_BYTES_MAX: usize = 400 << 10;

pub(crate) struct OversizeNotKept;

impl Hole for OversizeNotKept {
    fn kept<'a>(&self, body: &'a [u8]) -> Option<&'a [u8]> {
        (body.len() <= ITEM_BYTES_MAX).then_some(body)
    }
}
