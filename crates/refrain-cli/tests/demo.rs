//! The demo is the first thing that people run: it has to come to the same end every time, and leave nothing behind.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// The demo with a temporary folder of its own, to see what it leaves there.
fn demo(temporary: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
    command.arg("demo").args(args).env("TMPDIR", temporary);
    command
}

/// A demo that stays up, and the address that it told.
struct Staying {
    child: Child,
    address: String,
    temporary: TempDir,
}

fn stay() -> Staying {
    let temporary = tempfile::tempdir().unwrap();
    let mut command = demo(temporary.path(), &[]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut address = None;
    for line in lines.map(Result::unwrap) {
        if let Some((_, told)) = line.split_once("stays up at http://") {
            address = told.split(' ').next().map(String::from);
        }
        if line == "Ctrl-C ends it." {
            break;
        }
    }
    Staying {
        child,
        address: address.unwrap(),
        temporary,
    }
}

impl Staying {
    /// Pays by hand, and answers status line, headers and body.
    fn pay(&self, key: &str, amount: u32) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let body = format!("amount={amount}");
        write!(
            stream,
            "POST /v1/payments HTTP/1.1\r\nhost: demo\r\nidempotency-key: {key}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn send(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).unwrap();
    }
}

fn entries(folder: &Path) -> usize {
    fs::read_dir(folder).unwrap().count()
}

/// Whether any process was started on a file in this folder.
fn has_process(folder: &Path) -> bool {
    let folder = folder.to_str().unwrap().as_bytes();
    let is_on = |entry: fs::DirEntry| {
        let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        command.windows(folder.len()).any(|part| part == folder)
    };
    fs::read_dir("/proc").unwrap().flatten().any(is_on)
}

#[test]
fn one_run_shows_the_difference_and_leaves_nothing_behind() {
    let temporary = tempfile::tempdir().unwrap();
    let output = demo(temporary.path(), &["--once"]).output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{stdout}{stderr}");
    for line in [
        "with Refrain: killed with -9 in the middle",
        "payments                        30            30",
        "charges                         50            30",
        "charged twice                   20             0",
        "lost                             0             0",
        "without an answer                0             0",
        "without Refrain: 20 of 30 payments were charged twice",
        "with Refrain: every payment was charged once, although the service was killed in the middle",
    ] {
        assert!(stdout.lines().any(|it| it == line), "{line}\n{stdout}");
    }
    assert!(!stdout.contains('\x1b'), "no terminal, no escape codes");
    assert_eq!(stderr, "");
    assert_eq!(entries(temporary.path()), 0);
}

#[test]
fn what_it_offers_to_try_by_hand_is_true() {
    let mut demo = stay();
    let first = demo.pay("mine", 20);
    assert!(first.starts_with("HTTP/1.1 201"), "{first}");
    let again = demo.pay("mine", 20);
    assert!(again.contains("idempotent-replayed: true"), "{again}");
    assert!(demo.pay("mine", 99).contains("key-reused"));
    assert!(demo.pay("cut-3", 20).contains("outcome-unknown"));
    std::thread::sleep(Duration::from_secs(2));
    let truth = demo.pay("cut-3", 20);
    assert!(truth.contains("idempotent-replayed: true"), "{truth}");

    assert!(has_process(demo.temporary.path()));
    demo.send(Signal::TERM);
    assert_eq!(demo.child.wait().unwrap().code(), Some(0));
    assert!(!has_process(demo.temporary.path()));
    assert_eq!(entries(demo.temporary.path()), 0);
}

#[test]
fn interrupted_in_the_middle_it_tidies_up_too() {
    let temporary = tempfile::tempdir().unwrap();
    let mut command = demo(temporary.path(), &["--once"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let is_killed = |line: std::io::Result<String>| line.unwrap().ends_with("started again");
    assert!(lines.any(is_killed));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(!has_process(temporary.path()));
    assert_eq!(entries(temporary.path()), 0);
}

#[test]
fn the_service_does_not_outlive_a_demo_that_was_killed() {
    let mut demo = stay();
    demo.send(Signal::KILL);
    demo.child.wait().unwrap();
    let is_gone = (0..500).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        !has_process(demo.temporary.path())
    });
    assert!(is_gone, "the service is still there");
}
