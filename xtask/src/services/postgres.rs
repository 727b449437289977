//! PostgreSQL.

use refrain_servers::{POSTGRES_BIN, POSTGRES_URL, PrivatePostgres, postgres_binaries};

use super::{Container, Held, Service};

pub(super) const SERVICE: Service = Service {
    name: "PostgreSQL",
    url_variable: POSTGRES_URL,
    bin_variable: POSTGRES_BIN,
    port: 5432,
    package: "postgresql",
    binaries: postgres_binaries,
    start: || {
        let server = PrivatePostgres::start()?;
        Ok(Held {
            url: server.url(),
            _server: Box::new(server),
        })
    },
    container: Container {
        image: "postgres:17",
        port: 5432,
        options: &[
            "--env=POSTGRES_USER=refrain",
            "--env=POSTGRES_DB=refrain",
            "--env=POSTGRES_HOST_AUTH_METHOD=trust",
        ],
        command: &["postgres", "-c", "max_connections=200"],
        // Over TCP, because the image first starts a temporary server on a Unix socket only, to create the database.
        is_ready: &["pg_isready", "-h", "127.0.0.1", "-U", "refrain"],
        url: |port| format!("postgres://refrain@127.0.0.1:{port}/refrain"),
    },
};
