//! Frames of a journal: length-prefixed records, and a checksum over all of them.

use std::ops::Range;

use crate::{
    log::frame::{self, END, Format, FramePosition},
    varint::{self, Reader},
};

const HEADER_LEN: usize = 24;
/// Length of the checksum and the end mark, after the records.
const TAIL_LEN: usize = 5;

/// The format of the frames of a journal.
#[derive(Debug)]
pub(super) struct JournalFrames;

impl Format for JournalFrames {
    const MAGIC: [u8; 4] = *b"rJn1";
    const HEADER_LEN: usize = HEADER_LEN;
    const IS_ALLOCATED: bool = false;
    /// The range of each record in the file.
    type Content = Vec<Range<usize>>;

    fn checksum(bytes: &[u8], seed: u64) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&seed.to_le_bytes());
        hasher.update(bytes);
        hasher.finalize()
    }

    fn ordinal(fields: &[u8]) -> Option<u64> {
        Reader(fields).u64()
    }

    fn content(frame: &[u8], at: usize, seed: u64) -> Option<Vec<Range<usize>>> {
        let (content, tail) = frame.get(HEADER_LEN..)?.split_last_chunk::<TAIL_LEN>()?;
        let mut tail = Reader(tail);
        if tail.u32()? != Self::checksum(content, seed) || tail.u8()? != END {
            return None;
        }
        let content_end = at + HEADER_LEN + content.len();
        let mut reader = Reader(content);
        let mut records = Vec::new();
        while !reader.0.is_empty() {
            let len = reader.sized()?.len();
            let end = content_end - reader.0.len();
            records.push(end - len..end);
        }
        Some(records)
    }
}

/// Assembles records into a frame; returns it with the range of each record, relative to the frame.
pub(super) fn assemble<'a>(
    records: impl IntoIterator<Item = &'a [u8]>,
    place: FramePosition,
) -> (Vec<u8>, Vec<Range<usize>>) {
    let mut out = vec![0; HEADER_LEN];
    let mut ranges = Vec::new();
    for record in records {
        varint::put(&mut out, record.len() as u64);
        ranges.push(out.len()..out.len() + record.len());
        out.extend_from_slice(record);
    }
    let sum = JournalFrames::checksum(&out[HEADER_LEN..], place.seed);
    out.extend(sum.to_le_bytes());
    frame::finish::<JournalFrames>(&mut out, &place.ordinal.to_le_bytes(), place);
    (out, ranges)
}
