//! NATS with JetStream.

use refrain_servers::{NATS_BIN, NATS_URL, PrivateNats, nats_binaries};

use super::{Container, Held, Service};

pub(super) const SERVICE: Service = Service {
    name: "NATS",
    url_variable: NATS_URL,
    bin_variable: NATS_BIN,
    port: 4222,
    package: "nats-server",
    binaries: nats_binaries,
    start: || {
        let server = PrivateNats::start()?;
        Ok(Held {
            url: server.url(),
            _server: Box::new(server),
        })
    },
    container: Container {
        image: "nats:2-alpine",
        port: 4222,
        options: &[],
        command: &["-js", "-sd", "/data", "-m", "8222"],
        is_ready: &["wget", "-q", "-O-", "http://127.0.0.1:8222/healthz"],
        url: |port| format!("nats://127.0.0.1:{port}"),
    },
};
