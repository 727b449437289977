//! The bytes of a segment: frames, and in each frame a table of entries and their images.
//!
//! Table and images have their own checksums. So damage to one image leaves the others readable,
//! and the identity of the damaged record known.
//! An image is one record: its whole state after a `step`. So only the last image of a record counts, and compaction
//! needs no other. Its checksum covers the identity of the record, so an image read from a wrong position is detected.
//! Times are encoded relative to a fixed day, which keeps them short.

use std::time::Duration;

use bytes::Bytes;

use super::{
    scan,
    snapshot::{self, Noted},
};
use crate::{
    Fingerprint, Outcome,
    clock::Timestamp,
    key::{Credential, RecordId},
    log::frame::{self, Format, FramePosition},
    record::{Claimant, Fence, Guarantee, Hold, Reason, Record, State, Trace},
    varint::{self, Reader},
};

const HEADER_LEN: usize = 32;
/// The minimum length of a table row: identity, kind, length.
const ROW_LEN_MIN: usize = 18;

/// Collects entries and assembles them into a frame.
#[derive(Debug, Default)]
pub(super) struct Builder {
    rows: Vec<Row>,
    images: Vec<u8>,
}

#[derive(Debug, Clone, Copy)]
struct Row {
    id: RecordId,
    kind: ImageKind,
    len: usize,
}

impl Builder {
    /// Adds the image of a record.
    pub(super) fn push(&mut self, id: RecordId, record: Option<&Record>) {
        let kind = ImageKind::of(record);
        self.push_with(id, kind, |out| encode(out, id, record));
    }

    /// Adds an entry that the segment `segment` ended at `len`.
    pub(super) fn push_sealed(&mut self, segment: u32, len: u64) {
        let encode = |out: &mut Vec<u8>| encode_sealed(out, segment, len);
        self.push_with(RecordId::default(), ImageKind::Sealed, encode);
    }

    /// Adds one entry; `encode` appends its image to the buffer.
    fn push_with(&mut self, id: RecordId, kind: ImageKind, encode: impl FnOnce(&mut Vec<u8>)) {
        let before = self.images.len();
        encode(&mut self.images);
        let len = self.images.len() - before;
        self.rows.push(Row { id, kind, len });
    }

    pub(super) fn clear(&mut self) {
        self.rows.clear();
        self.images.clear();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The number of entries so far.
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// The length of all images so far, in bytes.
    pub(super) fn image_bytes(&self) -> usize {
        self.images.len()
    }

    /// An upper bound of the length of the frame, in bytes.
    pub(super) fn len_max(&self) -> usize {
        HEADER_LEN + self.rows.len() * (ROW_LEN_MIN + 4) + 4 + self.images.len() + 1
    }

    /// Writes the frame to `out`, and returns the entries with their offsets from the start of the frame.
    pub(super) fn assemble(
        &self,
        out: &mut Vec<u8>,
        place: FramePosition,
        time: Timestamp,
    ) -> Vec<FrameEntry> {
        out.clear();
        out.resize(HEADER_LEN, 0);
        for row in &self.rows {
            out.extend(row.id.0);
            out.push(row.kind as u8);
            varint::put(out, row.len as u64);
        }
        let sum = crc32fast::hash(&out[HEADER_LEN..]);
        out.extend(sum.to_le_bytes());
        let mut offset = out.len();
        out.extend_from_slice(&self.images);
        let mut fields = [0; 16];
        fields[..4].copy_from_slice(&(self.rows.len() as u32).to_le_bytes());
        fields[4..8].copy_from_slice(&(place.ordinal as u32).to_le_bytes());
        fields[8..].copy_from_slice(&time.0.to_le_bytes());
        frame::finish::<SegmentFrames>(out, &fields, place);
        let entry = |row: &Row| {
            let start = offset;
            offset += row.len;
            FrameEntry {
                id: row.id,
                kind: row.kind,
                offset: start,
                len: row.len,
            }
        };
        self.rows.iter().map(entry).collect()
    }
}

/// One entry of a frame, and the position of its image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameEntry {
    pub(super) id: RecordId,
    pub(super) kind: ImageKind,
    pub(super) offset: usize,
    pub(super) len: usize,
}

impl FrameEntry {
    /// The snapshot entry of an image in a frame that starts at `frame_start`.
    pub(super) fn noted(&self, record: Option<&Record>, frame_start: usize) -> Noted {
        let (retention_ends, remember_ends) = match record.map(|record| &record.state) {
            Some(State::Completed {
                retention_ends,
                remember_ends,
                ..
            }) => (*retention_ends, *remember_ends),
            Some(State::Tombstone { remember_ends }) => (Timestamp::default(), *remember_ends),
            _ => Default::default(),
        };
        Noted {
            row: snapshot::Row {
                id: self.id,
                kind: self.kind,
                offset: (frame_start + self.offset) as u32,
                len: self.len as u32,
            },
            retention_ends,
            remember_ends,
        }
    }
}

/// The content of a frame. Its images are not checked yet.
#[derive(Debug)]
pub(super) struct FrameContent {
    pub(super) time: Timestamp,
    /// The entries, with offsets from the start of the segment.
    pub(super) entries: Vec<FrameEntry>,
}

/// The format of the frames of a segment.
#[derive(Debug)]
pub(super) struct SegmentFrames;

impl Format for SegmentFrames {
    const MAGIC: [u8; 4] = *b"rFr1";
    const HEADER_LEN: usize = HEADER_LEN;
    const IS_ALLOCATED: bool = true;
    type Content = FrameContent;

    fn checksum(header: &[u8], seed: u64) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(header);
        hasher.update(&seed.to_le_bytes());
        hasher.finalize()
    }

    fn ordinal(fields: &[u8]) -> Option<u64> {
        Reader(fields.get(4..)?).u32().map(u64::from)
    }

    fn content(frame: &[u8], at: usize, _seed: u64) -> Option<FrameContent> {
        let count = Reader(frame.get(8..)?).u32()?;
        let time = Timestamp(Reader(frame.get(16..)?).u64()?);
        let entries = table(frame, at, count as usize)?;
        Some(FrameContent { time, entries })
    }

    fn is_intact(segment: &Bytes, content: &FrameContent) -> bool {
        let mut entries = content.entries.iter();
        entries.all(|entry| scan::note(segment, entry).is_some())
    }
}

/// Parses the table of the frame at offset `at`; `None` if it is damaged.
fn table(frame: &[u8], at: usize, count: usize) -> Option<Vec<FrameEntry>> {
    let mut reader = Reader(frame.get(HEADER_LEN..)?);
    let mut rows = Vec::with_capacity(count.min(frame.len() / ROW_LEN_MIN));
    for _ in 0..count {
        let id = RecordId(reader.array()?);
        let kind = ImageKind::from_code(reader.u8()?);
        rows.push((id, kind, usize::try_from(reader.varint()?).ok()?));
    }
    let table_end = frame.len() - reader.0.len();
    if reader.u32()? != crc32fast::hash(&frame[HEADER_LEN..table_end]) {
        return None;
    }
    let mut offset = table_end + 4;
    let mut entries = Vec::with_capacity(rows.len());
    for (id, kind, len) in rows {
        entries.push(FrameEntry {
            id,
            kind: kind?,
            offset: at + offset,
            len,
        });
        offset = offset.checked_add(len)?;
    }
    (offset + 1 == frame.len()).then_some(entries)
}

/// The content of a log entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum ImageKind {
    InFlight = 1,
    Completed = 2,
    Indeterminate = 3,
    /// The record is absent: released, or resolved as never happened.
    Absent = 4,
    Tombstone = 5,
    /// The end of the previous segment; not a record.
    Sealed = 6,
}

impl ImageKind {
    pub(super) fn from_code(code: u8) -> Option<Self> {
        use ImageKind::{Absent, Completed, InFlight, Indeterminate, Sealed, Tombstone};
        [
            InFlight,
            Completed,
            Indeterminate,
            Absent,
            Tombstone,
            Sealed,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == code)
    }

    pub(super) fn of(record: Option<&Record>) -> Self {
        match record.map(|record| &record.state) {
            None => Self::Absent,
            Some(State::InFlight { .. }) => Self::InFlight,
            Some(State::Completed { .. }) => Self::Completed,
            Some(State::Indeterminate { .. }) => Self::Indeterminate,
            Some(State::Tombstone { .. }) => Self::Tombstone,
        }
    }

    /// Returns whether the image expires by time alone, without a later image.
    pub(super) fn ends_by_time(self) -> bool {
        matches!(self, Self::Completed | Self::Tombstone)
    }
}

/// 1 January 2026. Earlier times can be encoded, but take more bytes.
const DAY_ZERO: Timestamp = Timestamp(1_767_225_600_000);
const WITH_CREDENTIAL: u8 = 1;
const WITH_TRACE: u8 = 2;

/// Appends the image of a record.
pub(super) fn encode(out: &mut Vec<u8>, id: RecordId, record: Option<&Record>) {
    let start = out.len();
    let kind = ImageKind::of(record);
    if let Some(record) = record {
        put_head(out, record);
        match &record.state {
            State::InFlight { hold, .. } => put_hold(out, hold),
            State::Indeterminate { hold, reason } => {
                put_hold(out, hold);
                out.push(*reason as u8);
            }
            State::Completed {
                fence,
                retention_ends,
                remember_ends,
                ..
            } => {
                put_fence(out, *fence);
                put_time(out, *retention_ends, DAY_ZERO);
                put_time(out, *remember_ends, *retention_ends);
            }
            State::Tombstone { remember_ends } => put_time(out, *remember_ends, DAY_ZERO),
        }
    }
    let sum = checksum(kind, id, &out[start..]);
    out.extend(sum.to_le_bytes());
    if let Some(State::Completed { outcome, .. }) = record.map(|record| &record.state) {
        debug_assert_eq!(
            outcome.clone().sealed(id),
            *outcome,
            "sealed before it is stored"
        );
        out.extend_from_slice(outcome.encoded());
    }
}

/// Decodes an image; `None` if it is damaged or belongs to another record.
///
/// Leases are not stored: when the log is read, the holders of all leases are gone.
pub(super) fn decode(kind: ImageKind, id: RecordId, image: &Bytes) -> Option<Option<Record>> {
    let mut reader = Reader(image);
    if kind == ImageKind::Absent {
        check(kind, id, image, &mut reader)?;
        return Some(None);
    }
    let (fingerprint, credential, trace) = head(&mut reader)?;
    let trace = Trace::from(match kind {
        ImageKind::Completed => image.slice_ref(trace),
        // `image` may be a slice of a whole segment, which a record in memory must not keep alive.
        _ => Bytes::copy_from_slice(trace),
    });
    let state = match kind {
        ImageKind::InFlight => State::InFlight {
            hold: hold(&mut reader)?,
            lease_ends: Timestamp(0),
        },
        ImageKind::Indeterminate => State::Indeterminate {
            hold: hold(&mut reader)?,
            reason: Reason::from_code(reader.u8()?)?,
        },
        ImageKind::Tombstone => State::Tombstone {
            remember_ends: time(&mut reader, DAY_ZERO)?,
        },
        ImageKind::Completed => {
            let fence = fence(&mut reader)?;
            let retention_ends = time(&mut reader, DAY_ZERO)?;
            let remember_ends = time(&mut reader, retention_ends)?;
            check(kind, id, image, &mut reader)?;
            let outcome = Outcome::decode(image.slice_ref(reader.0), id).ok();
            let outcome = outcome.filter(|outcome| outcome.fits(fence))?;
            let state = State::Completed {
                fence,
                outcome,
                retention_ends,
                remember_ends,
            };
            return Some(Some(Record {
                fingerprint,
                credential,
                state,
                trace,
            }));
        }
        ImageKind::Absent | ImageKind::Sealed => return None,
    };
    check(kind, id, image, &mut reader)?;
    Some(Some(Record {
        fingerprint,
        credential,
        state,
        trace,
    }))
}

/// Appends an entry that the segment `segment` ended at `len`.
fn encode_sealed(out: &mut Vec<u8>, segment: u32, len: u64) {
    let start = out.len();
    out.extend(segment.to_le_bytes());
    out.extend(len.to_le_bytes());
    let sum = checksum(ImageKind::Sealed, RecordId::default(), &out[start..]);
    out.extend(sum.to_le_bytes());
}

/// Decodes the number and the length of a sealed segment; `None` if the entry is damaged.
pub(super) fn decode_sealed(note: &[u8]) -> Option<(u32, u64)> {
    let mut reader = Reader(note);
    let sealed = (reader.u32()?, reader.u64()?);
    check(ImageKind::Sealed, RecordId::default(), note, &mut reader)?;
    Some(sealed)
}

fn checksum(kind: ImageKind, id: RecordId, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&[kind as u8]);
    hasher.update(&id.0);
    hasher.update(bytes);
    hasher.finalize()
}

/// Verifies the checksum that comes next, over everything read before it.
fn check(kind: ImageKind, id: RecordId, image: &[u8], reader: &mut Reader<'_>) -> Option<()> {
    let read = image.len() - reader.0.len();
    let sum = reader.u32()?;
    (checksum(kind, id, &image[..read]) == sum).then_some(())
}

fn put_head(out: &mut Vec<u8>, record: &Record) {
    let trace = record.trace.as_bytes();
    let with_credential = record.credential.map_or(0, |_| WITH_CREDENTIAL);
    let with_trace = if trace.is_empty() { 0 } else { WITH_TRACE };
    out.push(with_credential | with_trace);
    out.extend(record.fingerprint.0);
    out.extend(record.credential.iter().flat_map(|credential| credential.0));
    if !trace.is_empty() {
        varint::put(out, trace.len() as u64);
        out.extend_from_slice(trace);
    }
}

fn head<'a>(reader: &mut Reader<'a>) -> Option<(Fingerprint, Option<Credential>, &'a [u8])> {
    let flags = reader.u8()?;
    if flags & !(WITH_CREDENTIAL | WITH_TRACE) != 0 {
        return None;
    }
    let fingerprint = Fingerprint(reader.array()?);
    let credential = match flags & WITH_CREDENTIAL {
        0 => None,
        _ => Some(Credential(reader.array()?)),
    };
    let trace = match flags & WITH_TRACE {
        0 => &[],
        _ => reader.sized()?,
    };
    Some((fingerprint, credential, trace))
}

fn put_hold(out: &mut Vec<u8>, hold: &Hold) {
    put_fence(out, hold.fence);
    out.push(hold.guarantee as u8);
    varint::put(out, hold.attempts.into());
    varint::put(out, hold.attempts_max.into());
    varint::put(out, millis(hold.settle_after));
    put_time(out, hold.settles, DAY_ZERO);
}

fn hold(reader: &mut Reader<'_>) -> Option<Hold> {
    Some(Hold {
        fence: fence(reader)?,
        claimant: Claimant::default(),
        guarantee: match reader.u8()? {
            0 => Guarantee::AtMostOnce,
            1 => Guarantee::AtLeastOnce,
            2 => Guarantee::ExactlyOnce,
            _ => return None,
        },
        attempts: reader.varint()?.try_into().ok()?,
        attempts_max: reader.varint()?.try_into().ok()?,
        settle_after: Duration::from_millis(reader.varint()?),
        settles: time(reader, DAY_ZERO)?,
    })
}

fn put_fence(out: &mut Vec<u8>, fence: Fence) {
    varint::put(out, fence.epoch.into());
    varint::put(out, fence.counter);
    out.extend(fence.nonce.to_le_bytes());
}

fn fence(reader: &mut Reader<'_>) -> Option<Fence> {
    Some(Fence {
        epoch: reader.varint()?.try_into().ok()?,
        counter: reader.varint()?,
        nonce: reader.u32()?,
    })
}

fn put_time(out: &mut Vec<u8>, time: Timestamp, base: Timestamp) {
    varint::put(out, time.0.wrapping_sub(base.0));
}

fn time(reader: &mut Reader<'_>, base: Timestamp) -> Option<Timestamp> {
    Some(Timestamp(base.0.wrapping_add(reader.varint()?)))
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    //! A release that wrote other bytes could not read the segments of earlier ones.

    use super::*;

    #[test]
    fn frame_has_the_bytes_of_earlier_releases() {
        let mut builder = Builder::default();
        let image = |bytes: &'static [u8]| move |out: &mut Vec<u8>| out.extend_from_slice(bytes);
        builder.push_with(RecordId([1; 16]), ImageKind::Absent, image(b"image"));
        builder.push_with(RecordId([2; 16]), ImageKind::Completed, image(&[0; 1_200]));
        let place = FramePosition {
            seed: 0x5eed,
            start: 32,
            ordinal: 3,
        };
        let mut frame = Vec::new();
        let entries = builder.assemble(&mut frame, place, Timestamp(1_800_000_000_000));
        let header = [
            b"rFr1".as_slice(),
            &1_279_u32.to_le_bytes(),
            &2_u32.to_le_bytes(),
            &3_u32.to_le_bytes(),
            &1_800_000_000_000_u64.to_le_bytes(),
            &1_u32.to_le_bytes(),
            &0xc17d_c3c3_u32.to_le_bytes(),
        ];
        assert_eq!(frame[..32], header.concat());
        assert_eq!((frame.len(), crc32fast::hash(&frame)), (1_279, 0xe750_98bc));
        assert_eq!(entries[0].offset..entries[1].offset, 73..78);
    }
}
