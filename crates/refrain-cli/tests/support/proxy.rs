//! The real binary, started as users start it.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
};

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use tempfile::TempDir;

use super::{
    client::{HttpResponse, call},
    until,
};

/// Configuration of a proxy to be started.
pub(crate) struct Starting {
    pub(crate) args: Vec<String>,
    pub(crate) environment: Vec<(String, String)>,
    pub(crate) folder: TempDir,
    /// A command that sets something up and then execs the proxy.
    wrapper: Vec<String>,
}

impl Starting {
    /// On free ports, with records in memory and no upstream yet.
    pub(crate) fn new() -> Self {
        let args = ["proxy", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
        Self {
            args: args.map(String::from).into(),
            environment: Vec::new(),
            folder: tempfile::tempdir().unwrap(),
            wrapper: Vec::new(),
        }
    }

    pub(crate) fn arg(mut self, name: &str, value: impl ToString) -> Self {
        self.args.extend([name.into(), value.to_string()]);
        self
    }

    pub(crate) fn variable(mut self, name: &str, value: impl ToString) -> Self {
        self.environment.push((name.into(), value.to_string()));
        self
    }

    /// Ignores SIGXFSZ, which would kill the proxy when it writes past its file size limit.
    pub(crate) fn outliving_full_disks(self) -> Self {
        self.through(&["sh", "-c", "trap '' XFSZ; exec \"$0\" \"$@\""])
    }

    /// With at most this many open files.
    pub(crate) fn open_files(self, max: u32) -> Self {
        let script = format!("ulimit -n {max}; exec \"$0\" \"$@\"");
        self.through(&["sh", "-c", &script])
    }

    /// Starts the proxy with this command, which has to exec its arguments.
    pub(crate) fn through(mut self, wrapper: &[&str]) -> Self {
        self.wrapper = wrapper.iter().map(ToString::to_string).collect();
        self
    }

    /// Writes a refrain.toml and passes it to the proxy.
    pub(crate) fn file(self, text: &str) -> Self {
        let path = self.folder.path().join("refrain.toml");
        fs::write(&path, text).unwrap();
        self.arg("--config", path.display())
    }

    pub(crate) fn command(&self) -> Command {
        let mut words = self.wrapper.iter().map(String::as_str);
        let refrain = env!("CARGO_BIN_EXE_refrain");
        let mut command = Command::new(words.next().unwrap_or(refrain));
        command.args(words);
        if !self.wrapper.is_empty() {
            command.arg(refrain);
        }
        command
            .args(&self.args)
            .envs(self.environment.iter().cloned())
            .current_dir(self.folder.path());
        command
    }

    /// Starts the proxy and waits for its ports.
    pub(crate) fn start(self) -> Proxy {
        // Again if the proxy gave up, because a busy store did not answer within its connect timeout.
        let running = (0..5).find_map(|_| {
            let mut started = Started::of(&self);
            let address = started.address("listening on http://")?;
            let admin = started.address("admin on http://")?;
            Some((started, address, admin))
        });
        let Some((mut started, address, admin)) = running else {
            panic!("it ended: {}", self.refused().1);
        };
        started.pass_over();
        Proxy {
            started,
            address,
            admin,
            folder: self.folder,
        }
    }

    /// Starts the proxy and reads its whole greeting.
    pub(crate) fn greeting(&self) -> String {
        let mut started = Started::of(self);
        let mut text = String::new();
        let stdout = started.stdout.as_mut().unwrap();
        while !text.contains("send this twice to try it:") {
            let read = stdout.read_line(&mut text).unwrap();
            assert!(read > 0, "it ended: {text}{}", started.errors());
        }
        text
    }

    /// Starts a proxy that cannot start; returns its exit code and its message.
    pub(crate) fn refused(&self) -> (Option<i32>, String) {
        let output = self.command().output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), text)
    }
}

/// A process that is killed on drop.
pub(crate) struct Started {
    child: Child,
    stdout: Option<BufReader<std::process::ChildStdout>>,
    errors: PathBuf,
}

impl Started {
    fn of(starting: &Starting) -> Self {
        let errors = starting.folder.path().join("stderr");
        let mut log = fs::File::create(&errors).unwrap();
        let is_outliving = starting.wrapper.iter().any(|it| it.contains("XFSZ"));
        let mut child = starting
            .command()
            .stdout(Stdio::piped())
            .stderr(match is_outliving {
                // A pipe still works when the process's own files cannot grow any more.
                true => Stdio::piped(),
                false => log.try_clone().unwrap().into(),
            })
            .spawn()
            .unwrap();
        if let Some(mut said) = child.stderr.take() {
            std::thread::spawn(move || std::io::copy(&mut said, &mut log));
        }
        let stdout = child.stdout.take().map(BufReader::new);
        Self {
            child,
            stdout,
            errors,
        }
    }

    /// The address after `start`, in the next line that begins so; `None` if the process ends before.
    fn address(&mut self, start: &str) -> Option<SocketAddr> {
        let stdout = self.stdout.as_mut().unwrap();
        loop {
            let mut line = String::new();
            if stdout.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            let secure = start.replace("http://", "https://");
            if let Some(address) = line.strip_prefix(start).or(line.strip_prefix(&secure)) {
                return Some(address.trim_end().parse().unwrap());
            }
        }
    }

    /// Drains stdout, so that the proxy never blocks on a full pipe.
    fn pass_over(&mut self) {
        let stdout = self.stdout.take().unwrap();
        std::thread::spawn(move || stdout.lines().for_each(drop));
    }

    fn errors(&self) -> String {
        fs::read_to_string(&self.errors).unwrap_or_default()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the proxy said:\n{}", self.errors());
        }
    }
}

/// A proxy that listens.
pub(crate) struct Proxy {
    started: Started,
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
    folder: TempDir,
}

impl Proxy {
    /// In front of `upstream`, with records in memory and these settings.
    pub(crate) fn start(upstream: SocketAddr, settings: &str) -> Self {
        Starting::new()
            .arg("--upstream", format!("http://{upstream}"))
            .arg("--store", "memory:")
            .file(settings)
            .start()
    }

    /// The same with records in a folder.
    pub(crate) fn durable(upstream: SocketAddr, settings: &str) -> Self {
        Starting::new()
            .arg("--upstream", format!("http://{upstream}"))
            .arg("--store", "file:records")
            .file(settings)
            .start()
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Standard error so far.
    pub(crate) fn errors(&self) -> String {
        self.started.errors()
    }

    /// The value of a metric; 0 if it is missing.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let shown = super::call(self.admin, super::request_to(self.admin, "GET /metrics"));
        let mut lines = shown.text().lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.map_or(0.0, |value| value.parse().unwrap())
    }

    /// The response of the admin listener.
    pub(crate) fn ask_admin(&self, path: &str) -> HttpResponse {
        let request = format!("GET {path} HTTP/1.1\r\nhost: {}\r\n\r\n", self.admin);
        call(self.admin, request)
    }

    pub(crate) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    pub(crate) fn hang_up(&self) {
        self.signal(Signal::HUP);
    }

    /// Kills it, without a chance to clean up.
    pub(crate) fn kill(&mut self) {
        let _ = self.started.child.kill();
        let _ = self.started.child.wait();
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.started.child);
        kill_process(pid, signal).unwrap();
    }

    /// Its process ID.
    pub(crate) fn pid(&self) -> u32 {
        self.started.child.id()
    }

    /// From now on its files cannot grow: every write of its store fails.
    ///
    /// The proxy has to be started with [`Starting::outliving_full_disks`].
    pub(crate) fn fill_disk(&self) {
        let pid = Pid::from_child(&self.started.child);
        let nothing = Rlimit {
            current: Some(0),
            maximum: Some(0),
        };
        prlimit(Some(pid), Resource::Fsize, nothing).unwrap();
    }

    /// Waits until the proxy exits.
    pub(crate) fn ended(mut self) -> ExitStatus {
        until("the proxy has ended", {
            let child = std::cell::RefCell::new(&mut self.started.child);
            move || child.borrow_mut().try_wait().unwrap().is_some()
        });
        self.started.child.wait().unwrap()
    }

    /// Memory in use now, in KiB.
    pub(crate) fn memory(&self) -> u64 {
        self.status("VmRSS:")
    }

    /// Peak memory, in KiB.
    pub(crate) fn memory_high(&self) -> u64 {
        self.status("VmHWM:")
    }

    fn status(&self, name: &str) -> u64 {
        let path = format!("/proc/{}/status", self.started.child.id());
        let status = fs::read_to_string(path).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let number = line.unwrap().split_whitespace().next();
        number.unwrap().parse().unwrap()
    }
}
