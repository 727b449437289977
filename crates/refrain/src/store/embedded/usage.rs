//! Counting what each scope holds, for quotas. The index knows no scopes, so every image is read, without its outcome.

use std::sync::{Arc, PoisonError};

use super::{
    EmbeddedState, ErrorKind, Result, Slot,
    frame::{ImageHead, decode_head},
    segment::{Location, Segment},
};
use crate::{
    clock::Timestamp,
    key::RecordId,
    record::{Command, step},
    store::{FACT, Usage},
};

/// Bytes of an image that are read at first. Most heads are shorter.
const HEAD_BYTES: usize = 512;

impl EmbeddedState {
    /// Counts records and bytes of each scope. Damaged records belong to no scope.
    pub(super) fn usage(&self, scopes_max: usize) -> Result<Usage> {
        self.check_open()?;
        let now = self.clock.now();
        let mut usage = Usage::new(scopes_max);
        let mut stored = Vec::new();
        self.table.each(|id, slot| match slot {
            Slot::Live(live) => usage.add_record(&live.record, now),
            Slot::Stored(at) => stored.push((*at, id)),
            Slot::Damaged => {}
        });
        // In the order of the disk, which reads ahead.
        stored.sort_unstable_by_key(|(at, _)| (at.segment, at.offset));
        for same_segment in stored.chunk_by(|(one, _), (other, _)| one.segment == other.segment) {
            let segment = self.segment_of(same_segment[0].0);
            for (at, id) in same_segment {
                self.add_stored((*id, *at), segment.as_deref(), now, &mut usage)?;
            }
        }
        Ok(usage)
    }

    fn segment_of(&self, at: Location) -> Option<Arc<Segment>> {
        let segments = self.segments.read();
        let segments = segments.unwrap_or_else(PoisonError::into_inner);
        segments.get(&at.segment).cloned()
    }

    fn add_stored(
        &self,
        (id, at): (RecordId, Location),
        segment: Option<&Segment>,
        now: Timestamp,
        usage: &mut Usage,
    ) -> Result<()> {
        let head = segment.and_then(|segment| segment.read_head(id, at));
        if let Some(head) = head {
            head.count(now, usage);
            return Ok(());
        }
        // A long trace, or an image that was moved or damaged since.
        match self.find(id) {
            Ok(record) => {
                let aged = record.and_then(|it| step(Some(it), Command::Age, now).record);
                aged.iter().for_each(|it| usage.add_record(it, now));
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::Corrupt => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl Segment {
    /// Reads the head of an image; `None` if it is longer than usual, damaged, or cannot be read.
    fn read_head(&self, id: RecordId, at: Location) -> Option<ImageHead> {
        let mut bytes = [0; HEAD_BYTES];
        let bytes = &mut bytes[..HEAD_BYTES.min(at.len())];
        let read = self.file.read_full_at(bytes, at.offset.into()).ok()?;
        decode_head(at.kind(), id, bytes.get(..read)?, at.len())
    }
}

impl ImageHead {
    fn count(&self, now: Timestamp, usage: &mut Usage) {
        let scope = self.scope.filter(|_| self.fingerprint.0 != FACT);
        if let Some(scope) = scope {
            let ends = (self.retention_ends, self.remember_ends);
            usage.add_ended(scope, ends, self.outcome_len, now);
        }
    }
}
