//! How a record is brought into each of its states.

use refrain::{Claim, Fence, Store};

use super::bench::{
    Bench, Checked, DOUBT, LEASE, RETENTION, claim, completion, outcome, repeatable,
};

/// A state that a record can be found in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    InFlight,
    /// At-most-once, and its lease is over.
    Lapsed,
    /// At-least-once, and its lease is over.
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

    /// Brings a new record there; answers the claim that began it and its fence.
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
