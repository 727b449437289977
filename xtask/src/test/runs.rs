//! Sequence of test runs and their results.

use std::{
    fmt,
    process::{ExitCode, ExitStatus},
    time::Duration,
};

use super::{Options, Tally};
use crate::cargo;

/// The finished runs.
pub(super) struct Runs {
    wanted: usize,
    busy: bool,
    done: Vec<Run>,
}

struct Run {
    status: ExitStatus,
    tally: Tally,
    took: Duration,
}

impl Runs {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            wanted: usize::try_from(options.repeat).unwrap_or(usize::MAX),
            busy: options.busy,
            done: Vec::new(),
        }
    }

    pub(super) fn has_more(&self) -> bool {
        self.done.len() < self.wanted
    }

    /// The number of the next run, counted from 1.
    pub(super) fn number(&self) -> usize {
        self.done.len() + 1
    }

    /// Records a run and prints its summary; a failed run does not stop the others.
    pub(super) fn add(&mut self, status: ExitStatus, tally: Tally, took: Duration) {
        println!("xtask test: {tally}");
        let run = Run {
            status,
            tally,
            took,
        };
        self.done.push(run);
        if self.wanted > 1 {
            println!("xtask test: {}", self.line(self.done.len()));
        }
    }

    /// Example: `run 3 of 5: 1,460 passed, 0 failed, 812 s, busy`.
    fn line(&self, number: usize) -> String {
        let Run {
            status,
            tally,
            took,
        } = &self.done[number - 1];
        let mut line = format!(
            "run {number} of {}: {} passed, {} failed, {} s",
            self.wanted,
            Thousands(tally.passed),
            Thousands(tally.failed),
            took.as_secs()
        );
        if self.busy {
            line += ", busy";
        }
        // A test binary that crashes reports no failed test.
        if !status.success() && tally.failed == 0 {
            line += &format!(", cargo exited with {status}");
        }
        line
    }

    /// Prints all runs and the failed tests, and returns the exit code.
    pub(super) fn verdict(&self) -> ExitCode {
        if self.wanted > 1 {
            for number in 1..=self.done.len() {
                println!("xtask test: {}", self.line(number));
            }
        }
        for (name, runs) in self.failed() {
            println!("xtask test: failed: {name}{runs}");
        }
        let failed = self.done.iter().find(|run| !run.status.success());
        if let Some(run) = failed {
            return cargo::exit_code(run.status);
        }
        // A filter that matches no test is an error, not a success.
        if self.done.iter().any(|run| run.tally.ran_nothing()) {
            eprintln!("xtask test: no test matches; `cargo xtask test -- --list` lists all tests");
            return ExitCode::FAILURE;
        }
        ExitCode::SUCCESS
    }

    /// The failed tests; with several runs, also in which runs each failed.
    fn failed(&self) -> Vec<(&str, String)> {
        let mut names: Vec<&str> = Vec::new();
        for name in self.done.iter().flat_map(|run| &run.tally.names) {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        let runs = |name: &str| match self.wanted {
            1 => String::new(),
            _ => format!(" (in run {})", self.runs_with(name).join(", ")),
        };
        names.into_iter().map(|name| (name, runs(name))).collect()
    }

    fn runs_with(&self, name: &str) -> Vec<String> {
        let numbered = self.done.iter().zip(1..);
        let with = numbered.filter(|(run, _)| run.tally.names.iter().any(|failed| failed == name));
        with.map(|(_, number): (_, u32)| number.to_string())
            .collect()
    }
}

/// A number with thousands separators: `1,460`.
struct Thousands(u64);

impl fmt::Display for Thousands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0 / 1_000, self.0 % 1_000) {
            (0, rest) => write!(f, "{rest}"),
            (thousands, rest) => write!(f, "{},{rest:03}", Thousands(thousands)),
        }
    }
}

#[cfg(test)]
mod tests {
    //! With five runs and one failure, the last lines must name the run and the test.

    use std::os::unix::process::ExitStatusExt as _;

    use super::*;
    use crate::test::follow;

    const FINE: i32 = 0;
    const FAILED: i32 = 101 << 8;
    const KILLED: i32 = 9;

    fn runs(repeat: u32, busy: bool, each: &[(i32, &str)]) -> Runs {
        let options = Options {
            repeat,
            busy,
            cargo: Vec::new(),
        };
        let mut runs = Runs::new(&options);
        for (status, printed) in each {
            assert!(runs.has_more());
            let tally = follow(printed.as_bytes(), |_| Ok(())).unwrap();
            runs.add(
                ExitStatus::from_raw(*status),
                tally,
                Duration::from_millis(812_400),
            );
        }
        assert!(!runs.has_more());
        runs
    }

    const GOOD: &str = "test result: ok. 1460 passed; 0 failed; 1 ignored; 0 measured\n";
    const BAD: &str = "Running tests/a.rs (deps/a-0)\ntest b ... FAILED\ntest c ... FAILED\n\
                       test result: FAILED. 12 passed; 2 failed; 0 ignored; 0 measured\n";
    const OTHER: &str = "Running tests/a.rs (deps/a-0)\ntest c ... FAILED\n\
                         test result: FAILED. 13 passed; 1 failed; 0 ignored; 0 measured\n";

    #[test]
    fn each_run_has_a_line() {
        let runs = runs(3, true, &[(FINE, GOOD), (FAILED, BAD), (KILLED, "")]);
        assert_eq!(
            runs.line(1),
            "run 1 of 3: 1,460 passed, 0 failed, 812 s, busy"
        );
        assert_eq!(runs.line(2), "run 2 of 3: 12 passed, 2 failed, 812 s, busy");
        let killed = runs.line(3);
        assert!(
            killed.ends_with("busy, cargo exited with signal: 9 (SIGKILL)"),
            "{killed}"
        );
    }

    #[test]
    fn failed_tests_are_named_once_with_their_runs() {
        let runs = runs(3, false, &[(FAILED, BAD), (FINE, GOOD), (FAILED, OTHER)]);
        let expected = [
            ("a: b", " (in run 1)".to_owned()),
            ("a: c", " (in run 1, 3)".to_owned()),
        ];
        assert_eq!(runs.failed(), expected);
        assert_eq!(runs.verdict(), ExitCode::from(101));
    }

    #[test]
    fn one_failed_run_of_many_fails_all() {
        for (each, expected) in [
            (&[(FINE, GOOD), (FINE, GOOD)], ExitCode::SUCCESS),
            (&[(KILLED, ""), (FINE, GOOD)], ExitCode::FAILURE),
        ] {
            assert_eq!(runs(2, false, each).verdict(), expected);
        }
        let nothing = "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured\n";
        assert_eq!(
            runs(1, false, &[(FINE, nothing)]).verdict(),
            ExitCode::FAILURE
        );
    }

    #[test]
    fn numbers_have_thousands_separators() {
        for (number, expected) in [
            (0, "0"),
            (999, "999"),
            (1_460, "1,460"),
            (1_002_003, "1,002,003"),
        ] {
            assert_eq!(Thousands(number).to_string(), expected);
        }
    }
}
