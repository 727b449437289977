//! Steps of a random history. Few keys, requests and callers, so that they interact.

use std::time::Duration;

use rand::{Rng as _, rngs::StdRng};
use refrain::{
    Claim, Credential, Fingerprint, Guarantee, Outcome, RecordId, Settlement,
    record::{Claimant, KeyDigest, Origin, Reason, ScopeDigest},
    store::{Query, StateName},
};

use super::super::bench::{id, origin};

/// Number of keys in a history.
pub(super) const IDS: u64 = 3;

#[derive(Debug, Clone)]
pub(super) enum Op {
    /// Concurrent claims, each with the fence that it overtakes, if any, counted from the record's last grant.
    Claim(Vec<(Claim, Option<usize>)>),
    Settle {
        id: RecordId,
        /// One of the record's fences, counted from the last grant; `None` for a fence that was never granted.
        pick: Option<usize>,
        end: Settlement,
    },
    Renew {
        id: RecordId,
        pick: Option<usize>,
        lease: Duration,
    },
    Advance(Duration),
    Jump(Duration),
    Sweep(u32),
    Erase(RecordId),
    Census,
    List(Query),
}

impl Op {
    pub(super) fn random(rng: &mut StdRng) -> Self {
        match rng.random_range(0..100) {
            0..45 => Self::Claim(claims(rng)),
            45..70 => Self::Settle {
                id: any_id(rng),
                pick: pick(rng),
                end: end(rng),
            },
            70..77 => Self::Renew {
                id: any_id(rng),
                pick: pick(rng),
                lease: millis(rng, &[0, 1, 10_000, 60_000]),
            },
            77..90 => Self::Advance(millis(rng, &[1, 5_000, 30_000, 90_000, 3_600_000])),
            90..92 => Self::Jump(millis(rng, &[3_600_000, 864_000_000])),
            92..94 => Self::Sweep(one_of(rng, &[1, 100])),
            94..96 => Self::Erase(any_id(rng)),
            96..98 => Self::Census,
            _ => Self::List(query(rng)),
        }
    }
}

fn one_of<T: Copy>(rng: &mut StdRng, choices: &[T]) -> T {
    choices[rng.random_range(0..choices.len())]
}

fn millis(rng: &mut StdRng, choices: &[u64]) -> Duration {
    Duration::from_millis(one_of(rng, choices))
}

fn any_id(rng: &mut StdRng) -> RecordId {
    id(rng.random_range(0..IDS))
}

/// Mostly the last fence, sometimes an older one or one that was never granted.
fn pick(rng: &mut StdRng) -> Option<usize> {
    one_of(rng, &[Some(0), Some(0), Some(0), Some(1), Some(2), None])
}

/// At most one claim for each key: the order in which a store decides concurrent claims is unspecified.
fn claims(rng: &mut StdRng) -> Vec<(Claim, Option<usize>)> {
    let len = one_of(rng, &[1, 1, 1, 2, 4]);
    let overtakes = &[None, None, Some(0), Some(0), Some(1)];
    let mut claims: Vec<_> = (0..len)
        .map(|_| (claim(rng), one_of(rng, overtakes)))
        .collect();
    claims.sort_by_key(|(claim, _)| claim.id);
    claims.dedup_by_key(|(claim, _)| claim.id);
    claims
}

fn claim(rng: &mut StdRng) -> Claim {
    use Guarantee::{AtLeastOnce, AtMostOnce, ExactlyOnce};
    let credential = one_of(rng, &[None, Some(1), Some(1), Some(1), Some(2)]);
    Claim {
        id: any_id(rng),
        fingerprint: Fingerprint([one_of(rng, &[1, 1, 1, 1, 2]); 16]),
        credential: credential.map(|caller| Credential([caller; 8])),
        claimant: Claimant(rng.random_range(0..6)),
        guarantee: one_of(
            rng,
            &[
                AtMostOnce,
                AtLeastOnce,
                AtLeastOnce,
                ExactlyOnce,
                ExactlyOnce,
            ],
        ),
        attempts_max: one_of(rng, &[1, 2, 3]),
        overtakes: None,
        lease: millis(rng, &[0, 1, 10_000, 30_000]),
        settle_after: millis(rng, &[0, 20_000, 90_000]),
        origin: match rng.random_range(0..4) {
            0 => Origin::default(),
            node => origin(&"node-".repeat(node)),
        },
    }
}

fn end(rng: &mut StdRng) -> Settlement {
    match rng.random_range(0..10) {
        0..4 => Settlement::Complete {
            outcome: Outcome::new(200, rng.random::<[u8; 8]>()),
            retention: millis(rng, &[0, 60_000, 3_600_000]),
            remember: millis(rng, &[0, 60_000, 3_600_000]),
        },
        4..6 => Settlement::Release,
        6..8 => Settlement::Doubt {
            reason: one_of(rng, &[Reason::Timeout, Reason::Panicked]),
        },
        _ => Settlement::NeverHappened,
    }
}

fn query(rng: &mut StdRng) -> Query {
    use StateName::{Completed, InFlight, Indeterminate, Tombstone};
    let states = [InFlight, Completed, Indeterminate, Tombstone].map(Some);
    Query {
        search_time: None,
        state: one_of(rng, &[&states[..], &[None]].concat()),
        after: one_of(rng, &[None, None, Some(id(1))]),
        limit: one_of(rng, &[1, 2, 100]),
        key: one_of(rng, &[None, None, None, Some(KeyDigest([9; 8]))]),
        operation: one_of(rng, &[None, None, None, Some("payments")]).map(str::to_owned),
        scope: one_of(rng, &[None, None, None, Some(ScopeDigest([7; 8]))]),
        older_than: one_of(rng, &[None, None, None, Some(Duration::from_secs(10))]),
        newer_than: one_of(rng, &[None, None, None, Some(Duration::from_secs(20))]),
    }
}
