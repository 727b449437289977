//! Users trust a rule, so one that never fires is worse than none. Each rule must find a bad sample at the
//! right line, and accept a good one.

use super::{check, tree::Tree};

/// Checks a tree of `(path, text)` and compares the findings with `path:line: start of the message`.
#[track_caller]
fn check_tree(files: &[(&str, &str)], expected: &[&str]) {
    let mut tree = Tree::default();
    for (path, text) in files {
        tree.add(path, text);
    }
    let found: Vec<String> = check(&tree).iter().map(ToString::to_string).collect();
    let fits = found.len() == expected.len()
        && found
            .iter()
            .zip(expected)
            .all(|(found, start)| found.starts_with(start));
    assert!(fits, "found {found:#?}\nexpected {expected:#?}");
}

#[test]
fn long_files_are_found() {
    let line = "a\n";
    check_tree(&[("a.rs", &line.repeat(600))], &[]);
    check_tree(
        &[("a.rs", &line.repeat(601))],
        &["a.rs:601: 601 lines, the limit is 600"],
    );
}

#[test]
fn leftovers_are_found() {
    let todo = concat!("TO", "DO");
    let fixme = concat!("FIX", "ME");
    let xxx = concat!("X", "XX");
    let text = format!(
        "fine\n// {todo}: later\n{fixme}\n{xxx}!\n{}x)\n",
        concat!("dbg", "!(")
    );
    let expected = [
        &format!("a.rs:2: `{todo}`"),
        &format!("a.rs:3: `{fixme}`"),
        &format!("a.rs:4: `{xxx}`"),
        concat!("a.rs:5: `dbg", "!(`"),
    ];
    check_tree(&[("a.rs", &text)], &expected);
    check_tree(
        &[("a.sh", &format!("mktemp -d a.{xxx}{xxx}\n{todo}_LIST=1\n"))],
        &[],
    );
}

#[test]
fn home_made_phrases_are_found() {
    check_tree(
        &[("a.md", "fine\nThe port Cannot be had.\nsomebody_else\n")],
        &["a.md:2: the phrase `cannot be had`"],
    );
    let corpus = "crates/refrain-lint/corpus/go/a.rs";
    check_tree(&[(corpus, "// whatever\n")], &[]);
}

#[test]
fn white_space_at_the_end_of_a_line_is_found() {
    check_tree(
        &[("a.md", "a\nb \nc\t\n  d\n")],
        &["a.md:2: white space", "a.md:3: white space"],
    );
    check_tree(&[("a.md", "a\r\n")], &[]);
}

#[test]
fn files_end_with_one_newline() {
    check_tree(&[("a.toml", "a = 1\nb = 2")], &["a.toml:2: no newline"]);
    check_tree(&[("a.toml", "a = 1\n\n")], &["a.toml:2: empty lines"]);
    check_tree(&[("a.toml", "a = 1\n"), ("b.toml", "")], &[]);
}

#[test]
fn crates_start_with_a_doc_comment() {
    let bad = "crates/a/src/lib.rs:1: the crate does not start";
    for text in [
        "mod a;\n",
        "\n//! Late.\n",
        "//!\n//! Late.\n",
        "// Plain.\n",
    ] {
        check_tree(&[("crates/a/src/lib.rs", text)], &[bad]);
    }
    check_tree(
        &[("xtask/src/main.rs", "fn main() {}\n")],
        &["xtask/src/main.rs:1: the crate"],
    );
    check_tree(&[("crates/a/src/lib.rs", "//! A thing.\nmod a;\n")], &[]);
    check_tree(
        &[("crates/a/src/lib.rs", "#![doc = include_str!(\"a\")]\n")],
        &[],
    );
    check_tree(&[("crates/a/src/other.rs", "mod a;\n")], &[]);
}

#[test]
fn the_state_machine_stays_pure() {
    for bad in [
        "use std::{time::Instant, fmt};\n",
        "use std::time::SystemTime;\n",
        "use crate::clock::SystemClock;\n",
        "tokio::spawn(async {});\n",
        "use std::{fs, fmt};\n",
    ] {
        check_tree(
            &[("crates/refrain/src/record.rs", bad)],
            &["crates/refrain/src/record.rs:1: `"],
        );
        check_tree(
            &[("crates/refrain/src/record/step.rs", bad)],
            &["crates/refrain/src/record/step.rs:1: `"],
        );
        check_tree(&[("crates/refrain/src/records.rs", bad)], &[]);
    }
    let good = "//! Instant answers, no tokio.\nuse crate::clock::Timestamp;\n";
    check_tree(&[("crates/refrain/src/record.rs", good)], &[]);
}

#[test]
fn vague_type_names_are_found() {
    let place = concat!("pub(super) str", "uct Place<'a> {}\n");
    let text = format!("{place}{}", concat!("en", "um Next {\n// struct Way\n"));
    let expected = [
        "crates/a/src/b.rs:1: the type name `Place` is too vague",
        "crates/a/src/b.rs:2: the type name `Next` is too vague",
    ];
    check_tree(&[("crates/a/src/b.rs", &text)], &expected);
    let good = "struct FilePosition {}\nuse a::Place;\nfn next() -> Option<Next> {}\n";
    check_tree(&[("crates/a/src/b.rs", good)], &[]);
}

#[test]
fn the_library_names_no_driver() {
    let path = "crates/refrain/Cargo.toml";
    for bad in [
        "[dependencies]\ntokio-postgres = \"0.7\"\n",
        "[dependencies]\nredis.workspace = true\n",
        "[features]\npg = [\"dep:deadpool-postgres\"]\n",
        "[dependencies]\naws-sdk-sqs = { version = \"1\" }\n",
        "[dependencies]\nq = { package = \"async_nats\" }\n",
    ] {
        check_tree(&[(path, bad)], &["crates/refrain/Cargo.toml:2: `"]);
        check_tree(&[("crates/refrain-stores/Cargo.toml", bad)], &[]);
    }
    check_tree(
        &[(
            path,
            "[dependencies]\n# redis lives elsewhere\ntokio = \"1\"\nredistribute = \"1\"\n",
        )],
        &[],
    );
}

#[test]
fn problem_codes_and_pages_are_the_same_set() {
    let source = "crates/refrain/src/http/problem.rs";
    let function = "impl Problem {\n    fn code(self) -> &'static str {\n        match self {\n            A => \"in-flight\",\n        }\n    }\n    fn advice(self) -> &'static str {\n        \"reuse-key\"\n    }\n}\n";
    let fields = "const A: Problem = Problem { code: \"in-flight\", advice: \"wait\" };\n";
    for (text, line) in [(function, 4), (fields, 1)] {
        let page = ("docs/problems/in-flight.md", "# in-flight\n");
        let extra = ("docs/problems/gone.md", "# gone\n");
        let no_page = format!("{source}:{line}: the problem `in-flight` has no page");
        let no_code = "docs/problems/gone.md:1: no problem has the code `gone`";
        check_tree(&[(source, text), page], &[]);
        check_tree(&[(source, text)], &[&no_page]);
        check_tree(&[(source, text), page, extra], &[no_code]);
    }
    check_tree(
        &[(source, "fn main() {}\n")],
        &["crates/refrain/src/http/problem.rs:1: no problem code"],
    );
    check_tree(&[("docs/problems/in-flight.md", "# in-flight\n")], &[]);
}

#[test]
fn missing_link_targets_are_found() {
    let there = ("docs/a/there.md", "# There\n");
    for good in [
        "[a](a/there.md)\n",
        "[a](a/there.md#part) and [b](#here) and [c](../docs/a)\n",
        "[a](./a/there.md \"title\")\n",
        "[a](https://example.org/x) [b](mailto:a@example.org) [c](/.well-known/x)\n",
        "`[a](nowhere.md)`\n",
        "```\n[a](nowhere.md)\n```\n",
        "[a]: a/there.md\n",
    ] {
        check_tree(&[("docs/page.md", good), there], &[]);
    }
    for bad in [
        "\n[a](nowhere.md)\n",
        "\n[a](a/there.md) [b](there.md)\n",
        "\n[a](../../docs/a/there.md)\n",
        "\n![a](a/picture.png)\n",
        "\n[a]: nowhere.md\n",
    ] {
        check_tree(
            &[("docs/page.md", bad), there],
            &["docs/page.md:2: the link to `"],
        );
    }
}

#[test]
fn project_tree_is_read_without_build_output() {
    let tree = Tree::read(&crate::cargo::root()).unwrap();
    assert!(tree.file("xtask/src/tidy/tests.rs").is_some());
    assert!(tree.paths.contains("Cargo.lock"));
    let built = |path: &String| path.starts_with("target/") || path.starts_with(".git/");
    assert!(!tree.paths.iter().any(built));
}

#[test]
fn threats_without_a_test_are_found() {
    let code = (
        "a/b.rs",
        "//! Tests.\n#[test]\nfn holds() {}\n\n\n\n\nfn helps() {}\n",
    );
    let head = "# Security\n## Threat model\n\n| threat | test |\n|---|---|\n";
    let check = |row: &str, expected: &[&str]| {
        check_tree(
            &[("SECURITY.md", &format!("{head}{row}\n")), code],
            expected,
        );
    };
    check("| one | `holds` in `a/b.rs` |", &[]);
    check("| one | `holds` and `holds` in `a/b.rs` |", &[]);
    for cell in ["", "none", "`holds`", "`a/b.rs`"] {
        let message = "SECURITY.md:6: the row names no test";
        check(&format!("| one | {cell} |"), &[message]);
    }
    for (name, file) in [("helps", "a/b.rs"), ("gone", "a/b.rs"), ("holds", "a/c.rs")] {
        let message = format!("SECURITY.md:6: {file} has no test `{name}`");
        check(&format!("| one | `{name}` in `{file}` |"), &[&message]);
    }
    check_tree(
        &[("SECURITY.md", "# Security\n")],
        &["SECURITY.md:1: no table"],
    );
}
