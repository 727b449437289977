//! A team runs the linter in CI: people, scanners and pull requests read its output; its exit code blocks the merge.

#![cfg(feature = "lint")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::{fs, path::Path, process::Command};

use serde_json::Value;

const UNKEYED: &str =
    "import stripe\n\ndef pay(cart):\n    return stripe.Charge.create(amount=cart.total)\n";
const HINT: &str = "import stripe, uuid\n\ndef pay(cart):\n    return stripe.Charge.create(amount=1, idempotency_key=str(uuid.uuid4()))\n";

/// Runs the command in a folder; returns exit code, stdout and stderr.
fn run(folder: &Path, args: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
    let output = command
        .current_dir(folder)
        .arg("lint")
        .args(args)
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    )
}

fn project(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    folder
}

#[test]
fn a_finding_has_its_place_its_line_why_fix_and_more() {
    let folder = project(&[("src/pay.py", UNKEYED), ("src/notes.txt", "")]);
    let (code, stdout, stderr) = run(folder.path(), &["src"]);
    assert_eq!((code, stderr.as_str()), (1, ""));
    let expected =
        "src/pay.py:4:26: error: a call that moves money has no idempotency key [money-call-without-key]
 4 |     return stripe.Charge.create(amount=cart.total)
   | seen: `stripe.charge.create` of Stripe is called without a key
   | why:  If its response is lost, a retry may move the money twice.
   | fix:  Store an idempotency key before the call, and send the same key with every attempt.
   | more: docs/lint.md#money-call-without-key

1 error, 0 warnings, 0 hints in 1 file, 4 lines, 1 in other languages
";
    assert_eq!(stdout, expected);
}

#[test]
fn fail_on_decides_about_the_exit_code() {
    let folder = project(&[("hint.py", HINT)]);
    for (severity, code) in [("error", 0), ("warning", 0), ("hint", 1)] {
        let found = run(folder.path(), &[".", "--fail-on", severity]);
        assert_eq!(found.0, code, "{severity}: {}", found.1);
        assert!(found.1.contains("hint.py:4:63: hint"), "{}", found.1);
    }
    assert_eq!(run(project(&[("a.py", "x = 1\n")]).path(), &["."]).0, 0);
}

#[test]
fn programs_read_json_sarif_and_annotations() {
    let folder = project(&[("pay.py", UNKEYED)]);
    let (_, json, _) = run(folder.path(), &[".", "--json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["findings"][0]["line"], 4);
    assert_eq!(json["findings"][0]["severity"], "error");
    assert_eq!(json["files"], 1);

    let (code, sarif, _) = run(folder.path(), &[".", "--format", "sarif"]);
    let sarif: Value = serde_json::from_str(&sarif).unwrap();
    let run_ = &sarif["runs"][0];
    assert_eq!((code, &sarif["version"]), (1, &"2.1.0".into()));
    assert_eq!(run_["results"][0]["ruleId"], "money-call-without-key");
    let place = &run_["results"][0]["locations"][0]["physicalLocation"];
    assert_eq!(place["artifactLocation"]["uri"], "pay.py");
    assert_eq!(place["region"]["startLine"], 4);
    assert_eq!(
        run_["tool"]["driver"]["rules"].as_array().unwrap().len(),
        17
    );

    let odd = project(&[("a b#c/ä%.py", UNKEYED)]);
    let (_, sarif, _) = run(odd.path(), &[".", "--format", "sarif"]);
    let sarif: Value = serde_json::from_str(&sarif).unwrap();
    let place = &sarif["runs"][0]["results"][0]["locations"][0]["physicalLocation"];
    assert_eq!(place["artifactLocation"]["uri"], "a%20b%23c/%C3%A4%25.py");

    let (_, github, _) = run(folder.path(), &[".", "--format", "github"]);
    let start =
        "::error file=pay.py,line=4,col=26,title=money-call-without-key::a call that moves money";
    assert!(github.starts_with(start), "{github}");
    assert_eq!(github.lines().count(), 1);
}

#[test]
fn every_rule_is_listed_and_explained() {
    let folder = project(&[]);
    let (code, list, _) = run(folder.path(), &["--list"]);
    let rules: Vec<&str> = list
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert_eq!((code, rules.len()), (0, 17), "{list}");
    for rule in rules {
        let (code, page, _) = run(folder.path(), &["--explain", rule]);
        assert_eq!(code, 0);
        assert!(
            page.starts_with(rule) && page.contains("wrong") && page.contains("right"),
            "{page}"
        );
    }
    let (code, _, stderr) = run(folder.path(), &["--explain", "no-such"]);
    assert_eq!(
        (code, stderr.as_str()),
        (
            2,
            "refrain: unknown rule no-such; `refrain lint --list` prints all rules\n"
        )
    );
}

#[test]
fn rules_of_ones_own_are_added_and_bad_ones_named() {
    let rule = "[[rule]]\nid = \"own\"\nseverity = \"hint\"\ntitle = \"t\"\nwhy = \"w\"\nfix = \"f\"\nlink = \"l\"\n";
    let good = format!(
        "{rule}[[rule.pattern]]\nlanguages = [\"python\"]\npattern = \"stripe.Charge.create($$$)\"\n"
    );
    let folder = project(&[
        ("src/pay.py", UNKEYED),
        ("rules/own.toml", &good),
        ("bad/own.toml", rule),
    ]);
    let (code, stdout, _) = run(
        folder.path(),
        &[
            "src",
            "--rules",
            "rules",
            "--rule",
            "own",
            "--fail-on",
            "hint",
        ],
    );
    assert_eq!(code, 1);
    assert!(
        stdout.starts_with("src/pay.py:4:12: hint: t [own]"),
        "{stdout}"
    );
    let (code, _, stderr) = run(folder.path(), &["src", "--rules", "bad"]);
    assert_eq!(code, 64);
    assert!(
        stderr.starts_with("refrain: bad/own.toml: rule own: it has neither"),
        "{stderr}"
    );
}

#[test]
fn wrong_usage_is_reported() {
    let folder = project(&[]);
    assert_eq!(run(folder.path(), &[]).0, 2);
    let (code, _, stderr) = run(folder.path(), &["no-such-folder"]);
    assert_eq!(code, 2);
    assert!(stderr.starts_with("refrain: no-such-folder: "), "{stderr}");
    assert_eq!(run(folder.path(), &[".", "--fail-on", "never"]).0, 2);
}
