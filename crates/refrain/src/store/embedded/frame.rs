//! Frames of a segment: a table of entries, and their images.
//!
//! Table and images have their own checksums. So damage to one image leaves the others readable,
//! and the identity of the damaged record known.

use bytes::Bytes;

use super::{
    image::ImageKind,
    scan,
    snapshot::{self, Noted},
};
use crate::{
    clock::Timestamp,
    key::RecordId,
    log::frame::{self, Format, FramePosition},
    record::{Record, State},
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
    /// Adds one entry; `encode` appends its image to the buffer.
    pub(super) fn push(
        &mut self,
        id: RecordId,
        kind: ImageKind,
        encode: impl FnOnce(&mut Vec<u8>),
    ) {
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

#[cfg(test)]
mod tests {
    //! A release that wrote other bytes could not read the segments of earlier ones.

    use super::*;

    #[test]
    fn frame_has_the_bytes_of_earlier_releases() {
        let mut builder = Builder::default();
        let image = |bytes: &'static [u8]| move |out: &mut Vec<u8>| out.extend_from_slice(bytes);
        builder.push(RecordId([1; 16]), ImageKind::Absent, image(b"image"));
        builder.push(RecordId([2; 16]), ImageKind::Completed, image(&[0; 1_200]));
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
