//! Keeps all cores busy, because on an idle machine a test that depends on speed passes.

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

/// One spinning process per core, until this is dropped or this process ends.
#[derive(Debug)]
pub(super) struct BusyCores {
    spinning: Vec<Child>,
    /// `None` only during drop.
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
        // Ctrl-C ends this process, and the guard then ends the children.
        .process_group(0)
        .spawn()
}

impl Drop for BusyCores {
    fn drop(&mut self) {
        for spinning in &mut self.spinning {
            // Fails only for a child that has already ended.
            let _ = spinning.kill();
            let _ = spinning.wait();
        }
        // Last: the guard kills by process id, which another process may have by then.
        if let Some(guard) = self.guard.take() {
            guard.disarm();
        }
    }
}

#[cfg(test)]
mod tests {
    //! A spinning process that outlives the run would distort every later measurement on this machine.

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
