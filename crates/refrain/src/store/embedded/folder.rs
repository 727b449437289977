//! The folder of a store: its identity file, the lock that only one process can hold, and reserved file descriptors,
//! so that many connections in the same process cannot stop the store.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use super::lock;
use crate::{
    Error, ErrorKind, Result,
    key::Secret,
    log::{
        disk::{Disk, DiskFile, DiskFolder},
        failure::{denial_fix, lacks_descriptor},
        folder::{FileLock, LOCK, make, replace, take_lock},
    },
};

/// Enough to allocate a segment, seal another and write the manifest at the same time, with one segment to spare.
const DESCRIPTORS: usize = 8;

const IDENTITY: &str = "refrain.store";
const FORMAT: &str = "1";

/// A folder that this process has locked.
#[derive(Debug)]
pub(super) struct Folder {
    pub(super) path: PathBuf,
    pub(super) secret: Secret,
    /// Held as long as the folder is open.
    _lock: FileLock,
}

impl Folder {
    /// Locks the folder, and creates it if it does not exist.
    pub(super) fn hold(disk: &dyn Disk, path: &Path) -> Result<Self> {
        make(disk, path).map_err(|error| trouble(path, "cannot be created", error))?;
        refuse_foreign(path)?;
        let lock = take_lock(path, "the store")?;
        let secret = match fs::read_to_string(path.join(IDENTITY)) {
            Ok(text) => read_identity(path, &text)?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let secret = Secret::random();
                replace(disk, &path.join(IDENTITY), identity(&secret).as_bytes())
                    .map_err(|error| trouble(path, "cannot be written", error))?;
                secret
            }
            Err(error) => return Err(trouble(&path.join(IDENTITY), "cannot be read", error)),
        };
        Ok(Self {
            path: path.into(),
            secret,
            _lock: lock,
        })
    }
}

fn trouble(path: &Path, what: &str, error: io::Error) -> Error {
    let message = format!("the store's folder {} {what}", path.display());
    unavailable(message, error)
}

/// Creates the error for a file or folder that the system denies. A permission error names the fix.
pub(super) fn unavailable(mut message: String, error: io::Error) -> Error {
    message += &denial_fix(&error, "or name another folder with store = \"file:DIR\"");
    Error::new(ErrorKind::Unavailable, message).with_source(error)
}

/// Rejects a folder that contains files but no identity file: it belongs to another program.
fn refuse_foreign(path: &Path) -> Result<()> {
    let mut stranger = None;
    let entries = fs::read_dir(path).map_err(|error| trouble(path, "cannot be read", error))?;
    for entry in entries {
        let name = entry
            .map_err(|error| trouble(path, "cannot be read", error))?
            .file_name();
        if name == IDENTITY {
            return Ok(());
        }
        if name != LOCK && name != "refrain.new" {
            stranger = Some(name);
        }
    }
    let Some(name) = stranger else { return Ok(()) };
    let message = format!(
        "{} is not a Refrain store: it contains `{}` and no `{IDENTITY}`; use an empty or a new folder",
        path.display(),
        name.to_string_lossy()
    );
    Err(Error::new(ErrorKind::Unsupported, message))
}

fn identity(secret: &Secret) -> String {
    let digits: String = secret
        .as_bytes()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let text = format!("refrain store\nformat {FORMAT}\nsecret {digits}\n");
    let sum = crc32fast::hash(text.as_bytes());
    format!("{text}checksum {sum:08x}\n")
}

fn read_identity(path: &Path, text: &str) -> Result<Secret> {
    let name = path.join(IDENTITY);
    let damaged = || {
        let message = format!(
            "{} is damaged: it holds the store's secret, without which no record is found; restore it from a backup",
            name.display()
        );
        Error::new(ErrorKind::Corrupt, message)
    };
    let mut lines = text.lines();
    let mut value = |label: &str| lines.next()?.strip_prefix(label);
    value("refrain store").ok_or_else(damaged)?;
    let format = value("format ").ok_or_else(damaged)?;
    if format != FORMAT {
        let message = format!(
            "the store {} has format version {format}; this build reads version {FORMAT}: use the release that wrote it, or a newer one",
            path.display()
        );
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    let digits = value("secret ").ok_or_else(damaged)?;
    let secret = decode_secret(digits).ok_or_else(damaged)?;
    match identity(&secret) == text {
        true => Ok(secret),
        false => Err(damaged()),
    }
}

fn decode_secret(digits: &str) -> Option<Secret> {
    let mut bytes = [0; 32];
    if digits.len() != 64 || !digits.is_ascii() {
        return None;
    }
    for (byte, at) in bytes.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(&digits[at..at + 2], 16).ok()?;
    }
    Some(bytes.into())
}

/// A disk that releases a reserved descriptor if no other is free.
#[derive(Debug)]
pub(super) struct ReservedDisk {
    disk: Arc<dyn Disk>,
    folder: PathBuf,
    reserve: Mutex<Vec<File>>,
}

impl ReservedDisk {
    /// Reserves descriptors for files in `folder`.
    pub(super) fn over(disk: Arc<dyn Disk>, folder: &Path) -> Self {
        let reserved = Self {
            disk,
            folder: folder.into(),
            reserve: Mutex::default(),
        };
        reserved.fill(&mut lock(&reserved.reserve));
        reserved
    }

    /// Refills the reserve as far as descriptors are free. Any file would do; the folder always exists.
    fn fill(&self, reserve: &mut Vec<File>) {
        while reserve.len() < DESCRIPTORS {
            match File::open(&self.folder) {
                Ok(file) => reserve.push(file),
                Err(_) => return,
            }
        }
    }

    fn open_with<T>(&self, open: impl Fn() -> io::Result<T>) -> io::Result<T> {
        let mut reserve = lock(&self.reserve);
        self.fill(&mut reserve);
        loop {
            match open() {
                Err(error) if lacks_descriptor(&error) && reserve.pop().is_some() => {}
                opened => return opened,
            }
        }
    }
}

impl Disk for ReservedDisk {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.open_with(|| self.disk.create(path))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.open_with(|| self.disk.open(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }

    fn open_folder(&self, folder: &Path) -> io::Result<Arc<dyn DiskFolder>> {
        self.open_with(|| self.disk.open_folder(folder))
    }
}
