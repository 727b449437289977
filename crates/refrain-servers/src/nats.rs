//! A private NATS server with JetStream.

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

/// Signal for a graceful shutdown: the server writes its data.
const GENTLY: &str = "TERM";
const PATIENCE: Duration = Duration::from_millis(500);
const GREETING: &[u8] = b"INFO ";

/// A private NATS server with JetStream, with its own folder and port.
///
/// The server ends and its folder is removed on drop or when this process ends. The methods block, usually
/// for some milliseconds.
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
    /// If NATS is not installed or does not start; the message contains the end of its log.
    pub fn start() -> io::Result<Self> {
        Self::start_with(&[])
    }

    /// Starts a new server with these settings, as in `("max_payload", "1KB")`. `("jetstream", "disabled")`
    /// disables JetStream.
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
        let binaries = nats_binaries().ok_or_else(|| {
            io::Error::other(
                "NATS is not installed; run `cargo xtask test`, which installs it, or install the package `nats-server`",
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

    /// The server's address: `nats://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// The port that the server listens on; a restart keeps it.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The server's data folder.
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

    /// The configuration file; the settings of a test come last and override the defaults.
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

/// Whether the server sends its greeting, which it does once it accepts clients; JetStream is running by then.
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
