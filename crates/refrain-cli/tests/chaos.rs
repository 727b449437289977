//! `refrain chaos` as a user runs it: start it, set faults, read its counters, stop it.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use std::{
    io::{BufRead as _, BufReader, Read as _},
    net::SocketAddr,
    process::{Child, ChildStdout, Command, Output, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};
use support::{Client, Upstream, answer, post};

fn refrain(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
    command.arg("chaos").args(arguments).stdin(Stdio::null());
    command
}

/// A running chaos proxy; killed on drop.
struct Chaos {
    child: Child,
    stdout: BufReader<ChildStdout>,
    address: SocketAddr,
    control: String,
}

impl Chaos {
    fn start(upstream: SocketAddr) -> Self {
        let upstream = format!("http://{upstream}");
        let mut child = refrain(&[
            "--upstream",
            &upstream,
            "--listen",
            "127.0.0.1:0",
            "--control",
            "127.0.0.1:0",
            "--seed",
            "7",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut told = |start: &str| {
            let mut line = String::new();
            stdout.read_line(&mut line).unwrap();
            let rest = line.strip_prefix(start).unwrap().trim();
            rest.split_whitespace().next().unwrap().to_owned()
        };
        let address = told("chaos    http://").parse().unwrap();
        let control = told("control  ");
        Self {
            child,
            stdout,
            address,
            control,
        }
    }

    fn ask(&self, arguments: &[&str]) -> Output {
        let asked = [arguments, &["--control", &self.control]].concat();
        refrain(&asked).output().unwrap()
    }

    fn said(&self, arguments: &[&str]) -> String {
        let output = self.ask(arguments);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Chaos {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn rules_change_at_runtime_and_the_log_is_readable() {
    let upstream = Upstream::start(|_, stream| answer(stream, "201 Created", &[], b"paid"));
    let mut chaos = Chaos::start(upstream.address);
    let try_once = |chaos: &Chaos| {
        let mut client = Client::connect(chaos.address);
        client.send(post("k", "x")).try_answer().map(|it| it.status)
    };
    assert_eq!(try_once(&chaos), Some(201));
    assert_eq!(
        chaos.said(&["add", "POST /* drop-answer x1"]),
        "rule 1   POST /* drop-answer x1\n"
    );
    assert_eq!(try_once(&chaos), None);
    assert_eq!(try_once(&chaos), Some(201));
    assert_eq!(upstream.count(), 3);
    let list = chaos.said(&["list"]);
    assert!(
        list.contains("hit 1 of 2") && list.contains("2 passed"),
        "{list}"
    );
    let log = chaos.said(&["log"]);
    assert!(
        log.contains("drop-answer POST /") && log.contains("upstream 201"),
        "{log}"
    );
    let json: serde_json::Value = serde_json::from_str(&chaos.said(&["log", "--json"])).unwrap();
    assert_eq!(json["events"][0]["fault"], "drop-answer");

    let refused = chaos.ask(&["add", "POST /* explode"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("unknown fault"));
    assert_eq!(chaos.ask(&["clear", "9"]).status.code(), Some(1));
    assert_eq!(chaos.said(&["clear"]), "1 removed\n");

    kill_process(Pid::from_child(&chaos.child), Signal::TERM).unwrap();
    assert_eq!(chaos.child.wait().unwrap().code(), Some(0));
    let mut rest = String::new();
    chaos.stdout.read_to_string(&mut rest).unwrap();
    assert!(
        rest.ends_with("stopped; 1 requests hit, 2 passed\n"),
        "{rest}"
    );
}

#[test]
fn invalid_usage_is_reported_with_the_fix() {
    let start = [
        "--upstream",
        "http://127.0.0.1:9",
        "--listen",
        "127.0.0.1:0",
    ];
    for (arguments, code, word) in [
        (&["--rule", "POST /a explode"][..], 64, "unknown fault"),
        (&["--rules", "no/such/file"], 64, "no/such/file"),
        (
            &["--control", "0.0.0.0:0"],
            64,
            "must be a loopback address",
        ),
        (
            &["list", "--control", "http://127.0.0.1:9"],
            69,
            "cannot reach the control address",
        ),
        (
            &["list", "--control", "ftp://x"],
            2,
            "is not a valid address",
        ),
        (&[], 2, "--upstream"),
    ] {
        let is_start = arguments
            .first()
            .is_some_and(|first| first.starts_with("--"));
        let all = match is_start {
            true => [&start, arguments].concat(),
            false => arguments.to_vec(),
        };
        let output = refrain(&all).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
        assert!(text.contains(word), "{arguments:?}: {text}");
    }
    let output = refrain(&["--upstream", "ftp://x"]).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
}
