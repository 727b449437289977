//! Redis that syncs every write before it acknowledges it, as the store requires for claims.

use refrain_servers::{PrivateRedis, REDIS_BIN, REDIS_URL, redis_binaries};

use super::{Container, Held, Service};

pub(super) const SERVICE: Service = Service {
    name: "Redis",
    url_variable: REDIS_URL,
    bin_variable: REDIS_BIN,
    port: 6379,
    package: "redis-server",
    binaries: redis_binaries,
    start: || {
        let server = PrivateRedis::start()?;
        Ok(Held {
            url: server.url(),
            _server: Box::new(server),
        })
    },
    container: Container {
        image: "redis:7",
        port: 6379,
        options: &[],
        command: &[
            "redis-server",
            "--save",
            "",
            "--appendonly",
            "yes",
            "--appendfsync",
            "always",
            "--maxmemory-policy",
            "noeviction",
        ],
        is_ready: &["redis-cli", "ping"],
        url: |port| format!("redis://127.0.0.1:{port}"),
    },
};
