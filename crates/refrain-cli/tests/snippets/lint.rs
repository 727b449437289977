//! A reader copies the right half of an example, and `refrain lint` still complains; or the wrong half, and it says nothing.

use std::{fs, process::Command};

use super::{NOT_RUN, read_by_users};

/// The page with an example for each rule.
pub(super) const PAGE: &str = "docs/lint.md";
const LANGUAGES: [(&str, &str); 8] = [
    ("python", "py"),
    ("ruby", "rb"),
    ("javascript", "js"),
    ("typescript", "ts"),
    ("php", "php"),
    ("go", "go"),
    ("java", "java"),
    ("rust", "rs"),
];

/// The rules that `refrain lint` finds broken in this code.
fn broken(code: &str, extension: &str) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let opening = if extension == "php" { "<?php\n" } else { "" };
    fs::write(
        folder.path().join(format!("example.{extension}")),
        format!("{opening}{code}"),
    )
    .unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
    let output = command
        .args(["lint", "--json"])
        .arg(folder.path())
        .output()
        .unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap().iter();
    findings
        .map(|it| it["rule"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn examples_are_right_and_wrong_as_they_say() {
    let page = read_by_users().find(|page| page.path == PAGE).unwrap();
    let lines: Vec<&str> = page.text.lines().collect();
    let mut linted = 0;
    for block in page.blocks() {
        let language = LANGUAGES.iter().find(|(name, _)| *name == block.language);
        let text = block.lines.join("\n");
        let halves = text.split_once(" wrong\n").and_then(|(_, it)| {
            it.split_once("\n# right")
                .or_else(|| it.split_once("\n// right"))
        });
        let (Some((_, extension)), Some((wrong, right)), false) =
            (language, halves, block.has(NOT_RUN))
        else {
            continue;
        };
        let heading = lines[..block.line]
            .iter()
            .rev()
            .find_map(|it| it.strip_prefix("### "));
        let rule = heading.unwrap().trim_matches('`').to_owned();
        let right = right.split_once('\n').unwrap().1;
        assert!(
            broken(wrong, extension).contains(&rule),
            "{}: not found in\n{wrong}",
            block.place
        );
        assert_eq!(
            broken(right, extension),
            [""; 0],
            "{}: {right}",
            block.place
        );
        linted += 1;
    }
    assert!(linted >= 9, "only {linted} examples were linted");
}
