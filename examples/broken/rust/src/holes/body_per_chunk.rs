//! The answer is written to the store chunk by chunk, each over the one before.
//!
//! Seen in proxies that cache in the callback that gets the body's pieces.
//! Cost: small answers are right in every test; of a large one the retry gets the last piece, with status 201.

use crate::hole::Hole;

const CHUNK: usize = 64 << 10;

pub(crate) struct BodyPerChunk;

impl Hole for BodyPerChunk {
    fn kept<'a>(&self, body: &'a [u8]) -> Option<&'a [u8]> {
        body.chunks(CHUNK).next_back().or(Some(body))
    }
}
