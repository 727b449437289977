//! Limits for each scope, so that one client cannot use up what all clients share.

use std::fmt;

use serde::Serialize;

use super::{invalid, units::Size};
use crate::Result;

/// Limits of each scope, over all operations. A request that would create a record beyond one of them is refused
/// before its claim; a duplicate of an existing record is not.
///
/// ```
/// use refrain::policy::{Policy, Quota};
///
/// let quota = Quota { keys_per_second: Some(500), ..Quota::default() };
/// let policy = Policy::default().with_quota(quota)?;
/// assert_eq!(policy.quota().keys_per_second, Some(500));
/// # Ok::<(), refrain::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Quota {
    /// Maximum rate of new keys in each process; as many as one second allows may come at once.
    pub keys_per_second: Option<usize>,
    /// Maximum number of requests that each process reads or executes at a time.
    pub in_flight_max: Option<usize>,
    /// Maximum number of records in the store, tombstones included.
    pub records_max: Option<usize>,
    /// Maximum size of the stored outcomes, in bytes.
    pub bytes_max: Option<usize>,
    /// Maximum number of scopes that each process counts. A further scope is not limited, which is counted.
    pub scopes_max: usize,
}

impl Default for Quota {
    /// No limits.
    fn default() -> Self {
        Self {
            keys_per_second: None,
            in_flight_max: None,
            records_max: None,
            bytes_max: None,
            scopes_max: 100_000,
        }
    }
}

impl Quota {
    /// The maximum of `keys_per_second`: above it, the pause between two keys would have no length.
    pub(super) const RATE_MAX: usize = 1_000_000;

    /// Whether it limits anything.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.limits().iter().any(|(_, limit)| limit.is_some())
    }

    /// Whether it limits what a scope stores, so that the store has to be counted.
    #[must_use]
    pub fn counts_store(&self) -> bool {
        self.records_max.is_some() || self.bytes_max.is_some()
    }

    /// The limits by the name of their setting.
    pub(super) fn limits(&self) -> [(&'static str, Option<usize>); 4] {
        [
            ("keys_per_second", self.keys_per_second),
            ("in_flight_max", self.in_flight_max),
            ("records_max", self.records_max),
            ("bytes_max", self.bytes_max),
        ]
    }

    /// Checks its ranges.
    pub(super) fn check(&self) -> Result<()> {
        let scopes_max = ("scopes_max", Some(self.scopes_max));
        let limits = self.limits();
        for (name, limit) in limits.into_iter().chain([scopes_max]) {
            if limit == Some(0) {
                return Err(invalid(format!(
                    "`{name}` of the quota is 0; write at least 1, or remove it"
                )));
            }
        }
        match self.keys_per_second {
            Some(rate) if rate > Self::RATE_MAX => Err(invalid(format!(
                "`keys_per_second` of the quota is {rate}; write at most {}",
                Self::RATE_MAX
            ))),
            _ => Ok(()),
        }
    }
}

/// The limits as the file spells them, such as `keys_per_second = 500, bytes_max = 1GiB`.
impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limits = self.limits();
        let set = limits.iter().filter_map(|(name, limit)| {
            let limit = (*limit)?;
            Some(match *name {
                "bytes_max" => format!("{name} = {}", Size(limit)),
                _ => format!("{name} = {limit}"),
            })
        });
        f.write_str(&set.collect::<Vec<_>>().join(", "))
    }
}
