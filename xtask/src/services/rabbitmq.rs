//! RabbitMQ.

use refrain_servers::{AMQP_BIN, AMQP_URL, PrivateRabbit, rabbitmq_binaries};

use super::{Container, Held, Service};

pub(super) const SERVICE: Service = Service {
    name: "RabbitMQ",
    url_variable: AMQP_URL,
    bin_variable: AMQP_BIN,
    port: 5672,
    package: "rabbitmq-server",
    binaries: rabbitmq_binaries,
    start: || {
        let server = PrivateRabbit::start()?;
        Ok(Held {
            url: server.url(),
            _server: Box::new(server),
        })
    },
    container: Container {
        image: "rabbitmq:4",
        port: 5672,
        options: &[],
        command: &[],
        is_ready: &["rabbitmq-diagnostics", "-q", "check_port_connectivity"],
        url: |port| format!("amqp://guest:guest@127.0.0.1:{port}/%2f"),
    },
};
