//! A disk of the store is stolen, or a tenant leaves and demands that its data is gone: nothing of its requests and
//! responses may be readable, and no request may execute a second time because of that.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use std::{fs, path::Path, process::Command};

use refrain_testkit::servers::{PrivatePostgres, PrivateRedis};
use serde_json::Value;
use support::{
    AfterResponse, HttpResponse, Proxy, Starting, Upstream, answer, call, find, request,
};
use tempfile::TempDir;

const KEY_A: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const KEY_B: &str = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";
const POLICY: &str =
    "[policy]\nscope = [\"header:x-tenant\"]\nrecords_keys = \"clear\"\nrecords_query = true\n";

/// Starts a proxy that encrypts with the keys in these settings.
fn start(upstream: &Upstream, store: &str, encryption: &str) -> Proxy {
    starting(upstream, store, encryption).start()
}

fn starting(upstream: &Upstream, store: &str, encryption: &str) -> Starting {
    Starting::new()
        .arg("--upstream", format!("http://{}", upstream.address))
        .arg("--store", store)
        .variable("KEY_A", KEY_A)
        .variable("KEY_B", KEY_B)
        .file(&format!("{encryption}\n{POLICY}"))
}

fn with_key(key: &str) -> String {
    format!("[encryption]\nkey_env = \"{key}\"")
}

fn stop(proxy: Proxy) {
    proxy.terminate();
    assert!(proxy.ended().success());
}

fn order(proxy: &Proxy, tenant: &str, key: &str) -> HttpResponse {
    let headers = [("x-tenant", tenant), ("idempotency-key", key)];
    call(proxy.address, request("POST /orders", &headers, b"a"))
}

fn echo_key() -> Upstream {
    Upstream::start(|seen, stream| {
        let key = seen.header("idempotency-key").unwrap_or_default();
        answer(stream, "201 Created", &[], format!("made {key}").as_bytes())
    })
}

/// What a client sends and gets, and where: each text must be found in the bytes of a store that is not encrypted.
const STORED: [&str; 5] = [
    "canary-path",
    "canary-query",
    "canary-key",
    "canary-location",
    "canary-answer",
];
/// What no store keeps.
const NEVER_STORED: [&str; 3] = ["canary-tenant", "canary-header", "canary-body"];

/// Sends requests with canaries everywhere: one is answered, one is cut off.
fn send_canaries(proxy: &Proxy) {
    for (key, status) in [("canary-key-1", 201), ("canary-key-cut", 502)] {
        let headers = [
            ("x-tenant", "canary-tenant"),
            ("x-secret", "canary-header"),
            ("idempotency-key", key),
        ];
        let start = "POST /canary-path/7?q=canary-query";
        let answered = call(proxy.address, request(start, &headers, b"canary-body"));
        assert_eq!(answered.status, status, "{key}");
    }
}

fn canary_upstream() -> Upstream {
    Upstream::start(|seen, stream| match seen.header("idempotency-key") {
        Some("canary-key-cut") => AfterResponse::Close,
        _ => {
            let headers = [("location", "/canary-location")];
            answer(stream, "201 Created", &headers, b"canary-answer")
        }
    })
}

/// The canaries in the files of a folder.
fn canaries_in(folder: &Path) -> Vec<&'static str> {
    let mut bytes = Vec::new();
    read_all(folder, &mut bytes);
    let all = STORED.iter().chain(&NEVER_STORED).copied();
    all.filter(|canary| find(&bytes, canary.as_bytes()).is_some())
        .collect()
}

fn read_all(folder: &Path, bytes: &mut Vec<u8>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => read_all(&path, bytes),
            // Sockets and files that are gone by now have nothing to read.
            false => bytes.extend(fs::read(&path).unwrap_or_default()),
        }
    }
}

/// Whether encrypted or not decides what is found.
fn check_canaries(store: &str, folder: &Path, encryption: &str, want: &[&str]) {
    let upstream = canary_upstream();
    let proxy = start(&upstream, store, encryption);
    send_canaries(&proxy);
    let listed = proxy.ask_admin("/api/records");
    let listed = listed.text();
    for shown in ["canary-path", "canary-query", "canary-key-cut"] {
        assert!(
            listed.contains(shown),
            "the admin API shows {shown}: {listed}"
        );
    }
    stop(proxy);
    assert_eq!(canaries_in(folder), want, "{store}");
}

#[test]
fn no_text_of_a_client_is_in_the_files_of_a_store() {
    for (encryption, want) in [(String::new(), &STORED[..]), (with_key("KEY_A"), &[])] {
        let folder = TempDir::new().unwrap();
        let store = format!("file:{}", folder.path().join("records").display());
        check_canaries(&store, folder.path(), &encryption, want);
    }
}

#[test]
fn no_text_of_a_client_is_in_the_files_of_postgresql() {
    for (encryption, want) in [(String::new(), &STORED[..]), (with_key("KEY_A"), &[])] {
        let server = PrivatePostgres::start().unwrap();
        check_canaries(&server.url(), &server.data_folder(), &encryption, want);
    }
}

#[test]
fn no_text_of_a_client_is_in_the_files_of_redis() {
    let every_write = [("appendonly", "yes"), ("appendfsync", "always")];
    for (encryption, want) in [(String::new(), &STORED[..]), (with_key("KEY_A"), &[])] {
        let server = PrivateRedis::start_with(&every_write).unwrap();
        check_canaries(&server.url(), &server.data_folder(), &encryption, want);
    }
}

#[test]
fn a_key_is_rotated_without_losing_an_outcome() {
    let upstream = echo_key();
    let folder = TempDir::new().unwrap();
    let store = format!("file:{}", folder.path().join("records").display());
    let replays = |proxy: &Proxy, key: &str| {
        let again = order(proxy, "acme", key);
        assert!(again.is_replay(), "{key}: {}", again.head);
        assert_eq!(again.text(), format!("made {key}"));
    };
    // Records from before encryption stay readable.
    let proxy = start(&upstream, &store, "");
    assert_eq!(order(&proxy, "acme", "plain").status, 201);
    stop(proxy);
    let proxy = start(&upstream, &store, &with_key("KEY_A"));
    replays(&proxy, "plain");
    assert_eq!(order(&proxy, "acme", "first").status, 201);
    stop(proxy);
    for wrong in ["", &with_key("KEY_B")] {
        let (code, said) = starting(&upstream, &store, wrong).refused();
        assert_eq!(code, Some(64), "{said}");
        assert!(
            said.contains("not configured") && said.contains("[encryption]"),
            "{said}"
        );
    }
    let both = format!("{}\nprevious_key_envs = [\"KEY_A\"]", with_key("KEY_B"));
    let proxy = start(&upstream, &store, &both);
    replays(&proxy, "first");
    assert_eq!(order(&proxy, "acme", "second").status, 201);
    support::until("the data keys are renewed", || {
        proxy.errors().contains("encrypted again")
    });
    stop(proxy);
    let proxy = start(&upstream, &store, &with_key("KEY_B"));
    for key in ["plain", "first", "second"] {
        replays(&proxy, key);
    }
    stop(proxy);
    // To end encryption, the key only decrypts.
    let proxy = start(
        &upstream,
        &store,
        "[encryption]\nprevious_key_envs = \"KEY_B\"",
    );
    replays(&proxy, "second");
    assert_eq!(order(&proxy, "acme", "plain-again").status, 201);
    stop(proxy);
    assert_eq!(upstream.count(), 4, "nothing ran twice");
}

#[test]
fn settings_without_a_valid_key_are_refused_with_their_place() {
    let upstream = echo_key();
    for (settings, words) in [
        ("[encryption]", "`[encryption]` has no key"),
        ("[encryption]\nkey = \"secret\"", "must not contain a key"),
        ("[encryption]\nkey_env = \"NOT_SET\"", "NOT_SET"),
        (
            "[encryption]\nkey_env = \"SHORT\"",
            "env:SHORT: invalid encryption key",
        ),
        (
            "[encryption]\nkey_file = \"/no/such\"",
            "cannot read file:/no/such",
        ),
        (
            "[encryption]\nkey_env = \"KEY_A\"\nkey_file = \"x\"",
            "set twice",
        ),
        (
            "[encryption]\nkey_envs = \"KEY_A\"",
            "did you mean `key_env`",
        ),
    ] {
        let (code, said) = starting(&upstream, "memory:", settings)
            .variable("SHORT", "qzxv")
            .refused();
        assert_eq!(code, Some(64), "{settings}: {said}");
        assert!(said.contains(words), "{settings}: {said}");
        assert!(!said.contains("qzxv"), "{said}");
    }
}

/// Runs `refrain records` on a proxy; returns its exit code and its output.
fn records(proxy: &Proxy, args: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
    let admin = format!("http://{}", proxy.admin);
    command.arg("records").args(args).args(["--admin", &admin]);
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).unwrap())
}

#[test]
fn an_erased_scope_is_gone_and_never_executes_again() {
    let upstream = echo_key();
    let folder = TempDir::new().unwrap();
    let store = format!("file:{}", folder.path().join("records").display());
    let proxy = start(&upstream, &store, &with_key("KEY_A"));
    for tenant in ["acme", "other"] {
        assert_eq!(order(&proxy, tenant, "one").status, 201);
    }
    let erase = [
        "erase",
        "--scope",
        "header:x-tenant=acme",
        "--reason",
        "tenant left",
    ];
    let (code, said) = records(&proxy, &[&erase[..], &["--dry-run"]].concat());
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("1 records of this scope; nothing was changed"),
        "{said}"
    );
    let (code, said) = records(&proxy, &erase);
    assert_eq!(code, Some(2), "no terminal to confirm on: {said}");
    assert!(
        order(&proxy, "acme", "one").is_replay(),
        "nothing was changed"
    );
    let confirmed = [&erase[..], &["--yes", "--by", "anna"]].concat();
    let (code, said) = records(&proxy, &confirmed);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(
        records(&proxy, &confirmed).0,
        Some(1),
        "there is no key left"
    );
    check_erased(&proxy, &upstream);
    assert_eq!(order(&proxy, "acme", "two").status, 201);
    assert!(
        order(&proxy, "acme", "two").is_replay(),
        "a new key for new requests"
    );
    stop(proxy);
    let audit = fs::read_dir(folder.path().join("records/audit")).unwrap();
    let audit: String = audit
        .filter_map(|file| fs::read_to_string(file.ok()?.path()).ok())
        .collect();
    for word in ["\"erasing\"", "\"erased\"", "tenant left", "anna"] {
        assert!(audit.contains(word), "no {word} in {audit}");
    }
    assert!(
        !audit.contains("acme") && !audit.contains("made"),
        "{audit}"
    );
    let proxy = start(&upstream, &store, &with_key("KEY_A"));
    check_erased(&proxy, &upstream);
    assert!(order(&proxy, "acme", "two").is_replay());
    stop(proxy);
    assert_eq!(upstream.count(), 3, "nothing ran twice");
}

fn check_erased(proxy: &Proxy, upstream: &Upstream) {
    let before = upstream.count();
    let gone = order(proxy, "acme", "one");
    assert_eq!(
        (gone.status, gone.code().as_deref()),
        (410, Some("key-expired"))
    );
    let headers = [("x-tenant", "acme"), ("idempotency-key", "one")];
    let other = call(proxy.address, request("POST /orders", &headers, b"other"));
    assert_eq!(other.status, 422, "the fingerprint is kept");
    assert!(order(proxy, "other", "one").is_replay());
    let path = "/api/records?scope=%5B%5B%22header%3Ax-tenant%22%2C%22acme%22%5D%5D";
    let listed: Value = serde_json::from_slice(&proxy.ask_admin(path).body).unwrap();
    let records = listed["records"].as_array().unwrap();
    let mut erased = records.iter().filter(|it| it["state"] == "tombstone");
    let erased = erased.next().unwrap();
    assert_eq!(
        (&erased["target"], &erased["key"]),
        (&"".into(), &Value::Null)
    );
    assert_eq!(upstream.count(), before);
}

#[test]
fn erasing_a_scope_needs_encryption() {
    let upstream = echo_key();
    let proxy = start(&upstream, "memory:", "");
    let erase = [
        "erase",
        "--scope",
        "header:x-tenant=acme",
        "--reason",
        "x",
        "--yes",
    ];
    let (code, said) = records(&proxy, &erase);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("not encrypted"), "{said}");
}

/// A key that is lost in a crash would make an acknowledged outcome unreadable.
#[test]
fn a_killed_proxy_has_the_data_key_of_every_acknowledged_outcome() {
    let upstream = echo_key();
    let folder = TempDir::new().unwrap();
    let store = format!("file:{}", folder.path().join("records").display());
    let mut acknowledged: Vec<(String, String)> = Vec::new();
    for round in 0..8 {
        let proxy = start(&upstream, &store, &with_key("KEY_A"));
        for (tenant, key) in &acknowledged {
            let again = order(&proxy, tenant, key);
            assert!(again.is_replay(), "{tenant}: {}", again.head);
            assert_eq!(again.text(), format!("made {key}"));
        }
        // Each request creates the key of its scope; the last ones are in progress when the proxy is killed.
        let address = proxy.address;
        let senders = (0..4)
            .map(|sender| std::thread::spawn(move || send_until_killed(address, round, sender)));
        let senders: Vec<_> = senders.collect();
        let before = upstream.count();
        upstream.wait_for(before + 20);
        drop(proxy);
        for sender in senders {
            acknowledged.extend(sender.join().unwrap());
        }
    }
    assert!(
        acknowledged.len() > 8 * 10,
        "{} requests",
        acknowledged.len()
    );
}

/// Sends requests in new scopes until the proxy is gone; returns tenant and key of those that were answered.
fn send_until_killed(
    address: std::net::SocketAddr,
    round: usize,
    sender: usize,
) -> Vec<(String, String)> {
    let mut done = Vec::new();
    for number in 0.. {
        let (tenant, key) = (format!("t{round}-{sender}-{number}"), format!("k{number}"));
        let headers = [("x-tenant", &*tenant), ("idempotency-key", &*key)];
        let bytes = request("POST /orders", &headers, b"a");
        let Some(answered) = try_call(address, &bytes) else {
            break;
        };
        if answered.status == 201 {
            done.push((tenant, key));
        }
    }
    done
}

/// The response; `None` if the proxy was killed before it.
fn try_call(address: std::net::SocketAddr, bytes: &[u8]) -> Option<HttpResponse> {
    // The client panics if it cannot connect any more.
    let called = std::panic::catch_unwind(|| {
        let mut client = support::Client::connect(address);
        client.send(bytes);
        client.try_answer()
    });
    called.ok().flatten()
}
