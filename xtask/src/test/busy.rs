//! Cores that have something else to do: on an idle machine a test that hopes for a fast one passes.

use std::{
    ffi::OsStr,
    io,
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    thread,
};

use refrain_servers::Guard;

const SPIN: &str = "while :; do :; done";
const END: &str = r#"kill -s KILL "$@""#;

/// A process for each core that does nothing but spin, until this is dropped or the process is gone.
#[derive(Debug)]
pub(super) struct BusyCores {
    spinning: Vec<Child>,
    /// `None` only while it is dropped.
    guard: Option<Guard>,
}

impl BusyCores {
    pub(super) fn start() -> io::Result<Self> {
        let cores = thread::available_parallelism()?.get();
        let mut busy = Self {
            spinning: Vec::new(),
            guard: None,
        };
        for _ in 0..cores {
            busy.spinning.push(spin()?);
        }
        let pids: Vec<String> = busy
            .spinning
            .iter()
            .map(|spin| spin.id().to_string())
            .collect();
        let pids: Vec<&OsStr> = pids.iter().map(OsStr::new).collect();
        busy.guard = Some(Guard::new(END, &pids)?);
        Ok(busy)
    }
}

fn spin() -> io::Result<Child> {
    Command::new("sh")
        .args(["-c", SPIN])
        .stdin(Stdio::null())
        // Ctrl-C ends us, and with us the guard ends these.
        .process_group(0)
        .spawn()
}

impl Drop for BusyCores {
    fn drop(&mut self) {
        for spinning in &mut self.spinning {
            // One that is gone needs no end.
            let _ = spinning.kill();
            let _ = spinning.wait();
        }
        // Last: it would end processes by numbers that may be somebody else's by then.
        if let Some(guard) = self.guard.take() {
            guard.disarm();
        }
    }
}

#[cfg(test)]
mod tests {
    //! A process that spins on after the run makes every later measurement on this machine wrong.

    use std::path::Path;

    use super::*;

    #[test]
    fn every_core_has_a_process_and_none_is_left() {
        let busy = BusyCores::start().unwrap();
        let cores = thread::available_parallelism().unwrap().get();
        let pids: Vec<u32> = busy.spinning.iter().map(Child::id).collect();
        assert_eq!(pids.len(), cores);
        let is_there = |pid: &u32| Path::new(&format!("/proc/{pid}")).exists();
        assert!(pids.iter().all(is_there));
        drop(busy);
        assert!(!pids.iter().any(is_there));
    }
}
