//! At three in the morning, an operator has a log full of `outcome-unknown` and no browser on the machine.
//! `refrain explain` has to print the whole page of the problem.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::{fs, path::Path, process::Command};

use refrain::http::Code;

/// Runs the command; returns exit code, stdout and stderr.
fn run(args: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
    let output = command.arg("explain").args(args).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[test]
fn every_code_has_its_page() {
    let pages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/problems");
    for code in Code::ALL.map(Code::code) {
        let page = fs::read_to_string(pages.join(format!("{code}.md"))).unwrap();
        let (exit, stdout, stderr) = run(&[code]);
        assert_eq!((exit, stderr.as_str()), (0, ""), "{code}");
        assert_eq!(stdout, page, "{code}");
    }
}

#[test]
fn every_page_answers_the_three_questions_under_its_code_and_advice() {
    for code in Code::ALL {
        let page = code.page();
        let name = code.code();
        let headings: Vec<_> = page.lines().filter(|it| it.starts_with("## ")).collect();
        let expected = [
            "## What happened",
            "## What the client should do",
            "## What the operator should look at",
        ];
        assert_eq!(headings, expected, "{name}");
        let sections: Vec<_> = page.split("\n## ").skip(1).collect();
        for section in sections {
            assert!(section.lines().count() > 3, "{name}: {section}");
        }
        let row = format!("| `{name}` | `{}` |", code.advice());
        assert!(page.contains(&row), "{name}: no {row}");
    }
}

#[test]
fn without_a_code_all_are_listed() {
    let (exit, stdout, _) = run(&[]);
    assert_eq!(exit, 0);
    for code in Code::ALL {
        let row = stdout.lines().find(|line| {
            let mut words = line.split_whitespace();
            words.next() == Some(code.code()) && words.next() == Some(code.advice())
        });
        assert!(row.is_some(), "{} is not in\n{stdout}", code.code());
    }
    let (_, stdout, _) = run(&["--json"]);
    let json: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(json["codes"].as_array().unwrap().len(), Code::ALL.len());
    assert_eq!(json["codes"][0]["code"], "in-flight");
    assert_eq!(json["codes"][0]["advice"], "wait");
    assert_eq!(
        json["codes"][0]["title"],
        "The first request with this key is still running"
    );
}

#[test]
fn json_has_the_page_too() {
    let (_, stdout, _) = run(&["key-reused", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(json["code"], "key-reused");
    assert_eq!(json["page"], Code::KeyReused.page());
}

#[test]
fn typo_gets_a_suggestion() {
    for (typed, meant) in [
        ("inflight", "in-flight"),
        ("outcome-unkown", "outcome-unknown"),
        ("key-reuse", "key-reused"),
    ] {
        let (exit, stdout, stderr) = run(&[typed]);
        assert_eq!((exit, stdout.as_str()), (2, ""), "{typed}");
        assert!(stderr.contains(&format!("'{meant}'")), "{typed}: {stderr}");
    }
    let (exit, _, stderr) = run(&["409"]);
    assert_eq!(exit, 2);
    assert!(stderr.contains("possible values: in-flight"), "{stderr}");
}
