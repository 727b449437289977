//! File descriptors: how many connections the open-file limit allows.
//!
//! Every connection takes one, and the store, the audit log and the admin listener need some at any time.
//! So connections are capped below the limit, and clients can never use up all descriptors.

use std::fs;

use prometheus_client::metrics::{counter::Counter, gauge::Gauge};
use rustix::process::{Resource, getrlimit};

/// Least number of descriptors kept free, for the store, the audit log, the admin listener and new threads.
const RESERVED_MIN: u64 = 16;
/// An open-file limit that allows fewer connections is worth a warning.
const FEW: usize = 1_000;
/// Assumed number of open descriptors if the system does not report it.
const OPEN_GUESS: u64 = 64;

/// Metrics of client connections. Clones share their values.
#[derive(Debug, Clone, Default)]
pub(crate) struct Connections {
    /// Connections that are open now.
    pub(crate) open: Gauge,
    /// Most connections that may be open at a time.
    pub(crate) max: Gauge,
    /// How often that limit was reached.
    pub(crate) exhausted: Counter,
}

impl Connections {
    /// How many connections may be open at a time: `wanted`, or fewer if the open-file limit is too low.
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

/// Connections that fit into `free` descriptors: a request takes two, one on each side, and at least a quarter stays free.
fn room(free: u64) -> usize {
    let reserved = RESERVED_MIN.max(free / 4);
    let room = free.saturating_sub(reserved) / 2;
    usize::try_from(room).unwrap_or(usize::MAX).max(1)
}

fn warn(wanted: usize, max: usize, limit: u64) {
    let text = "fewer connections than connections_max are accepted, because the open-file limit is too low; \
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
