//! The real proxy in its own process, to be killed and restarted.

#![allow(dead_code, reason = "each test file uses only part of this module")]

use std::{
    fs::{self, File, OpenOptions},
    io::{BufRead as _, BufReader, Read as _},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
    thread::sleep,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

/// A running proxy; killed on drop.
pub(crate) struct Proxy {
    child: Child,
    /// Kept open so that the proxy's writes to stdout do not fail.
    _stdout: BufReader<ChildStdout>,
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
}

/// Settings of a proxy, for every start of it.
#[derive(Debug)]
pub(crate) struct Setup {
    folder: tempfile::TempDir,
    environment: Vec<(String, String)>,
}

impl Setup {
    /// A proxy for this upstream; `rest` is the rest of its refrain.toml.
    pub(crate) fn new(upstream: SocketAddr, rest: &str) -> Self {
        Self::on("127.0.0.1:0", upstream, rest)
    }

    /// The same on an address that the clients already know.
    pub(crate) fn on(listen: &str, upstream: SocketAddr, rest: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = format!("file:{}", folder.path().join("store").display());
        Self::in_folder(folder, listen, &store, upstream, rest)
    }

    /// The same with its records in `store`.
    pub(crate) fn stored(listen: &str, store: &str, upstream: SocketAddr, rest: &str) -> Self {
        Self::in_folder(tempfile::tempdir().unwrap(), listen, store, upstream, rest)
    }

    fn in_folder(
        folder: tempfile::TempDir,
        listen: &str,
        store: &str,
        upstream: SocketAddr,
        rest: &str,
    ) -> Self {
        let store = match store.starts_with('[') {
            true => store.to_owned(),
            false => format!("\"{store}\""),
        };
        let text = format!(
            "listen = \"{listen}\"\nadmin = \"127.0.0.1:0\"\nupstream = \"http://{upstream}\"\n\
             store = {store}\n{rest}"
        );
        fs::write(folder.path().join("refrain.toml"), text).unwrap();
        let environment = Vec::new();
        Self {
            folder,
            environment,
        }
    }

    /// Sets an environment variable.
    pub(crate) fn variable(mut self, name: &str, value: impl ToString) -> Self {
        self.environment.push((name.into(), value.to_string()));
        self
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts the proxy and waits until it listens.
    pub(crate) fn start(&self) -> Proxy {
        // Again if the proxy gave up, because a busy store did not answer within its connect timeout.
        let command = || Command::new(env!("CARGO_BIN_EXE_refrain"));
        let started = (0..5).find_map(|_| self.try_start(command()));
        started.unwrap_or_else(|| panic!("the proxy did not start: {}", self.log()))
    }

    /// Starts the proxy so that a write past the file size limit fails instead of killing the process.
    pub(crate) fn start_limited(&self) -> Proxy {
        let mut command = Command::new("sh");
        command
            .args(["-c", "trap '' XFSZ; exec \"$@\"", "sh"])
            .arg(env!("CARGO_BIN_EXE_refrain"));
        let started = self.try_start(command);
        started.unwrap_or_else(|| panic!("the proxy did not start: {}", self.log()))
    }

    /// Starts the proxy and kills it soon after, whether it listens by then or not.
    pub(crate) fn start_and_kill(&self, after: Duration) {
        let mut child = self.spawn(Command::new(env!("CARGO_BIN_EXE_refrain")));
        sleep(after);
        assert_eq!(child.try_wait().unwrap(), None, "{}", self.log());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn spawn(&self, mut command: Command) -> Child {
        command
            .args(["proxy", "--config"])
            .arg(self.file("refrain.toml"))
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(append_to(&self.file("log")));
        command.spawn().unwrap()
    }

    /// Starts the proxy; returns `None` if it exits before it listens.
    fn try_start(&self, command: Command) -> Option<Proxy> {
        let mut child = self.spawn(command);
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let address = told(&mut stdout, "listening on http://");
        let admin = told(&mut stdout, "admin on http://");
        let (Some(address), Some(admin)) = (address, admin) else {
            child.wait().unwrap();
            return None;
        };
        Some(Proxy {
            child,
            _stdout: stdout,
            address,
            admin,
        })
    }

    /// Standard error of all starts so far.
    pub(crate) fn log(&self) -> String {
        let mut text = String::new();
        let file = File::open(self.file("log"));
        file.and_then(|mut file| file.read_to_string(&mut text))
            .unwrap();
        text
    }
}

/// The address after `start`, in the next line that begins so; `None` at the end of the output.
fn told(stdout: &mut BufReader<ChildStdout>, start: &str) -> Option<SocketAddr> {
    loop {
        let mut line = String::new();
        if stdout.read_line(&mut line).unwrap() == 0 {
            return None;
        }
        if let Some(address) = line.trim_end().strip_prefix(start) {
            return Some(address.parse().unwrap());
        }
    }
}

impl Proxy {
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Stops the process with its connections open, like a machine that swaps or a virtual machine that is migrated.
    pub(crate) fn pause(&self) {
        kill_process(self.pid(), Signal::STOP).unwrap();
    }

    /// Continues the process, which does not notice the time that passed.
    pub(crate) fn resume(&self) {
        kill_process(self.pid(), Signal::CONT).unwrap();
    }

    /// Sends SIGKILL.
    pub(crate) fn kill(&mut self) {
        assert_eq!(
            self.child.try_wait().unwrap(),
            None,
            "the proxy exited before the kill"
        );
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until the process exits by itself.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Both fail only if the process has exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn append_to(path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.append(true).create(true).open(path).unwrap()
}
