//! The ceiling of a store on Redis: one script for a claim and one for a completion, on one multiplexed connection.
//!
//! Each new key costs two calls and two writes, as it does any program that asks script by script: the claim leaves a word
//! of seven bytes and the completion writes the outcome over it, to end with its retention. A duplicate costs one call, and
//! the outcome comes back. All of it over the driver's own multiplexed connection, as the store's.
//!
//! What it does not do, and a store does: a record beside its outcome that outlives it as a tombstone (a key more, and another
//! end), a fence from the server's clock, a lease, a digest, a fingerprint to compare, a mark whose loss is noticed. What the
//! store does and this does not: send what waits at the same time in one call. So a ratio over 1 is possible.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use redis::{AsyncConnectionConfig, Cmd, Value, aio::MultiplexedConnection};
use refrain::RecordId;

use crate::work::Engine;

/// What a claim leaves under its key: shorter than any outcome, and the same every time.
const CLAIMED: &str = "claimed";
/// Answers what is there; or nothing, and then it is claimed.
const CLAIM: &str = "
local there = redis.call('GET', KEYS[1])
if there then return there end
redis.call('SET', KEYS[1], ARGV[1])
return false";
/// Takes the place of a claim, and of nothing else.
const COMPLETE: &str = "
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1";
const PATIENCE: Duration = Duration::from_secs(5);
const RETENTION_MS: u64 = 24 * 3_600_000;

/// A connection, and the names of the scripts.
#[derive(Debug)]
pub(crate) struct RawRedis {
    connection: MultiplexedConnection,
    claim: String,
    complete: String,
}

impl RawRedis {
    pub(crate) async fn open(address: &str) -> Result<Self> {
        let client = redis::Client::open(address)?;
        // A disk that stands still for a while is slow, and no failure; the store waits as long.
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
        let connecting = client.get_multiplexed_async_connection_with_config(&config);
        let mut connection = connecting.await?;
        let mut load = async |script| -> Result<String> {
            let mut command = redis::cmd("SCRIPT");
            let command = command.arg("LOAD").arg(script);
            Ok(command.query_async(&mut connection).await?)
        };
        let (claim, complete) = (load(CLAIM).await?, load(COMPLETE).await?);
        Ok(Self {
            connection,
            claim,
            complete,
        })
    }

    async fn ask(&self, command: &Cmd) -> Result<Value> {
        Ok(command.query_async(&mut self.connection.clone()).await?)
    }

    async fn claim(&self, id: RecordId) -> Result<Value> {
        let mut command = script(&self.claim, id);
        self.ask(command.arg(CLAIMED)).await
    }
}

fn script(name: &str, id: RecordId) -> Cmd {
    let mut command = redis::cmd("EVALSHA");
    command.arg(name).arg(1).arg(&id.0);
    command
}

impl Engine for RawRedis {
    type Held = ();

    async fn begin(&self, id: RecordId) -> Result<()> {
        let there = self.claim(id).await?;
        ensure!(there == Value::Nil, "the key is not new");
        Ok(())
    }

    async fn complete(&self, id: RecordId, (): (), body: Vec<u8>) -> Result<()> {
        let mut command = script(&self.complete, id);
        command.arg(CLAIMED).arg(body).arg(RETENTION_MS);
        let done = self.ask(&command).await?;
        ensure!(done == Value::Int(1), "a completion was refused");
        Ok(())
    }

    async fn replay(&self, id: RecordId) -> Result<[u8; 16]> {
        match self.claim(id).await? {
            Value::BulkString(body) => {
                let start = body.first_chunk().copied();
                start.context("the body is too short")
            }
            other => bail!("a completed key was not replayed: {other:?}"),
        }
    }
}
