//! Keys are truncated to the column's length.
//!
//! Seen with databases that truncate silently, and in code that truncates before the INSERT.
//! Cost: keys of the form PREFIX-ORDER-ATTEMPT with a long prefix become equal, and orders of different
//! customers are taken for duplicates of each other.

use crate::{hole::Hole, service::Refused};

const COLUMN_BYTES: usize = 255;

pub(crate) struct KeyTruncated;

impl Hole for KeyTruncated {
    fn key(&self, sent: &str) -> Result<String, Refused> {
        let key = sent.trim_matches('"');
        match key.get(..key.len().min(COLUMN_BYTES)) {
            Some(key) if !key.is_empty() => Ok(key.to_owned()),
            _ => Err(Refused(400, "the key is empty")),
        }
    }
}
