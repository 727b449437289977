//! Tests the ledger, on which the crash tests rely: it must lose no effect, and its audit must find every violation.

use std::thread;

use refrain::{ErrorKind, Guarantee};
use refrain_testkit::{
    Audit, Ledger,
    Seen::{self, Completed, Failed, Refused, Released, Unknown},
    ledger::Effect,
};

/// Checks which invariants the audit reports as violated, for one key with this many effects.
fn check(guarantee: Guarantee, effects: usize, seen: &[Seen], want: &[&str]) {
    let by = |attempt: usize| Effect {
        key: "key".into(),
        attempt: attempt.to_string(),
    };
    let ledger: Vec<_> = (0..effects).map(by).collect();
    let mut audit = Audit::new(guarantee);
    for seen in seen {
        audit.saw("key", *seen);
    }
    let found = audit.check(&ledger);
    let names: Vec<_> = found.iter().map(|violation| violation.invariant).collect();
    assert_eq!(names, want, "{effects} effects, seen {seen:?}: {found:?}");
}

#[test]
fn finds_violations_of_at_most_once() {
    let cases: &[(usize, &[Seen], &[&str])] = &[
        (0, &[], &[]),
        (1, &[Completed], &[]),
        (1, &[Unknown, Refused, Completed, Completed], &[]),
        (1, &[Unknown], &[]),
        (0, &[Unknown], &[]),
        (0, &[Failed, Failed], &[]),
        (0, &[Released], &[]),
        (1, &[Released, Completed], &[]),
        (1, &[Unknown, Failed], &[]),
        (0, &[Refused, Unknown], &[]),
        (2, &[Completed], &["I1"]),
        (2, &[Unknown, Unknown], &["I1"]),
        (1, &[Released], &["I9"]),
        (1, &[Released, Refused], &["I9"]),
        (0, &[Refused, Refused], &["I9"]),
        (0, &[Completed], &["I14"]),
        (0, &[Unknown, Completed], &["I14"]),
        (1, &[Failed], &["I14"]),
        (1, &[Refused], &["I14"]),
        (1, &[], &["I14"]),
    ];
    for (effects, seen, want) in cases {
        check(Guarantee::AtMostOnce, *effects, seen, want);
    }
}

#[test]
fn at_least_once_allows_repeats_but_no_false_success() {
    check(Guarantee::AtLeastOnce, 3, &[Unknown, Completed], &[]);
    check(Guarantee::AtLeastOnce, 0, &[Completed], &["I14"]);
    check(Guarantee::AtLeastOnce, 2, &[Released], &["I9"]);
    check(Guarantee::ExactlyOnce, 2, &[Completed], &["I1"]);
}

#[test]
fn duplicates_are_counted_per_key() {
    let effect = |key: &str, attempt: &str| Effect {
        key: key.into(),
        attempt: attempt.into(),
    };
    let effects = [effect("a", "1"), effect("b", "2"), effect("a", "3")];
    let audit = Audit::new(Guarantee::AtLeastOnce);
    assert_eq!(audit.duplicates(&effects), 1);
}

#[test]
fn a_released_attempt_with_an_effect_is_found_among_others() {
    let ledger = Ledger::in_memory();
    let mut audit = Audit::new(Guarantee::AtLeastOnce);
    for attempt in ["1.1.0", "1.2.0"] {
        ledger.record("key", attempt).unwrap();
    }
    audit.saw_released("key", "1.1.0");
    audit.saw("key", Completed);
    let found = audit.check(&ledger.all().unwrap());
    let told: Vec<_> = found.iter().map(ToString::to_string).collect();
    let want = r#"I9: key "key": attempt 1.1.0 was released, but took effect"#;
    assert_eq!(told, [want]);
}

#[test]
fn many_writers_lose_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger");
    thread::scope(|scope| {
        for writer in 0..4 {
            let path = &path;
            scope.spawn(move || {
                // A handle of its own, as in a separate process.
                let ledger = Ledger::open(path).unwrap();
                for number in 0..250 {
                    ledger.record(&format!("key-{writer}"), number).unwrap();
                }
            });
        }
    });
    let ledger = Ledger::open(&path).unwrap();
    assert_eq!(Ledger::read(&path).unwrap().len(), 1_000);
    let attempts = ledger.effects("key-2").unwrap();
    let numbers: Vec<_> = attempts.iter().map(|e| e.attempt.clone()).collect();
    let want: Vec<_> = (0..250).map(|number: u32| number.to_string()).collect();
    assert_eq!(numbers, want);
}

#[test]
fn rejects_entries_that_do_not_fit_a_line() {
    let long = "k".repeat(2_000);
    for (key, attempt) in [
        ("a\tb", "1"),
        ("a\nb", "1"),
        ("a", "1\n2"),
        ("a", "1\t2"),
        (&long, "1"),
    ] {
        let refused = Ledger::in_memory().record(key, attempt).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{key:?} {attempt:?}");
    }
}

#[test]
fn a_damaged_line_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger");
    for (text, line) in [("a\t1\nb 2\n", "line 2"), ("a\t1", "line 1")] {
        std::fs::write(&path, text).unwrap();
        let error = Ledger::read(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains(line), "{error}");
    }
}
