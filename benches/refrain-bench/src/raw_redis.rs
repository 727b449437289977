//! The upper bound for a Redis store without batching: one script per claim and one per completion, on one
//! multiplexed connection.
//!
//! A new key costs two calls and two writes: the claim writes a marker of seven bytes, and the completion
//! overwrites it with the outcome, which expires after its retention. A duplicate costs one call, which
//! returns the outcome. Like the store, it uses the driver's multiplexed connection.
//!
//! Unlike the store, it has no record that outlives the outcome as a tombstone (one more key with another
//! expiry), no fence from the server's clock, no lease, no digest, no fingerprint check, and no mark that
//! reveals data loss. But the store batches concurrent operations into one call, and this does not, so a
//! ratio above 1 is possible.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use redis::{AsyncConnectionConfig, Cmd, Value, aio::MultiplexedConnection};
use refrain::RecordId;

use crate::work::Engine;

/// The marker that a claim writes: shorter than any outcome, and always the same.
const CLAIMED: &str = "claimed";
/// Returns the stored value; if there is none, claims the key and returns nothing.
const CLAIM: &str = "
local there = redis.call('GET', KEYS[1])
if there then return there end
redis.call('SET', KEYS[1], ARGV[1])
return false";
/// Replaces a claim's marker, and nothing else.
const COMPLETE: &str = "
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1";
const PATIENCE: Duration = Duration::from_secs(5);
const RETENTION_MS: u64 = 24 * 3_600_000;

/// The connection and the SHA-1 digests of the scripts.
#[derive(Debug)]
pub(crate) struct RawRedis {
    connection: MultiplexedConnection,
    claim: String,
    complete: String,
}

impl RawRedis {
    pub(crate) async fn open(address: &str) -> Result<Self> {
        let client = redis::Client::open(address)?;
        // A disk that stalls for a while is slow, but no failure; the store waits as long.
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
