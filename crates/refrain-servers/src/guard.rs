//! Cleaning up that outlives whoever has to clean up.

use std::{
    ffi::OsStr,
    io::{self, Write},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
};

/// What the shell says first: wait for the end of the input, or for the word that all is well.
const WAIT: &str = "read -r word; [ \"$word\" = ended ] && exit 0\n";
const WORD: &[u8] = b"ended\n";

/// A shell that waits for this process to end, in whatever way, and then cleans up.
///
/// It holds one end of a pipe, and the kernel closes the other: at a return, a panic, Ctrl-C and SIGKILL alike.
/// So there is one way to clean up, and nothing to do in a signal handler.
/// A parent death signal would not remove a folder, would leave a stopped process as it is,
/// and comes when the thread ends that started the server, not the process.
#[derive(Debug)]
pub struct Guard {
    shell: Child,
}

impl Guard {
    /// Starts the shell. `script` runs with `arguments` when the guard is dropped, or this process is gone.
    ///
    /// # Errors
    /// When no shell can be started.
    pub fn new(script: &str, arguments: &[&OsStr]) -> io::Result<Self> {
        let shell = Command::new("sh")
            .args(["-c", &format!("{WAIT}{script}"), "guard"])
            .args(arguments)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C goes to the whole group of the terminal, and must not end the one who cleans up.
            .process_group(0)
            .spawn()?;
        Ok(Self { shell })
    }

    /// Ends the shell without running the script: there is nothing to clean up any more.
    pub fn disarm(mut self) {
        if let Some(mut input) = self.shell.stdin.take() {
            // A shell that is gone needs no word.
            let _ = input.write_all(WORD);
        }
    }
}

impl Drop for Guard {
    /// Lets the script run, and waits for its end.
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

#[cfg(test)]
mod tests {
    //! Somebody presses Ctrl-C, or the machine kills the test run for its memory: a week later forty servers are still up.

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
