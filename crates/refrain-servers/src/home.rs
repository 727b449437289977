//! The folder and the port of a private server.

use std::{
    collections::VecDeque,
    env, fs,
    hash::{BuildHasher, RandomState},
    io,
    net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
};

/// Below the kernel's ephemeral ports: a client may get one of those while a server restarts, even a client
/// that connects to itself. The upper end also keeps port + 10,000, which Redis Cluster uses, below them.
const PORTS: std::ops::Range<u16> = 10_240..22_000;
const PORT_TRIES_MAX: u64 = 1_000;
/// How many ports a process keeps reserved; servers listen on the older ones already.
const RESERVED_MAX: usize = 256;
const FOLDER_TRIES_MAX: u32 = 1_000;
/// Permission bit: other users may enter the folder.
const TRAVERSABLE: u32 = 0o001;

/// Returns a TCP port on the loopback address that is free and not an ephemeral port.
///
/// The port stays reserved while this process runs, until it has reserved 256 more: no other caller, in
/// this or another process, gets the same one. So a server may take seconds to listen on it.
///
/// # Errors
/// If no port is free.
pub fn free_port() -> io::Result<u16> {
    static PORTS_OF_THIS_PROCESS: Reserved = Reserved::new();
    PORTS_OF_THIS_PROCESS.port()
}

/// Ports reserved by binding the UDP port of the same number, which no server here uses.
struct Reserved {
    signs: Mutex<VecDeque<UdpSocket>>,
}

impl Reserved {
    const fn new() -> Self {
        let signs = Mutex::new(VecDeque::new());
        Self { signs }
    }

    fn port(&self) -> io::Result<u16> {
        let random = RandomState::new();
        let width = u64::from(PORTS.end - PORTS.start);
        for try_number in 0..PORT_TRIES_MAX {
            let port = PORTS.start + (random.hash_one(try_number) % width) as u16;
            let Ok(sign) = UdpSocket::bind((Ipv4Addr::LOCALHOST, port)) else {
                continue;
            };
            if is_free(port) {
                self.keep(sign);
                return Ok(port);
            }
        }
        Err(io::Error::other(format!(
            "no free port in {PORTS:?} on 127.0.0.1"
        )))
    }

    fn keep(&self, sign: UdpSocket) {
        let mut signs = self.signs.lock().unwrap_or_else(PoisonError::into_inner);
        if signs.len() >= RESERVED_MAX {
            signs.pop_front();
        }
        signs.push_back(sign);
    }
}

/// Whether the port can be bound, and a connection is refused afterwards.
///
/// A child process that another thread starts at the same moment inherits our listener until it calls
/// `exec`, so the port would still accept connections.
fn is_free(port: u16) -> bool {
    let address = (Ipv4Addr::LOCALHOST, port);
    let was_free = TcpListener::bind(address).is_ok();
    was_free && TcpStream::connect(address).is_err()
}

/// A new folder. The creator removes it.
#[derive(Debug)]
pub(crate) struct Home(PathBuf);

impl Home {
    /// Creates a folder in `base`, or in the folder for temporary files.
    pub(crate) fn new(name: &str, base: Option<&Path>) -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let base = match base {
            Some(base) => base.canonicalize()?,
            None => temporary()?,
        };
        for _ in 0..FOLDER_TRIES_MAX {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let folder = base.join(format!("refrain-{name}-{}-{count}", process::id()));
            match fs::create_dir(&folder) {
                Ok(()) => return Ok(Self(folder)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(creation_error(&folder, &error)),
            }
        }
        let message = format!("{}: too many old test folders; delete them", base.display());
        Err(io::Error::other(message))
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.0
    }
}

fn creation_error(folder: &Path, error: &io::Error) -> io::Error {
    let message = format!("cannot create the folder {}: {error}", folder.display());
    io::Error::new(error.kind(), message)
}

/// The folder for temporary files, if other users can enter it: PostgreSQL does not run as root.
fn temporary() -> io::Result<PathBuf> {
    let asked = env::temp_dir();
    let places = [asked.as_path(), Path::new("/tmp"), Path::new("/var/tmp")];
    let fitting = places
        .iter()
        .find(|place| place.is_dir() && (!is_root() || is_traversable(place)));
    let place = fitting.ok_or_else(|| {
        let message = format!(
            "{} is not accessible to other users; set TMPDIR to a folder that is",
            asked.display()
        );
        io::Error::other(message)
    })?;
    place.canonicalize()
}

/// Whether every user can enter a folder.
pub(crate) fn is_traversable(folder: &Path) -> bool {
    let is_open = |folder: &Path| {
        let mode = fs::metadata(folder).map(|metadata| metadata.permissions().mode());
        mode.is_ok_and(|mode| mode & TRAVERSABLE != 0)
    };
    folder.ancestors().all(is_open)
}

/// Whether this process runs as root.
pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0)
}

#[cfg(test)]
mod tests {
    //! A port for a test that expects no listener must not accept connections, not even while another
    //! thread starts a program.

    use std::{process::Command, sync::atomic::AtomicBool, thread};

    use super::*;

    #[test]
    fn reserved_port_is_not_in_use_while_processes_start() {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        Command::new("true").status().unwrap();
                    }
                });
            }
            let is_open = |port: &u16| TcpStream::connect((Ipv4Addr::LOCALHOST, *port)).is_ok();
            let reserved = Reserved::new();
            let mut ports = (0..2_000).map(|_| reserved.port().unwrap());
            let found = ports.find(is_open);
            over.store(true, Ordering::Relaxed);
            assert_eq!(found, None);
        });
    }

    #[test]
    fn no_port_is_given_to_two_servers() {
        let reserved = Reserved::new();
        let mut ports: Vec<_> = (0..RESERVED_MAX)
            .map(|_| reserved.port().unwrap())
            .collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), RESERVED_MAX);
        let other = UdpSocket::bind((Ipv4Addr::LOCALHOST, ports[0]));
        assert!(other.is_err(), "another process could get the same port");
    }
}
