//! A misconfigured exactly-once must fail at the start, and a service that forgets its receipts must be reported.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

#[path = "kills_support/proxy.rs"]
mod kills;
mod receipts_support;
mod support;

use std::{
    path::Path,
    process::Command,
    sync::{Arc, mpsc},
};

use kills::Setup;
use receipts_support::{ServiceDatabase, ask_admin};
use support::{Starting, Upstream, answer, call, request, until};

fn policy(receipts: &str) -> String {
    format!(
        "[[operation]]\nmatch = \"POST /pay\"\nguarantee = \"exactly-once\"\nreceipts = \"{receipts}\"\n"
    )
}

fn pay(key: &str) -> Vec<u8> {
    request("POST /pay", &[("idempotency-key", key)], b"{}")
}

fn refrain(args: &[&str], folder: &Path) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
    let output = command.args(args).current_dir(folder).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[test]
fn proxy_does_not_start_without_readable_receipts() {
    let place = ServiceDatabase::empty();
    let nowhere = "postgres://app:secret@127.0.0.1:1/app".to_owned();
    for (settings, code, words) in [
        (
            policy(&place.url()),
            69,
            "`refrain migrate --receipts --print`",
        ),
        (policy(&nowhere), 69, "check host and port in the address"),
        (policy("redis://:secret@cache"), 64, "refrain.toml:4:12"),
        (
            "[policy]\nguarantee = \"exactly-once\"".to_owned(),
            64,
            "refrain.toml:2:13: exactly-once needs `receipts`",
        ),
    ] {
        let starting = Starting::new()
            .arg("--upstream", "http://127.0.0.1:1")
            .arg("--store", "memory:")
            .file(&settings);
        let (ended, said) = starting.refused();
        assert_eq!(ended, Some(code), "{said}");
        assert!(said.contains(words) && !said.contains("secret"), "{said}");
    }
}

#[test]
fn a_success_without_its_receipt_is_told_everywhere() {
    let place = ServiceDatabase::new();
    // The service pays and writes no receipt.
    let upstream = Upstream::start(|_, stream| answer(stream, "201 Created", &[], b"paid"));
    let setup = Setup::new(upstream.address, &policy(&place.url()));
    let proxy = setup.start();
    let paid = call(proxy.address, pay("k"));
    assert_eq!((paid.status, paid.text()), (201, "paid"));
    let seen = &upstream.seen()[0];
    let record = seen.header("refrain-record").unwrap().to_owned();
    assert!(seen.header("refrain-fence").is_some());
    until("the missing receipt is reported", || {
        let told = ask_admin(proxy.admin, "/metrics");
        told.text().contains("refrain_receipts_missing_total 1")
    });
    let metrics = ask_admin(proxy.admin, "/metrics");
    let gauge = "refrain_receipts_proven{operation=\"POST /pay\"} 0";
    assert!(metrics.text().contains(gauge), "{}", metrics.text());
    let operations = ask_admin(proxy.admin, "/api/operations");
    let operations: serde_json::Value = serde_json::from_slice(&operations.body).unwrap();
    let expected = serde_json::json!({
        "name": "POST /pay", "guarantee": "exactly-once", "in_force": "at-most-once",
        "audited": false,
        "receipts": { "standing": "missing", "missing": 1 },
    });
    assert_eq!(operations["operations"][0], expected);
    let shown = ask_admin(proxy.admin, &format!("/api/records/{record}"));
    let shown: serde_json::Value = serde_json::from_slice(&shown.body).unwrap();
    assert_eq!(shown["receipt"], "none");
    let log = setup.log();
    assert!(
        log.contains("a success without a receipt") && log.contains(&record),
        "{log}"
    );
}

/// The first receipt is remembered with the records: after a kill, a 500 is passed on and its retry runs.
#[test]
fn receipts_stay_proven_after_a_restart() {
    let place = Arc::new(ServiceDatabase::new());
    let service = place.clone();
    let upstream = Upstream::start(move |seen, stream| {
        let header = |name| seen.header(name).unwrap();
        if header("idempotency-key") == "broken" && header("refrain-attempt") == "1" {
            return answer(stream, "500 Internal Server Error", &[], b"broken");
        }
        let (record, fence) = (header("refrain-record"), header("refrain-fence"));
        service.run(&format!(
            "INSERT INTO refrain_receipts (record, fence, status, body) VALUES ('{record}', '{fence}', 201, 'paid')"
        ));
        answer(stream, "201 Created", &[], b"paid")
    });
    let setup = Setup::new(upstream.address, &policy(&place.url()));
    let mut proxy = setup.start();
    assert_eq!(call(proxy.address, pay("first")).status, 201);
    let says = |admin, words: &str| ask_admin(admin, "/metrics").text().contains(words);
    // The payment, and the record that remembers the receipt.
    until("the receipt is remembered", || {
        says(proxy.admin, "refrain_records{state=\"completed\"} 2")
    });
    proxy.kill();
    let proxy = setup.start();
    let gauge = "refrain_receipts_proven{operation=\"POST /pay\"} 1";
    assert!(says(proxy.admin, gauge), "before the first request");
    assert_eq!(call(proxy.address, pay("broken")).status, 500);
    let retry = call(proxy.address, pay("broken"));
    assert_eq!((retry.status, retry.text()), (201, "paid"));
    let records = ask_admin(proxy.admin, "/api/records");
    let records: serde_json::Value = serde_json::from_slice(&records.body).unwrap();
    assert_eq!(records["records"].as_array().unwrap().len(), 2);
}

/// The service commits, and the proxy is killed before the response: the record is settled without a retry.
#[test]
fn receipts_are_looked_up_after_a_kill() {
    let place = Arc::new(ServiceDatabase::new());
    let service = place.clone();
    let (commit, committed) = mpsc::channel();
    let upstream = Upstream::start(move |seen, stream| {
        let header = |name| seen.header(name).unwrap();
        let (record, fence) = (header("refrain-record"), header("refrain-fence"));
        service.run(&format!(
            "INSERT INTO refrain_receipts (record, fence, status, body) VALUES ('{record}', '{fence}', 201, 'paid')"
        ));
        commit.send(()).unwrap();
        // Until the proxy is killed.
        let _ = std::io::Read::read(stream, &mut [0]);
        support::AfterResponse::Close
    });
    let setup = Setup::new(upstream.address, &policy(&place.url()));
    let mut proxy = setup.start();
    let mut client = support::Client::connect(proxy.address);
    client.send(pay("k"));
    committed.recv().unwrap();
    proxy.kill();
    let proxy = setup.start();
    until("the receipt has settled the record", || {
        let metrics = ask_admin(proxy.admin, "/metrics");
        metrics.text().contains("refrain_resolutions_total 1")
    });
    let told = call(proxy.address, pay("k"));
    assert_eq!(
        (told.status, told.text(), told.is_replay()),
        (201, "paid", true)
    );
    assert_eq!(upstream.count(), 1);
}

#[test]
fn check_and_migrate_say_what_it_takes() {
    let place = ServiceDatabase::empty();
    let folder = tempfile::tempdir().unwrap();
    let settings = policy("postgres://app:secret@db/app");
    std::fs::write(folder.path().join("refrain.toml"), settings).unwrap();
    let (code, said) = refrain(&["check", "refrain.toml"], folder.path());
    assert_eq!(code, Some(0), "{said}");
    for words in [
        "exactly-once  ",
        "receipts",
        "exactly-once: effect and receipt",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let (code, said) = refrain(&["check", "refrain.toml", "--json"], folder.path());
    assert_eq!(code, Some(0));
    assert!(
        said.contains("\"receipts\": \"postgres://app:***@db/app\""),
        "{said}"
    );
    let (code, printed) = refrain(&["migrate", "--receipts", "--print"], folder.path());
    assert_eq!(code, Some(0));
    // The printed SQL creates the table.
    place.run(&printed);
    let url = place.url();
    let (code, said) = refrain(&["migrate", "--receipts", "--store", &url], folder.path());
    assert_eq!(
        (code, said.contains("table is ready")),
        (Some(0), true),
        "{said}"
    );
    let empty = tempfile::tempdir().unwrap();
    let (code, said) = refrain(&["migrate", "--receipts"], empty.path());
    assert_eq!(
        (code, said.contains("no database")),
        (Some(2), true),
        "{said}"
    );
}
