//! The proxy in front of an app without keys must pass every case on every store.
//!
//! Memory and files are tested in `verify.rs`, the stores on servers here. No case is skipped: the proxy is paused
//! and killed, too, and its guarantees have to come from the server alone.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;
mod verify_support;

use refrain_testkit::servers::{PrivatePostgres, PrivateRedis};
use support::until;
use verify_support::{arguments, free_port, json, naive, of, proxy_command, run};

/// Checks a store, written as in refrain.toml.
fn check(store: &str) {
    let (upstream, folder, port) = (naive(), tempfile::tempdir().unwrap(), free_port());
    let command = proxy_command(folder.path(), &upstream, port, store);
    let url = format!("http://127.0.0.1:{port}");
    let more = ["--json", "-", "--restart-command", &command];
    let output = run(&arguments(&url, &upstream), &more);
    let report = json(&output);
    let said = String::from_utf8_lossy(&output.stderr);
    let not_passed = ["fail", "warn", "skipped"].map(|verdict| of(&report, verdict));
    assert!(
        not_passed.concat().is_empty(),
        "{store}: {not_passed:?} {said}"
    );
    assert_eq!(of(&report, "pass").len(), cases(), "{said}");
    assert_eq!(output.status.code(), Some(0), "{store}: {said}");
    until("the proxy is gone", || {
        std::net::TcpStream::connect(("127.0.0.1", port)).is_err()
    });
}

fn cases() -> usize {
    let listed = verify_support::refrain(&["--list"]).output().unwrap();
    String::from_utf8(listed.stdout).unwrap().lines().count()
}

/// With the default times, and a retention short enough to wait for.
#[test]
fn with_records_in_a_folder_and_a_long_retention() {
    let (upstream, folder, port) = (naive(), tempfile::tempdir().unwrap(), free_port());
    let command = proxy_command(folder.path(), &upstream, port, "\"file:records\"");
    let mut all = arguments(&format!("http://127.0.0.1:{port}"), &upstream);
    for (name, value) in [("--late", "2s"), ("--retention", "10s")] {
        let at = all.iter().position(|it| it == name).unwrap();
        all[at + 1] = value.into();
    }
    let output = run(&all, &["--json", "-", "--restart-command", &command]);
    let report = json(&output);
    assert_eq!(of(&report, "pass").len(), cases(), "{report:#}");
}

#[test]
fn with_records_in_postgresql() {
    let server = PrivatePostgres::start().unwrap();
    check(&format!("\"{}\"", server.url()));
}

#[test]
fn with_records_in_redis() {
    let server = PrivateRedis::start().unwrap();
    check(&format!("\"{}\"", server.url()));
}

#[test]
fn with_redis_in_front_of_postgresql() {
    let (front, records) = (
        PrivateRedis::start().unwrap(),
        PrivatePostgres::start().unwrap(),
    );
    check(&format!("[\"{}\", \"{}\"]", front.url(), records.url()));
}
