//! A deployment script relies on the exit code of `refrain check`, and a person on its output: both must be right.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod review;
#[path = "../support/mod.rs"]
mod support;

use std::{fs, path::Path, process::Command};

use tempfile::TempDir;

const GOOD: &str = "store = \"postgres://app:secret@db/app\"\n[[operation]]\nmatch = \"POST /v1/payments\"\nclass = \"monetary\"\n[[operation]]\nmatch = \"POST /search\"\nclass = \"read\"\n";
const BAD: &str = "[policy]\nretension = \"1h\"\n";

/// Runs the command in `folder`; returns exit code, stdout and stderr.
fn run(folder: &Path, args: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
    let output = command.current_dir(folder).args(args).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    )
}

fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("good.toml"), GOOD).unwrap();
    fs::write(folder.path().join("bad.toml"), BAD).unwrap();
    fs::write(folder.path().join("binary.toml"), [0xFF, 0xFE]).unwrap();
    folder
}

#[test]
fn exit_codes_tell_good_bad_and_wrong_usage_apart() {
    let folder = folder();
    let cases: [(&[&str], i32); 10] = [
        (&["check", "good.toml"], 0),
        (&["check", "good.toml", "--json"], 0),
        (&["check", "--schema"], 0),
        (&["check", "--help"], 0),
        (&["check", "bad.toml"], 64),
        (&["check", "bad.toml", "--json"], 64),
        (&["check", "binary.toml"], 64),
        (&["check", "missing.toml"], 64),
        (&["check"], 64),
        (&["check", "good.toml", "--jason"], 2),
    ];
    for (args, expected) in cases {
        let (code, stdout, stderr) = run(folder.path(), args);
        assert_eq!(code, expected, "{args:?}\n{stdout}\n{stderr}");
        assert_eq!(stderr.is_empty(), expected == 0, "{args:?}: {stderr}");
    }
}

#[test]
fn a_good_file_is_shown_as_a_table() {
    let (_, stdout, _) = run(folder().path(), &["check", "good.toml"]);
    let rows: Vec<Vec<_>> = stdout
        .lines()
        .map(|line| {
            line.split("  ")
                .map(str::trim)
                .filter(|cell| !cell.is_empty())
                .collect()
        })
        .collect();
    let row = |name: &str| {
        rows.iter()
            .find(|row| row.first() == Some(&name))
            .unwrap()
            .clone()
    };
    assert_eq!(
        row("POST /v1/payments"),
        [
            "POST /v1/payments",
            "monetary",
            "at-most-once",
            "header:idempotency-key (required)",
            "credential",
            "30d",
            "365d",
            "audit"
        ]
    );
    assert_eq!(row("POST /search")[1..3], ["read", "unguarded"]);
    assert_eq!(row("PATCH *")[2], "at-most-once");
    let is_promised = |guarantee: &str| stdout.contains(&format!("\n{guarantee}: a request "));
    assert!(is_promised("at-most-once"), "{stdout}");
    assert!(
        !is_promised("at-least-once"),
        "the guarantee is not in force"
    );
    assert!(
        stdout.contains("postgres://app:***@db/app") && !stdout.contains("secret"),
        "{stdout}"
    );
}

/// A retry after the end of retention is not recognised as a duplicate, and nobody notices until it has run twice.
#[test]
fn a_retention_that_ends_before_the_sender_gives_up_is_warned_about() {
    let folder = folder();
    let hook = |settings: &str| format!("[[operation]]\nmatch = \"POST /hook\"\n{settings}\n");
    let cases = [
        (
            "webhook = \"stripe\"\nretention = \"1d\"",
            "retention (1d) ends before stripe stops redelivering (3d)",
            "retention = \"3d\"",
        ),
        (
            "webhook = \"stripe\"\nretention = \"1d\"\nremember = \"1h\"",
            "a late redelivery is executed again",
            "retention = \"3d\"",
        ),
        (
            "key = \"preset:github\"",
            "retention (1d) ends before github",
            "retention = \"3d\"",
        ),
        (
            "key = \"header:webhook-id\"\nretention = \"5m\"",
            "retention (5m) ends before standard-webhooks",
            "retention = \"3d4h\"",
        ),
        (
            "webhook = \"svix\"",
            "svix webhooks are accepted without a signature",
            "signature = { secret_env = \"NAME\" }",
        ),
        (
            "webhook = \"shopify\"\nsignature = { secret_env = \"PATH\" }",
            "",
            "",
        ),
        ("key = \"preset:github\"\nretention = \"3d\"", "", ""),
        ("class = \"event\"", "", ""),
    ];
    for (settings, message, fix) in cases {
        fs::write(folder.path().join("hook.toml"), hook(settings)).unwrap();
        let (code, stdout, stderr) = run(folder.path(), &["check", "hook.toml"]);
        assert_eq!((code, stderr.as_str()), (0, ""), "{settings}");
        let (_, json, _) = run(folder.path(), &["check", "hook.toml", "--json"]);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let warnings = json["warnings"].as_array().unwrap();
        if message.is_empty() {
            assert!(!stdout.contains("warning:"), "{stdout}");
            assert!(warnings.is_empty(), "{json}");
            continue;
        }
        let told = stdout.split_once("\nwarning: POST /hook: ").unwrap().1;
        assert!(
            told.contains(message) && told.contains("\n  fix: "),
            "{told}"
        );
        assert!(told.contains(fix), "{told}");
        assert!(
            warnings[0]["message"].as_str().unwrap().contains(message) || warnings.len() > 1,
            "{json}"
        );
        assert_eq!(warnings[0]["name"], "POST /hook");
    }
}

#[test]
fn json_is_for_programs() {
    let folder = folder();
    let json = |args: &[&str]| -> serde_json::Value {
        serde_json::from_str(&run(folder.path(), args).1).unwrap()
    };
    let good = json(&["check", "good.toml", "--json"]);
    assert_eq!(good["operations"][0]["match"], "POST /v1/payments");
    assert_eq!(good["operations"][0]["retention"], "30d");
    let bad = json(&["check", "bad.toml", "--json"]);
    assert_eq!(bad["error"]["problems"][0]["line"], 2);
    assert_eq!(
        bad["error"]["problems"][0]["help"],
        "did you mean `retention`?"
    );
    assert_eq!(json(&["check", "--schema"])["title"], "refrain.toml");
}

#[test]
fn a_bad_file_is_explained_on_stderr() {
    let (_, stdout, stderr) = run(folder().path(), &["check", "bad.toml"]);
    assert!(stdout.is_empty());
    assert!(
        stderr.starts_with("bad.toml:2:1: unknown setting `retension` in [policy]\n"),
        "{stderr}"
    );
    let (_, _, stderr) = run(folder().path(), &["check", "missing.toml"]);
    assert!(
        stderr.starts_with("missing.toml: cannot be read"),
        "{stderr}"
    );
}
