//! Where a private server lives: a folder and a port of its own.

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

/// Below the ports that the kernel gives to clients: one of those may be taken while a server restarts,
/// even by the connection of a client to itself. So that ten thousand more is no such port, either: Redis Cluster takes that.
const PORTS: std::ops::Range<u16> = 10_240..22_000;
const PORT_TRIES_MAX: u64 = 1_000;
/// How many ports a process keeps reserved; the oldest have been taken by their servers long since.
const RESERVED_MAX: usize = 256;
const FOLDER_TRIES_MAX: u32 = 1_000;
/// Others may walk through.
const TRAVERSABLE: u32 = 0o001;

/// A port on the loopback address that nobody listens on, and that no client is given.
///
/// It stays reserved while this process lives: no other caller of this function, here or in another process, gets the same one.
/// A server may take seconds to listen on it.
///
/// # Errors
/// When no port is free.
pub fn free_port() -> io::Result<u16> {
    static PORTS_OF_THIS_PROCESS: Reserved = Reserved::new();
    PORTS_OF_THIS_PROCESS.port()
}

/// Ports that nobody else is given: the UDP port of the same number, which no server here uses, is the sign.
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
            "no port of {PORTS:?} is free on 127.0.0.1"
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

/// Whether the port can be listened on, and nobody does afterwards.
///
/// A process that another thread starts in the same moment has our listener until it runs its program:
/// whoever counts on nobody being there would find somebody.
fn is_free(port: u16) -> bool {
    let address = (Ipv4Addr::LOCALHOST, port);
    let was_free = TcpListener::bind(address).is_ok();
    was_free && TcpStream::connect(address).is_err()
}

/// A new folder. Whoever makes one sees to its end.
#[derive(Debug)]
pub(crate) struct Home(PathBuf);

impl Home {
    /// Makes a folder beneath `base`, or where temporary files go.
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
                Err(error) => return Err(within(&folder, &error)),
            }
        }
        let message = format!("{}: too many old folders; remove them", base.display());
        Err(io::Error::other(message))
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.0
    }
}

fn within(folder: &Path, error: &io::Error) -> io::Error {
    let message = format!("the folder {} cannot be made: {error}", folder.display());
    io::Error::new(error.kind(), message)
}

/// Where temporary files go, if other users can get there: PostgreSQL does not run as root.
fn temporary() -> io::Result<PathBuf> {
    let asked = env::temp_dir();
    let places = [asked.as_path(), Path::new("/tmp"), Path::new("/var/tmp")];
    let fitting = places
        .iter()
        .find(|place| place.is_dir() && (!is_root() || is_traversable(place)));
    let place = fitting.ok_or_else(|| {
        let message = format!(
            "{} is closed to other users; set TMPDIR to a folder that is not",
            asked.display()
        );
        io::Error::other(message)
    })?;
    place.canonicalize()
}

/// Whether every user can get into a folder.
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
    //! A test's address at which nobody listens was one where its own process listened,
    //! for as long as it took another thread to start a program.

    use std::{process::Command, sync::atomic::AtomicBool, thread};

    use super::*;

    #[test]
    fn nobody_listens_on_a_free_port_while_processes_are_started() {
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
        assert!(other.is_err(), "another process would get it as well");
    }
}
