//! Observer of store latency.

use std::{fmt::Debug, time::Duration};

/// The operations of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Op {
    /// One claim or a batch of claims.
    Claim,
    /// Settle a claim.
    Settle,
    /// Renew a lease.
    Renew,
    /// Read one record.
    Read,
    /// List a page of records.
    List,
    /// Erase a record.
    Erase,
    /// Count records by state.
    Census,
    /// Sweep expired records.
    Sweep,
}

impl Op {
    /// All operations, in the order of their numbers.
    pub const ALL: [Self; 8] = [
        Self::Claim,
        Self::Settle,
        Self::Renew,
        Self::Read,
        Self::List,
        Self::Erase,
        Self::Census,
        Self::Sweep,
    ];

    /// The name of the operation in metrics.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Claim => "claim",
            Self::Settle => "settle",
            Self::Renew => "renew",
            Self::Read => "read",
            Self::List => "list",
            Self::Erase => "erase",
            Self::Census => "census",
            Self::Sweep => "sweep",
        }
    }
}

/// Observes every call to a store. Set with [`AnyStore::with_meter`](super::AnyStore::with_meter).
///
/// Called while a request is being served: it must be fast, and must not block.
pub trait Meter: Debug + Send + Sync + 'static {
    /// Called after each operation with its duration; `is_ok` is whether it succeeded.
    fn answered(&self, op: Op, is_ok: bool, took: Duration);
}
