//! Deterministic random faults: the same on every run with the same seed.

use crate::mix::mixed;

/// Whether the `n`-th request that a rule matches is hit, with a probability of `share` in a million.
pub(super) fn hits(seed: u64, rule: u64, n: u64, share: u32) -> bool {
    // Mixed separately, so that neighbouring seeds, rules and numbers are uncorrelated.
    let thrown = mixed(mixed(mixed(seed) ^ rule) ^ n);
    thrown % 1_000_000 < u64::from(share)
}

#[cfg(test)]
mod tests {
    use super::hits;

    #[test]
    fn the_share_holds_and_the_seed_decides() {
        let count = |seed| (0..10_000).filter(|n| hits(seed, 1, *n, 300_000)).count();
        assert!((2_800..3_200).contains(&count(7)), "{}", count(7));
        let thrown = |seed| {
            (0..64)
                .map(|n| hits(seed, 1, n, 500_000))
                .collect::<Vec<_>>()
        };
        assert_eq!(thrown(7), thrown(7));
        assert_ne!(thrown(7), thrown(8));
        assert!((0..100).all(|n| hits(7, 1, n, 1_000_000)));
        assert!(!(0..100).any(|n| hits(7, 1, n, 0)));
    }
}
