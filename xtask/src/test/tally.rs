//! Reads the output of a test run and counts the results.

use std::{
    fmt,
    io::{self, BufRead},
    ops::Add,
};

/// Prints each line as it arrives, and counts the results.
pub(super) fn follow(
    mut from: impl BufRead,
    mut print: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<Tally> {
    let mut tally = Tally::default();
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line)? > 0 {
        print(&line)?;
        tally.read(&String::from_utf8_lossy(&line));
        line.clear();
    }
    Ok(tally)
}

/// Totals over all test suites.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    suites: u64,
    pub(super) passed: u64,
    pub(super) failed: u64,
    ignored: u64,
    /// The failed tests, each prefixed with its suite's name.
    pub(super) names: Vec<String>,
    /// The suite that cargo named last.
    suite: String,
}

impl Tally {
    fn read(&mut self, line: &str) {
        let line = line.trim_end();
        if let Some(suite) = suite(line) {
            self.suite = suite.to_owned();
        } else if let Some(name) = failed(line) {
            self.names.push(format!("{}: {name}", self.suite));
        } else if let Some(result) = line.strip_prefix("test result: ") {
            self.add_result(result);
        }
    }

    /// Adds the last line of a test binary: `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
    fn add_result(&mut self, result: &str) {
        self.suites += 1;
        let counts = result.split_once(". ").map_or("", |(_, counts)| counts);
        for count in counts.split("; ") {
            match count.trim().split_once(' ') {
                Some((number, "passed")) => self.passed += number.parse().unwrap_or(0),
                Some((number, "failed")) => self.failed += number.parse().unwrap_or(0),
                Some((number, "ignored")) => self.ignored += number.parse().unwrap_or(0),
                _ => {}
            }
        }
    }

    pub(super) fn ran_nothing(&self) -> bool {
        self.suites > 0 && self.passed + self.failed + self.ignored == 0
    }
}

/// The suite in a line of cargo: `Running tests/keys.rs (target/debug/deps/keys-0a1b)`, `Doc-tests refrain`.
pub(super) fn suite(line: &str) -> Option<&str> {
    let line = line.trim_start();
    if let Some(of) = line.strip_prefix("Doc-tests ") {
        return Some(of);
    }
    let (_, binary) = line.strip_prefix("Running ")?.split_once(" (")?;
    let (_, name) = binary.strip_suffix(')')?.rsplit_once('/')?;
    Some(name.rsplit_once('-').map_or(name, |(name, _)| name))
}

/// The failed test in a line of a test binary: `test keys::a ... FAILED`.
fn failed(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED")
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            suites,
            passed,
            failed,
            ignored,
            ..
        } = self;
        write!(
            f,
            "{passed} passed, {failed} failed, {ignored} ignored; suites: {suites}"
        )
    }
}

impl Add for Tally {
    type Output = Self;

    fn add(mut self, other: Self) -> Self {
        self.suites += other.suites;
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
        self.names.extend(other.names);
        self
    }
}

#[cfg(test)]
mod tests {
    //! The summary of a run must match what cargo prints.

    use super::*;

    fn check(printed: &str, expected: &str) -> Tally {
        let mut passed_on = Vec::new();
        let print = |line: &[u8]| {
            passed_on.extend_from_slice(line);
            Ok(())
        };
        let tally = follow(printed.as_bytes(), print).unwrap();
        assert_eq!(tally.to_string(), expected);
        assert_eq!(passed_on, printed.as_bytes(), "all output is forwarded");
        tally
    }

    #[test]
    fn results_of_all_suites_are_added_up() {
        check(
            "running 3 tests\n\
             test a ... ok\n\
             test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 4 filtered out; finished in 0.00s\n\
             \n\
             test result: FAILED. 5 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s\n",
            "7 passed, 2 failed, 1 ignored; suites: 2",
        );
    }

    #[test]
    fn failed_tests_are_named_with_their_suite() {
        let tally = check(
            "     Running unittests src/lib.rs (target/debug/deps/refrain_stores-0a1b2c)\n\
             test a ... ok\n\
             test b::c ... FAILED\n\
             \x20    Running tests/keys.rs (target/debug/deps/keys-0a1b2c)\n\
             test d ... FAILED\n\
             \x20  Doc-tests refrain\n\
             test src/key.rs - key::Key (line 7) ... FAILED\n",
            "0 passed, 0 failed, 0 ignored; suites: 0",
        );
        let expected = [
            "refrain_stores: b::c",
            "keys: d",
            "refrain: src/key.rs - key::Key (line 7)",
        ];
        assert_eq!(tally.names, expected);
    }

    #[test]
    fn output_of_tests_is_not_counted() {
        check(
            "my test result: ok. 9 passed; 0 failed\ntest results: 3 passed\n\u{fffd}no line end",
            "0 passed, 0 failed, 0 ignored; suites: 0",
        );
    }

    #[test]
    fn filter_without_matches_is_reported() {
        let empty = "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 8 filtered out\n";
        assert!(check(empty, "0 passed, 0 failed, 0 ignored; suites: 1").ran_nothing());
        let one = "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 8 filtered out\n";
        assert!(!check(one, "1 passed, 0 failed, 0 ignored; suites: 1").ran_nothing());
        assert!(!Tally::default().ran_nothing(), "a list of tests runs none");
    }
}
