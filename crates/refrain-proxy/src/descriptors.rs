//! File descriptors: how many connections the open-file limit allows.
//!
//! Every connection takes one, and the store, the audit log and the admin listener need some at any time.
//! So connections on both sides are capped below the limit, and clients can never use up all descriptors.

use std::fs;

use prometheus_client::metrics::{counter::Counter, gauge::Gauge};
use rustix::process::{Resource, getrlimit};

/// Least number of descriptors kept free, for the store, the audit log, the admin listener and new threads.
const RESERVED_MIN: u64 = 16;
/// An open-file limit that allows fewer connections is worth a warning.
const FEW: usize = 1_000;
/// Assumed number of open descriptors if the system does not report it.
const OPEN_GUESS: u64 = 64;

/// Metrics of connections. Clones share their values.
#[derive(Debug, Clone, Default)]
pub(crate) struct Connections {
    /// Client connections that are open now.
    pub(crate) open: Gauge,
    /// Connections to the upstream that are open now.
    pub(crate) upstream: Gauge,
    /// Most connections that may be open at a time.
    pub(crate) max: Gauge,
    /// How often that limit was reached.
    pub(crate) exhausted: Counter,
}

/// How many connections may be open at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConnectionLimits {
    pub(crate) clients: usize,
    pub(crate) upstream: usize,
}

impl Connections {
    /// Allows the wanted number of clients, or fewer if the open-file limit is too low.
    pub(crate) fn limits(&self, wanted: usize) -> ConnectionLimits {
        let limit = getrlimit(Resource::Nofile).current;
        let open = fs::read_dir("/proc/self/fd").map_or(OPEN_GUESS, |open| open.count() as u64);
        let free = limit.map(|limit| limit.saturating_sub(open));
        let limits = ConnectionLimits::of(wanted, free.unwrap_or(u64::MAX));
        if limits.clients < wanted {
            warn(wanted, limits.clients, limit.unwrap_or_default());
        }
        self.max
            .set(i64::try_from(limits.clients).unwrap_or(i64::MAX));
        limits
    }
}

impl ConnectionLimits {
    /// The limits for `free` descriptors. A request over HTTP/1 takes two, one on each side, and a quarter stays free.
    /// A client over HTTP/2 has many requests at a time, and idle connections wait in pools: for them the upstream's side
    /// may use half of that quarter, and the descriptors that no client can take.
    fn of(wanted: usize, free: u64) -> Self {
        let count = |number: u64| usize::try_from(number).unwrap_or(usize::MAX).max(1);
        let reserved = RESERVED_MIN.max(free / 4);
        let clients = wanted.min(count(free.saturating_sub(reserved) / 2));
        let taken = clients as u64 + reserved / 2;
        Self {
            clients,
            upstream: count(free.saturating_sub(taken)),
        }
    }
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
    fn limits_leave_descriptors_free() {
        for (wanted, free, clients, upstream) in [
            (usize::MAX, 0, 1, 1),
            (usize::MAX, 17, 1, 8),
            (usize::MAX, 40, 12, 20),
            (usize::MAX, 1_000, 375, 500),
            (usize::MAX, 100_000, 37_500, 50_000),
            (300, 1_000, 300, 575),
        ] {
            let expected = ConnectionLimits { clients, upstream };
            assert_eq!(ConnectionLimits::of(wanted, free), expected, "{free}");
        }
    }
}
