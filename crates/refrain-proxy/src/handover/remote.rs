//! The store of a process that was replaced: its calls go to the process that holds the store now.
//!
//! If the connection breaks, the next call connects to the control socket again: a process that was started there
//! meanwhile still accepts the late settlement of a claim.

use std::{
    collections::HashMap,
    fmt, io,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use refrain::{
    Error, ErrorKind, Fence, RecordId, Result, Store,
    key::Secret,
    record::{Claim, Erased, ScopeDigest, Settled, Settlement, Verdict},
    store::{
        Census, Guarantees, Page, Query, Reading, ScopeKeyPage, Watch,
        embedded::wire::{self, Call, CallReply},
    },
};
use tokio::{
    net::unix::{OwnedReadHalf, OwnedWriteHalf},
    sync::oneshot,
    time::timeout,
};

use super::channel::{Channel, Message, read_frame, write_frame};

/// Longest time to connect again.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Calls that wait for a reply.
const CALLS_MAX: usize = 65_536;

/// A store that another process holds.
pub struct RemoteStore {
    control: PathBuf,
    secret: Secret,
    guarantees: Guarantees,
    /// `None` while there is no connection.
    link: tokio::sync::Mutex<Option<Link>>,
    next: AtomicU64,
}

/// A connection over which calls are made.
struct Link {
    writer: OwnedWriteHalf,
    waiting: Arc<Waiting>,
}

/// The calls without a reply; `None` once the connection is broken.
#[derive(Debug)]
struct Waiting(Mutex<Option<HashMap<u64, oneshot::Sender<Bytes>>>>);

impl RemoteStore {
    /// Makes calls over this channel, and over the control socket once it is broken.
    #[must_use]
    pub fn new(
        channel: Option<Channel>,
        control: PathBuf,
        secret: &Secret,
        guarantees: Guarantees,
    ) -> Self {
        Self {
            control,
            secret: secret.clone(),
            guarantees,
            link: tokio::sync::Mutex::new(channel.map(Link::new)),
            next: AtomicU64::new(0),
        }
    }

    async fn call(&self, id: RecordId, call: &Call) -> Result<CallReply> {
        let reply = self.send(call.encode()).await?;
        let reply = reply.await.map_err(|_| {
            let message = "the process that holds the store ended before it replied";
            Error::new(ErrorKind::Unavailable, message)
        })?;
        wire::decode_reply(&reply, id)
    }

    async fn send(&self, call: Vec<u8>) -> Result<oneshot::Receiver<Bytes>> {
        let mut link = self.link.lock().await;
        if link.as_ref().is_none_or(Link::is_broken) {
            *link = None;
            let connected = timeout(CONNECT_MAX, self.connect()).await;
            let connected = connected.map_err(io::Error::from).flatten();
            *link = Some(connected.map_err(|error| unreachable(error).unapplied())?);
        }
        let Some(current) = &mut *link else {
            return Err(unreachable(io::ErrorKind::NotConnected.into()));
        };
        let number = self.next.fetch_add(1, Relaxed);
        let reply = current.waiting.add(number)?;
        let frame = [&number.to_le_bytes()[..], &call].concat();
        // A part of a frame may have been sent: nothing else may follow it.
        let mut sent = Sent {
            waiting: &current.waiting,
            is_whole: false,
        };
        write_frame(&mut current.writer, &frame)
            .await
            .map_err(unreachable)?;
        sent.is_whole = true;
        Ok(reply)
    }

    async fn scope_key_by(&self, call: &Call) -> Result<Option<Bytes>> {
        match self.call(wire::NO_RECORD, call).await? {
            CallReply::ScopeKey(key) => Ok(key),
            _ => Err(unexpected()),
        }
    }

    async fn connect(&self) -> io::Result<Link> {
        let mut channel = Channel::connect(&self.control).await?;
        let calls = wire::VERSION;
        channel.send(&Message::Call { calls }).await?;
        match channel.receive().await? {
            Message::Serving => Ok(Link::new(channel)),
            other => Err(io::Error::other(format!("{other:?}"))),
        }
    }
}

/// A frame that is being sent. Breaks the connection if it is dropped before the whole frame was sent.
struct Sent<'a> {
    waiting: &'a Waiting,
    is_whole: bool,
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        if !self.is_whole {
            self.waiting.break_off();
        }
    }
}

impl Link {
    fn new(channel: Channel) -> Self {
        let (reader, writer) = channel.split();
        let waiting = Arc::new(Waiting(Mutex::new(Some(HashMap::new()))));
        tokio::spawn(receive(reader, waiting.clone()));
        Self { writer, waiting }
    }

    fn is_broken(&self) -> bool {
        self.waiting.lock().is_none()
    }
}

async fn receive(mut reader: OwnedReadHalf, waiting: Arc<Waiting>) {
    while let Ok(frame) = read_frame(&mut reader).await {
        let Some((number, reply)) = frame.split_first_chunk::<8>() else {
            break;
        };
        let caller = waiting.take(u64::from_le_bytes(*number));
        if let Some(caller) = caller {
            // The caller may have given up.
            let _ = caller.send(frame.slice_ref(reply));
        }
    }
    waiting.break_off();
}

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, Option<HashMap<u64, oneshot::Sender<Bytes>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, number: u64) -> Result<oneshot::Receiver<Bytes>> {
        let (caller, reply) = oneshot::channel();
        match &mut *self.lock() {
            None => Err(unreachable(io::ErrorKind::BrokenPipe.into()).unapplied()),
            Some(waiting) if waiting.len() >= CALLS_MAX => {
                let message =
                    format!("{CALLS_MAX} calls wait for the process that holds the store");
                Err(Error::new(ErrorKind::Unavailable, message).unapplied())
            }
            Some(waiting) => {
                waiting.insert(number, caller);
                Ok(reply)
            }
        }
    }

    fn take(&self, number: u64) -> Option<oneshot::Sender<Bytes>> {
        self.lock().as_mut()?.remove(&number)
    }

    fn break_off(&self) {
        *self.lock() = None;
    }
}

fn unreachable(error: io::Error) -> Error {
    let message = "the process that holds the store cannot be reached";
    Error::new(ErrorKind::Unavailable, message).with_source(error)
}

fn unexpected() -> Error {
    let message = "the process that holds the store replied to another call";
    Error::new(ErrorKind::Corrupt, message)
}

fn elsewhere() -> Error {
    let message = "another process has taken over the store; ask that process";
    Error::new(ErrorKind::Unavailable, message).unapplied()
}

impl Store for RemoteStore {
    async fn claim(&self, claim: Claim) -> Result<Verdict> {
        let id = claim.id;
        match self.call(id, &Call::Claim(claim)).await? {
            CallReply::Verdict(verdict) => Ok(verdict),
            _ => Err(unexpected()),
        }
    }

    async fn settle(&self, id: RecordId, fence: Fence, end: Settlement) -> Result<Settled> {
        match self.call(id, &Call::Settle(id, fence, end)).await? {
            CallReply::Settled(settled) => Ok(settled),
            _ => Err(unexpected()),
        }
    }

    async fn renew(&self, id: RecordId, fence: Fence, lease: Duration) -> Result<Settled> {
        match self.call(id, &Call::Renew(id, fence, lease)).await? {
            CallReply::Settled(settled) => Ok(settled),
            _ => Err(unexpected()),
        }
    }

    async fn read(&self, id: RecordId) -> Result<Option<Reading>> {
        match self.call(id, &Call::Read(id)).await? {
            CallReply::Reading(reading) => Ok(reading),
            _ => Err(unexpected()),
        }
    }

    async fn list(&self, _: &Query) -> Result<Page> {
        Err(elsewhere())
    }

    async fn erase(&self, _: RecordId) -> Result<Erased> {
        Err(elsewhere())
    }

    async fn census(&self) -> Result<Census> {
        Err(elsewhere())
    }

    async fn sweep(&self, _: u32) -> Result<u32> {
        Ok(0)
    }

    async fn scope_key(&self, scope: ScopeDigest) -> Result<Option<Bytes>> {
        self.scope_key_by(&Call::ScopeKey(scope)).await
    }

    async fn replace_scope_key(
        &self,
        scope: ScopeDigest,
        expected: Option<Bytes>,
        key: Bytes,
    ) -> Result<Option<Bytes>> {
        self.scope_key_by(&Call::ReplaceScopeKey(scope, expected, key))
            .await
    }

    async fn scope_keys(&self, cursor: Option<u64>) -> Result<ScopeKeyPage> {
        match self.call(wire::NO_RECORD, &Call::ScopeKeys(cursor)).await? {
            CallReply::ScopeKeys(page) => Ok(page),
            _ => Err(unexpected()),
        }
    }

    fn guarantees(&self) -> Guarantees {
        self.guarantees
    }

    fn watch(&self, _: RecordId) -> Option<Watch> {
        None
    }

    fn secret(&self) -> &Secret {
        &self.secret
    }
}

impl fmt::Debug for RemoteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RemoteStore").field(&self.control).finish()
    }
}
