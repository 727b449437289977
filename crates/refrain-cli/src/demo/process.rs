//! The service in a process of its own, so that it can be killed as a machine would be.

use std::{
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, ensure};

use super::ledger::Ledger;

/// A running service. Dropped, it is killed with -9.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    address: SocketAddr,
}

impl Process {
    /// Starts the service, and waits until it can be reached.
    pub(super) async fn start(ledger: &Ledger, guarded_in: Option<&Path>) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["demo-shop", "--ledger"])
            .arg(ledger.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if let Some(folder) = guarded_in {
            command.arg("--guarded-in").arg(folder);
        }
        tokio::task::spawn_blocking(move || Self::spawn(command)).await?
    }

    fn spawn(mut command: Command) -> anyhow::Result<Self> {
        let child = command
            .spawn()
            .context("the demo's service cannot be started")?;
        // From here on it is ended with this, whatever happens.
        let mut process = Self {
            child,
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
        };
        let mut line = String::new();
        if let Some(stdout) = process.child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        ensure!(!line.is_empty(), "the demo's service ended at once");
        process.address = line.trim_end().parse()?;
        Ok(process)
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
