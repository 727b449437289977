//! Keys and unique words derived from the seed.

use crate::mix::mixed;

/// Returns the `n`-th pseudorandom number of a case.
fn number(seed: u64, case: &str, n: u64) -> u64 {
    let start = mixed(seed);
    let named = case
        .bytes()
        .fold(start, |so_far, byte| mixed(so_far ^ u64::from(byte)));
    mixed(named ^ n)
}

/// Returns a key in the form of a random UUID, because some services accept no other form.
pub(super) fn key(seed: u64, case: &str, n: u64) -> String {
    let high = number(seed, case, 2 * n) & !0xf000 | 0x4000;
    let low = number(seed, case, 2 * n + 1) & !(0b11 << 62) | (0b10 << 62);
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        high >> 32,
        high >> 16 & 0xffff,
        high & 0xffff,
        low >> 48,
        low & 0xffff_ffff_ffff
    )
}

/// Returns a replacement for `{{unique}}`.
pub(super) fn unique(seed: u64, case: &str, n: u64) -> String {
    format!("rv{:016x}", number(!seed, case, n))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn keys_are_uuids_that_the_seed_decides() {
        let keys = |seed| (0..100).map(move |n| key(seed, "case", n));
        assert_eq!(keys(7).collect::<Vec<_>>(), keys(7).collect::<Vec<_>>());
        let all: HashSet<_> = keys(7).chain(keys(8)).collect();
        assert_eq!(all.len(), 200);
        for key in all {
            let parts: Vec<_> = key.split('-').map(str::len).collect();
            assert_eq!(parts, [8, 4, 4, 4, 12], "{key}");
            assert_eq!(&key[14..15], "4");
            assert!("89ab".contains(&key[19..20]), "{key}");
        }
        assert_ne!(unique(7, "case", 0), unique(7, "other", 0));
    }
}
