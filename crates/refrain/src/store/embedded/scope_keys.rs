//! The file `scope-keys`: the stored data keys of all scopes, if records are encrypted.
//!
//! The file is a list of slots of equal length. A new key is appended; a key that is replaced or erased is overwritten
//! in place, so that its bytes are gone from the file at once. A slot never crosses a sector, which a disk writes as a
//! whole: after a power failure a slot has its old or its new content.
//!
//! Slot: version (1), length of the key (1), scope digest (8), key and zeros (114), CRC-32 (4). Sizes are in bytes.

use std::{
    collections::HashMap,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use bytes::Bytes;

use super::{
    EmbeddedState,
    disk::{Disk, DiskFile},
    folder::unavailable,
    lock,
};
use crate::{
    Error, ErrorKind, Result,
    log::{failure::is_temporary_error, folder::parent},
    record::ScopeDigest,
    store::scope_keys::{SCOPE_KEY_BYTES_MAX, ScopeKeyPage, ScopeKeyTable},
};

const NAME: &str = "scope-keys";
const VERSION: u8 = 1;
/// Divides the length of a sector.
const SLOT_LEN: usize = 128;
const HEAD_LEN: usize = 10;
const SUM_AT: usize = SLOT_LEN - 4;

/// The stored data keys of a folder.
#[derive(Debug)]
pub(super) struct ScopeKeyFile {
    path: PathBuf,
    state: Mutex<FileState>,
}

#[derive(Debug, Default)]
struct FileState {
    /// `None` until the first key is stored.
    file: Option<Arc<dyn DiskFile>>,
    keys: ScopeKeyTable,
    /// The slot of each scope.
    slots: HashMap<ScopeDigest, u64>,
    /// The number of slots.
    len: u64,
    /// Slots that cannot be read: the keys in them are unknown.
    damaged: u64,
}

impl ScopeKeyFile {
    /// Reads the file, if there is one.
    pub(super) fn load(disk: &dyn Disk, folder: &Path) -> Result<Self> {
        let path = folder.join(NAME);
        let unreadable = |error| unavailable(format!("{} cannot be read", path.display()), error);
        let state = match disk.open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => FileState::default(),
            Err(error) => return Err(unreadable(error)),
            Ok(file) => FileState::read(file).map_err(unreadable)?,
        };
        if state.damaged > 0 {
            let (path, slots) = (path.display(), state.damaged);
            tracing::error!(%path, slots, "the file of the scopes' data keys is damaged: restore it from a backup");
        }
        Ok(Self {
            path,
            state: Mutex::new(state),
        })
    }

    pub(super) fn get(&self, scope: ScopeDigest) -> Result<Option<Bytes>> {
        let state = lock(&self.state);
        match state.keys.get(scope) {
            None if state.damaged > 0 => Err(self.damaged()),
            key => Ok(key),
        }
    }

    pub(super) fn page(&self, cursor: Option<u64>) -> Result<ScopeKeyPage> {
        let state = lock(&self.state);
        match state.damaged {
            0 => Ok(state.keys.page(cursor)),
            _ => Err(self.damaged()),
        }
    }

    fn damaged(&self) -> Error {
        let message = format!(
            "{} is damaged: the data key of this scope may be in its unreadable part; restore the file from a backup",
            self.path.display()
        );
        Error::new(ErrorKind::Corrupt, message)
    }
}

impl FileState {
    fn read(file: Arc<dyn DiskFile>) -> io::Result<Self> {
        let bytes = file.read_whole()?;
        let mut state = Self {
            file: Some(file),
            ..Self::default()
        };
        // A part of a slot at the end is an append that was not acknowledged.
        let (slots, _) = bytes.as_chunks::<SLOT_LEN>();
        for (at, slot) in slots.iter().enumerate() {
            let is_last = at + 1 == slots.len();
            match decode(slot) {
                Some((scope, key)) => {
                    state.slots.insert(scope, at as u64);
                    state.keys.put(scope, key);
                    state.len = at as u64 + 1;
                }
                // The file was extended, but the slot did not reach the disk: not acknowledged.
                None if is_last && *slot == [0; SLOT_LEN] => {}
                None => {
                    state.damaged += 1;
                    state.len = at as u64 + 1;
                }
            }
        }
        Ok(state)
    }
}

impl EmbeddedState {
    /// As [`Store::replace_scope_key`](crate::Store::replace_scope_key). Waits for the disk.
    pub(super) fn replace_scope_key(
        &self,
        scope: ScopeDigest,
        expected: Option<&Bytes>,
        key: Bytes,
    ) -> Result<Option<Bytes>> {
        self.check_open()?;
        let found = self.scope_keys.get(scope)?;
        if found.as_ref() != expected {
            return Ok(found);
        }
        let mut state = lock(&self.scope_keys.state);
        // Another caller may have replaced it meanwhile.
        let found = state.keys.get(scope);
        if found.as_ref() != expected {
            return Ok(found);
        }
        let written = self.write_slot(&mut state, scope, &key);
        written.map_err(|error| self.scope_key_failed(&error))?;
        Ok(state.keys.replace(scope, expected, key))
    }

    /// Makes the key durable.
    fn write_slot(&self, state: &mut FileState, scope: ScopeDigest, key: &Bytes) -> io::Result<()> {
        let slot = encode(scope, key).ok_or(io::ErrorKind::InvalidInput)?;
        let file = match &state.file {
            Some(file) => file.clone(),
            None => {
                let disk = &*self.options.disk;
                let file = disk.create(&self.scope_keys.path)?;
                disk.sync_folder(parent(&self.scope_keys.path))?;
                state.file.insert(file).clone()
            }
        };
        let at = state.slots.get(&scope).copied().unwrap_or(state.len);
        file.write_all_at(&slot, at * SLOT_LEN as u64)?;
        file.sync()?;
        state.slots.insert(scope, at);
        state.len = state.len.max(at + 1);
        Ok(())
    }

    fn scope_key_failed(&self, error: &io::Error) -> Error {
        if !is_temporary_error(error) && error.kind() != io::ErrorKind::InvalidInput {
            self.shut(error);
        }
        let path = self.scope_keys.path.display();
        let message = format!("the data key of a scope could not be written to {path}: {error}");
        Error::new(ErrorKind::Unavailable, message).unapplied()
    }
}

/// `None` if the key is too long.
fn encode(scope: ScopeDigest, key: &[u8]) -> Option<[u8; SLOT_LEN]> {
    let mut slot = [0; SLOT_LEN];
    let len = u8::try_from(key.len()).ok();
    let len = len.filter(|_| key.len() <= SCOPE_KEY_BYTES_MAX)?;
    slot[..2].copy_from_slice(&[VERSION, len]);
    slot[2..HEAD_LEN].copy_from_slice(&scope.0);
    slot[HEAD_LEN..HEAD_LEN + key.len()].copy_from_slice(key);
    let sum = crc32fast::hash(&slot[..SUM_AT]);
    slot[SUM_AT..].copy_from_slice(&sum.to_le_bytes());
    Some(slot)
}

fn decode(slot: &[u8; SLOT_LEN]) -> Option<(ScopeDigest, Bytes)> {
    let (content, sum) = slot.split_last_chunk::<4>()?;
    let is_intact = crc32fast::hash(content) == u32::from_le_bytes(*sum);
    if !is_intact || content[0] != VERSION {
        return None;
    }
    let key = content.get(HEAD_LEN..HEAD_LEN + usize::from(content[1]))?;
    let scope = content[2..HEAD_LEN].try_into().ok()?;
    Some((ScopeDigest(scope), Bytes::copy_from_slice(key)))
}
