//! The faults that payments meet, decided by a seed and so the same on every run.

/// A fault of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trouble {
    /// Charged; then the connection is closed without an answer.
    Lost,
    /// Charged; then the answer comes after every timeout.
    Slow,
    /// The connection is reset, and nothing is charged.
    Reset,
}

impl Trouble {
    pub(super) fn describe(self) -> &'static str {
        match self {
            Self::Lost => "answer lost",
            Self::Slow => "too slow",
            Self::Reset => "reset",
        }
    }
}

/// The assignment of faults to keys.
#[derive(Debug, Clone, Copy)]
pub(super) struct Troubles {
    seed: u64,
}

impl Troubles {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// `payment-N` meets the fault that the seed decides for N; `lose-…`, `slow-…` and `reset-…` meet the fault that they name, for trying by hand.
    pub(super) fn of(self, key: &str) -> Option<Trouble> {
        let (kind, rest) = key.split_once('-')?;
        match kind {
            "lose" => Some(Trouble::Lost),
            "slow" => Some(Trouble::Slow),
            "reset" => Some(Trouble::Reset),
            "payment" => self.throw(rest.parse().ok()?),
            _ => None,
        }
    }

    fn throw(self, number: u64) -> Option<Trouble> {
        match mixed(mixed(self.seed) ^ number) % 8 {
            0..=1 => Some(Trouble::Lost),
            2..=3 => Some(Trouble::Slow),
            4 => Some(Trouble::Reset),
            _ => None,
        }
    }
}

/// A bijective mixing function (SplitMix64's finalizer), so that neighbouring numbers give unrelated results and none collide.
fn mixed(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    for (shift, factor) in [(30, 0xBF58_476D_1CE4_E5B9), (27, 0x94D0_49BB_1331_11EB)] {
        mixed = (mixed ^ (mixed >> shift)).wrapping_mul(factor);
    }
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    //! The demo is the same on every run because its faults are.

    use super::*;

    #[test]
    fn key_prefix_or_seed_decides_the_fault() {
        let troubles = Troubles::new(1);
        for (key, trouble) in [
            ("lose-1", Some(Trouble::Lost)),
            ("slow-x", Some(Trouble::Slow)),
            ("reset-", Some(Trouble::Reset)),
            ("mine", None),
            ("payment-", None),
            ("payment-x", None),
        ] {
            assert_eq!(troubles.of(key), trouble, "{key}");
        }
    }

    #[test]
    fn same_seed_gives_same_faults_and_another_seed_others() {
        let of = |seed| (1..=24).map(move |n| Troubles::new(seed).of(&format!("payment-{n}")));
        assert!(of(1).eq(of(1)));
        assert!(!of(1).eq(of(2)));
        for trouble in [
            None,
            Some(Trouble::Lost),
            Some(Trouble::Slow),
            Some(Trouble::Reset),
        ] {
            assert!(of(1).any(|it| it == trouble), "none meets {trouble:?}");
        }
    }
}
