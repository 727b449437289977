//! Random faults that a seed decides.

use crate::mix::mixed;

/// Whether the `n`-th request that a rule matches is hit, of which `share` in a million are.
pub(super) fn hits(seed: u64, rule: u64, n: u64, share: u32) -> bool {
    // Each place of the three has a mixing of its own, so that neighbours have nothing in common.
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
