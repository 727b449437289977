//! Tells systemd the state of the process, if it asks for it; and takes the sockets that systemd has bound.

use std::{
    env,
    net::TcpListener,
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            ffi::OsStrExt as _,
            net::{SocketAddr, UnixDatagram},
        },
    },
    time::Duration,
};

use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

use super::Failure;

/// The first descriptor that systemd passes.
const FIRST_SOCKET: i32 = 3;

/// Sends messages to systemd, or to nobody if the process was not started by it.
#[derive(Debug, Default)]
pub(super) struct Notifier(Option<UnixDatagram>);

impl Notifier {
    /// Connects to the socket that `NOTIFY_SOCKET` names.
    pub(super) fn from_env() -> Self {
        let Some(name) = env::var_os("NOTIFY_SOCKET").filter(|it| !it.is_empty()) else {
            return Self(None);
        };
        let connect = || {
            let address = match name.as_bytes() {
                [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
                _ => SocketAddr::from_pathname(&name)?,
            };
            let socket = UnixDatagram::unbound()?;
            socket.connect_addr(&address)?;
            socket.set_nonblocking(true)?;
            Ok::<_, std::io::Error>(socket)
        };
        match connect() {
            Ok(socket) => Self(Some(socket)),
            Err(error) => {
                tracing::warn!(%error, "cannot connect to NOTIFY_SOCKET: systemd does not learn the state of the proxy");
                Self(None)
            }
        }
    }

    /// Sends a state, such as `READY=1`.
    pub(super) fn send(&self, state: &str) {
        if let Some(socket) = &self.0
            && let Err(error) = socket.send(state.as_bytes())
        {
            tracing::warn!(%error, state, "cannot notify systemd");
        }
    }

    /// Announces a reload, which [`ready`](Self::ready) ends.
    pub(super) fn reloading(&self) {
        if self.0.is_some() {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
            let micros = now.tv_sec * 1_000_000 + now.tv_nsec / 1_000;
            self.send(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
        }
    }

    pub(super) fn ready(&self) {
        self.send("READY=1");
    }

    /// Tells the watchdog of systemd that the process is alive, twice in each of its periods. Ends at once without one.
    pub(super) async fn keep_alive(&self) {
        let is_ours =
            env::var("WATCHDOG_PID").map_or(true, |pid| pid == std::process::id().to_string());
        let period = env::var("WATCHDOG_USEC")
            .ok()
            .and_then(|it| it.parse().ok());
        let (Some(period), true, true) = (period, is_ours, self.0.is_some()) else {
            return;
        };
        let mut ticks = tokio::time::interval(Duration::from_micros(period) / 2);
        loop {
            ticks.tick().await;
            self.send("WATCHDOG=1");
        }
    }
}

/// The sockets that systemd has bound for this process: for clients, and for operators.
///
/// They are named `listen` and `admin` by `FileDescriptorName=`; without these names, they are taken in this order.
pub(super) fn activated() -> Result<[Option<TcpListener>; 2], Failure> {
    let mut sockets = [None, None];
    let is_ours = env::var("LISTEN_PID").is_ok_and(|pid| pid == std::process::id().to_string());
    let count = env::var("LISTEN_FDS")
        .ok()
        .and_then(|it| it.parse::<i32>().ok());
    let Some(count) = count.filter(|_| is_ours) else {
        return Ok(sockets);
    };
    let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
    let names: Vec<_> = names.split(':').collect();
    for at in 0..count {
        let index = usize::try_from(at).unwrap_or_default();
        let place = match names.get(index).copied() {
            Some("listen") => 0,
            Some("admin") => 1,
            _ => index,
        };
        let Some(place) = sockets.get_mut(place) else {
            let message = format!(
                "refrain: systemd passes {count} sockets; pass one for clients and one for the admin listener"
            );
            return Err(Failure::Configuration(message));
        };
        *place = Some(socket(FIRST_SOCKET + at)?);
    }
    Ok(sockets)
}

/// A descriptor of this process by its number, without `unsafe`: as one that is taken from a process.
fn socket(number: i32) -> Result<TcpListener, Failure> {
    let take = || {
        let process = pidfd_open(getpid(), PidfdFlags::empty())?;
        pidfd_getfd(&process, number, PidfdGetfdFlags::empty())
    };
    let taken = take().map_err(|error| {
        Failure::Unavailable(format!(
            "the socket {number} of systemd cannot be used: {error}"
        ))
    });
    taken.map(TcpListener::from)
}
