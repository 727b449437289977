//! A response that is too large for the store is sent but not stored.
//!
//! Seen where a store's limit (a column, an item, a cache entry) led to "then we cannot cache it".
//! Cost: requests with the longest responses, which are the largest orders, execute again with each retry.

use crate::hole::Hole;

const ITEM_BYTES_MAX: usize = 400 << 10;

pub(crate) struct OversizeNotKept;

impl Hole for OversizeNotKept {
    fn kept<'a>(&self, body: &'a [u8]) -> Option<&'a [u8]> {
        (body.len() <= ITEM_BYTES_MAX).then_some(body)
    }
}
