//! Replaces a running proxy without a dropped request: `refrain proxy --replace`.
//!
//! ```text
//! new process                                old process
//!   Replace  ------------------------------>
//!            <------------------------------ Sockets, and the sockets themselves
//!   prepares everything but the store        serves
//!   Ready    ------------------------------>
//!                                            accepts no more; closes the store, and its calls wait
//!            <------------------------------ Closed, and the leases in force
//!   opens the store with these leases
//!   Serving  ------------------------------>
//!   accepts and serves                       makes its calls through the new process, until its last request has ended
//! ```
//!
//! If the new process fails or ends before `Serving`, the old one opens the store again and serves.
//! If the old one ends, the new one has its sockets and opens the store; the claims of the old one lapse.

use std::{
    fs, io,
    net::{SocketAddr, TcpListener},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::fs::PermissionsExt as _,
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use refrain::{
    Engine, ErrorKind, Store as _,
    policy::Settings,
    store::{
        AnyStore,
        embedded::{
            Movable,
            wire::{self, HeldLease},
        },
    },
};
use refrain_proxy::{
    CurrentLayer, Phase,
    handover::{Channel, Message, RemoteStore, ServedStores, VERSION},
};
use tokio::{
    net::UnixListener,
    sync::watch,
    time::{sleep, timeout},
};

use super::{Failure, notify::Notifier};

/// Name of the control socket in the folder of an embedded store.
const CONTROL: &str = "control.sock";
/// Longest time for a message that is due at once.
const MESSAGE_MAX: Duration = Duration::from_secs(5);
/// Longest time for the new process to prepare, such as to connect to receipts.
const READY_MAX: Duration = Duration::from_secs(60);
/// Longest time for the calls in progress to end before the store is closed.
const CALLS_MAX: Duration = Duration::from_secs(10);
/// Longest time for the new process to open the store.
const OPEN_MAX: Duration = Duration::from_secs(120);
const RETRY_EVERY: Duration = Duration::from_millis(100);

/// The control socket: `--control`, or in the folder of an embedded store. Other stores have none by default.
pub(super) fn control_path(flag: Option<&Path>, settings: &Settings) -> Option<PathBuf> {
    let in_folder = || folder(settings).map(|folder| folder.join(CONTROL));
    flag.map(Path::to_owned).or_else(in_folder)
}

fn folder(settings: &Settings) -> Option<&Path> {
    let truth = settings.store.last()?;
    truth.as_str().strip_prefix("file:").map(Path::new)
}

/// The running process that this one replaces.
#[derive(Debug)]
pub(super) struct Predecessor {
    channel: Channel,
    listen: (SocketAddr, Option<OwnedFd>),
    admin: (SocketAddr, Option<OwnedFd>),
}

impl Predecessor {
    /// Asks the process at the control socket for its sockets; `None` if there is none.
    pub(super) async fn find(control: &Path, settings: &Settings) -> Result<Option<Self>, Failure> {
        let mut channel = match Channel::connect(control).await {
            Ok(channel) => channel,
            Err(error) if is_absent(&error) => return Ok(None),
            Err(error) => return Err(failed(control, &error.to_string())),
        };
        let folder = folder(settings).map(fs::canonicalize).transpose()?;
        let replace = Message::replace(folder);
        let asked = async {
            channel.send(&replace).await?;
            let reply = channel.receive().await?;
            let Message::Sockets { listen, admin, .. } = reply else {
                return Err(refusal(reply));
            };
            let [clients, operators] = channel.receive_sockets().await?;
            Ok((listen, admin, clients, operators))
        };
        let asked = timeout(MESSAGE_MAX, asked).await.map_err(io::Error::from);
        let (listen, admin, clients, operators) = asked
            .flatten()
            .map_err(|error| failed(control, &error.to_string()))?;
        Ok(Some(Self {
            channel,
            listen: (listen, Some(clients)),
            admin: (admin, Some(operators)),
        }))
    }

    /// The socket for clients, if the settings name its address.
    pub(super) fn listener(&mut self, wanted: SocketAddr) -> Option<TcpListener> {
        taken(&mut self.listen, wanted)
    }

    /// The socket of the admin listener, if the settings name its address.
    pub(super) fn admin(&mut self, wanted: SocketAddr) -> Option<TcpListener> {
        taken(&mut self.admin, wanted)
    }

    /// Has the old process close its store; returns the leases in force. From here on it accepts no connections, until
    /// this process [serves](Self::confirm), or ends.
    pub(super) async fn take_store(&mut self) -> Result<Vec<HeldLease>, Failure> {
        let pid = std::process::id();
        if self.channel.send(&Message::Ready { pid }).await.is_err() {
            // It has ended: its claims lapse.
            return Ok(Vec::new());
        }
        let reply = match self.channel.receive().await {
            Ok(reply) => reply,
            Err(_) => return Ok(Vec::new()),
        };
        if reply != Message::Closed {
            return Err(Failure::Unavailable(refusal(reply).to_string()));
        }
        let leases = match self.channel.receive_bytes().await {
            Ok(leases) => leases,
            Err(_) => return Ok(Vec::new()),
        };
        let malformed = || Failure::Unavailable("the old process sent malformed leases".into());
        wire::decode_leases(&leases).ok_or_else(malformed)
    }

    /// Tells the old process that this one serves, and answers its calls to the store from now on.
    pub(super) async fn confirm(
        mut self,
        served: &ServedStores,
        store: AnyStore,
    ) -> Result<(), Failure> {
        match self.channel.send(&Message::Serving).await {
            Ok(()) => served.serve(self.channel, store),
            // It has ended, or it gave up and will find this process at the control socket.
            Err(error) => tracing::info!(%error, "the old process has ended"),
        }
        Ok(())
    }
}

/// The socket of an address that the settings name. Port 0 stands for any port.
fn taken(
    (offered, socket): &mut (SocketAddr, Option<OwnedFd>),
    wanted: SocketAddr,
) -> Option<TcpListener> {
    let is_same = offered.ip() == wanted.ip() && [0, offered.port()].contains(&wanted.port());
    socket.take_if(|_| is_same).map(TcpListener::from)
}

fn is_absent(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, NotFound};
    matches!(error.kind(), ConnectionRefused | NotFound)
}

fn failed(control: &Path, why: &str) -> Failure {
    Failure::Unavailable(format!(
        "the running proxy at {} was not replaced: {why}; it continues to serve",
        control.display()
    ))
}

fn refusal(reply: Message) -> io::Error {
    io::Error::other(match reply {
        Message::Refused { why } => why,
        other => format!("unexpected message {other:?}"),
    })
}

/// The control socket of this process, at which another one can replace it.
#[derive(Debug)]
pub(super) struct ControlSocket {
    path: PathBuf,
    listener: UnixListener,
}

impl ControlSocket {
    /// Binds it under another name first, so that there is a socket at this path at any time.
    pub(super) fn bind(path: &Path) -> io::Result<Self> {
        let fresh = path.with_extension(format!("{}", std::process::id()));
        let _ = fs::remove_file(&fresh);
        let listener = UnixListener::bind(&fresh)?;
        fs::set_permissions(&fresh, fs::Permissions::from_mode(0o600))?;
        fs::rename(&fresh, path)?;
        Ok(Self {
            path: path.into(),
            listener,
        })
    }

    pub(super) fn remove(path: &Path) {
        let _ = fs::remove_file(path);
    }
}

/// The running proxy, as far as another process takes it over.
pub(super) struct Replaceable {
    pub(super) listen: (SocketAddr, TcpListener),
    pub(super) admin: (SocketAddr, OwnedFd),
    pub(super) phase: watch::Sender<Phase>,
    pub(super) layer: Arc<CurrentLayer>,
    pub(super) engine: Engine,
    /// The embedded store, if there is one.
    pub(super) movable: Option<Movable>,
    pub(super) served: ServedStores,
    pub(super) notifier: Arc<Notifier>,
}

impl Replaceable {
    /// Serves the control socket until another process has taken over, or the proxy stops: then no handle of its
    /// sockets may stay open, because connections would wait in them.
    pub(super) async fn serve(self, mut control: ControlSocket) {
        let mut phases = self.phase.subscribe();
        loop {
            let accepted = tokio::select! {
                accepted = control.listener.accept() => accepted,
                _ = phases.wait_for(|phase| *phase == Phase::Draining) => return,
            };
            let Ok((stream, _)) = accepted else {
                sleep(RETRY_EVERY).await;
                continue;
            };
            let mut channel = Channel::new(stream);
            let message = match timeout(MESSAGE_MAX, channel.receive()).await {
                Ok(Ok(message)) => message,
                _ => continue,
            };
            match message {
                Message::Call { calls } if calls == wire::VERSION => {
                    if channel.send(&Message::Serving).await.is_ok() {
                        self.served.serve(channel, self.engine.store().clone());
                    }
                }
                Message::Replace {
                    version,
                    calls,
                    folder,
                } => match self.refuses(version, calls, folder.as_deref()) {
                    Some(why) => refuse(&mut channel, why).await,
                    None => {
                        if self.hand_over(channel, &control.path).await {
                            return;
                        }
                        // The new process may have bound the path.
                        match ControlSocket::bind(&control.path) {
                            Ok(bound) => control = bound,
                            Err(error) => {
                                tracing::warn!(%error, "cannot bind the control socket again");
                            }
                        }
                    }
                },
                _ => {
                    refuse(
                        &mut channel,
                        "the versions of the two processes do not match".into(),
                    )
                    .await;
                }
            }
        }
    }

    fn refuses(&self, version: u32, calls: u32, folder: Option<&Path>) -> Option<String> {
        if (version, calls) != (VERSION, wire::VERSION) {
            let own = env!("CARGO_PKG_VERSION");
            return Some(format!(
                "the running proxy has version {own}, which cannot hand over to this one; stop it, and start this one"
            ));
        }
        let own = self
            .movable
            .as_ref()
            .map(|it| fs::canonicalize(it.folder()));
        match (own.transpose(), folder) {
            (Ok(own), folder) if own.as_deref() == folder => {}
            _ => return Some("the running proxy has another store".into()),
        }
        let guarantees = self.engine.store().guarantees();
        if self.movable.is_none() && !guarantees.shared {
            return Some("the records of the running proxy are in its memory, which no other process can use".into());
        }
        None
    }

    /// Enters a phase, unless the proxy stops.
    fn enter(&self, phase: Phase) {
        self.phase.send_if_modified(|now| {
            let is_stopping = *now == Phase::Draining;
            if !is_stopping {
                *now = phase;
            }
            !is_stopping
        });
    }

    /// Hands over; returns whether the other process serves now.
    async fn hand_over(&self, mut channel: Channel, control: &Path) -> bool {
        let pid = match self.offer(&mut channel).await {
            Ok(pid) => pid,
            Err(error) => {
                tracing::warn!(%error, "another process wanted to replace this one, and did not");
                return false;
            }
        };
        self.enter(Phase::Paused);
        match self.move_store(channel, control).await {
            Ok(()) => {
                self.notifier.send(&format!("MAINPID={pid}"));
                self.engine.stop_resuming();
                self.enter(Phase::Leaving);
                true
            }
            Err(why) => {
                tracing::warn!(%why, pid, "another process wanted to replace this one, and failed; this one serves again");
                self.enter(Phase::Serving);
                false
            }
        }
    }

    /// Passes the sockets, and waits until the other process is ready; returns its process ID.
    async fn offer(&self, channel: &mut Channel) -> io::Result<u32> {
        let sockets = Message::Sockets {
            pid: std::process::id(),
            listen: self.listen.0,
            admin: self.admin.0,
        };
        channel.send(&sockets).await?;
        let passed = [self.listen.1.as_fd(), self.admin.1.as_fd()];
        channel.send_sockets(passed).await?;
        match timeout(READY_MAX, channel.receive()).await?? {
            Message::Ready { pid } => Ok(pid),
            other => Err(refusal(other)),
        }
    }

    /// Moves the store to the other process; if that fails, it is open here again.
    async fn move_store(&self, mut channel: Channel, control: &Path) -> Result<(), String> {
        let Some(movable) = &self.movable else {
            return wait_for_successor(&mut channel, &[]).await;
        };
        let leases = match self.close_store(movable).await {
            Ok(leases) => leases,
            Err(why) => {
                movable.resume_claims();
                refuse(&mut channel, why.clone()).await;
                return Err(why);
            }
        };
        let remote = |channel| {
            let store = RemoteStore::new(
                channel,
                control.to_owned(),
                movable.secret(),
                movable.guarantees(),
            );
            AnyStore::new(store)
        };
        let Err(why) = wait_for_successor(&mut channel, &leases).await else {
            movable.attach(&remote(Some(channel)));
            return Ok(());
        };
        drop(channel);
        loop {
            match movable.reopen(leases.clone()).await {
                Ok(()) => return Err(why),
                Err(error) if error.kind() == ErrorKind::Held && answers(control).await => {
                    movable.attach(&remote(None));
                    return Ok(());
                }
                Err(error) => tracing::error!(%error, "cannot open the store again; retrying"),
            }
            sleep(RETRY_EVERY).await;
        }
    }

    /// Closes the store. Audited requests end first, because one process at a time writes the audit log.
    async fn close_store(&self, movable: &Movable) -> Result<Vec<HeldLease>, String> {
        if let Some(log) = self.engine.audit().filter(|log| log.entries() > 0) {
            movable.hold_claims();
            let layer = self.layer.get();
            let timeouts = layer.policy().operations().map(|it| it.terms.timeout);
            let longest = timeouts.max().unwrap_or_default() + CALLS_MAX;
            if timeout(longest, self.engine.settled()).await.is_err() {
                return Err("audited requests of the running proxy did not end in time".into());
            }
            log.release().await.map_err(|error| error.to_string())?;
        }
        let closed = movable.detach(CALLS_MAX).await;
        closed.map_err(|error| error.to_string())
    }
}

/// Gives the leases to the other process, and waits until it serves.
async fn wait_for_successor(channel: &mut Channel, leases: &[HeldLease]) -> Result<(), String> {
    let given = async {
        channel.send(&Message::Closed).await?;
        channel.send_bytes(&wire::encode_leases(leases)).await?;
        channel.receive().await
    };
    match timeout(OPEN_MAX, given).await {
        Ok(Ok(Message::Serving)) => Ok(()),
        Ok(Ok(other)) => Err(refusal(other).to_string()),
        Ok(Err(error)) => Err(format!("it ended before it served: {error}")),
        Err(_) => Err("it did not serve in time".into()),
    }
}

/// Whether a process at the control socket answers calls to the store.
async fn answers(control: &Path) -> bool {
    let asked = async {
        let mut channel = Channel::connect(control).await?;
        let calls = wire::VERSION;
        channel.send(&Message::Call { calls }).await?;
        channel.receive().await
    };
    matches!(timeout(RETRY_EVERY, asked).await, Ok(Ok(Message::Serving)))
}

async fn refuse(channel: &mut Channel, why: String) {
    // The other process may be gone.
    let _ = channel.send(&Message::Refused { why }).await;
}
