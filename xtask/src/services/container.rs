//! A service in a container.

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
/// Two seconds: a Docker that takes longer to say that it is there is not waited for.
const INFO_PAUSES_MAX: u32 = 40;
/// A minute, once the image is there.
const READY_PAUSES_MAX: u32 = 1_200;
/// Removes the container by its name, which nobody else has.
const REMOVE: &str = "docker rm --force --volumes \"$1\"";

/// What is run, and how it is talked to.
pub(super) struct Container {
    pub(super) image: &'static str,
    /// Where it listens inside.
    pub(super) port: u16,
    /// For `docker run`.
    pub(super) options: &'static [&'static str],
    pub(super) command: &'static [&'static str],
    /// Succeeds inside the container once the server takes clients.
    pub(super) is_ready: &'static [&'static str],
    /// The address, by the port on this machine.
    pub(super) url: fn(u16) -> String,
}

impl Container {
    /// Starts one and waits until it is ready.
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

/// Whether Docker answers, and soon.
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
    // Ours, and not needed any more; that it just ended by itself is as good.
    let _ = child.kill();
    let _ = child.wait();
    false
}

fn docker(arguments: &[&str]) -> Command {
    let mut command = Command::new("docker");
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Runs a command that has to succeed; answers what it printed.
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

/// As in `127.0.0.1:49153`, one line for each address.
fn published(printed: &str) -> io::Result<u16> {
    let line = printed.lines().next().unwrap_or_default();
    let port = line.rsplit(':').next().and_then(|port| port.parse().ok());
    port.ok_or_else(|| io::Error::other(format!("docker published no port: {printed:?}")))
}
