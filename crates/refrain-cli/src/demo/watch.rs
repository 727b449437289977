//! Sees to it that the demo's proxy does not outlive the demo, should that be killed without a chance to tidy up.
//!
//! The watch is a small process of its own. It is told on its stdin whom to watch over; when that closes, the demo is gone.

use std::{
    io::{self, BufRead as _, Write as _},
    process::{Child, Command, ExitCode, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};

/// A running watch. Dropped, it ends and touches nobody.
#[derive(Debug)]
pub(super) struct Watch(Child);

impl Watch {
    pub(super) fn start() -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("demo-watch").stdin(Stdio::piped());
        Ok(Self(command.stdout(Stdio::null()).spawn()?))
    }

    /// Watches over this process from now on, or over none.
    pub(super) fn over(&mut self, pid: Option<u32>) {
        let stdin = self.0.stdin.as_mut();
        // A watch that is gone was ended by the same Ctrl-C that ends the demo.
        let _ = stdin.map(|stdin| writeln!(stdin, "{}", pid.unwrap_or(0)));
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.over(None);
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `refrain demo-watch`: waits until the demo is gone, and kills whom it was told to watch over last.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let mut last = None;
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        last = line.parse().ok().and_then(Pid::from_raw);
    }
    if let Some(pid) = last {
        // It fails only if that one is gone, too.
        let _ = kill_process(pid, Signal::KILL);
    }
    Ok(ExitCode::SUCCESS)
}
