//! An audit log is useless if it lacks a payment or an operator's decision, or if it can be edited unnoticed.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::{
    collections::HashMap,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use refrain::{
    AuditLog, Outcome, RecordId,
    audit::{self, Check, Entry, Event, Visit, Written},
};
use refrain_testkit::{disk::Dice, servers::free_port, wait};
use rustix::process::{Resource, Rlimit, prlimit};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::{task::spawn_blocking, time::sleep};

#[path = "kills_support/proxy.rs"]
mod proxy;
#[path = "kills_support/upstream.rs"]
mod upstream;
#[path = "kills_support/wire.rs"]
mod wire;

use proxy::{Proxy, Setup};
use upstream::{Act, Upstream, echo};
use wire::{Message, Wire, ask, post};

const PAYMENTS: &str = "[[operation]]\nmatch = \"POST /payments\"\nclass = \"monetary\"\n";

/// Runs the command in its own folder; returns exit code, stdout and stderr.
fn run(folder: &Path, args: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
    command.args(args).current_dir(folder).stdin(Stdio::null());
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let code = output.status.code().unwrap();
    (code, text(output.stdout), text(output.stderr))
}

fn entries(folder: &Path) -> Vec<Written> {
    let mut all = Vec::new();
    let mut visit = |visit: Visit<'_>| {
        if let Visit::Entry(entry, _) = visit {
            all.push(entry.clone());
        }
    };
    let found = audit::verify(folder, &Check::default(), &mut visit).unwrap();
    assert_eq!(found.damage, []);
    all
}

fn events(folder: &Path) -> Vec<String> {
    entries(folder).into_iter().map(|it| it.event).collect()
}

/// Two payments, one of which never gets a response, and a third one whose unknown outcome an operator resolved.
async fn sample(folder: &Path) {
    let log = AuditLog::open(folder).unwrap();
    let entry = |event, record: u8| {
        let mut entry = Entry::new(event).of(RecordId([record; 16]), "1.2.00000003".parse().ok());
        entry.operation = Some("POST /payments".into());
        entry
    };
    log.note(entry(Event::Granted, 1));
    let mut end = entry(Event::Completed, 1);
    end.outcome = Some(Outcome::new(201, "charged"));
    log.note(end);
    log.note(entry(Event::Granted, 2));
    let mut deed = Entry::new(Event::Erased).of(RecordId([3; 16]), None);
    deed.reason = Some("=cmd|' /C calc'!A0".into());
    deed.by = Some("anna".into());
    log.write(deed).await.unwrap();
}

#[tokio::test]
async fn verify_reports_the_kind_of_tampering() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("refrain-data/audit");
    let audit = |args: &[&str]| run(folder.path(), &[&["audit"], args].concat());
    let (code, stdout, stderr) = audit(&["verify"]);
    assert_eq!((code, stdout.as_str()), (64, ""));
    assert!(
        stderr.contains("refrain-data/audit holds no audit log"),
        "{stderr}"
    );
    sample(&log).await;
    let (code, stdout, stderr) = audit(&["verify"]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    let (_, head, _) = audit(&["head"]);
    let head = head.trim();
    let all = entries(&log);
    let (first, last, open) = (&all[0].at, &all[4].at, &all[3].at);
    let expected = format!(
        "refrain-data/audit: 5 entries in 1 file, no damage
first  entry 1, {first}
last   entry 5, {last}
head   {head}
       store it elsewhere: --head HASH detects a log that was truncated or rewritten later
1 record without an end: still running, or their process was killed
  entry 4, {open}  02020202020202020202020202020202  POST /payments
"
    );
    assert_eq!(stdout, expected);
    assert_eq!(
        audit(&["verify", "refrain-data/audit", "--head", head]).0,
        0
    );

    let file = fs::read_dir(&log).unwrap().map(|it| it.unwrap().path());
    let file = file
        .into_iter()
        .find(|it| it.extension().is_some())
        .unwrap();
    let whole = fs::read_to_string(&file).unwrap();
    let lines: Vec<_> = whole.lines().collect();
    fs::write(&file, lines[..4].join("\n") + "\n").unwrap();
    assert_eq!(
        audit(&["verify"]).0,
        0,
        "a truncated end is only detected by comparing the head"
    );
    let (code, stdout, _) = audit(&["verify", "--head", head]);
    assert_eq!(code, 1);
    assert!(stdout.contains("1 damaged place"), "{stdout}");
    assert!(
        stdout.contains(&format!("no entry has the hash {head}")),
        "{stdout}"
    );

    // Only the status is changed: a hash may contain the same digits.
    let changed = whole.replace("\"status\":201", "\"status\":200");
    assert_ne!(changed, whole);
    fs::write(&file, changed).unwrap();
    let (code, stdout, _) = audit(&["verify"]);
    assert_eq!(code, 1);
    assert!(stdout.contains(".jsonl:3: entry 3 was changed"), "{stdout}");
    let (code, stdout, _) = audit(&["verify", "--json"]);
    let told: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &told["damage"][0]["kind"]), (1, &"changed".into()));
    assert_eq!(
        (&told["damage"][0]["line"], &told["damage_count"]),
        (&3.into(), &1.into())
    );
    let (code, _, stderr) = audit(&["export"]);
    assert_eq!(code, 1);
    assert!(stderr.contains("entry 3 was changed"), "{stderr}");

    assert_eq!(audit(&["verify", "--head", "1234"]).0, 2);
    assert_eq!(audit(&["verify", "--config", "none.toml"]).0, 64);
}

#[tokio::test]
async fn export_filters_entries() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    sample(&log).await;
    fs::write(folder.path().join("refrain.toml"), "audit_log = \"log\"\n").unwrap();
    let export = |args: &[&str]| {
        let (code, stdout, stderr) = run(folder.path(), &[&["audit", "export"], args].concat());
        assert_eq!((code, stderr.as_str()), (0, ""), "{args:?}");
        stdout
    };
    let count = |args: &[&str]| export(args).lines().count();
    let file = fs::read_dir(&log).unwrap().map(|it| it.unwrap().path());
    let file = file
        .into_iter()
        .find(|it| it.extension().is_some())
        .unwrap();
    assert_eq!(export(&[]), fs::read_to_string(file).unwrap());
    assert_eq!(count(&["--operation", "POST /payments"]), 3);
    assert_eq!(
        count(&["--operation", "POST /payments", "--event", "granted"]),
        2
    );
    assert_eq!(count(&["--record", "02020202020202020202020202020202"]), 1);
    assert_eq!(count(&["--from", "2020-01-01"]), 5);
    assert_eq!(count(&["--until", "2020-01-01"]), 0);
    assert_eq!(count(&["--from", "9998-01-01T00:00:00+01:00"]), 0);
    let csv = export(&[
        "--format",
        "csv",
        "--event",
        "erased",
        "--event",
        "completed",
    ]);
    let lines: Vec<_> = csv.split("\r\n").collect();
    assert!(
        lines[0].starts_with("seq,at,event,operation,record,"),
        "{csv}"
    );
    let digest = hex(b"charged");
    let expected = format!(
        ",completed,POST /payments,{},1.2.00000003,,201,{digest},,,",
        "01".repeat(16)
    );
    assert!(lines[1].contains(&expected), "{csv}");
    assert!(lines[2].contains(",anna,\"'=cmd|' /C calc'!A0\","), "{csv}");
    export(&["--output", "out.jsonl"]);
    let out = folder.path().join("out.jsonl");
    assert_eq!(fs::read_to_string(&out).unwrap(), export(&[]));
    use std::os::unix::fs::PermissionsExt as _;
    assert_eq!(
        fs::metadata(out).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let wrong = ["audit", "export", "--from", "yesterday"];
    assert_eq!(run(folder.path(), &wrong).0, 2);
}

fn hex(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

async fn start(setup: &Arc<Setup>) -> Proxy {
    let setup = setup.clone();
    spawn_blocking(move || setup.start()).await.unwrap()
}

async fn admin(proxy: &Proxy, path: &str) -> Message {
    let bytes = format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n");
    ask(proxy.admin, bytes.as_bytes()).await
}

/// No operation is audited, so no log is created before an operator resolves a record.
#[tokio::test]
async fn operator_actions_are_audited_with_actor_and_reason() {
    let upstream = Upstream::start(|_| vec![Act::Close]).await;
    let setup = Arc::new(Setup::new(upstream.address, ""));
    let proxy = start(&setup).await;
    let log = setup.file("store/audit");
    let lost = ask(proxy.address, &post("/orders", "order-7", b"{}")).await;
    assert_eq!(lost.verdict(), "502 outcome-unknown");
    assert!(!log.exists());
    let url = format!("http://{}", proxy.admin);
    let records = |args: &[&str]| {
        let args: Vec<_> = args.iter().map(|it| (*it).to_owned()).collect();
        let (folder, url) = (setup.file(""), url.clone());
        spawn_blocking(move || {
            let args: Vec<_> = args.iter().map(String::as_str).collect();
            let args = [&["records"], &args[..], &["--json", "--admin", &url]].concat();
            let (code, stdout, stderr) = run(&folder, &args);
            assert_eq!(code, 0, "{stderr}");
            serde_json::from_str::<Value>(&stdout).unwrap()
        })
    };
    let listed = records(&["list"]).await.unwrap();
    let id = listed["records"][0]["id"].as_str().unwrap();
    let reason = ["--reason", "seen in the ledger", "--by", "anna"];
    let resolve = [
        &["resolve", id, "--status", "201", "--body", "charged"],
        &reason[..],
    ]
    .concat();
    records(&resolve).await.unwrap();
    records(&["erase", id, "--yes", "--reason", "a test"])
        .await
        .unwrap();
    let all = entries(&log);
    let names: Vec<_> = all.iter().map(|it| it.event.as_str()).collect();
    assert_eq!(
        names,
        ["began", "resolving", "resolved", "erasing", "erased"]
    );
    let told = |it: &Written| {
        (
            it.record.clone(),
            it.actor.clone(),
            it.by.clone(),
            it.reason.clone(),
        )
    };
    let text = |text: &str| Some(text.to_owned());
    let anna = (
        text(id),
        text("loopback"),
        text("anna"),
        text("seen in the ledger"),
    );
    assert_eq!(told(&all[2]), anna);
    assert_eq!(
        told(&all[4]),
        (text(id), text("loopback"), None, text("a test"))
    );
    assert_eq!(
        (all[2].status, all[2].outcome.clone()),
        (Some(201), Some(hex(b"charged")))
    );
}

/// The log's disk is full: audited operations are rejected before they execute, all others still work.
#[tokio::test]
async fn full_audit_disk_blocks_audited_operations_only() {
    let upstream = Upstream::start(echo).await;
    // With a store in memory, only the log is written to disk.
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("audit");
    let rest = format!("audit_log = \"{}\"\n{PAYMENTS}", log.display());
    let setup = Setup::stored("127.0.0.1:0", "memory:", upstream.address, &rest);
    let proxy = spawn_blocking(move || (setup.start_limited(), setup))
        .await
        .unwrap();
    let (proxy, _setup) = proxy;
    let send = async |target: &str, key: &str| ask(proxy.address, &post(target, key, b"{}")).await;
    assert_eq!(send("/payments", "a").await.status(), 201);
    assert_eq!(admin(&proxy, "/readyz").await.status(), 200);
    assert_eq!(events(&log), ["began", "granted", "completed"]);
    let full = Rlimit {
        current: Some(1),
        maximum: None,
    };
    prlimit(Some(proxy.pid()), Resource::Fsize, full).unwrap();
    let first = send("/payments", "b").await;
    assert_eq!(
        first.verdict(),
        "503 outcome-unknown",
        "the operation ran, and its outcome is not in the log"
    );
    let count = upstream.count();
    for key in ["a", "b", "c"] {
        let refused = send("/payments", key).await;
        assert_eq!(refused.verdict(), "503 store-unavailable");
        assert!(refused.text().contains("audit log"), "{}", refused.text());
    }
    assert_eq!(upstream.count(), count, "nothing ran");
    assert_eq!(send("/notes", "d").await.status(), 201);
    let ready = admin(&proxy, "/readyz").await;
    assert_eq!(ready.status(), 503);
    assert!(
        ready.text().contains("\"reason\":\"audit\""),
        "{}",
        ready.text()
    );
    let metrics = admin(&proxy, "/metrics").await.text();
    assert!(metrics.contains("refrain_audit_log_shut 1"), "{metrics}");
    assert!(
        metrics.contains("refrain_audit_refusals_total 3"),
        "{metrics}"
    );
}

/// Entries in a modified log are rejected, with file and line.
#[tokio::test]
async fn proxy_does_not_start_on_a_tampered_audit_log() {
    let upstream = Upstream::start(echo).await;
    let setup = Arc::new(Setup::new(upstream.address, PAYMENTS));
    let mut proxy = start(&setup).await;
    for key in ["a", "b"] {
        assert_eq!(
            ask(proxy.address, &post("/payments", key, b"{}"))
                .await
                .status(),
            201
        );
    }
    proxy.kill();
    let log = setup.file("store/audit");
    let file = fs::read_dir(&log).unwrap().map(|it| it.unwrap().path());
    let file: PathBuf = file
        .into_iter()
        .find(|it| it.extension().is_some())
        .unwrap();
    let text = fs::read_to_string(&file).unwrap();
    // Only the status is changed: a hash may contain the same digits.
    let changed = text.replacen("\"status\":201", "\"status\":200", 1);
    assert_ne!(changed, text);
    fs::write(&file, changed).unwrap();
    let config = setup.file("refrain.toml");
    let args = ["proxy", "--config", config.to_str().unwrap()];
    let (code, _, stderr) = run(&setup.file(""), &args);
    assert_eq!(code, 69, "{stderr}");
    assert!(
        stderr.contains(".jsonl:3: the line does not match the hash at its end"),
        "{stderr}"
    );
}

/// Successful responses that clients received, by key.
type Told = Arc<Mutex<HashMap<String, Message>>>;

const CLIENTS: usize = 8;
const KILLS: u64 = 25;

/// Sends payments one after the other until `stop`; each is retried until it succeeds or its outcome is unknown.
async fn pay(
    address: SocketAddr,
    client: usize,
    told: Told,
    stop: tokio::sync::watch::Receiver<bool>,
) {
    for number in 0.. {
        let key = format!("payment-{client}-{number}");
        loop {
            if *stop.borrow() {
                return;
            }
            let answer = async {
                let mut wire = Wire::open(address).await?;
                wire.ask(&post("/payments", &key, b"{}")).await
            };
            match answer.await {
                Ok(answer) if answer.status() == 201 => {
                    told.lock().unwrap().insert(key.clone(), answer);
                    break;
                }
                // The outcome stays unknown: no operator resolves it here.
                Ok(answer) if answer.code() == "outcome-unknown" => break,
                Ok(_) | Err(_) => sleep(Duration::from_millis(5)).await,
            }
        }
    }
}

/// Every response that a client has received is in the log, no matter when the proxy was killed.
fn check_told(log: &Path, told: &Told) -> usize {
    // Taken before the log is read: these responses must be in it.
    let told: Vec<_> = told.lock().unwrap().values().cloned().collect();
    let ended: std::collections::HashSet<_> = entries(log)
        .into_iter()
        .filter(|it| it.event == "completed" && it.status == Some(201))
        .filter_map(|it| it.outcome)
        .collect();
    for answer in &told {
        assert!(
            ended.contains(&hex(&answer.body)),
            "not in the log: {answer:?}"
        );
    }
    told.len()
}

#[tokio::test]
async fn repeatedly_killed_proxy_returned_no_response_that_is_not_in_its_audit_log() {
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let mut dice = Dice::new(seed);
    let upstream = Upstream::start(echo).await;
    let listen = format!("127.0.0.1:{}", free_port().unwrap());
    let setup = Arc::new(Setup::on(&listen, upstream.address, PAYMENTS));
    let mut proxy = start(&setup).await;
    let (told, (stop, stopping)) = (Told::default(), tokio::sync::watch::channel(false));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| tokio::spawn(pay(proxy.address, client, told.clone(), stopping.clone())))
        .collect();
    let log = setup.file("store/audit");
    for _ in 0..KILLS {
        sleep(Duration::from_millis(20 + dice.below(150))).await;
        // The log can be read while the proxy writes to it.
        let (reading, known) = (log.clone(), told.clone());
        spawn_blocking(move || check_told(&reading, &known))
            .await
            .unwrap();
        proxy.kill();
        check_told(&log, &told);
        proxy = start(&setup).await;
    }
    let received = || told.lock().unwrap().len();
    wait::until_counted("enough responses are received", received, 101).await;
    stop.send_replace(true);
    for client in clients {
        client.await.unwrap();
    }
    let count = check_told(&log, &told);
    assert!(count > 100, "too little: {count}");
    let reopened = events(&log).iter().filter(|it| *it == "reopened").count();
    assert_eq!(reopened as u64, KILLS);
    // Only requests in flight at a kill have no outcome in the log.
    let found = audit::verify(&log, &Check::default(), &mut |_| ()).unwrap();
    let lost = found.loose.open.len();
    println!(
        "{count} responses received, {} entries, {lost} without an outcome",
        found.entries
    );
    assert!(lost <= KILLS as usize * CLIENTS, "{lost}");
    assert!(!setup.log().contains("panicked"), "{}", setup.log());
}
