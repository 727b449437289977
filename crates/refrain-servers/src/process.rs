//! A running server process; shared by all private servers.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use crate::{guard::Guard, home::Home};

const PAUSE: Duration = Duration::from_millis(10);
/// Three minutes in total: a busy machine may start slowly, and replay a long log.
const PAUSES_MAX: u32 = 18_000;
/// How many lines of the log an error contains.
const TAIL_LINES: usize = 20;
const PORT_TRIES_MAX: u32 = 5;
const PORT_TAKEN: &str = "ddress already in use";

const GUARD: &str = include_str!("guard.sh");

/// The processes of one server, its folder, and the guard that removes both.
#[derive(Debug)]
pub(crate) struct Process {
    name: &'static str,
    home: Home,
    child: Option<Child>,
    /// `None` only during drop.
    guard: Option<Guard>,
}

impl Process {
    /// Creates the folder; starts no process. `signal` ends such a server quickly.
    pub(crate) fn new(name: &'static str, signal: &str, base: Option<&Path>) -> io::Result<Self> {
        let home = Home::new(name, base)?;
        let arguments = [home.folder().as_os_str(), OsStr::new(signal)];
        let guard = match Guard::new(GUARD, &arguments) {
            Ok(guard) => guard,
            Err(error) => {
                fs::remove_dir(home.folder())?;
                return Err(error);
            }
        };
        Ok(Self {
            name,
            home,
            child: None,
            guard: Some(guard),
        })
    }

    pub(crate) fn folder(&self) -> &Path {
        self.home.folder()
    }

    /// Process id of the server.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Starts the server and waits until `is_ready`, which gets the process id, returns true.
    pub(crate) fn start(
        &mut self,
        mut command: Command,
        is_ready: impl Fn(u32) -> bool,
    ) -> io::Result<()> {
        self.run_in_folder(&mut command)?;
        let mut child = command.spawn().map_err(|error| self.failed(&error))?;
        for _ in 0..PAUSES_MAX {
            if let Some(status) = child.try_wait()? {
                return Err(self.failed(&format!("it exited with {status}")));
            }
            if is_ready(child.id()) {
                self.child = Some(child);
                return Ok(());
            }
            thread::sleep(PAUSE);
        }
        child.kill()?;
        child.wait()?;
        Err(self.failed(&"it was not ready within 180 s"))
    }

    /// Runs a program to its end; a failure status is an error.
    pub(crate) fn run(&self, command: Command) -> io::Result<()> {
        self.run_with_input(command, Path::new("/dev/null"))
    }

    /// As [`run`](Self::run), with a file as standard input.
    pub(crate) fn run_with_input(&self, mut command: Command, input: &Path) -> io::Result<()> {
        self.run_in_folder(&mut command)?;
        command.stdin(File::open(input)?);
        let status = command.status().map_err(|error| self.failed(&error))?;
        match status.success() {
            true => Ok(()),
            false => Err(self.failed(&format!("{command:?} failed with {status}"))),
        }
    }

    /// Sets the working directory: the guard ends every process whose working directory is this folder.
    fn run_in_folder(&self, command: &mut Command) -> io::Result<()> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_path())?;
        command
            .current_dir(self.folder())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        Ok(())
    }

    fn log_path(&self) -> PathBuf {
        self.folder().join("log")
    }

    /// The server's log so far.
    pub(crate) fn log(&self) -> String {
        let bytes = fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn failed(&self, why: &dyn std::fmt::Display) -> io::Error {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n");
        let name = self.name;
        io::Error::other(format!("cannot start {name}: {why}\n{tail}"))
    }

    /// Sends a signal to every process of the server.
    pub(crate) fn signal(&self, signal: &str) -> io::Result<()> {
        send(signal, &self.processes())
    }

    /// Asks the server to shut down, and waits for its end.
    pub(crate) fn stop(&mut self, signal: &str) -> io::Result<()> {
        self.signal("CONT")?;
        if let Some(child) = &self.child {
            send(signal, &[child.id()])?;
        }
        self.wait(|_| Ok(()))
    }

    /// Kills every process of the server with SIGKILL.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        // Repeated, because the server may start another child between listing and killing.
        self.wait(|server| server.signal("KILL"))
    }

    /// Asks the server to shut down, waits for its end, and then kills the processes that it leaves.
    pub(crate) fn stop_all(&mut self, signal: &str) -> io::Result<()> {
        self.signal("CONT")?;
        if let Some(child) = &self.child {
            send(signal, &[child.id()])?;
        }
        for _ in 0..PAUSES_MAX {
            if !self.is_running() {
                return self.kill();
            }
            thread::sleep(PAUSE);
        }
        Err(self.did_not_exit())
    }

    fn wait(&mut self, insist: impl Fn(&Self) -> io::Result<()>) -> io::Result<()> {
        for _ in 0..PAUSES_MAX {
            insist(self)?;
            if !self.is_running() && self.processes().is_empty() {
                self.child = None;
                return Ok(());
            }
            thread::sleep(PAUSE);
        }
        Err(self.did_not_exit())
    }

    fn did_not_exit(&self) -> io::Error {
        io::Error::other(format!("{} did not exit within 180 s", self.name))
    }

    /// Whether the server is running.
    pub(crate) fn is_running(&mut self) -> bool {
        let child = self.child.as_mut();
        child.is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Processes whose working directory is the folder: the server and its children.
    fn processes(&self) -> Vec<u32> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        numbers.filter(|number| self.is_ours(*number)).collect()
    }

    fn is_ours(&self, number: u32) -> bool {
        let folder = fs::read_link(format!("/proc/{number}/cwd"));
        folder.is_ok_and(|folder| folder.starts_with(self.folder()))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.guard.take());
        if let Some(mut child) = self.child.take() {
            // The guard has ended the process; this collects its exit status.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Uses the shell's `kill`, because the standard library can send only SIGKILL.
fn send(signal: &str, processes: &[u32]) -> io::Result<()> {
    if processes.is_empty() {
        return Ok(());
    }
    let mut command = Command::new("sh");
    command.args(["-c", "kill -s \"$0\" \"$@\"", signal]);
    command.args(processes.iter().map(u32::to_string));
    // A process that has already ended is no failure.
    command.stderr(Stdio::null()).status().map(|_| ())
}

/// Tries another port if another process takes the port before the server listens.
pub(crate) fn on_free_port<T>(start: impl Fn(u16) -> io::Result<T>) -> io::Result<T> {
    let mut tries = 1;
    loop {
        match start(crate::free_port()?) {
            Err(error) if tries < PORT_TRIES_MAX && error.to_string().contains(PORT_TAKEN) => {
                tries += 1;
            }
            done => return done,
        }
    }
}
