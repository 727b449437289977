//! A command on a real terminal: it reads keys, and finds what a person sees.

#![allow(clippy::disallowed_methods, reason = "a real terminal needs real time")]

use std::{
    fs::File,
    io::{Read as _, Write as _},
    process::{Child, Command},
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rustix::{
    process::{Pid, Signal, kill_process},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize},
};

use super::PATIENCE;

/// A command running on a terminal.
pub(crate) struct Terminal {
    child: Child,
    keys: File,
    /// The terminal itself, kept open so that its settings can be read after the end of the command.
    theirs: File,
    seen: Arc<Mutex<String>>,
    reading: JoinHandle<()>,
    /// Offset in `seen` up to which the output was searched.
    read: usize,
}

impl Terminal {
    pub(crate) fn start(mut command: Command) -> Self {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        tcsetwinsize(&ours, size(120, 40)).unwrap();
        let name = ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
        let theirs = File::options().read(true).write(true).open(name).unwrap();
        let child = command
            .env("TERM", "xterm")
            .stdin(theirs.try_clone().unwrap())
            .stdout(theirs.try_clone().unwrap())
            .stderr(theirs.try_clone().unwrap())
            .spawn()
            .unwrap();
        let keys = File::from(ours);
        let mut screen = keys.try_clone().unwrap();
        let seen = Arc::new(Mutex::new(String::new()));
        let shown = seen.clone();
        let reading = thread::spawn(move || {
            let mut bytes = [0; 4096];
            // Reading fails when nobody has the terminal open any more.
            while let Ok(len @ 1..) = screen.read(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..len]);
                shown.lock().unwrap().push_str(&text);
            }
        });
        Self {
            child,
            keys,
            theirs,
            seen,
            reading,
            read: 0,
        }
    }

    /// Waits until this text is on the screen, after the text that was waited for before.
    pub(crate) fn see(&mut self, text: &str) {
        let end = Instant::now() + PATIENCE;
        loop {
            let seen = self.seen();
            if let Some(at) = seen[self.read..].find(text) {
                self.read += at + text.len();
                return;
            }
            assert!(
                Instant::now() < end,
                "`{text}` is not on the screen: {seen}"
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Everything that was printed so far.
    pub(crate) fn seen(&self) -> String {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn press(&mut self, keys: &[u8]) {
        self.keys.write_all(keys).unwrap();
    }

    /// Changes the size of the window.
    pub(crate) fn resize(&self, columns: u16, rows: u16) {
        tcsetwinsize(&self.keys, size(columns, rows)).unwrap();
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Whether the terminal collects lines and shows what is typed, as a shell expects it.
    pub(crate) fn is_as_before(&self) -> bool {
        let modes = tcgetattr(&self.theirs).unwrap().local_modes;
        modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
    }

    /// Waits for the end of the command; returns its exit code and its output.
    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        let end = Instant::now() + PATIENCE;
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status,
                None if Instant::now() < end => thread::sleep(Duration::from_millis(20)),
                None => {
                    self.child.kill().unwrap();
                    panic!("the command does not exit; on the screen: {}", self.seen());
                }
            }
        };
        assert!(self.is_as_before(), "the terminal is not restored");
        drop(self.theirs);
        self.reading.join().unwrap();
        let seen = self.seen.lock().unwrap().clone();
        (status.code(), seen)
    }
}

fn size(columns: u16, rows: u16) -> Winsize {
    Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}
