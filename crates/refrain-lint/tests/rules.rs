//! Users switch off a linter with false alarms, and a linter that misses defects gives false confidence.
//! So the rules are checked against a labelled corpus, and the promises of the command against projects on disk.

use std::{fs, path::Path};

use refrain_lint::{Limits, Rules, Severity, lint, lint_texts};

#[path = "corpus/score.rs"]
mod score;

fn rules() -> Rules {
    Rules::built_in().expect("built-in rules are well formed")
}

/// Rules with findings in one text, with their lines.
fn found(name: &str, text: &str) -> Vec<(String, usize)> {
    let report = lint_texts(&[(name, text)], &rules());
    report
        .findings
        .into_iter()
        .map(|it| (it.rule, it.line))
        .collect()
}

#[test]
fn the_corpus_is_judged_precisely_and_nearly_completely() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let table = score::score(&corpus, |_| true);
    let total = table.total;
    assert!(
        total.precision() >= 0.95 && total.recall() >= 0.85,
        "{total:?} {:#?}",
        table.faults
    );
    for (language, snippets) in &table.snippets {
        assert!(
            *snippets >= 20,
            "{language} has {snippets} snippets, 20 at least"
        );
    }
    assert_eq!(table.snippets.len(), 8);
    for rule in &rules().rules {
        let score = table.rules.get(&rule.id).copied().unwrap_or_default();
        assert!(
            score.right >= 2,
            "{} is found {} times in the corpus",
            rule.id,
            score.right
        );
    }
}

#[test]
fn every_rule_has_its_section_in_the_documentation() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/lint.md");
    let page = fs::read_to_string(page).expect("docs/lint.md");
    for rule in &rules().rules {
        assert_eq!(rule.link, format!("docs/lint.md#{}", rule.id));
        assert!(
            page.contains(&format!("\n### {}\n", rule.id)),
            "{} has no section",
            rule.id
        );
    }
}

const UNKEYED: &str = "import stripe\ndef pay():\n    stripe.Charge.create(amount=1)\n";

#[test]
fn a_comment_allows_one_rule_at_one_line_and_says_why() {
    let with = |comment: &str| UNKEYED.replace("    stripe", &format!("    {comment}\n    stripe"));
    assert_eq!(found("a.py", UNKEYED).len(), 1);
    let cases = [
        (
            "# refrain-lint: allow(money-call-without-key) nobody retries this",
            0,
        ),
        ("# refrain-lint: allow(key-from-clock) another rule", 1),
        ("# refrain-lint: allow(money-call-without-key)", 1),
        ("# money-call-without-key", 1),
    ];
    for (comment, count) in cases {
        assert_eq!(found("a.py", &with(comment)).len(), count, "{comment}");
    }
    let spread = UNKEYED.replace(".Charge.create(", "\\\n    .Charge.create(");
    let above = spread.replace(
        "    stripe",
        "    # refrain-lint: allow(money-call-without-key) nobody retries this\n    stripe",
    );
    assert_eq!(found("a.py", &spread).len(), 1);
    assert_eq!(found("a.py", &above).len(), 0, "{above}");
    let behind = "import stripe\ndef pay():\n    a = 1  # refrain-lint: allow(money-call-without-key) only this line\n    stripe.Charge.create(amount=1)\n";
    assert_eq!(found("a.py", behind).len(), 1);
    let report = lint_texts(
        &[(
            "a.py",
            &with("# refrain-lint: allow(money-call-without-key)"),
        )],
        &rules(),
    );
    assert!(
        report.notes[0].contains("without a reason"),
        "{:?}",
        report.notes
    );
    let unknown = with("# refrain-lint: allow(money-call-with-key) a slip of the pen");
    let report = lint_texts(&[("a.py", &unknown)], &rules());
    assert_eq!(report.findings.len(), 1);
    assert_eq!(
        report.notes,
        [
            "a.py:3: unknown rule `money-call-with-key`, so this comment has no effect; `refrain lint --list` prints the rules"
        ]
    );
}

#[test]
fn files_that_cannot_be_read_are_noted_and_others_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    };
    write("pay.py", UNKEYED.as_bytes());
    write("latin.py", b"name = '\xe9'\n");
    write("long.py", &b"# \n".repeat(20_000));
    write("packed.js", "x=y;".repeat(10_000).as_bytes());
    write("notes.txt", b"x");
    write("node_modules/x/pay.py", UNKEYED.as_bytes());
    write("tests/test_pay.py", UNKEYED.as_bytes());
    write("generated/pay.py", UNKEYED.as_bytes());
    write(".gitignore", b"/generated\n");
    let limits = Limits {
        file_bytes_max: 50_000,
        ..Limits::default()
    };
    let report = lint(&[folder.path().into()], &rules(), &limits).unwrap();
    assert_eq!(
        (report.files, report.test_files, report.other_files),
        (1, 1, 1),
        "{report:?}"
    );
    assert_eq!(report.findings.len(), 1);
    assert_eq!(report.notes.len(), 3, "{:?}", report.notes);
    let all = Limits {
        tests: true,
        ignored: true,
        ..limits
    };
    let report = lint(&[folder.path().into()], &rules(), &all).unwrap();
    assert_eq!(report.findings.len(), 4);
}

#[test]
fn users_add_rules_and_words_of_their_own() {
    let mut rules = rules();
    let text = r#"
        [[rule]]
        id = "no-legacy-pay"
        severity = "warning"
        title = "the old payment call"
        why = "It takes no key."
        fix = "Call pay_once."
        link = "docs/pay.md"
        [[rule.pattern]]
        languages = ["python"]
        pattern = "legacy.pay($$$)"
        when = ["in-function", "not-key-takes-part"]
        [[words.sdks]]
        name = "our bank"
        mentions = ["ourbank"]
        calls = ["ourbank.move"]
    "#;
    rules.add("own.toml", text).unwrap();
    let source = "import ourbank\ndef f(a):\n    legacy.pay(a)\n    legacy.pay(a, idempotency_key=a.key)\n    ourbank.move(a)\n";
    let report = lint_texts(&[("a.py", source)], &rules);
    let found: Vec<_> = report
        .findings
        .iter()
        .map(|it| (it.rule.as_str(), it.line, it.severity))
        .collect();
    assert_eq!(
        found,
        [
            ("no-legacy-pay", 3, Severity::Warning),
            ("money-call-without-key", 5, Severity::Error)
        ]
    );
}

#[test]
fn invalid_rules_are_rejected_with_their_position() {
    let head = "[[rule]]\nid = \"x\"\nseverity = \"hint\"\ntitle = \"\"\nwhy = \"\"\nfix = \"\"\nlink = \"\"\n";
    let cases = [
        ("", "neither an `analysis`"),
        ("analysis = \"no-such\"\n", "unknown analysis no-such"),
        (
            "[[rule.pattern]]\nlanguages = [\"go\"]\npattern = \"f(\"\n",
            "does not parse as go",
        ),
        (
            "[[rule.pattern]]\nlanguages = [\"go\"]\npattern = \"f()\"\nwhen = [\"raining\"]\n",
            "unknown predicate raining",
        ),
        ("severty = 1\n", "unknown field"),
    ];
    for (rest, why) in cases {
        let error = rules()
            .add("own.toml", &format!("{head}{rest}"))
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("own.toml: ") && error.contains(why),
            "{error}"
        );
    }
    let twice = head.replace("\"x\"", "\"key-truncated\"") + "analysis = \"key-cut\"\n";
    assert!(
        rules()
            .add("own.toml", &twice)
            .unwrap_err()
            .to_string()
            .contains("duplicate rule id")
    );
}

#[test]
fn broken_and_deeply_nested_sources_do_not_panic() {
    for (name, text) in [
        ("a.py", "def f(:\n  x = = 3\n\"\"\"never closed"),
        ("a.rs", "fn f( { let x = ; }}}}"),
        ("a.js", &"(\n".repeat(50_000)),
        ("a.go", &"x[\n".repeat(20_000)),
        ("a.php", "<?php <<<EOT\nno end"),
        ("a.rb", ""),
        ("a.java", "\u{feff}class É { void ü() { ö(\"ß\"); } }"),
    ] {
        drop(found(name, text));
    }
}
