//! Listens for settlements by other processes, and wakes the callers that wait for them here.
//!
//! A claim that finds a record in flight marks it; the settlement of a marked record is published on a channel with the
//! name of the record. Only processes with a waiting caller subscribe to it.
//! Each process also subscribes to one channel without messages: the number of its subscribers shows processes that
//! start later that the [store is in use](super::loss).

use std::{collections::HashSet, time::Duration};

use ::redis::{RedisResult, aio::PubSub, cmd};
use futures_util::StreamExt as _;
use refrain::{
    Backoff, RecordId,
    store::{Watch, Watches},
};
use tokio::{
    runtime::Handle,
    sync::mpsc,
    time::{sleep, timeout},
};

use super::{connection::SharedConnection, mark};

/// Maximum number of queued subscriptions; further waiting callers poll.
const NEW_MAX: usize = 4_096;
/// How often unused channels are unsubscribed.
const TIDY: Duration = Duration::from_secs(5);
/// Limit for each answer of the server.
const ANSWER_MAX: Duration = Duration::from_secs(5);
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));

/// Waiting callers of this process, and the queue of the listener task.
#[derive(Debug)]
pub(super) struct SettlementListener {
    watches: Watches,
    new: mpsc::Sender<RecordId>,
}

impl SettlementListener {
    pub(super) fn new(line: SharedConnection, prefix: &str, runtime: &Handle) -> Self {
        let watches = Watches::new();
        let (new, receiver) = mpsc::channel(NEW_MAX);
        let listener = Listener {
            watches: watches.clone(),
            line,
            prefix: prefix.into(),
            new: receiver,
            heard: HashSet::new(),
        };
        // Ends when the store, which holds the sender, is dropped.
        runtime.spawn(listener.run());
        Self { watches, new }
    }

    pub(super) fn watch(&self, id: RecordId) -> Watch {
        let watch = self.watches.watch(id);
        let _ = self.new.try_send(id);
        watch
    }
}

struct Listener {
    watches: Watches,
    line: SharedConnection,
    prefix: String,
    new: mpsc::Receiver<RecordId>,
    /// Subscribed channels.
    heard: HashSet<RecordId>,
}

/// Why listening ended.
enum Over {
    /// The store was dropped.
    Store,
    /// The connection broke.
    Connection,
}

impl Listener {
    async fn run(mut self) {
        let mut delays = BACKOFF.delays();
        loop {
            match self.connect().await {
                Ok(connection) => {
                    delays.reset();
                    if let Over::Store = self.listen(connection).await {
                        return;
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "cannot subscribe to settlements by other processes; waiting requests poll instead");
                }
            }
            // Messages may have been missed: wake all waiting callers, so that they read their records.
            self.watches.all_settled();
            if self.new.is_closed() {
                return;
            }
            sleep(delays.after_failure()).await;
            self.reconnect().await;
        }
    }

    /// Makes the store's connection reconnect and check the server, so that a loss is noted for later processes.
    async fn reconnect(&self) {
        // The first command detects the broken connection, the second reconnects.
        for _ in 0..2 {
            if self.line.send_command(&cmd("PING")).await.is_ok() {
                return;
            }
        }
    }

    async fn connect(&mut self) -> RedisResult<PubSub> {
        let connecting = async { self.line.client().await?.get_async_pubsub().await };
        let mut connection = in_time(connecting).await?;
        in_time(connection.subscribe(mark::key_of(&self.prefix))).await?;
        self.heard.retain(|id| self.watches.is_watched(*id));
        for id in &self.heard {
            in_time(connection.subscribe(channel(&self.prefix, *id))).await?;
        }
        Ok(connection)
    }

    async fn listen(&mut self, connection: PubSub) -> Over {
        let (mut sink, mut stream) = connection.split();
        let mut tidy = tokio::time::interval(TIDY);
        loop {
            tokio::select! {
                new = self.new.recv() => {
                    let Some(id) = new else { return Over::Store };
                    if self.heard.insert(id)
                        && in_time(sink.subscribe(channel(&self.prefix, id))).await.is_err()
                    {
                        return Over::Connection;
                    }
                    // The record may have been settled before the subscription: the caller reads it once more.
                    self.watches.settled(id);
                }
                message = stream.next() => {
                    let Some(message) = message else { return Over::Connection };
                    if let Some(id) = parse_channel(&self.prefix, message.get_channel_name()) {
                        self.watches.settled(id);
                    }
                }
                _ = tidy.tick() => {
                    let (kept, left): (HashSet<_>, Vec<_>) = self.split_watched();
                    self.heard = kept;
                    for id in left {
                        if in_time(sink.unsubscribe(channel(&self.prefix, id))).await.is_err() {
                            return Over::Connection;
                        }
                    }
                }
            }
        }
    }

    fn split_watched(&self) -> (HashSet<RecordId>, Vec<RecordId>) {
        let (kept, left): (Vec<_>, Vec<_>) = self
            .heard
            .iter()
            .partition(|id| self.watches.is_watched(**id));
        (kept.into_iter().collect(), left)
    }
}

async fn in_time<T>(asked: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
    let too_late = || std::io::Error::from(std::io::ErrorKind::TimedOut).into();
    let answered = timeout(ANSWER_MAX, asked).await;
    answered.unwrap_or_else(|_| Err(too_late()))
}

fn channel(prefix: &str, id: RecordId) -> String {
    format!("{prefix}{{{id}}}")
}

fn parse_channel(prefix: &str, channel: &str) -> Option<RecordId> {
    let id = channel.strip_prefix(prefix)?;
    id.strip_prefix('{')?.strip_suffix('}')?.parse().ok()
}
