//! A problem that is found at three in the morning was there the day before: `refrain doctor` has to name it, and its fix.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use std::{
    fs,
    net::TcpListener,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Output},
};

use serde_json::Value;
use support::{Proxy, Starting, Upstream};
use tempfile::TempDir;

/// A folder with a configuration, whose ports are free.
fn folder(text: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let text = format!("listen = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n{text}");
    fs::write(folder.path().join("refrain.toml"), text).unwrap();
    folder
}

fn doctor(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_refrain"))
        .arg("doctor")
        .args(args)
        .current_dir(folder)
        .env_remove("REFRAIN_STORE")
        .output()
        .unwrap()
}

/// The findings of a check, as `level: message; fix`.
fn findings(folder: &Path, check: &str) -> Vec<String> {
    let output = doctor(folder, &["--json"]);
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = told["findings"].as_array().unwrap().iter();
    let found = findings.filter(|it| it["check"] == check);
    let text = |it: &Value, name: &str| it[name].as_str().unwrap_or_default().to_owned();
    let line = |it| {
        format!(
            "{}: {}; {}",
            text(it, "level"),
            text(it, "message"),
            text(it, "fix")
        )
    };
    found.map(line).collect()
}

/// Checks that one finding of the check has all these words.
fn expect(folder: &Path, check: &str, words: &[&str]) {
    let found = findings(folder, check);
    let fits = |it: &&String| words.iter().all(|word| it.contains(word));
    assert!(found.iter().any(|it| fits(&it)), "{words:?} in {found:?}");
}

#[test]
fn a_sound_folder_has_no_error_and_nothing_is_created() {
    let upstream = Upstream::echo();
    let folder = folder(&format!("upstream = \"http://{}\"\n", upstream.address));
    let output = doctor(folder.path(), &[]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("refrain.toml is valid"), "{text}");
    assert!(text.contains("accepts connections"), "{text}");
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        1,
        "it created something"
    );
}

#[test]
fn an_invalid_file_is_named_with_its_line() {
    let folder = folder("[policy]\nwaitt = \"1s\"\n");
    let output = doctor(folder.path(), &[]);
    assert_eq!(output.status.code(), Some(64));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("refrain.toml:4:1"), "{text}");
}

#[test]
fn a_port_of_another_program_is_an_error_and_one_of_a_proxy_is_not() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    // It disconnects every client without an answer.
    let address = taken.local_addr().unwrap();
    std::thread::spawn(move || taken.incoming().for_each(drop));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("refrain.toml");
    fs::write(
        &file,
        format!("listen = \"{address}\"\nadmin = \"127.0.0.1:0\"\n"),
    )
    .unwrap();
    expect(
        folder.path(),
        "ports",
        &["error", &address.to_string(), "another program"],
    );
    assert_eq!(doctor(folder.path(), &[]).status.code(), Some(1));

    let upstream = Upstream::echo();
    let proxy = Proxy::start(upstream.address, "");
    let text = format!(
        "listen = \"{}\"\nadmin = \"{}\"\n",
        proxy.address, proxy.admin
    );
    fs::write(&file, text).unwrap();
    for address in [proxy.address, proxy.admin] {
        let address = address.to_string();
        expect(folder.path(), "ports", &["ok", &address, "running proxy"]);
    }
}

#[test]
fn what_others_can_read_is_named() {
    let folder = folder("store = \"postgres://app:secret@127.0.0.1:1/app\"\n");
    let file = folder.path().join("refrain.toml");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    expect(
        folder.path(),
        "permissions",
        &["warning", "password", "chmod 600"],
    );
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(findings(folder.path(), "permissions").is_empty());
    let output = doctor(folder.path(), &["--json"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains("secret"), "{text}");
}

#[test]
fn a_server_that_does_not_answer_is_an_error() {
    for store in ["postgres://app@127.0.0.1:1/app", "redis://127.0.0.1:1"] {
        let folder = folder(&format!("store = \"{store}\"\n"));
        expect(folder.path(), "store", &["error", "127.0.0.1:1"]);
        assert_eq!(doctor(folder.path(), &[]).status.code(), Some(1));
    }
}

#[test]
fn warnings_fail_only_in_strict_mode() {
    let folder = folder("store = \"memory:\"\n");
    expect(folder.path(), "store", &["warning", "memory:", "file:"]);
    assert_eq!(doctor(folder.path(), &[]).status.code(), Some(0));
    assert_eq!(doctor(folder.path(), &["--strict"]).status.code(), Some(1));
}

#[test]
fn nodes_are_asked_for_their_version() {
    let upstream = Upstream::echo();
    let proxy = Proxy::start(upstream.address, "");
    let node = format!("http://{}", proxy.admin);
    let folder = folder("");
    let output = doctor(folder.path(), &["--node", &node]);
    let text = String::from_utf8(output.stdout).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    assert!(
        text.contains(&format!("{node} runs version {version}")),
        "{text}"
    );
    assert!(text.contains("the clock of"), "{text}");
    let output = doctor(folder.path(), &["--node", "http://127.0.0.1:1"]);
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_probe_tells_whether_the_proxy_is_ready() {
    let upstream = Upstream::echo();
    let proxy = Starting::new()
        .arg("--upstream", format!("http://{}", upstream.address))
        .arg("--store", "memory:")
        .start();
    let probe = |admin: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
        let output = command
            .args(["doctor", "--probe"])
            .env("REFRAIN_ADMIN", admin)
            .output()
            .unwrap();
        output.status.code()
    };
    assert_eq!(probe(&proxy.admin.to_string()), Some(0));
    assert_eq!(probe("127.0.0.1:1"), Some(69));
}
