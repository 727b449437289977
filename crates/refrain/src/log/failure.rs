//! Failures of the disk: temporary ones, which leave a log as it was, and all others.

use std::io::{self, ErrorKind};

use rustix::io::Errno;

/// Why a log could not be changed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The log is as before; the same change may succeed later.
    Unchanged(io::Error),
    /// The content of the disk is unknown: the log must acknowledge nothing until it is opened again.
    Unknown(io::Error),
}

impl Failure {
    /// Classifies the error of an operation that is not a sync.
    ///
    /// A failed sync is always [`Unknown`](Self::Unknown): the operating system may have dropped the data, and a second
    /// sync would report success.
    pub(crate) fn of(error: io::Error) -> Self {
        match is_temporary_error(&error) {
            true => Self::Unchanged(error),
            false => Self::Unknown(error),
        }
    }
}

/// The error keeps its class: the error of an [`Unknown`](Failure::Unknown) failure never counts as
/// [temporary](is_temporary_error).
impl From<Failure> for io::Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Unchanged(error) => error,
            Failure::Unknown(error) if is_temporary_error(&error) => Self::other(error),
            Failure::Unknown(error) => error,
        }
    }
}

/// Returns whether the error is temporary: disk full, no free file descriptor, or no memory.
pub(crate) fn is_temporary_error(error: &io::Error) -> bool {
    let is_short = matches!(
        error.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::OutOfMemory
    );
    is_short || lacks_descriptor(error)
}

/// Returns whether the process, or the system, has no free file descriptor.
pub(crate) fn lacks_descriptor(error: &io::Error) -> bool {
    let number = error.raw_os_error();
    [Errno::MFILE, Errno::NFILE]
        .map(|it| Some(it.raw_os_error()))
        .contains(&number)
}

/// Describes a temporary error, and how to fix it.
pub(crate) fn describe_obstacle(error: &io::Error) -> String {
    let what = match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "its disk is full, free some space",
        ErrorKind::OutOfMemory => "out of memory",
        _ => {
            "no file descriptor is free, raise the limit of open files or lower the number of connections"
        }
    };
    format!("{what}: {error}")
}

/// Returns the fix to append to a message about a permission error; empty for any other error.
pub(crate) fn denial_fix(error: &io::Error, otherwise: &str) -> String {
    match error.kind() {
        ErrorKind::PermissionDenied => format!(" (run as the owner, {otherwise})"),
        ErrorKind::ReadOnlyFilesystem => {
            format!(" (the file system is read-only; mount it for writing, {otherwise})")
        }
        _ => String::new(),
    }
}
