//! Erasing and counting records, for operators.
//!
//! Compaction drops every entry that does not expire by itself, so an erasure in the log could be lost before the image
//! that it voids. Instead, the manifest lists erased images. An image leaves disk and manifest with its segment.

use super::{
    Census, EmbeddedState, Error, ErrorKind, Result, Slot, frame::ImageKind, lock,
    segment::Location,
};
use crate::{
    key::RecordId,
    log::failure::is_temporary_error,
    record::{Change, Command, Erased, step},
    store::StateName,
};

/// Maximum number of erased images that are not swept yet. The manifest is rewritten for each erasure.
const ERASED_MAX: usize = 10_000;

impl EmbeddedState {
    /// Deletes a completed record or a tombstone.
    pub(super) fn erase(&self, id: RecordId) -> Result<Erased> {
        // No sweep may move the image meanwhile.
        let _no_sweep = lock(&self.maintenance.sweeping);
        loop {
            let slot = self.table.get(id);
            let stepped = step(self.find(id)?, Command::Erase, self.clock.now());
            match (slot, stepped.change, stepped.reply) {
                (Some(Slot::Stored(at)), Change::Record, _) => {
                    self.note_erased(at)?;
                    self.forget_erased(id, at);
                    return Ok(Erased::Gone);
                }
                // The record completed between the two lookups: try again.
                (_, Change::Record, _) => {}
                (_, _, reply) => return reply.into_erased(),
            }
        }
    }

    /// Makes the erasure of the image durable.
    fn note_erased(&self, at: Location) -> Result<()> {
        if lock(&self.manifest).erased.len() >= ERASED_MAX {
            let message = format!(
                "{ERASED_MAX} erased records have not been swept yet; try again in a few seconds, \
                 or after the store has started its next segment"
            );
            return Err(Error::new(ErrorKind::Full, message));
        }
        let place = (at.segment, u64::from(at.offset));
        self.edit_manifest(|manifest| {
            manifest.erased.insert(place);
        })
        .map_err(|error| self.erase_failed(&error))
    }

    fn forget_erased(&self, id: RecordId, at: Location) {
        self.table.with(id, |entry| {
            // The record may have expired, and the key may have been claimed again.
            if matches!(entry.get(), Some(Slot::Stored(now)) if *now == at) {
                entry.take();
            }
        });
    }

    fn erase_failed(&self, error: &std::io::Error) -> Error {
        if !is_temporary_error(error) {
            self.shut(error);
        }
        let folder = self.folder.path.display();
        let message = format!("the record could not be erased from the store {folder}: {error}");
        Error::new(ErrorKind::Unavailable, message)
    }

    /// Returns whether this segment contains an erased image.
    pub(super) fn has_erased(&self, segment: u32) -> bool {
        let manifest = lock(&self.manifest);
        let mut places = manifest.erased.range((segment, 0)..=(segment, u64::MAX));
        places.next().is_some()
    }

    /// Counts from the in-memory index alone.
    pub(super) fn census(&self) -> Result<Census> {
        self.check_open()?;
        let now = self.clock.now();
        let mut census = Census::default();
        self.table.each(|_, slot| match slot {
            Slot::Live(live) => census.count_at(&live.record, now),
            Slot::Stored(at) if at.kind() == ImageKind::Tombstone => census.tombstones += 1,
            Slot::Stored(_) => census.completed += 1,
            Slot::Damaged => census.unreadable += 1,
        });
        Ok(census)
    }

    pub(super) fn bytes_on_disk(&self) -> u64 {
        let manifest = lock(&self.manifest);
        let extents = manifest.segments.values().flatten();
        extents.map(|extent| extent.len).sum()
    }
}

impl Slot {
    /// Returns whether the record may be in this state now. Time may turn a completed record into a tombstone.
    pub(super) fn may_be(&self, state: StateName) -> bool {
        let is_live = matches!(state, StateName::InFlight | StateName::Indeterminate);
        match self {
            Self::Live(_) => is_live,
            Self::Stored(at) if at.kind() == ImageKind::Tombstone => state == StateName::Tombstone,
            Self::Stored(_) => !is_live,
            // The list reads it, logs the error, and leaves it out.
            Self::Damaged => true,
        }
    }
}
