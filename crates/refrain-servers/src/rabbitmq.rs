//! A private RabbitMQ server.

use std::{
    env,
    ffi::OsString,
    fs::{self, Permissions},
    io::{self, Read, Write},
    net::{Ipv4Addr, TcpStream},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use crate::{
    binaries::{rabbitmq_binaries, unpacked_root, with_libraries},
    process::{Process, on_free_port},
};

/// Signal for a graceful shutdown: the server closes its queues and files.
const GENTLY: &str = "TERM";
/// Signal at cleanup: Erlang takes seconds to shut down, and the folder is not needed any more.
const AT_ONCE: &str = "KILL";
const PATIENCE: Duration = Duration::from_millis(500);
/// Protocol header of AMQP 0-9-1, which a client sends first.
const HELLO: &[u8] = b"AMQP\x00\x00\x09\x01";
/// First byte of the server's answer if it accepts the protocol version.
const METHOD_FRAME: u8 = 1;

/// Starts a private `epmd` (Erlang's node name service) with the server, so that no other `epmd` is used or started.
const START: &str = r#"epmd -port "$ERL_EPMD_PORT" -address 127.0.0.1 & exec "$0""#;
/// Writes declared queues to disk: the server's metadata, and the tables of its quorum queues.
const SYNC: &str = "mnesia:sync_log(), [ok = dets:sync(Table) || Table <- dets:all()], ok.";
/// One scheduler is enough for tests; the distribution port also listens on the loopback address only.
const ERLANG: &str = "-kernel inet_dist_use_interface {127,0,0,1} +S 1:1";

/// A private RabbitMQ server with its own folder and port.
///
/// The user `guest` with the password `guest` has all permissions in the virtual host `/`. The server ends
/// and its folder is removed on drop or when this process ends. The methods block; a start takes about five seconds.
#[derive(Debug)]
pub struct PrivateRabbit {
    process: Process,
    binaries: PathBuf,
    port: u16,
    /// Port of `epmd`.
    names_port: u16,
    /// Erlang distribution port, where other nodes would connect.
    nodes_port: u16,
    settings: Vec<(String, String)>,
}

lifecycle!(PrivateRabbit, stop_all);

impl PrivateRabbit {
    /// Starts a new, empty server.
    ///
    /// # Errors
    /// If RabbitMQ is not installed or does not start; the message contains the end of its log.
    pub fn start() -> io::Result<Self> {
        Self::start_with(&[])
    }

    /// Starts a new server with these settings of `rabbitmq.conf`, as in `("heartbeat", "2")`.
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
        let binaries = rabbitmq_binaries().ok_or_else(|| {
            io::Error::other(
                "RabbitMQ is not installed; run `cargo xtask test`, which installs it, or install the package `rabbitmq-server`",
            )
        })?;
        let mut server = Self {
            process: Process::new("rabbitmq", AT_ONCE, base)?,
            binaries,
            port,
            names_port: crate::free_port()?,
            nodes_port: crate::free_port()?,
            settings: Vec::new(),
        };
        server.set(settings);
        server.run()?;
        Ok(server)
    }

    /// The server's address: `amqp://guest:guest@127.0.0.1:PORT/%2f`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2f", self.port)
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

    /// Writes the declared queues to disk. The server does that late by itself, so a queue is lost if the server is
    /// killed right after its declaration.
    ///
    /// # Errors
    /// If the server does not answer.
    pub fn sync(&self) -> io::Result<()> {
        let control = self.binaries.join("rabbitmqctl");
        let mut command = self.with_environment(Command::new(control))?;
        let output = command.args(["--timeout", "60", "eval", SYNC]).output()?;
        match output.status.success() {
            true => Ok(()),
            false => Err(io::Error::other(format!(
                "rabbitmqctl: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            ))),
        }
    }

    fn run(&mut self) -> io::Result<()> {
        self.write_files()?;
        let port = self.port;
        // It listens there a moment after it listens on its own port.
        let over_tls = self.settings.iter();
        let over_tls = over_tls.filter(|(name, _)| name.starts_with("listeners.ssl."));
        let over_tls: Vec<_> = over_tls.map(|(_, address)| address.clone()).collect();
        let listens = |address: &String| TcpStream::connect(address).is_ok();
        let command = self.command()?;
        self.process
            .start(command, |_| answers(port) && over_tls.iter().all(listens))
    }

    fn write_files(&self) -> io::Result<()> {
        let folder = self.process.folder();
        let lines = self.settings.iter();
        let lines = lines.map(|(name, value)| format!("{name} = {value}\n"));
        fs::write(folder.join("rabbitmq.conf"), lines.collect::<String>())?;
        fs::write(folder.join("plugins"), "[].\n")?;
        fs::write(folder.join("environment"), "")
    }

    fn command(&self) -> io::Result<Command> {
        let mut command = Command::new("sh");
        command.args(["-c", START]);
        command.arg(self.binaries.join("rabbitmq-server"));
        self.with_environment(command)
    }

    fn with_environment(&self, mut command: Command) -> io::Result<Command> {
        command.env("PATH", self.path()?);
        for (name, port) in [
            ("ERL_EPMD_PORT", self.names_port),
            ("RABBITMQ_NODE_PORT", self.port),
            ("RABBITMQ_DIST_PORT", self.nodes_port),
        ] {
            command.env(name, port.to_string());
        }
        let folder = self.process.folder();
        for (name, file) in [
            ("HOME", "."),
            ("RABBITMQ_CONF_ENV_FILE", "environment"),
            ("RABBITMQ_CONFIG_FILE", "rabbitmq.conf"),
            ("RABBITMQ_ENABLED_PLUGINS_FILE", "plugins"),
            ("RABBITMQ_MNESIA_BASE", "mnesia"),
            ("RABBITMQ_LOG_BASE", "."),
            ("RABBITMQ_PID_FILE", "pid"),
        ] {
            command.env(name, folder.join(file));
        }
        command.envs([
            ("ERL_EPMD_ADDRESS", "127.0.0.1"),
            ("RABBITMQ_NODENAME", "refrain@localhost"),
            ("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1"),
            ("RABBITMQ_LOGS", "-"),
            ("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", ERLANG),
            // Makes the script `exec` the server, so that no shell stays in between.
            ("RUNNING_UNDER_SYSTEMD", "true"),
        ]);
        command.env_remove("NOTIFY_SOCKET");
        Ok(with_libraries(command, &self.binaries))
    }

    /// The `PATH` with `erl` and `epmd`.
    ///
    /// Debian's `erl` works only where it is installed, so an unpacked Erlang gets its own `erl` script.
    fn path(&self) -> io::Result<OsString> {
        let mut places = Vec::new();
        let unpacked = unpacked_root(&self.binaries).map(|root| root.join("usr/lib/erlang"));
        if let Some(erlang) = unpacked.filter(|erlang| erlang.is_dir()) {
            places.push(self.own_erl(&erlang)?);
        }
        let others = env::var_os("PATH").unwrap_or_default();
        places.extend(env::split_paths(&others));
        places.extend(["/usr/bin", "/bin"].map(PathBuf::from));
        env::join_paths(places).map_err(io::Error::other)
    }

    fn own_erl(&self, erlang: &Path) -> io::Result<PathBuf> {
        let runtime = runtime_of(erlang)?;
        let folder = self.process.folder().join("bin");
        fs::create_dir_all(&folder)?;
        let (root, runtime) = (erlang.display(), runtime.display());
        let exports = format!(
            "#!/bin/sh\nexport ROOTDIR='{root}' BINDIR='{runtime}' EMU=beam PROGNAME=erl\n"
        );
        for (name, program) in [("erl", "erlexec"), ("epmd", "epmd")] {
            let file = folder.join(name);
            fs::write(
                &file,
                format!("{exports}exec '{runtime}/{program}' \"$@\"\n"),
            )?;
            fs::set_permissions(&file, Permissions::from_mode(0o755))?;
        }
        Ok(folder)
    }
}

/// Example: `erts-13.1.5/bin`.
fn runtime_of(erlang: &Path) -> io::Result<PathBuf> {
    let entries = fs::read_dir(erlang)?.flatten().map(|entry| entry.path());
    let found = entries
        .map(|folder| folder.join("bin"))
        .find(|folder| folder.join("erlexec").is_file());
    found.ok_or_else(|| io::Error::other(format!("Erlang not found in {}", erlang.display())))
}

/// Whether the server accepts the AMQP protocol header.
fn answers(port: u16) -> bool {
    let ask = || -> io::Result<u8> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(HELLO)?;
        let mut answer = [0];
        stream.read_exact(&mut answer)?;
        Ok(answer[0])
    };
    ask().is_ok_and(|first| first == METHOD_FRAME)
}
