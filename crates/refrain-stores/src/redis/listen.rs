//! Hears of settlements elsewhere, and wakes who waits for them here.
//!
//! Every settlement is published on a channel named like its record, which only those listen to who wait for it:
//! where nobody waits, nothing is sent to anybody.
//! One more channel is listened to from the beginning, on which nothing is ever said: that somebody listens there tells
//! those who start that the [store is in use](super::loss).

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

use super::{line::Line, mark};

/// How many new waits may be on their way; one that finds no room is left to polling.
const NEW_MAX: usize = 4_096;
/// How often channels are left that nobody waits on any more.
const TIDY: Duration = Duration::from_secs(5);
/// How long the server may take for anything that is asked of it here.
const ANSWER_MAX: Duration = Duration::from_secs(5);
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));

/// Who waits in this process, and the task that listens for them.
#[derive(Debug)]
pub(super) struct Ear {
    watches: Watches,
    new: mpsc::Sender<RecordId>,
}

impl Ear {
    pub(super) fn new(line: Line, prefix: &str, runtime: &Handle) -> Self {
        let watches = Watches::new();
        let (new, receiver) = mpsc::channel(NEW_MAX);
        let listener = Listener {
            watches: watches.clone(),
            line,
            prefix: prefix.into(),
            new: receiver,
            heard: HashSet::new(),
        };
        // Ends with the store, whose sender it waits on.
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
    line: Line,
    prefix: String,
    new: mpsc::Receiver<RecordId>,
    /// The channels that are listened to.
    heard: HashSet<RecordId>,
}

/// Why listening ended.
enum Over {
    /// The store is gone.
    Store,
    /// The connection is gone.
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
                    tracing::debug!(%error, "settlements elsewhere cannot be heard of; who waits looks again now and then");
                }
            }
            // What was said meanwhile is lost: everybody looks for themselves.
            self.watches.all_settled();
            if self.new.is_closed() {
                return;
            }
            sleep(delays.after_failure()).await;
            self.look().await;
        }
    }

    /// Has a server that came back looked at before anybody asks it for something: those who start have to know of a loss.
    async fn look(&self) {
        // A connection that broke is given up with the first answer that does not come, and made again with the next.
        for _ in 0..2 {
            if self.line.ask(&cmd("PING")).await.is_ok() {
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
                    // What was settled before it was listened for is found by looking once more.
                    self.watches.settled(id);
                }
                message = stream.next() => {
                    let Some(message) = message else { return Over::Connection };
                    if let Some(id) = record(&self.prefix, message.get_channel_name()) {
                        self.watches.settled(id);
                    }
                }
                _ = tidy.tick() => {
                    let (kept, left): (HashSet<_>, Vec<_>) = self.tidied();
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

    fn tidied(&self) -> (HashSet<RecordId>, Vec<RecordId>) {
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

fn record(prefix: &str, channel: &str) -> Option<RecordId> {
    let id = channel.strip_prefix(prefix)?;
    id.strip_prefix('{')?.strip_suffix('}')?.parse().ok()
}
