//! Where the money goes: a file outside the service, one line for each charge, that only ever grows.

use std::{
    collections::BTreeMap,
    fs, io,
    io::Write as _,
    path::{Path, PathBuf},
};

/// The ledger in a file.
#[derive(Debug, Clone)]
pub(super) struct Ledger {
    path: PathBuf,
}

/// One charge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Charge {
    pub(super) key: String,
    pub(super) amount: u32,
}

impl Ledger {
    pub(super) fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Charges: from here on the money is gone, whatever becomes of the answer.
    pub(super) fn charge(&self, charge: &Charge) -> io::Result<()> {
        let mut file = fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(&self.path)?;
        // One write a line: a kill leaves all of it or nothing.
        file.write_all(format!("{} {}\n", charge.key, charge.amount).as_bytes())
    }

    /// Every charge so far.
    pub(super) fn charges(&self) -> io::Result<Vec<Charge>> {
        match fs::read_to_string(&self.path) {
            Ok(text) => Ok(text.lines().filter_map(read).collect()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// The first charge under this key.
    pub(super) fn find(&self, key: &str) -> io::Result<Option<Charge>> {
        let charges = self.charges()?;
        Ok(charges.into_iter().find(|charge| charge.key == key))
    }

    /// How often each of these keys was charged.
    pub(super) fn times(&self, keys: &[String]) -> io::Result<Vec<usize>> {
        let mut times = BTreeMap::new();
        for charge in self.charges()? {
            *times.entry(charge.key).or_insert(0) += 1;
        }
        let of = |key: &String| times.get(key).copied().unwrap_or(0);
        Ok(keys.iter().map(of).collect())
    }
}

fn read(line: &str) -> Option<Charge> {
    let (key, amount) = line.split_once(' ')?;
    Some(Charge {
        key: key.into(),
        amount: amount.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    //! The demo's numbers are only as good as what counts them.

    use super::*;

    #[test]
    fn every_charge_is_counted_under_its_own_key() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::at(folder.path().join("ledger"));
        assert_eq!(ledger.find("a").unwrap(), None, "no file yet");
        for (key, amount) in [("a", 1), ("ab", 2), ("a", 3)] {
            let key = key.into();
            ledger.charge(&Charge { key, amount }).unwrap();
        }
        let keys = ["a", "ab", "b"].map(String::from);
        assert_eq!(ledger.times(&keys).unwrap(), [2, 1, 0]);
        assert_eq!(ledger.find("a").unwrap().map(|it| it.amount), Some(1));
        assert_eq!(ledger.charges().unwrap().len(), 3);
    }
}
