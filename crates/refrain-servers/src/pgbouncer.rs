//! A private PgBouncer in front of a PostgreSQL server.

use std::{
    fs, io,
    net::{Ipv4Addr, TcpStream},
    path::PathBuf,
};

use crate::{
    binaries::pgbouncer_binaries,
    postgres::unprivileged,
    process::{Process, on_free_port},
};

/// Signal for an immediate shutdown.
const AT_ONCE: &str = "TERM";
/// Signal for a graceful shutdown: running transactions finish first.
const GENTLY: &str = "INT";
/// The user that PgBouncer accepts; PostgreSQL decides about privileges.
const USER: &str = "refrain";

/// Default settings; the settings of a test come last and override them.
const SETTINGS: [(&str, &str); 5] = [
    ("listen_addr", "127.0.0.1"),
    ("unix_socket_dir", ""),
    ("auth_type", "trust"),
    ("auth_file", "users.txt"),
    ("max_client_conn", "200"),
];

/// When PgBouncer returns a server connection to the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolMode {
    /// When the client disconnects.
    Session,
    /// After each transaction.
    Transaction,
    /// After each statement.
    Statement,
}

impl PoolMode {
    fn name(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Transaction => "transaction",
            Self::Statement => "statement",
        }
    }
}

/// A private PgBouncer on its own port. It ends on drop or when this process ends.
#[derive(Debug)]
pub struct PrivatePgBouncer {
    process: Process,
    binaries: PathBuf,
    port: u16,
    /// The port of PostgreSQL on the loopback address.
    server: u16,
    mode: PoolMode,
    settings: Vec<(String, String)>,
}

lifecycle!(PrivatePgBouncer, stop);

impl PrivatePgBouncer {
    /// Starts PgBouncer in front of the PostgreSQL server on this port of the loopback address.
    ///
    /// # Errors
    /// If PgBouncer is not installed or does not start; the message contains the end of its log.
    pub fn start(server: u16, mode: PoolMode) -> io::Result<Self> {
        Self::start_with(server, mode, &[])
    }

    /// Starts PgBouncer with these settings, as in `("default_pool_size", "2")`.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with(server: u16, mode: PoolMode, settings: &[(&str, &str)]) -> io::Result<Self> {
        on_free_port(|port| {
            let binaries = pgbouncer_binaries().ok_or_else(|| {
                io::Error::other(
                    "PgBouncer is not installed; run `cargo xtask test`, which installs it, or install the package `pgbouncer`",
                )
            })?;
            let mut pooler = Self {
                process: Process::new("pgbouncer", AT_ONCE, None)?,
                binaries,
                port,
                server,
                mode,
                settings: Vec::new(),
            };
            pooler.set(settings);
            pooler.run()?;
            Ok(pooler)
        })
    }

    /// PgBouncer's address: `postgres://refrain@127.0.0.1:PORT/refrain`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://{USER}@127.0.0.1:{}/{USER}", self.port)
    }

    /// The port that PgBouncer listens on.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    fn run(&mut self) -> io::Result<()> {
        let folder = self.process.folder();
        fs::write(folder.join("users.txt"), format!("\"{USER}\" \"\"\n"))?;
        fs::write(folder.join("pgbouncer.ini"), self.configuration())?;
        let mut command = unprivileged(&self.binaries, "pgbouncer")?;
        command.arg("pgbouncer.ini");
        let port = self.port;
        self.process.start(command, |_| {
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
        })
    }

    fn configuration(&self) -> String {
        let Self {
            port, server, mode, ..
        } = self;
        let mut text = format!(
            "[databases]\n* = host=127.0.0.1 port={server}\n[pgbouncer]\nlisten_port = {port}\npool_mode = {}\n",
            mode.name()
        );
        let own = self
            .settings
            .iter()
            .map(|(name, value)| (&**name, &**value));
        for (name, value) in SETTINGS.into_iter().chain(own) {
            text += &format!("{name} = {value}\n");
        }
        text
    }
}
