//! An audit log as tests look into it.

use std::{path::Path, sync::Arc};

use refrain::{
    AuditLog,
    audit::{Check, Options, Visit, Written, verify},
};
use refrain_testkit::disk::FaultDisk;

/// Every entry of a log in which nothing is damaged.
pub(crate) fn entries(folder: &Path) -> Vec<Written> {
    let mut all = Vec::new();
    let mut visit = |visit: Visit<'_>| {
        if let Visit::Entry(entry, _) = visit {
            all.push(entry.clone());
        }
    };
    let found = verify(folder, &Check::default(), &mut visit).unwrap();
    assert_eq!(found.damage, []);
    all
}

/// A log on a disk that can be told to fail.
pub(crate) fn failing(folder: &Path) -> (FaultDisk, AuditLog) {
    let disk = FaultDisk::over(folder).unwrap();
    let options = Options {
        disk: Arc::new(disk.clone()),
        ..Options::default()
    };
    (disk, AuditLog::open_with(folder, options).unwrap())
}
