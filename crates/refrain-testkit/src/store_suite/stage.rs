//! Brings a record into each of its states.

use refrain::{Claim, Fence, Store};

use super::bench::{
    Bench, Checked, DOUBT, LEASE, RETENTION, claim, completion, outcome, repeatable,
};

/// A state of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    InFlight,
    /// At-most-once, with a lapsed lease.
    Lapsed,
    /// At-least-once, with a lapsed lease.
    UpForTakeover,
    Indeterminate,
    Completed,
    Tombstone,
}

impl Stage {
    pub(super) const ALL: &[Self] = &[
        Self::InFlight,
        Self::Lapsed,
        Self::UpForTakeover,
        Self::Indeterminate,
        Self::Completed,
        Self::Tombstone,
    ];

    /// Brings a new record into this state; returns its first claim and its fence.
    pub(super) async fn reach<S: Store>(
        self,
        bench: &Bench<S>,
        number: u64,
    ) -> Checked<(Claim, Fence)> {
        let claim = match self {
            Self::UpForTakeover => repeatable(number),
            _ => claim(number),
        };
        let fence = bench.granted(&claim).await?.fence;
        match self {
            Self::InFlight => (),
            Self::Lapsed | Self::UpForTakeover => bench.clock.advance(LEASE),
            Self::Indeterminate => bench.end(claim.id, fence, DOUBT).await?,
            Self::Completed => self.complete(bench, &claim, fence).await?,
            Self::Tombstone => {
                self.complete(bench, &claim, fence).await?;
                bench.clock.advance(RETENTION);
            }
        }
        Ok((claim, fence))
    }

    async fn complete<S: Store>(self, bench: &Bench<S>, claim: &Claim, fence: Fence) -> Checked {
        let end = completion(outcome(claim.id));
        bench.end(claim.id, fence, end).await
    }

    pub(super) fn restart_case(self) -> &'static str {
        match self {
            Self::InFlight => "a_restart_keeps_in_flight",
            Self::Lapsed => "a_restart_keeps_lapsed",
            Self::UpForTakeover => "a_restart_keeps_what_is_up_for_takeover",
            Self::Indeterminate => "a_restart_keeps_indeterminate",
            Self::Completed => "a_restart_keeps_completed",
            Self::Tombstone => "a_restart_keeps_tombstones",
        }
    }
}
