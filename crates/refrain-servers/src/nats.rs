//! A NATS with JetStream of one's own.

use std::{
    fmt::Write as _,
    fs,
    io::{self, Read},
    net::{Ipv4Addr, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use crate::{
    binaries::{nats_binaries, with_libraries},
    process::{Process, on_free_port},
};

/// Lets the server write what it holds, and ends it.
const GENTLY: &str = "TERM";
const PATIENCE: Duration = Duration::from_millis(500);
const GREETING: &[u8] = b"INFO ";

/// A NATS with JetStream in a folder and on a port of its own.
///
/// Ends, and its folder goes, when it is dropped or this process ends.
/// The calls here block, for a moment as a rule.
#[derive(Debug)]
pub struct PrivateNats {
    process: Process,
    binaries: PathBuf,
    port: u16,
    settings: Vec<(String, String)>,
}

lifecycle!(PrivateNats, stop);

impl PrivateNats {
    /// Starts a new, empty server.
    ///
    /// # Errors
    /// When there is no NATS on this machine, or it does not start; the end of its log is in the message.
    pub fn start() -> io::Result<Self> {
        Self::start_with(&[])
    }

    /// Starts a new server with these settings, as in `("max_payload", "1KB")`.
    /// One of `("jetstream", "disabled")` leaves JetStream out.
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
        let binaries = nats_binaries().ok_or_else(|| {
            io::Error::other(
                "there is no NATS on this machine; `cargo xtask test` brings one, \
                 or install the package `nats-server`",
            )
        })?;
        let mut server = Self {
            process: Process::new("nats", GENTLY, base)?,
            binaries,
            port,
            settings: Vec::new(),
        };
        server.set(settings);
        server.run()?;
        Ok(server)
    }

    /// Its address: `nats://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// The port that it listens on, also after a restart.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The folder of its data.
    #[must_use]
    pub fn data_folder(&self) -> PathBuf {
        self.process.folder().to_owned()
    }

    fn run(&mut self) -> io::Result<()> {
        let file = self.process.folder().join("nats.conf");
        fs::write(&file, self.settings_file())?;
        let mut command = Command::new(self.binaries.join("nats-server"));
        command.arg("--config").arg(file);
        let port = self.port;
        let command = with_libraries(command, &self.binaries);
        self.process.start(command, |_| greets(port))
    }

    /// The settings of a test come behind those that every server has, and win.
    fn settings_file(&self) -> String {
        let folder = self.process.folder().join("jetstream");
        let mut text = format!(
            "host: 127.0.0.1\nport: {}\njetstream: {{ store_dir: {:?} }}\n",
            self.port,
            folder.display().to_string()
        );
        for (name, value) in &self.settings {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{name}: {value}");
        }
        text
    }
}

/// The server speaks first, once it takes clients; JetStream is up by then.
fn greets(port: u16) -> bool {
    let read = || -> io::Result<[u8; GREETING.len()]> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut greeting = [0; GREETING.len()];
        stream.read_exact(&mut greeting)?;
        Ok(greeting)
    };
    read().is_ok_and(|greeting| greeting == GREETING)
}
