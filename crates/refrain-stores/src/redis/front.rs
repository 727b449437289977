//! Redis front: serves outcomes in front of another store, `store = ["redis://…", "postgres://…"]`.

use std::{fmt, time::Duration};

use ::redis::{Cmd, ConnectionInfo, Value, cmd};
use bytes::Bytes;
use refrain::{Fence, RecordId, Result, store::Front};
use tokio::{runtime::Handle, sync::OnceCell};

use super::{
    Options, Patience,
    address::{Address, RedisTopology},
    choose_crypto,
    cluster::Cluster,
    codec::fence_bytes,
    connection::{RedisCallError, SharedConnection},
    dial, errors, millis,
};

const KEEP: &str = include_str!("../../lua/keep.lua");
/// Fence of an erased record: higher than any other.
const ERASED: [u8; 16] = [0xff; 16];

/// Redis server that caches outcomes in front of a store, and may lose all of them.
///
/// It may be unavailable when it is opened, may evict keys, and may have replicas.
/// A key is `PREFIX{identity}f`. It holds a fence and, unless the record was erased, an entry.
pub struct RedisFront {
    link: FrontDeployment,
    prefix: String,
    shown: String,
}

enum FrontDeployment {
    Single(SharedConnection),
    /// Connected on first use.
    Cluster(Vec<ConnectionInfo>, Patience, OnceCell<Cluster>),
}

impl fmt::Debug for RedisFront {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisFront")
            .field("address", &self.shown)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

impl RedisFront {
    /// Creates a front for a `redis` address. Connects on first use.
    ///
    /// Must be called within a tokio runtime; the connections live there.
    ///
    /// # Errors
    /// If the address is invalid.
    pub fn open(address: &str) -> Result<Self> {
        let options = Options::default();
        let address = Address::parse(address)?;
        choose_crypto();
        let patience = Patience {
            connect: options.connect_timeout,
            answer: options.answer_timeout,
        };
        let link = match &address.place {
            RedisTopology::Cluster(seeds) => {
                FrontDeployment::Cluster(seeds.clone(), patience, OnceCell::new())
            }
            place => {
                let dialed =
                    dial(place).map_err(|error| errors::convert_error(error, &address.shown))?;
                FrontDeployment::Single(SharedConnection::new(
                    dialed,
                    &address.shown,
                    patience,
                    Handle::current(),
                ))
            }
        };
        Ok(Self {
            link,
            prefix: address.prefix,
            shown: address.shown,
        })
    }

    fn key(&self, id: RecordId) -> String {
        format!("{}{{{id}}}f", self.prefix)
    }

    async fn send_command(&self, command: &Cmd) -> Result<Value> {
        let answer = match &self.link {
            FrontDeployment::Single(line) => line.send_command(command).await,
            FrontDeployment::Cluster(seeds, patience, cluster) => {
                let connect = || Cluster::connect(seeds.clone(), *patience);
                match cluster.get_or_try_init(connect).await {
                    Ok(cluster) => cluster
                        .send_command(command)
                        .await
                        .map_err(RedisCallError::Redis),
                    Err(error) => Err(RedisCallError::Redis(error)),
                }
            }
        };
        answer.map_err(|trouble| trouble.error(&self.shown))
    }
}

impl Front for RedisFront {
    async fn find(&self, id: RecordId) -> Result<Option<Bytes>> {
        let mut get = cmd("GET");
        get.arg(self.key(id));
        Ok(match self.send_command(&get).await? {
            Value::BulkString(kept) if kept.len() > ERASED.len() => {
                Some(Bytes::from(kept).slice(ERASED.len()..))
            }
            _ => None,
        })
    }

    async fn keep(&self, id: RecordId, fence: Fence, entry: Bytes, span: Duration) -> Result<()> {
        let fence = fence_bytes(fence);
        let mut keep = cmd("EVAL");
        keep.arg(KEEP)
            .arg(1)
            .arg(self.key(id))
            .arg(&fence[..])
            .arg([&fence[..], &entry].concat())
            .arg(millis(span).max(1));
        self.send_command(&keep).await.map(drop)
    }

    async fn erase(&self, id: RecordId, span: Duration) -> Result<()> {
        let mut erase = cmd("SET");
        erase
            .arg(self.key(id))
            .arg(&ERASED[..])
            .arg("PX")
            .arg(millis(span).max(1));
        self.send_command(&erase).await.map(drop)
    }
}
