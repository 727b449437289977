//! Tracks which changes to a folder are durable and which are only written.

use std::{collections::BTreeMap, fs, io, path::Path};

use super::Dice;

/// Bytes that a disk writes atomically.
const SECTOR: u64 = 512;

/// The contents of a folder: synced state, and the changes since then.
#[derive(Debug, Default)]
pub(super) struct Durable {
    files: Vec<File>,
    names: BTreeMap<String, usize>,
    synced: BTreeMap<String, usize>,
    /// The names after each change since the last sync of the folder.
    unsynced: Vec<BTreeMap<String, usize>>,
}

#[derive(Debug, Default)]
struct File {
    synced: Vec<u8>,
    unsynced: Vec<Change>,
}

#[derive(Debug)]
enum Change {
    Write(u64, Vec<u8>),
    SetLen(u64),
}

impl Durable {
    /// Reads the folder; everything in it counts as synced.
    pub(super) fn of(folder: &Path) -> io::Result<Self> {
        let mut durable = Self::default();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            durable.names.insert(name, durable.files.len());
            durable.files.push(File {
                synced: fs::read(entry.path())?,
                unsynced: Vec::new(),
            });
        }
        durable.synced = durable.names.clone();
        Ok(durable)
    }

    pub(super) fn number(&self, name: &str) -> Option<usize> {
        self.names.get(name).copied()
    }

    /// Creates an empty file, or truncates the existing file of that name.
    pub(super) fn create(&mut self, name: &str) -> usize {
        if let Some(number) = self.number(name) {
            self.set_len(number, 0);
            return number;
        }
        let number = self.files.len();
        self.files.push(File::default());
        self.names.insert(name.into(), number);
        self.unsynced.push(self.names.clone());
        number
    }

    pub(super) fn rename(&mut self, old: &str, new: &str) {
        if let Some(number) = self.names.remove(old) {
            self.names.insert(new.into(), number);
        }
        self.unsynced.push(self.names.clone());
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.names.remove(name);
        self.unsynced.push(self.names.clone());
    }

    pub(super) fn sync_names(&mut self) {
        self.synced = self.names.clone();
        self.unsynced.clear();
    }

    pub(super) fn write(&mut self, number: usize, bytes: &[u8], offset: u64) {
        let change = Change::Write(offset, bytes.to_vec());
        self.files[number].unsynced.push(change);
    }

    pub(super) fn set_len(&mut self, number: usize, len: u64) {
        self.files[number].unsynced.push(Change::SetLen(len));
    }

    pub(super) fn sync(&mut self, number: usize) {
        let file = &mut self.files[number];
        for change in std::mem::take(&mut file.unsynced) {
            apply(&mut file.synced, &change, &mut || true);
        }
    }

    /// Drops unsynced changes after a failed sync: they stay readable until the machine stops, and are never written.
    pub(super) fn lose(&mut self, number: usize) {
        self.files[number].unsynced.clear();
    }

    /// Writes to `into` the files as a power loss may leave them.
    pub(super) fn crash(&self, dice: &mut Dice, into: &Path) -> io::Result<()> {
        let kept = dice.below(self.unsynced.len() as u64 + 1) as usize;
        let names = match kept {
            0 => &self.synced,
            kept => &self.unsynced[kept - 1],
        };
        for (name, number) in names {
            fs::write(into.join(name), self.files[*number].crash(dice))?;
        }
        Ok(())
    }
}

impl File {
    fn crash(&self, dice: &mut Dice) -> Vec<u8> {
        // Probability that a sector reached the device: 0 % for none, 100 % for all.
        let percent = *dice.pick(&[0, 10, 50, 90, 100]);
        let mut bytes = self.synced.clone();
        for change in &self.unsynced {
            apply(&mut bytes, change, &mut || dice.happens(percent));
        }
        bytes
    }
}

/// Applies the change sector by sector; `arrives` decides whether each sector reached the device.
fn apply(bytes: &mut Vec<u8>, change: &Change, arrives: &mut dyn FnMut() -> bool) {
    match change {
        Change::SetLen(len) if arrives() => bytes.resize(*len as usize, 0),
        Change::SetLen(_) => {}
        Change::Write(offset, written) => {
            let (mut at, end) = (*offset, offset + written.len() as u64);
            while at < end {
                let next = end.min((at / SECTOR + 1) * SECTOR);
                if arrives() {
                    let piece = &written[(at - offset) as usize..(next - offset) as usize];
                    put(bytes, at as usize, piece);
                }
                at = next;
            }
        }
    }
}

fn put(bytes: &mut Vec<u8>, at: usize, piece: &[u8]) {
    let end = at + piece.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[at..end].copy_from_slice(piece);
}
