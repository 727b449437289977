//! An SQS of one's own: `moto`, which answers as Amazon's does, from memory.

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

/// A server that speaks SQS, on a port of its own. What it holds goes with it.
///
/// Ends when it is dropped or this process ends.
#[derive(Debug)]
pub struct PrivateSqs {
    _process: Process,
    port: u16,
}

impl PrivateSqs {
    /// Starts a new, empty server.
    ///
    /// # Errors
    /// When there is no `moto_server` on this machine, or it does not start; the end of its log is in the message.
    pub fn start() -> io::Result<Self> {
        on_free_port(Self::start_at)
    }

    fn start_at(port: u16) -> io::Result<Self> {
        let binaries = sqs_binaries().ok_or_else(|| {
            io::Error::other(
                "there is no moto_server on this machine; `cargo xtask test` brings one, \
                 or install it with `pip install 'moto[server]'`",
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

    /// Where it answers: `http://127.0.0.1:PORT`.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Its address for Refrain.
    #[must_use]
    pub fn url(&self) -> String {
        format!("sqs://key:secret@eu-central-1?endpoint={}", self.endpoint())
    }
}
