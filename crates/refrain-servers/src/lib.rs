//! Real servers for tests and benchmarks: addresses of the shared ones, and private ones to kill.
//!
//! `cargo xtask test` starts one server of each kind for all tests and sets their addresses in the
//! environment; [`postgres_url`], [`redis_url`], [`nats_url`] and [`amqp_url`] read them. A test that
//! kills, stops or configures a server starts a private one: [`PrivatePostgres`], [`PrivatePgBouncer`],
//! [`PrivateRedis`], [`PrivateNats`], [`PrivateRabbit`], [`PrivateSqs`], [`PrivateEnvoy`]. A private server and its folder
//! are removed when the process that started it ends, even by SIGKILL: see [`Guard`].
//!
//! Depends on the standard library alone, so that `cargo xtask` builds fast.
//!
//! ```no_run
//! let mut server = refrain_servers::PrivateRedis::start()?;
//! println!("{}", server.url());
//! server.kill()?;
//! server.restart()?; // on the same folder and port
//! # Ok::<(), std::io::Error>(())
//! ```

#![warn(rustdoc::broken_intra_doc_links)]

use std::env;

// Declared before the modules that use its macro.
#[macro_use]
mod lifecycle;

mod postgres;
pub use postgres::PrivatePostgres;

mod pgbouncer;
pub use pgbouncer::{PoolMode, PrivatePgBouncer};

mod redis;
pub use redis::PrivateRedis;

mod sqs;
pub use sqs::PrivateSqs;

mod envoy;
pub use envoy::PrivateEnvoy;

mod nats;
pub use nats::PrivateNats;

mod rabbitmq;
pub use rabbitmq::PrivateRabbit;

mod binaries;
pub use binaries::{
    AMQP_BIN, ENVOY_BIN, NATS_BIN, PGBOUNCER_BIN, POSTGRES_BIN, REDIS_BIN, SQS_BIN, cache_folder,
    envoy_binaries, nats_binaries, pgbouncer_binaries, postgres_binaries, rabbitmq_binaries,
    redis_binaries, sqs_binaries,
};

mod guard;
pub use guard::Guard;

mod home;
pub use home::free_port;

mod process;

/// Environment variable with the address of the shared PostgreSQL.
pub const POSTGRES_URL: &str = "REFRAIN_TEST_POSTGRES_URL";
/// Environment variable with the address of the shared Redis.
pub const REDIS_URL: &str = "REFRAIN_TEST_REDIS_URL";
/// Environment variable with the address of the shared NATS.
pub const NATS_URL: &str = "REFRAIN_TEST_NATS_URL";
/// Environment variable with the address of the shared RabbitMQ.
pub const AMQP_URL: &str = "REFRAIN_TEST_AMQP_URL";

/// Returns the address of the PostgreSQL that all tests share; a test creates its own schema there, and drops it.
///
/// # Panics
/// If the variable is not set: a test without its server fails.
#[must_use]
pub fn postgres_url() -> String {
    url_from_env("PostgreSQL", POSTGRES_URL)
}

/// Returns the address of the Redis that all tests share; a test uses its own key prefix there, and deletes its keys.
///
/// # Panics
/// If the variable is not set: a test without its server fails.
#[must_use]
pub fn redis_url() -> String {
    url_from_env("Redis", REDIS_URL)
}

/// Returns the address of the NATS that all tests share; a test creates its own stream there, and deletes it.
///
/// # Panics
/// If the variable is not set: a test without its server fails.
#[must_use]
pub fn nats_url() -> String {
    url_from_env("NATS", NATS_URL)
}

/// Returns the address of the RabbitMQ that all tests share; a test creates its own queue there, and deletes it.
///
/// # Panics
/// If the variable is not set: a test without its server fails.
#[must_use]
pub fn amqp_url() -> String {
    url_from_env("RabbitMQ", AMQP_URL)
}

fn url_from_env(name: &str, variable: &str) -> String {
    match env::var(variable) {
        Ok(url) if !url.is_empty() => url,
        _ => panic!(
            "this test needs {name}, and {variable} is not set; \
             `cargo xtask test` starts one and sets it, `cargo xtask services` keeps one running"
        ),
    }
}
