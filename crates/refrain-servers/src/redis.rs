//! A private Redis server.

use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use crate::{
    binaries::{redis_binaries, with_libraries},
    process::{Process, on_free_port},
};

/// Signal for a graceful shutdown: the server writes its append-only file.
const GENTLY: &str = "TERM";
const PATIENCE: Duration = Duration::from_millis(500);

/// Default settings, with which no acknowledged write is lost; the settings of a test come last and override them.
const SETTINGS: [(&str, &str); 5] = [
    ("bind", "127.0.0.1"),
    ("save", ""),
    ("appendonly", "yes"),
    ("appendfsync", "always"),
    ("maxmemory-policy", "noeviction"),
];

/// A private Redis server with its own folder and port, which syncs every write before it acknowledges it.
///
/// The server ends and its folder is removed on drop or when this process ends. The methods block, usually
/// for some milliseconds.
#[derive(Debug)]
pub struct PrivateRedis {
    process: Process,
    binaries: PathBuf,
    port: u16,
    settings: Vec<(String, String)>,
}

lifecycle!(PrivateRedis, stop);

impl PrivateRedis {
    /// Starts a new, empty server.
    ///
    /// # Errors
    /// If Redis is not installed or does not start; the message contains the end of its log.
    pub fn start() -> io::Result<Self> {
        Self::start_with(&[])
    }

    /// Starts a new server with these settings, as in `("replicaof", "127.0.0.1 6379")`.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with(settings: &[(&str, &str)]) -> io::Result<Self> {
        on_free_port(|port| Self::start_at(port, None, settings))
    }

    /// Starts a new server with its folder in `base`.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_beneath(base: &Path, settings: &[(&str, &str)]) -> io::Result<Self> {
        on_free_port(|port| Self::start_at(port, Some(base), settings))
    }

    fn start_at(port: u16, base: Option<&Path>, settings: &[(&str, &str)]) -> io::Result<Self> {
        let binaries = redis_binaries().ok_or_else(|| {
            io::Error::other(
                "Redis is not installed; run `cargo xtask test`, which installs it, or install the package `redis-server`",
            )
        })?;
        let mut server = Self {
            process: Process::new("redis", GENTLY, base)?,
            binaries,
            port,
            settings: Vec::new(),
        };
        server.set(settings);
        server.run()?;
        Ok(server)
    }

    /// The server's address: `redis://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The port that the server listens on; a restart keeps it.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The server's process id; `None` while it is down.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.process.pid()
    }

    /// The server's data folder.
    #[must_use]
    pub fn data_folder(&self) -> PathBuf {
        self.process.folder().to_owned()
    }

    /// The folder of the server's programs.
    #[must_use]
    pub fn binaries(&self) -> &Path {
        &self.binaries
    }

    /// Deletes all keys with `FLUSHALL`; connections stay open.
    ///
    /// # Errors
    /// If the server is unreachable or does not confirm.
    pub fn flush(&self) -> io::Result<()> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        stream.write_all(b"FLUSHALL\r\n")?;
        let mut answer = [0; 5];
        stream.read_exact(&mut answer)?;
        match &answer {
            b"+OK\r\n" => Ok(()),
            other => Err(io::Error::other(format!("FLUSHALL: {other:?}"))),
        }
    }

    fn run(&mut self) -> io::Result<()> {
        let mut command = Command::new(self.binaries.join("redis-server"));
        command.arg("--port").arg(self.port.to_string());
        command.arg("--dir").arg(self.process.folder());
        let own = self
            .settings
            .iter()
            .map(|(name, value)| (&**name, &**value));
        for (name, value) in SETTINGS.into_iter().chain(own) {
            command.arg(format!("--{name}"));
            match value {
                "" => command.arg(""),
                words => command.args(words.split_whitespace()),
            };
        }
        let port = self.port;
        let command = with_libraries(command, &self.binaries);
        self.process.start(command, |_| answers(port))
    }
}

/// Whether the server answers, possibly with an authentication error, and is not still loading its data.
fn answers(port: u16) -> bool {
    let ask = || -> io::Result<[u8; 8]> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"PING\r\n")?;
        // The answer to QUIT fills up the buffer: `+PONG` alone is shorter than 8 bytes.
        stream.write_all(b"QUIT\r\n")?;
        let mut answer = [0; 8];
        stream.read_exact(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer != *b"-LOADING")
}
