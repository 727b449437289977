//! A command that ignores the `refrain.toml` beside it guards nothing that the file names, or talks to another proxy.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use std::{fs, process::Command};

use support::{Starting, Upstream, call, post};
use tempfile::TempDir;

/// Runs a command in a folder with this `refrain.toml`; returns its exit code and all that it prints.
fn run(file: &str, args: &[&str]) -> (i32, String) {
    let folder = folder(file);
    let output = Command::new(env!("CARGO_BIN_EXE_refrain"))
        .args(args)
        .current_dir(folder.path())
        .env_remove("REFRAIN_STORE")
        .env_remove("REFRAIN_ADMIN")
        .output()
        .unwrap();
    let mut text = String::from_utf8(output.stdout).unwrap();
    text += &String::from_utf8(output.stderr).unwrap();
    let entries = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(entries, 1, "{args:?} left something in its folder: {text}");
    (output.status.code().unwrap(), text)
}

fn folder(file: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("refrain.toml"), file).unwrap();
    folder
}

#[test]
fn proxy_uses_the_file_of_its_folder() {
    let upstream = Upstream::echo();
    let starting = Starting::new();
    let text = format!(
        "upstream = \"http://{}\"\nstore = \"memory:\"\n[policy]\nkey = \"header:X-Order\"\nrequired = true\n",
        upstream.address
    );
    fs::write(starting.folder.path().join("refrain.toml"), text).unwrap();
    assert!(starting.greeting().contains("settings refrain.toml"));
    let proxy = starting.start();
    let answer = call(proxy.address, post("other-header", "{}"));
    assert_eq!(answer.code().as_deref(), Some("key-missing"));
}

#[test]
fn records_and_top_ask_the_admin_address_of_the_file() {
    for command in [&["records"][..], &["top", "--once"]] {
        let (code, text) = run("admin = \"127.0.0.1:1\"\n", command);
        assert_eq!(code, 69, "{text}");
        assert!(text.contains("http://127.0.0.1:1"), "{text}");
    }
}

#[test]
fn migrate_uses_the_database_of_the_file() {
    let (code, text) = run("store = \"postgres://app@127.0.0.1:1/app\"\n", &["migrate"]);
    assert_eq!(code, 69, "{text}");
    assert!(text.contains("127.0.0.1:1"), "{text}");
}

#[test]
fn migrate_prints_the_script_beside_a_file_without_a_database() {
    let (code, text) = run("store = \"memory:\"\n", &["migrate", "--print"]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("CREATE TABLE"), "{text}");
}

#[test]
fn every_command_names_the_mistake_in_the_file_before_it_creates_anything() {
    let commands = [
        &["proxy", "--upstream", "http://127.0.0.1:9"][..],
        &["work"],
        &["relay"],
        &["check"],
        &["migrate"],
        &["audit", "verify"],
        &["records"],
        &["top", "--once"],
    ];
    for args in commands {
        let (code, text) = run("[policy]\nwaitt = \"1s\"\n", args);
        assert_eq!(code, 64, "{args:?}: {text}");
        assert!(text.contains("refrain.toml:2:1"), "{args:?}: {text}");
        assert!(text.contains("`wait`"), "{args:?}: {text}");
    }
}
