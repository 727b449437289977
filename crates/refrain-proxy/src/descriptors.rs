//! File descriptors: how many connections the limit of open files leaves room for.
//!
//! Every connection takes one, and the store, the audit log and the admin listener need some at any time.
//! So connections are capped below the limit, and a crowd of clients never takes the last one.

use std::fs;

use prometheus_client::metrics::{counter::Counter, gauge::Gauge};
use rustix::process::{Resource, getrlimit};

/// Kept free at the least, for the store, the audit log, the admin listener and new threads.
const RESERVED_MIN: u64 = 16;
/// A limit that leaves room for fewer connections is worth a warning.
const FEW: usize = 1_000;
/// Where the system does not tell how many are open.
const OPEN_GUESS: u64 = 64;

/// Connections of clients, as the metrics show them. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Connections {
    /// Open now.
    pub(crate) open: Gauge,
    /// The most that are open at a time.
    pub(crate) max: Gauge,
    /// How often all places were taken.
    pub(crate) exhausted: Counter,
}

impl Connections {
    /// How many connections may be open at a time: as many as wanted, or as the limit of open files leaves room for.
    pub(crate) fn limit(&self, wanted: usize) -> usize {
        let limit = getrlimit(Resource::Nofile).current;
        let open = fs::read_dir("/proc/self/fd").map_or(OPEN_GUESS, |open| open.count() as u64);
        let max = limit.map_or(wanted, |limit| wanted.min(room(limit.saturating_sub(open))));
        if max < wanted {
            warn(wanted, max, limit.unwrap_or_default());
        }
        self.max.set(i64::try_from(max).unwrap_or(i64::MAX));
        max
    }
}

/// A request takes two descriptors, one on each side; a quarter stays free.
fn room(free: u64) -> usize {
    let reserved = RESERVED_MIN.max(free / 4);
    let room = free.saturating_sub(reserved) / 2;
    usize::try_from(room).unwrap_or(usize::MAX).max(1)
}

fn warn(wanted: usize, max: usize, limit: u64) {
    let text = "fewer connections than connections_max are accepted, because of the limit of open files; \
                raise it with `ulimit -n` or LimitNOFILE=";
    match max < FEW {
        true => tracing::warn!(connections_max = wanted, accepted = max, limit, "{text}"),
        false => tracing::info!(connections_max = wanted, accepted = max, limit, "{text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_leaves_descriptors_free() {
        for (free, connections) in [(0, 1), (17, 1), (40, 12), (1_000, 375), (100_000, 37_500)] {
            assert_eq!(room(free), connections, "{free}");
        }
    }
}
