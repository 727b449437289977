//! A private SQS server: `moto`, which emulates Amazon SQS in memory.

use std::{
    io,
    net::{Ipv4Addr, TcpStream},
    process::Command,
};

use crate::{
    binaries::sqs_binaries,
    process::{Process, on_free_port},
};

const AT_ONCE: &str = "KILL";

/// A private SQS server on its own port. It keeps messages in memory only.
///
/// The server ends on drop or when this process ends.
#[derive(Debug)]
pub struct PrivateSqs {
    _process: Process,
    port: u16,
}

impl PrivateSqs {
    /// Starts a new, empty server.
    ///
    /// # Errors
    /// If `moto_server` is not installed or does not start; the message contains the end of its log.
    pub fn start() -> io::Result<Self> {
        on_free_port(Self::start_at)
    }

    fn start_at(port: u16) -> io::Result<Self> {
        let binaries = sqs_binaries().ok_or_else(|| {
            io::Error::other(
                "moto_server is not installed; run `cargo xtask test`, which installs it, or run `pip install 'moto[server]'`",
            )
        })?;
        let mut process = Process::new("sqs", AT_ONCE, None)?;
        let mut command = Command::new(binaries.join("moto_server"));
        command.args(["-H", "127.0.0.1", "-p", &port.to_string()]);
        process.start(command, |_| {
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
        })?;
        Ok(Self {
            _process: process,
            port,
        })
    }

    /// The HTTP endpoint: `http://127.0.0.1:PORT`.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The server's address for Refrain.
    #[must_use]
    pub fn url(&self) -> String {
        format!("sqs://key:secret@eu-central-1?endpoint={}", self.endpoint())
    }
}
