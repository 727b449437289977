//! The ledger of the API: one entry for each charge, append-only.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The ledger; clones share the entries.
#[derive(Debug, Clone, Default)]
pub(super) struct Ledger(Arc<Mutex<Vec<Charge>>>);

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub(super) struct Charge {
    pub(super) key: String,
    pub(super) amount: u32,
}

impl Ledger {
    /// Records a charge, whether or not the answer reaches the buyer.
    pub(super) fn charge(&self, charge: Charge) {
        self.open().push(charge);
    }

    /// Every charge so far.
    pub(super) fn charges(&self) -> Vec<Charge> {
        self.open().clone()
    }

    pub(super) fn len(&self) -> usize {
        self.open().len()
    }

    /// The first charge under this key.
    pub(super) fn find(&self, key: &str) -> Option<Charge> {
        let charges = self.open();
        charges.iter().find(|charge| charge.key == key).cloned()
    }

    /// How often this key was charged.
    pub(super) fn times(&self, key: &str) -> usize {
        let charges = self.open();
        charges.iter().filter(|charge| charge.key == key).count()
    }

    fn open(&self) -> MutexGuard<'_, Vec<Charge>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    //! The demo's numbers are only as good as this count.

    use super::*;

    #[test]
    fn every_charge_is_counted_under_its_own_key() {
        let ledger = Ledger::default();
        assert_eq!(ledger.find("a"), None);
        for (key, amount) in [("a", 1), ("ab", 2), ("a", 3)] {
            let key = key.into();
            ledger.charge(Charge { key, amount });
        }
        assert_eq!(["a", "ab", "b"].map(|key| ledger.times(key)), [2, 1, 0]);
        assert_eq!(ledger.find("a").map(|it| it.amount), Some(1));
        assert_eq!(ledger.len(), 3);
    }
}
