//! Reads audit logs for tests, and opens logs on failing disks.

use std::{path::Path, sync::Arc};

use refrain::{
    AuditLog,
    audit::{Check, Options, Visit, Written, verify},
};
use refrain_testkit::disk::FaultDisk;

/// All entries of an undamaged log.
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

/// A log on a disk with injected faults.
pub(crate) fn failing(folder: &Path) -> (FaultDisk, AuditLog) {
    let disk = FaultDisk::over(folder).unwrap();
    let options = Options {
        disk: Arc::new(disk.clone()),
        ..Options::default()
    };
    (disk, AuditLog::open_with(folder, options).unwrap())
}
