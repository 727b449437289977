//! A private PostgreSQL server.

use std::{
    fs, io,
    os::unix::fs::chown,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    binaries::{postgres_binaries, with_libraries},
    home::{is_root, is_traversable},
    process::{Process, on_free_port},
};

const USER: &str = "refrain";
/// Signal for an immediate shutdown that still releases shared memory.
const AT_ONCE: &str = "QUIT";
/// Signal for a fast shutdown: the server writes its data and disconnects its clients.
const GENTLY: &str = "INT";
/// Users to run the server as if we are root, which PostgreSQL refuses: the package's user, or one that always exists.
const SYSTEM_USERS: [&str; 2] = ["postgres", "nobody"];

/// Default settings; the settings of a test come last and override them.
const SETTINGS: [(&str, &str); 4] = [
    ("listen_addresses", "127.0.0.1"),
    ("unix_socket_directories", ""),
    ("max_connections", "200"),
    // Shared memory in the folder, so that it is removed with the folder.
    ("dynamic_shared_memory_type", "mmap"),
];

/// A private PostgreSQL server with its own folder and port, and with `fsync` on.
///
/// The user `refrain` is superuser without a password; the database is also named `refrain`. The server
/// ends and its folder is removed on drop or when this process ends. The methods block, usually for at most a second.
#[derive(Debug)]
pub struct PrivatePostgres {
    process: Process,
    binaries: PathBuf,
    port: u16,
    settings: Vec<(String, String)>,
}

lifecycle!(PrivatePostgres, stop);

impl PrivatePostgres {
    /// Starts a new, empty server.
    ///
    /// # Errors
    /// If PostgreSQL is not installed or does not start; the message contains the end of its log.
    pub fn start() -> io::Result<Self> {
        Self::start_with(&[])
    }

    /// Starts a new server with these settings, as in `("lock_timeout", "2s")`.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with(settings: &[(&str, &str)]) -> io::Result<Self> {
        on_free_port(|port| Self::start_at(port, None, settings))
    }

    /// Starts a new server with its folder in `base`, which other users must be able to enter if we are root.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_beneath(base: &Path, settings: &[(&str, &str)]) -> io::Result<Self> {
        if is_root() && !is_traversable(base) {
            let message = format!(
                "{} is not accessible to other users, and PostgreSQL does not run as root; use another folder",
                base.display()
            );
            return Err(io::Error::other(message));
        }
        on_free_port(|port| Self::start_at(port, Some(base), settings))
    }

    fn start_at(port: u16, base: Option<&Path>, settings: &[(&str, &str)]) -> io::Result<Self> {
        let binaries = postgres_binaries().ok_or_else(|| {
            io::Error::other(
                "PostgreSQL is not installed; run `cargo xtask test`, which installs it, or install the package `postgresql`",
            )
        })?;
        let mut server = Self {
            process: Process::new("postgres", AT_ONCE, base)?,
            binaries,
            port,
            settings: Vec::new(),
        };
        server.set(settings);
        server.create()?;
        server.run()?;
        Ok(server)
    }

    /// The server's address: `postgres://refrain@127.0.0.1:PORT/refrain`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://{USER}@127.0.0.1:{}/{USER}", self.port)
    }

    /// The port that the server listens on; a restart keeps it.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The server's data folder, with `pg_hba.conf` and `postgresql.conf`.
    #[must_use]
    pub fn data_folder(&self) -> PathBuf {
        self.process.folder().join("data")
    }

    /// The folder of the server's programs.
    #[must_use]
    pub fn binaries(&self) -> &Path {
        &self.binaries
    }

    /// Creates the data folder and the database.
    fn create(&self) -> io::Result<()> {
        if let Some((user, group)) = system_user()? {
            chown(self.process.folder(), Some(user), Some(group))?;
        }
        let mut command = self.program("initdb")?;
        command.arg("-D").arg(self.data_folder());
        // No sync: after a power cut during initdb the test fails anyway.
        command.args(["-U", USER, "-A", "trust", "-E", "UTF8", "--no-sync"]);
        command.args(["--locale=C.UTF-8", "--no-instructions"]);
        self.process.run(command)?;
        self.make_database()
    }

    fn make_database(&self) -> io::Result<()> {
        let statement = self.process.folder().join("database.sql");
        fs::write(&statement, format!("CREATE DATABASE {USER}\n"))?;
        let mut command = self.program("postgres")?;
        command.args(["--single", "-F", "-D"]);
        command.arg(self.data_folder()).arg("postgres");
        self.process.run_with_input(command, &statement)
    }

    fn run(&mut self) -> io::Result<()> {
        let mut command = self.program("postgres")?;
        command.arg("-D").arg(self.data_folder());
        command.args(["-p", &self.port.to_string()]);
        let own = self
            .settings
            .iter()
            .map(|(name, value)| (&**name, &**value));
        for (name, value) in SETTINGS.into_iter().chain(own) {
            command.args(["-c", &format!("{name}={value}")]);
        }
        let file = self.data_folder().join("postmaster.pid");
        self.process
            .start(command, |process| says_ready(&file, process))
    }

    /// A command for one of PostgreSQL's programs, as an unprivileged user.
    fn program(&self, name: &str) -> io::Result<Command> {
        unprivileged(&self.binaries, name)
    }
}

/// A command for a program that refuses to run as root; runs it as another user if we are root.
pub(crate) fn unprivileged(binaries: &Path, name: &str) -> io::Result<Command> {
    let program = binaries.join(name);
    let command = match system_user()? {
        None => Command::new(program),
        Some((user, group)) => {
            let mut command = Command::new("setpriv");
            command.arg(format!("--reuid={user}"));
            command.arg(format!("--regid={group}"));
            command.args(["--clear-groups", "--"]).arg(program);
            command
        }
    };
    Ok(with_libraries(command, binaries))
}

/// The first line of the PID file is the server's process id, the eighth its state.
fn says_ready(file: &Path, process: u32) -> bool {
    let text = fs::read_to_string(file).unwrap_or_default();
    let mut lines = text.lines().map(str::trim);
    lines.next() == Some(&process.to_string()) && lines.nth(6) == Some("ready")
}

/// User id and group id to run the server as; `None` if we are not root.
fn system_user() -> io::Result<Option<(u32, u32)>> {
    if !is_root() {
        return Ok(None);
    }
    let users = fs::read_to_string("/etc/passwd")?;
    let found = SYSTEM_USERS.iter().find_map(|name| find_user(&users, name));
    let missing = || {
        io::Error::other(
            "PostgreSQL does not run as root, and this machine has no unprivileged user",
        )
    };
    found.map(Some).ok_or_else(missing)
}

/// Example line: `postgres:x:106:112:PostgreSQL administrator,,,:/var/lib/postgresql:/bin/bash`.
fn find_user(users: &str, name: &str) -> Option<(u32, u32)> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        fields.next().filter(|found| *found == name)?;
        let user = fields.nth(1)?.parse().ok()?;
        let group = fields.next()?.parse().ok()?;
        Some((user, group))
    })
}
