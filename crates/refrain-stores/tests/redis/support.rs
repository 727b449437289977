//! The server that all tests share, and names of their own on it.

use refrain_stores::redis::{Options, Redis};

/// The address of the shared server.
pub(crate) fn shared() -> String {
    std::env::var("REFRAIN_TEST_REDIS_URL").unwrap_or_else(|_| {
        panic!("REFRAIN_TEST_REDIS_URL is not set: `cargo xtask test` starts a server and sets it")
    })
}

/// A prefix that nobody else has, and that is swept away in the end.
pub(crate) struct Prefix {
    pub(crate) address: String,
    prefix: String,
}

impl Prefix {
    pub(crate) fn new() -> Self {
        let prefix = format!("test:{:016x}:", rand::random::<u64>());
        let shared = shared();
        let address = format!("{}/?prefix={prefix}", shared.trim_end_matches('/'));
        Self { address, prefix }
    }

    pub(crate) async fn open(&self, options: Options) -> refrain::Result<Redis> {
        Redis::open_with(&self.address, options).await
    }

    /// The name of a key in the store.
    pub(crate) fn key(&self, rest: &str) -> String {
        format!("{}{rest}", self.prefix)
    }
}

impl Drop for Prefix {
    fn drop(&mut self) {
        let Ok(client) = redis::Client::open(shared()) else {
            return;
        };
        let Ok(mut connection) = client.get_connection() else {
            return;
        };
        let script = "local keys = redis.call('KEYS', ARGV[1])
            for _, key in ipairs(keys) do redis.call('DEL', key) end";
        let _: Result<(), _> = redis::cmd("EVAL")
            .arg(script)
            .arg(0)
            .arg(format!("{}*", self.prefix))
            .query(&mut connection);
    }
}

/// Asks the shared server something, past the store.
pub(crate) fn ask<T: redis::FromRedisValue>(command: &mut redis::Cmd) -> T {
    let client = redis::Client::open(shared()).unwrap();
    let mut connection = client.get_connection().unwrap();
    command.query(&mut connection).unwrap()
}
