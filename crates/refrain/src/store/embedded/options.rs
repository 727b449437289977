//! Options of the embedded store.

use std::sync::Arc;

use super::{
    disk::{Disk, RealDisk},
    movable::MovableSlot,
    wire::HeldLease,
};
use crate::clock::{Clock, SystemClock};

/// Options of an embedded store.
#[derive(Debug, Clone)]
pub struct Options {
    /// When a call returns.
    pub durability: Durability,
    /// The largest segment, in bytes. Small stores use smaller segments.
    pub segment_bytes_max: u64,
    /// The maximum number of requests queued for the writer.
    pub queue_max: usize,
    /// The source of time.
    pub clock: Arc<dyn Clock>,
    /// The file system.
    pub disk: Arc<dyn Disk>,
    /// The leases in force, if another process hands the store over. All other leases lapse when the store is opened.
    pub leases: Arc<[HeldLease]>,
    /// Whether another process hands the store over, and may hold the folder for another moment.
    pub is_handed_over: bool,
    /// Makes the store that an address opens [`Movable`](super::Movable).
    pub movable: Option<MovableSlot>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            durability: Durability::Full,
            segment_bytes_max: 64 << 20,
            queue_max: 65_536,
            clock: Arc::new(SystemClock),
            disk: Arc::new(RealDisk),
            leases: Arc::default(),
            is_handed_over: false,
            movable: None,
        }
    }
}

/// When the store acknowledges a write.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[cfg_attr(feature = "policy-file", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// After the sync to disk: survives a power failure.
    #[default]
    Full,
    /// After the write to the operating system: survives a crash of the process. Synced about one second later.
    Relaxed,
}
