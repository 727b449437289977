//! Real servers for tests and benchmarks: where the shared ones are, and private ones to kill.
//!
//! `cargo xtask test` starts one server of each kind for all tests and names them in the environment;
//! [`postgres_url`], [`redis_url`], [`nats_url`] and [`amqp_url`] read that.
//! A test that kills, stops or sets up a server otherwise starts one of its own:
//! [`PrivatePostgres`], [`PrivatePgBouncer`], [`PrivateRedis`], [`PrivateNats`], [`PrivateRabbit`].
//! Whatever happens to the process that started a server, the server and its folder go with it: see [`Guard`].
//!
//! The standard library alone, so that `cargo xtask` builds at once.
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

// Before those who use what it defines.
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

mod nats;
pub use nats::PrivateNats;

mod rabbitmq;
pub use rabbitmq::PrivateRabbit;

mod binaries;
pub use binaries::{
    AMQP_BIN, NATS_BIN, PGBOUNCER_BIN, POSTGRES_BIN, REDIS_BIN, SQS_BIN, cache_folder,
    nats_binaries, pgbouncer_binaries, postgres_binaries, rabbitmq_binaries, redis_binaries,
    sqs_binaries,
};

mod guard;
pub use guard::Guard;

mod home;
pub use home::free_port;

mod process;

/// Names the variable with the address of the PostgreSQL that all tests share.
pub const POSTGRES_URL: &str = "REFRAIN_TEST_POSTGRES_URL";
/// Names the variable with the address of the Redis that all tests share.
pub const REDIS_URL: &str = "REFRAIN_TEST_REDIS_URL";
/// Names the variable with the address of the NATS that all tests share.
pub const NATS_URL: &str = "REFRAIN_TEST_NATS_URL";
/// Names the variable with the address of the RabbitMQ that all tests share.
pub const AMQP_URL: &str = "REFRAIN_TEST_AMQP_URL";

/// The address of the PostgreSQL that all tests share; a test makes a schema of its own there, and drops it.
///
/// # Panics
/// When there is none: a test without its server has failed.
#[must_use]
pub fn postgres_url() -> String {
    shared("PostgreSQL", POSTGRES_URL)
}

/// The address of the Redis that all tests share; a test makes a key prefix of its own there, and drops it.
///
/// # Panics
/// When there is none: a test without its server has failed.
#[must_use]
pub fn redis_url() -> String {
    shared("Redis", REDIS_URL)
}

/// The address of the NATS that all tests share; a test makes a stream of its own there, and drops it.
///
/// # Panics
/// When there is none: a test without its server has failed.
#[must_use]
pub fn nats_url() -> String {
    shared("NATS", NATS_URL)
}

/// The address of the RabbitMQ that all tests share; a test makes a queue of its own there, and drops it.
///
/// # Panics
/// When there is none: a test without its server has failed.
#[must_use]
pub fn amqp_url() -> String {
    shared("RabbitMQ", AMQP_URL)
}

fn shared(name: &str, variable: &str) -> String {
    match env::var(variable) {
        Ok(url) if !url.is_empty() => url,
        _ => panic!(
            "this test needs {name}, and {variable} is not set; \
             `cargo xtask test` starts one and sets it, `cargo xtask services` keeps one up"
        ),
    }
}
