//! Who is told how long a store takes.

use std::{fmt::Debug, time::Duration};

/// What is asked of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Op {
    /// Claims, one or a batch of them.
    Claim,
    /// A settlement.
    Settle,
    /// A renewal.
    Renew,
    /// One record.
    Read,
    /// A page of records.
    List,
    /// A record taken away on purpose.
    Erase,
    /// Records counted by state.
    Census,
    /// A sweep.
    Sweep,
}

impl Op {
    /// Everything that can be asked, in the order of their numbers.
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

    /// Its name in metrics.
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

/// Is told of every answer that a store gives. Set with [`AnyStore::with_meter`](super::AnyStore::with_meter).
///
/// Called on the way of every request: it must be quick, and must not block.
pub trait Meter: Debug + Send + Sync + 'static {
    /// The store has answered, after that long; `is_ok` tells whether it could do what was asked.
    fn answered(&self, op: Op, is_ok: bool, took: Duration);
}
