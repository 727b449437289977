//! The demo is the first command that people run: its result must be the same every time, and it must clean up.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use refrain_testkit::wait;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Longer than any step takes: a demo that hangs fails the test instead of blocking it.
const PATIENCE: Duration = Duration::from_secs(60);

/// The demo with its own temporary folder, to check what it leaves there.
fn demo(temporary: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
    command.arg("demo").args(args).env("TMPDIR", temporary);
    command
}

/// A demo that stays up, and the addresses that it printed.
struct Staying {
    child: Child,
    api: String,
    proxy: String,
    admin: String,
    temporary: TempDir,
}

fn stay() -> Staying {
    let temporary = tempfile::tempdir().unwrap();
    let mut command = demo(temporary.path(), &[]);
    let mut staying = Staying {
        child: command.stdout(Stdio::piped()).spawn().unwrap(),
        api: String::new(),
        proxy: String::new(),
        admin: String::new(),
        temporary,
    };
    let lines = BufReader::new(staying.child.stdout.take().unwrap()).lines();
    let lines = lines.map(Result::unwrap);
    let told: Vec<_> = lines
        .take_while(|line| line != "Press Ctrl-C to stop.")
        .collect();
    let address = |name: &str| {
        let line = told.iter().find(|line| line.trim_start().starts_with(name));
        line.unwrap().split_once("http://").unwrap().1.to_owned()
    };
    staying.api = address("the API ");
    staying.proxy = address("through Refrain ");
    staying.admin = address("dashboard ");
    staying
}

/// Sends a request; returns status line, headers and body.
fn send(address: &str, request: &str, key: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(
        stream,
        "{request} HTTP/1.1\r\nhost: {address}\r\nidempotency-key: {key}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

impl Staying {
    /// Sends a payment through the proxy.
    fn pay(&self, key: &str, amount: u32) -> String {
        let body = format!("amount={amount}");
        send(&self.proxy, "POST /v1/payments", key, &body)
    }

    /// The number of charges with this key in the ledger.
    fn charges(&self, key: &str) -> usize {
        let ledger = send(&self.api, "GET /v1/payments", "none", "");
        ledger.matches(&format!("\"key\":\"{key}\"")).count()
    }

    fn send(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).unwrap();
    }
}

impl Drop for Staying {
    fn drop(&mut self) {
        // Cleans up after a failed test, too.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn entries(folder: &Path) -> usize {
    fs::read_dir(folder).unwrap().count()
}

/// Whether any process runs a file of this folder.
fn has_process(folder: &Path) -> bool {
    let folder = folder.to_str().unwrap().as_bytes();
    let is_on = |entry: fs::DirEntry| {
        let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        command.windows(folder.len()).any(|part| part == folder)
    };
    fs::read_dir("/proc").unwrap().flatten().any(is_on)
}

#[test]
fn programs_get_the_comparison_alone() {
    let temporary = tempfile::tempdir().unwrap();
    let output = demo(temporary.path(), &["--once", "--json"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["good"], true, "{told}");
    assert_eq!(told["through_refrain"]["charges"], 24, "{told}");
    assert_eq!(told["payments"].as_array().unwrap().len(), 24, "{told}");
    assert_ne!(told["directly"]["charged_twice"], 0, "{told}");
    let output = demo(temporary.path(), &["--json"]).output().unwrap();
    assert_eq!(
        output.status.code(),
        Some(2),
        "the demo must not start without an end"
    );
}

#[test]
fn every_run_shows_the_same_difference_and_leaves_nothing_behind() {
    let temporary = tempfile::tempdir().unwrap();
    let run = || {
        let output = demo(temporary.path(), &["--once"]).output().unwrap();
        let stdout = String::from_utf8(output.stdout).unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{stdout}{stderr}");
        assert_eq!(stderr, "");
        stdout
    };
    let stdout = run();
    for line in [
        "The policy of the proxy has a probe, GET /v1/payments?key={key}, which finds the result of a payment whose response was lost.",
        "through Refrain: the proxy was killed with kill -9",
        "through Refrain: the proxy was restarted on the same store",
        "payment-2          too slow     20 + 20  TWICE   20",
        "charges                         37               24",
        "charged twice                   13               0",
        "lost                            0                0",
        "no response                     0                0",
        "directly: 13 of 24 payments were charged twice",
        "through Refrain: every payment was charged once, although the proxy was killed during the run",
    ] {
        assert!(stdout.lines().any(|it| it == line), "{line}\n{stdout}");
    }
    assert!(!stdout.contains('\x1b'), "escape codes without a terminal");
    assert_eq!(stdout, run(), "two runs differ");
    assert_eq!(entries(temporary.path()), 0);
}

#[test]
fn every_payment_is_charged_once_with_other_seeds() {
    let temporary = tempfile::tempdir().unwrap();
    for seed in ["2", "18446744073709551615"] {
        let output = demo(temporary.path(), &["--once", "--seed", seed]).output();
        let output = output.unwrap();
        let stdout = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(0), "{stdout}");
        assert!(stdout.contains("through Refrain: every payment was charged once"));
    }
}

#[test]
fn without_a_temporary_folder_it_says_so_and_does_not_report_a_double_charge() {
    let temporary = tempfile::tempdir().unwrap();
    let output = demo(&temporary.path().join("absent"), &["--once"]).output();
    let output = output.unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(69), "{stderr}");
    assert!(stderr.contains("TMPDIR"), "{stderr}");
}

#[test]
fn printed_curl_commands_work() {
    let mut demo = stay();
    // After a timeout of the proxy, its probe finds the payment.
    wait::until_blocking("the payment succeeds", || {
        demo.pay("mine", 20).starts_with("HTTP/1.1 20")
    });
    let again = demo.pay("mine", 20);
    assert!(again.contains("idempotent-replayed: true"), "{again}");
    assert!(demo.pay("mine", 99).contains("key-reused"));
    assert_eq!(demo.charges("mine"), 1);

    let lost = demo.pay("lose-1", 20);
    assert!(lost.contains("outcome-unknown"), "{lost}");
    wait::until_blocking("the outcome is resolved", || {
        let truth = demo.pay("lose-1", 20);
        truth.contains("idempotent-replayed: true")
    });
    assert_eq!(demo.charges("lose-1"), 1);

    for _ in 0..2 {
        send(&demo.api, "POST /v1/payments", "other", "amount=20");
    }
    assert_eq!(demo.charges("other"), 2, "without Refrain");
    let metrics = send(&demo.admin, "GET /metrics", "none", "");
    assert!(metrics.contains("refrain_requests_total"), "{metrics}");

    assert!(has_process(demo.temporary.path()));
    demo.send(Signal::TERM);
    assert_eq!(demo.child.wait().unwrap().code(), Some(0));
    assert!(!has_process(demo.temporary.path()));
    assert_eq!(entries(demo.temporary.path()), 0);
}

#[test]
fn interrupt_removes_temporary_files() {
    let temporary = tempfile::tempdir().unwrap();
    // Again if the demo ended before the signal.
    let code = (0..5).find_map(|_| {
        let mut command = demo(temporary.path(), &["--once"]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let is_again = |line: std::io::Result<String>| line.unwrap().contains("restarted");
        assert!(lines.any(is_again));
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let code = child.wait().unwrap().code();
        assert!(!has_process(temporary.path()));
        assert_eq!(entries(temporary.path()), 0);
        code.filter(|code| *code != 0)
    });
    assert_eq!(code, Some(130));
}

#[test]
fn the_proxy_does_not_outlive_a_demo_that_was_killed() {
    let mut demo = stay();
    assert!(has_process(demo.temporary.path()));
    demo.send(Signal::KILL);
    demo.child.wait().unwrap();
    wait::until_blocking("the proxy is gone", || !has_process(demo.temporary.path()));
}
