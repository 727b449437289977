//! The response is stored chunk by chunk, each overwriting the previous one.
//!
//! Seen in proxies that cache in the body callback, which is called per chunk.
//! Cost: small responses pass every test; for a large one the retry gets only the last chunk, with status 201.

use crate::hole::Hole;

const CHUNK: usize = 64 << 10;

pub(crate) struct BodyPerChunk;

impl Hole for BodyPerChunk {
    fn kept<'a>(&self, body: &'a [u8]) -> Option<&'a [u8]> {
        body.chunks(CHUNK).next_back().or(Some(body))
    }
}
