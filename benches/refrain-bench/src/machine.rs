//! Description of the machine that the figures were measured on.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::Path,
    time::Duration,
};

use anyhow::Result;
use serde::Serialize;

use crate::{clock::now, folder, harness};

/// Duration of the disk probe.
const PROBE: Duration = Duration::from_millis(500);
const PROBE_FILE_BYTES: usize = 4 << 20;
const PROBE_WRITE_BYTES: usize = 1 << 10;

/// The machine and its disk.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Machine {
    pub(crate) cores: usize,
    pub(crate) kernel: String,
    pub(crate) file_system: String,
    /// Single-threaded 1 KiB writes to a preallocated file, each with a sync.
    pub(crate) syncs_per_second: f64,
    pub(crate) sync_p99_ms: f64,
}

impl Machine {
    pub(crate) fn look(root: &Path) -> Result<Self> {
        let (syncs_per_second, sync_p99_ms) = probe(root)?;
        Ok(Self {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease")
                .map_or_else(|_| "unknown".into(), |text| text.trim().into()),
            file_system: file_system(root),
            syncs_per_second,
            sync_p99_ms,
        })
    }
}

/// The type of the file system of a folder.
pub(crate) fn file_system(folder: &Path) -> String {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let mut best = (0, "unknown");
    for line in mounts.lines() {
        let mut fields = line.split(' ').skip(1);
        if let (Some(place), Some(kind)) = (fields.next(), fields.next())
            && folder.starts_with(place)
            && place.len() >= best.0
        {
            best = (place.len(), kind);
        }
    }
    best.1.into()
}

fn probe(root: &Path) -> Result<(f64, f64)> {
    let folder = folder::fresh(root)?;
    let file = File::create(folder.path().join("probe"))?;
    file.write_all_at(&vec![0; PROBE_FILE_BYTES], 0)?;
    file.sync_all()?;
    let bytes = [1; PROBE_WRITE_BYTES];
    let mut took = harness::histogram();
    let start = now();
    while start.elapsed() < PROBE {
        let at = (took.len() as usize * PROBE_WRITE_BYTES) % PROBE_FILE_BYTES;
        let before = now();
        file.write_all_at(&bytes, at as u64)?;
        file.sync_data()?;
        harness::record(&mut took, before.elapsed());
    }
    let rate = took.len() as f64 / start.elapsed().as_secs_f64();
    Ok((rate, harness::quantile_ms(&took, 0.99)))
}
