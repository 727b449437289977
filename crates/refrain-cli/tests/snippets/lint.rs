//! A reader copies the right half of an example and `refrain lint` reports it, or the wrong half and it does not.

use std::{fs, process::Command};

use super::{
    NOT_RUN,
    pages::{Block, Page},
    read_by_users,
};

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
/// Start of a table in a rule file, and code that breaks a rule only with the example of such a file.
const RULES: [(&str, &str, &str); 2] = [
    ("[[rule", "legacy.pay(order, 20)\n", "no-legacy-pay"),
    (
        "[words",
        "import ourbank\nourbank.transfers.create(amount=1)\n",
        "money-call-without-key",
    ),
];

/// A block of the page that a test reads.
pub(super) enum Example {
    /// Code that breaks the rule of its heading, and code that does not.
    Halves {
        extension: &'static str,
        wrong: String,
        right: String,
    },
    /// A comment that allows a finding in the code below it.
    Allowed {
        extension: &'static str,
        rule: String,
        text: String,
    },
    /// A rule file and its finding.
    Rules {
        text: String,
        code: &'static str,
        rule: &'static str,
    },
}

impl Example {
    /// `None` if no test reads the block.
    pub(super) fn of(block: &Block<'_>) -> Option<Self> {
        let text = block.lines.join("\n");
        if block.language == "toml" {
            let (_, code, rule) = RULES.iter().find(|(begin, ..)| has(block, begin))?;
            return Some(Self::Rules { text, code, rule });
        }
        let (_, extension) = LANGUAGES.iter().find(|(name, _)| *name == block.language)?;
        if let Some((_, rest)) = text.split_once("refrain-lint: allow(") {
            let rule = rest.split_once(')')?.0.to_owned();
            return Some(Self::Allowed {
                extension,
                rule,
                text,
            });
        }
        let (_, halves) = text.split_once(" wrong\n")?;
        let (wrong, right) = halves
            .split_once("\n# right")
            .or_else(|| halves.split_once("\n// right"))?;
        Some(Self::Halves {
            extension,
            wrong: wrong.to_owned(),
            right: right.split_once('\n')?.1.to_owned(),
        })
    }
}

/// Whether a TOML block is a rule file.
pub(super) fn is_rules(block: &Block<'_>) -> bool {
    RULES.iter().any(|(begin, ..)| has(block, begin))
}

fn has(block: &Block<'_>, begin: &str) -> bool {
    block.lines.iter().any(|line| line.starts_with(begin))
}

/// Rules that `refrain lint` reports for this code, with additional rules from this file.
fn broken(code: &str, extension: &str, rules: Option<&str>) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let opening = if extension == "php" { "<?php\n" } else { "" };
    let file = folder.path().join(format!("example.{extension}"));
    fs::write(&file, format!("{opening}{code}")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
    command.args(["lint", "--json"]).arg(&file);
    if let Some(rules) = rules {
        fs::write(folder.path().join("rules.toml"), rules).unwrap();
        command.arg("--rules").arg(folder.path());
    }
    let output = command.output().unwrap();
    let report = serde_json::from_slice::<serde_json::Value>(&output.stdout);
    let report = report.unwrap_or_else(|_| panic!("{output:?}"));
    let findings = report["findings"].as_array().unwrap().iter();
    findings
        .map(|it| it["rule"].as_str().unwrap().to_owned())
        .collect()
}

/// The heading above a block.
fn heading<'p>(page: &'p Page, block: &Block<'_>) -> &'p str {
    let above: Vec<&str> = page.text.lines().take(block.line).collect();
    let heading = above.iter().rev().find_map(|it| it.strip_prefix("### "));
    heading.unwrap().trim_matches('`')
}

#[test]
fn examples_are_right_and_wrong_as_they_say() {
    let page = read_by_users().find(|page| page.path == PAGE).unwrap();
    let mut linted = 0;
    for block in page.blocks() {
        let (Some(example), false) = (Example::of(&block), block.has(NOT_RUN)) else {
            continue;
        };
        let (wrong, right, rule) = match &example {
            Example::Halves {
                extension,
                wrong,
                right,
            } => (
                broken(wrong, extension, None),
                broken(right, extension, None),
                heading(&page, &block),
            ),
            Example::Allowed {
                extension,
                rule,
                text,
            } => (
                broken(text.split_once('\n').unwrap().1, extension, None),
                broken(text, extension, None),
                rule.as_str(),
            ),
            Example::Rules { text, code, rule } => (
                broken(code, "py", Some(text)),
                broken(code, "py", None),
                *rule,
            ),
        };
        assert!(
            wrong.iter().any(|it| it == rule),
            "{}: {rule} is not among {wrong:?}",
            block.place
        );
        assert_eq!(right, [""; 0], "{}: the right code", block.place);
        linted += 1;
    }
    assert!(linted >= 12, "only {linted} examples were linted");
}
