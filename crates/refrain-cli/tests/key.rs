//! A nightly job crashed and was restarted: it must derive the same keys as before, or every invoice is paid twice.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::{
    fs,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

/// Derives a key from these parameters and this stdin; returns exit code, stdout and stderr.
fn run(folder: &Path, params: &str, stdin: &str, more: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
    let mut child = command
        .current_dir(folder)
        .args(["key", "--entity", "invoice-7", "--action", "pay"])
        .args(["--params", params])
        .args(more)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Writing fails if the command exits with an error before it reads stdin.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[test]
fn the_key_stands_alone_on_stdout_wherever_the_parameters_come_from() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(
        folder.path().join("pay.json"),
        "{\n  \"b\": \"x\",\n  \"a\": 5\n}\n",
    )
    .unwrap();
    let key = refrain::Key::derive("invoice-7", "pay", br#"{"a":5,"b":"x"}"#);
    let expected = format!("{}\n", key.as_str());
    for (params, stdin) in [
        (r#"{"a":5,"b":"x"}"#, ""),
        (r#" {"b": "x", "a": 5} "#, ""),
        ("@pay.json", ""),
        ("-", r#"{"b":"x","a":5}"#),
        ("@-", r#"{"b":"x","a":5}"#),
    ] {
        let (code, stdout, stderr) = run(folder.path(), params, stdin, &[]);
        assert_eq!((code, &stdout, stderr.as_str()), (0, &expected, ""));
    }
    for other in [r#"{"a":6,"b":"x"}"#, "{}", "-5", "null"] {
        let (code, stdout, stderr) = run(folder.path(), other, "", &[]);
        assert_eq!(code, 0, "{other} {stderr}");
        assert_ne!(stdout, expected, "{other}");
    }
}

#[test]
fn parameters_that_cannot_count_as_json_are_refused_with_the_way_out() {
    let folder = tempfile::tempdir().unwrap();
    let broken = "{\n  \"a\": five\n}";
    fs::write(folder.path().join("broken.json"), broken).unwrap();
    let deep = "[".repeat(200) + &"]".repeat(200);
    let cases = [
        (
            "{amount: 5}",
            "",
            "--params is not JSON: key must be a string at line 1 column 2; fix it",
        ),
        (
            "@broken.json",
            "",
            "broken.json is not JSON: expected ident at line 2 column 9",
        ),
        ("-", "", "stdin is not JSON: EOF while parsing a value"),
        (
            r#"{"a":1,"a":2}"#,
            "",
            "--params has an object with a duplicate member",
        ),
        (&deep, "", "--params is nested deeper than 128"),
    ];
    for (params, stdin, words) in cases {
        let (code, stdout, stderr) = run(folder.path(), params, stdin, &[]);
        assert_eq!((code, stdout.as_str()), (2, ""), "{params}");
        assert!(
            stderr.starts_with(&format!("refrain key: {words}")),
            "{stderr}"
        );
        assert!(stderr.contains("--bytes"), "{stderr}");
        let (code, stdout, _) = run(folder.path(), params, stdin, &["--bytes"]);
        assert_eq!(code, 0, "{params}");
        assert!(stdout.starts_with("invoice-7:pay:"), "{stdout}");
    }
    let (code, stdout, stderr) = run(folder.path(), "@missing.json", "", &["--bytes"]);
    assert_eq!((code, stdout.as_str()), (2, ""));
    assert!(stderr.contains("missing.json cannot be read"), "{stderr}");
}

#[test]
fn json_is_for_programs() {
    let folder = tempfile::tempdir().unwrap();
    let json = |params: &str, more: &[&str]| -> serde_json::Value {
        serde_json::from_str(&run(folder.path(), params, "", more).1).unwrap()
    };
    let key = refrain::Key::derive("invoice-7", "pay", b"{}");
    let expected = serde_json::json!({
        "key": key.as_str(), "entity": "invoice-7", "action": "pay", "params_form": "json",
    });
    assert_eq!(json("{}", &["--json"]), expected);
    assert_eq!(json("five", &["--json", "--bytes"])["params_form"], "bytes");
    let refused = json("five", &["--json"]);
    assert!(refused["error"].as_str().unwrap().contains("not JSON"));
}
