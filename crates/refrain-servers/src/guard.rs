//! Cleanup that runs even if the process is killed.

use std::{
    ffi::OsStr,
    io::{self, Write},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
};

/// The shell waits for the end of its input, or for the word that disarms it.
///
/// The script is in an environment variable, so that a process list shows the arguments without the script.
const WAIT: &str =
    r#"trap '' HUP INT TERM; read -r word; [ "$word" = ended ] || eval "$REFRAIN_GUARD""#;
const WORD: &[u8] = b"ended\n";

/// A shell process that waits for this process to end in any way, and then runs a cleanup script.
///
/// The shell holds one end of a pipe. The kernel closes the other end at a return, a panic, Ctrl-C and
/// SIGKILL alike. So there is one cleanup path, and no work in a signal handler. A parent death signal is
/// no replacement: it removes no folder, has no effect on a stopped process, and is sent when the thread
/// that started the server ends, not the process.
#[derive(Debug)]
pub struct Guard {
    shell: Child,
}

impl Guard {
    /// Starts the shell. It runs `script` with `arguments` when the guard is dropped or this process ends.
    ///
    /// # Errors
    /// If no shell can be started.
    pub fn new(script: &str, arguments: &[&OsStr]) -> io::Result<Self> {
        let shell = Command::new("sh")
            .args(["-c", WAIT, "guard"])
            .args(arguments)
            .env("REFRAIN_GUARD", script)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C signals the terminal's whole process group, and must not end the shell.
            .process_group(0)
            .spawn()?;
        Ok(Self { shell })
    }

    /// Ends the shell without running the script, because there is nothing left to clean up.
    pub fn disarm(mut self) {
        if let Some(mut input) = self.shell.stdin.take() {
            // Fails only if the shell has already ended.
            let _ = input.write_all(WORD);
        }
    }
}

impl Drop for Guard {
    /// Runs the script and waits for its end.
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

#[cfg(test)]
mod tests {
    //! After Ctrl-C or a kill for lack of memory, a test run must leave no servers behind.

    use super::*;
    use crate::home::Home;

    fn guard(home: &Home) -> Guard {
        Guard::new("rm -r \"$1\"", &[home.folder().as_os_str()]).unwrap()
    }

    #[test]
    fn the_script_runs_at_the_end_and_not_before() {
        let home = Home::new("guard", None).unwrap();
        let guard = guard(&home);
        assert!(home.folder().exists());
        drop(guard);
        assert!(!home.folder().exists());
    }

    #[test]
    fn a_guard_that_was_told_that_all_is_well_does_nothing() {
        let home = Home::new("guard", None).unwrap();
        guard(&home).disarm();
        assert!(home.folder().exists());
        std::fs::remove_dir(home.folder()).unwrap();
    }
}
