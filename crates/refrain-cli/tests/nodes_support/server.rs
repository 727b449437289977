//! The server that the nodes share: a private one that tests can kill, and that keeps every acknowledged write.

#![allow(dead_code, reason = "each test file uses only part of this module")]

use refrain_testkit::servers::{PrivatePostgres, PrivateRedis};

/// The kind of store that the nodes share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Postgres,
    /// Redis that syncs every write before it replies.
    Redis,
    /// PostgreSQL, with a Redis in front that may lose everything.
    Tiered,
}

/// A running server.
#[derive(Debug)]
pub(crate) enum Server {
    Postgres(PrivatePostgres),
    Redis(PrivateRedis),
    Tiered(PrivateRedis, PrivatePostgres),
}

impl Server {
    pub(crate) fn start(kind: Kind) -> Self {
        match kind {
            Kind::Postgres => Self::Postgres(PrivatePostgres::start().unwrap()),
            Kind::Redis => Self::Redis(PrivateRedis::start().unwrap()),
            Kind::Tiered => {
                let cache = [("appendonly", "no"), ("maxmemory-policy", "allkeys-lru")];
                let front = PrivateRedis::start_with(&cache).unwrap();
                Self::Tiered(front, PrivatePostgres::start().unwrap())
            }
        }
    }

    /// The value of `store` in refrain.toml: an address, or a list of them.
    pub(crate) fn url(&self) -> String {
        match self {
            Self::Postgres(server) => server.url(),
            Self::Redis(server) => server.url(),
            Self::Tiered(front, store) => format!("[\"{}\", \"{}\"]", front.url(), store.url()),
        }
    }

    /// The PostgreSQL among its servers, where a service can create its own tables.
    pub(crate) fn postgres_url(&self) -> Option<String> {
        match self {
            Self::Postgres(server) | Self::Tiered(_, server) => Some(server.url()),
            Self::Redis(_) => None,
        }
    }

    /// Kills all its processes with SIGKILL.
    pub(crate) fn kill(&mut self) {
        match self {
            Self::Postgres(server) => server.kill().unwrap(),
            Self::Redis(server) => server.kill().unwrap(),
            Self::Tiered(front, store) => front.kill().and_then(|()| store.kill()).unwrap(),
        }
    }

    /// Restarts the server on the same folder and port.
    pub(crate) fn restart(&mut self) {
        match self {
            Self::Postgres(server) => server.restart().unwrap(),
            Self::Redis(server) => server.restart().unwrap(),
            Self::Tiered(front, store) => front.restart().and_then(|()| store.restart()).unwrap(),
        }
    }
}
