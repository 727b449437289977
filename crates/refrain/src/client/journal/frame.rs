//! Frames of a journal. A frame is the unit of a group commit: a header, length-prefixed records, a checksum and an
//! end mark.
//!
//! A frame is written only after its predecessor is durable.
//! So an unreadable frame with a readable header after it is corruption.
//! The last frame may be torn: the file ends too early, or it has zero sectors that were not written as zeros.
//! Nothing in a torn frame was acknowledged. A frame that is neither complete nor torn is corruption too.

use std::ops::Range;

use crate::varint::{self, Reader};

const MAGIC: [u8; 4] = *b"rJn1";
const HEADER_LEN: usize = 24;
/// Checksum and end mark, after the records.
const TAIL_LEN: usize = 5;
/// Never zero: if it is missing, the frame was not written completely.
const END: u8 = 0xa5;
/// Unit in bytes that a disk writes completely or not at all.
const SECTOR: usize = 512;

/// Position of a frame.
#[derive(Debug, Clone, Copy)]
pub(super) struct JournalFramePosition {
    /// Secret of this journal, so that bytes inside a body are not mistaken for a frame.
    pub(super) seed: u64,
    pub(super) start: usize,
    /// Number of the frame in its file, from 0.
    pub(super) ordinal: u64,
}

/// Assembles records into a frame; returns it with the range of each record, relative to the frame.
pub(super) fn assemble<'a>(
    records: impl IntoIterator<Item = &'a [u8]>,
    place: JournalFramePosition,
) -> (Vec<u8>, Vec<Range<usize>>) {
    let mut out = vec![0; HEADER_LEN];
    let mut places = Vec::new();
    for record in records {
        varint::put(&mut out, record.len() as u64);
        places.push(out.len()..out.len() + record.len());
        out.extend_from_slice(record);
    }
    let sum = checksum(&out[HEADER_LEN..], place.seed);
    out.extend(sum.to_le_bytes());
    out.push(END);
    let len = out.len() as u32;
    out[..HEADER_LEN].copy_from_slice(&header(len, 0, place));
    let blank = blank_sectors(&out, place.start);
    out[..HEADER_LEN].copy_from_slice(&header(len, blank, place));
    (out, places)
}

fn header(len: u32, blank: u32, place: JournalFramePosition) -> [u8; HEADER_LEN] {
    let mut out = [0; HEADER_LEN];
    out[..4].copy_from_slice(&MAGIC);
    out[4..8].copy_from_slice(&len.to_le_bytes());
    out[8..16].copy_from_slice(&place.ordinal.to_le_bytes());
    out[16..20].copy_from_slice(&blank.to_le_bytes());
    let sum = checksum(&out[..20], place.seed);
    out[20..].copy_from_slice(&sum.to_le_bytes());
    out
}

#[derive(Debug, Clone, Copy)]
struct Header {
    len: usize,
    ordinal: u64,
    /// Number of sectors that were written as zeros.
    blank: u32,
}

fn decode_header(bytes: &[u8], seed: u64) -> Option<Header> {
    let fields = bytes.get(..20)?;
    let mut reader = Reader(bytes);
    if reader.array()? != MAGIC {
        return None;
    }
    let len = reader.u32()? as usize;
    let ordinal = reader.u64()?;
    let blank = reader.u32()?;
    let fits = reader.u32()? == checksum(fields, seed) && len >= HEADER_LEN + TAIL_LEN;
    fits.then_some(Header {
        len,
        ordinal,
        blank,
    })
}

fn checksum(bytes: &[u8], seed: u64) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&seed.to_le_bytes());
    hasher.update(bytes);
    hasher.finalize()
}

/// What is at a position of the file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// A complete frame: the ranges of its records in the file, and its end.
    Frame(Vec<Range<usize>>, usize),
    /// The end of the file.
    End,
    /// The last frame, incompletely written.
    Torn,
    /// Damage: written data that can no longer be read.
    Damage,
}

/// Reads the frame at `place`.
pub(super) fn find(file: &[u8], place: JournalFramePosition) -> Found {
    let rest = &file[place.start..];
    if rest.is_empty() {
        return Found::End;
    }
    let header = decode_header(rest, place.seed);
    let whole = header.and_then(|header| records(rest, header, place));
    if let Some(records) = whole {
        let end = place.start + header.map_or(0, |header| header.len);
        return Found::Frame(records, end);
    }
    match has_frame_behind(rest, place) || !is_torn(rest, header, place) {
        true => Found::Damage,
        false => Found::Torn,
    }
}

/// Returns the ranges of the records of a complete frame, in the file.
fn records(rest: &[u8], header: Header, place: JournalFramePosition) -> Option<Vec<Range<usize>>> {
    let frame = rest.get(..header.len)?;
    let content = &frame[HEADER_LEN..header.len - TAIL_LEN];
    let mut tail = Reader(&frame[header.len - TAIL_LEN..]);
    let is_whole = tail.u32()? == checksum(content, place.seed) && tail.u8()? == END;
    if !is_whole || header.ordinal != place.ordinal {
        return None;
    }
    let mut reader = Reader(content);
    let mut found = Vec::new();
    while !reader.0.is_empty() {
        let len = reader.sized()?.len();
        let end = place.start + header.len - TAIL_LEN - reader.0.len();
        found.push(end - len..end);
    }
    Some(found)
}

/// Whether a later frame has a readable header. Then this one was durable, because frames are written in order.
fn has_frame_behind(rest: &[u8], place: JournalFramePosition) -> bool {
    let starts = magic_places(rest).skip_while(|at| *at == 0);
    starts
        .filter_map(|at| decode_header(&rest[at..], place.seed))
        .any(|header| header.ordinal > place.ordinal)
}

fn magic_places(bytes: &[u8]) -> impl Iterator<Item = usize> {
    bytes
        .windows(MAGIC.len())
        .enumerate()
        .filter_map(|(at, window)| (window == MAGIC).then_some(at))
}

/// Whether this can be the last frame after a power loss or a kill.
fn is_torn(rest: &[u8], header: Option<Header>, place: JournalFramePosition) -> bool {
    match header {
        Some(header) if header.ordinal != place.ordinal => false,
        Some(header) => match rest.get(..header.len) {
            None => true,
            Some(frame) => blank_sectors(frame, place.start) > header.blank,
        },
        None if rest.len() < HEADER_LEN => true,
        // The header itself was not written, although later sectors may have been.
        None => sectors(place.start, rest.len())
            .take_while(|sector| sector.start < HEADER_LEN)
            .any(|sector| is_zero(&rest[sector])),
    }
}

/// Number of zero sectors in these bytes, which start at file offset `start`. Partial sectors count.
fn blank_sectors(bytes: &[u8], start: usize) -> u32 {
    let blank = sectors(start, bytes.len()).filter(|sector| is_zero(&bytes[sector.clone()]));
    blank.count() as u32
}

/// Returns the sectors that `len` bytes from file offset `start` touch, as ranges of these bytes.
fn sectors(start: usize, len: usize) -> impl Iterator<Item = Range<usize>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let end = len.min(at + SECTOR - (start + at) % SECTOR);
        let sector = at..end;
        at = end;
        (!sector.is_empty()).then_some(sector)
    })
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}
