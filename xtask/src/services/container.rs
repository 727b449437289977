//! Runs a service in a Docker container.

use std::{
    ffi::OsStr,
    io,
    process::{Child, Command, Output, Stdio},
    thread,
    time::Duration,
};

use refrain_servers::Guard;

use super::Held;

const PAUSE: Duration = Duration::from_millis(50);
/// Two seconds: a Docker daemon that does not answer in time counts as unavailable.
const INFO_PAUSES_MAX: u32 = 40;
/// One minute, after the image was pulled.
const READY_PAUSES_MAX: u32 = 1_200;
/// Removes the container by its unique name.
const REMOVE: &str = "docker rm --force --volumes \"$1\"";

/// Image, ports and commands of a container.
pub(super) struct Container {
    pub(super) image: &'static str,
    /// The port inside the container.
    pub(super) port: u16,
    /// Options of `docker run`.
    pub(super) options: &'static [&'static str],
    pub(super) command: &'static [&'static str],
    /// A command in the container that succeeds once the server accepts clients.
    pub(super) is_ready: &'static [&'static str],
    /// Builds the address from the published port.
    pub(super) url: fn(u16) -> String,
}

impl Container {
    /// Starts a container and waits until the server is ready.
    pub(super) fn start(&self, name: &str) -> io::Result<Held> {
        let name = format!("refrain-test-{name}-{}", std::process::id());
        let guard = Guard::new(REMOVE, &[OsStr::new(&name)])?;
        let publish = format!("127.0.0.1::{}", self.port);
        let mut run = docker(&["run", "--detach", "--name", &name, "--publish", &publish]);
        run.args(self.options).arg(self.image).args(self.command);
        succeed(run)?;
        self.wait(&name)?;
        let port = succeed(docker(&["port", &name, &self.port.to_string()]))?;
        Ok(Held {
            url: (self.url)(published(&port)?),
            _server: Box::new(guard),
        })
    }

    fn wait(&self, name: &str) -> io::Result<()> {
        for _ in 0..READY_PAUSES_MAX {
            let mut ask = docker(&["exec", name]);
            if ask.args(self.is_ready).output()?.status.success() {
                return Ok(());
            }
            thread::sleep(PAUSE);
        }
        let message = format!("the container of {} was not ready in time", self.image);
        Err(io::Error::other(message))
    }
}

/// Whether Docker answers within two seconds.
pub(super) fn has_docker() -> bool {
    let info = docker(&["info"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    info.is_ok_and(succeeds_soon)
}

fn succeeds_soon(mut child: Child) -> bool {
    for _ in 0..INFO_PAUSES_MAX {
        match child.try_wait() {
            Ok(Some(status)) => return status.success(),
            Ok(None) => thread::sleep(PAUSE),
            Err(_) => break,
        }
    }
    // Kills our own child, which has timed out; it may have just ended.
    let _ = child.kill();
    let _ = child.wait();
    false
}

fn docker(arguments: &[&str]) -> Command {
    let mut command = Command::new("docker");
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Runs a command that must succeed; returns its output.
fn succeed(mut command: Command) -> io::Result<String> {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output()?;
    if status.success() {
        return Ok(String::from_utf8_lossy(&stdout).into_owned());
    }
    let why = String::from_utf8_lossy(&stderr);
    let why = why.trim();
    Err(io::Error::other(format!("{command:?} failed: {why}")))
}

/// Parses the output of `docker port`, such as `127.0.0.1:49153`, one line per address.
fn published(printed: &str) -> io::Result<u16> {
    let line = printed.lines().next().unwrap_or_default();
    let port = line.rsplit(':').next().and_then(|port| port.parse().ok());
    port.ok_or_else(|| io::Error::other(format!("docker published no port: {printed:?}")))
}
