//! A Redis of one's own.

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

/// Lets the server write its log out, and ends it.
const GENTLY: &str = "TERM";
const PATIENCE: Duration = Duration::from_millis(500);

/// What every private server has, so that it loses nothing that it acknowledged;
/// the settings of a test come behind these, and win.
const SETTINGS: [(&str, &str); 5] = [
    ("bind", "127.0.0.1"),
    ("save", ""),
    ("appendonly", "yes"),
    ("appendfsync", "always"),
    ("maxmemory-policy", "noeviction"),
];

/// A Redis in a folder and on a port of its own, with every write synced before it is acknowledged.
///
/// Ends, and its folder goes, when it is dropped or this process ends.
/// The calls here block, for a moment as a rule.
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
    /// When there is no Redis on this machine, or it does not start; the end of its log is in the message.
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

    /// Starts a new server with its folder beneath `base`.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_beneath(base: &Path, settings: &[(&str, &str)]) -> io::Result<Self> {
        on_free_port(|port| Self::start_at(port, Some(base), settings))
    }

    fn start_at(port: u16, base: Option<&Path>, settings: &[(&str, &str)]) -> io::Result<Self> {
        let binaries = redis_binaries().ok_or_else(|| {
            io::Error::other(
                "there is no Redis on this machine; `cargo xtask test` brings one, \
                 or install the package `redis-server`",
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

    /// Its address: `redis://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The port that it listens on, also after a restart.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The number of its process; `None` while it is down.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.process.pid()
    }

    /// The folder of its data.
    #[must_use]
    pub fn data_folder(&self) -> PathBuf {
        self.process.folder().to_owned()
    }

    /// The folder of the programs that it was started with.
    #[must_use]
    pub fn binaries(&self) -> &Path {
        &self.binaries
    }

    /// Removes all keys, as an operator does with `FLUSHALL`; connections stay.
    ///
    /// # Errors
    /// When the server cannot be reached, or does not confirm it.
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

/// Whether it answers, be it that a password is missing, and does not say that it is still reading its data.
fn answers(port: u16) -> bool {
    let ask = || -> io::Result<[u8; 8]> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"PING\r\n")?;
        // The shortest answer, `+PONG`, is cut at the connection's end.
        stream.write_all(b"QUIT\r\n")?;
        let mut answer = [0; 8];
        stream.read_exact(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer != *b"-LOADING")
}
