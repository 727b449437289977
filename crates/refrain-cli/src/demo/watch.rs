//! Kills the demo's proxy if the demo itself is killed and cannot clean up.
//!
//! The watch is a small process of its own. It reads the PID to watch on its stdin; when stdin closes, the demo has ended.

use std::{
    io::{self, BufRead as _, Write as _},
    process::{Child, Command, ExitCode, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};

/// A running watch. Dropping it ends the watch without killing the proxy.
#[derive(Debug)]
pub(super) struct Watch(Child);

impl Watch {
    pub(super) fn start() -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("demo-watch").stdin(Stdio::piped());
        Ok(Self(command.stdout(Stdio::null()).spawn()?))
    }

    /// Sets the process to watch, or none.
    pub(super) fn set_process(&mut self, pid: Option<u32>) {
        let stdin = self.0.stdin.as_mut();
        // If the watch has ended already, the Ctrl-C that ends the demo ended it, too.
        let _ = stdin.map(|stdin| writeln!(stdin, "{}", pid.unwrap_or(0)));
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.set_process(None);
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `refrain demo-watch`: waits until the demo has ended, and kills the process that it was last given.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let mut last = None;
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        last = line.parse().ok().and_then(Pid::from_raw);
    }
    if let Some(pid) = last {
        // This fails only if that process has ended, too.
        let _ = kill_process(pid, Signal::KILL);
    }
    Ok(ExitCode::SUCCESS)
}
