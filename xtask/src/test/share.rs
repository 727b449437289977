//! Distributes the test binaries among several cargo runs.
//!
//! `cargo test` runs one test binary after another, and many of them mostly wait: for a lease to lapse, for
//! a broker's redelivery. Hence several cargo runs use the same build. Cargo starts each test binary
//! through this command, which executes it only in the first run that claims it.

use std::{
    env,
    fs::{self, OpenOptions},
    io::{self, ErrorKind, Write},
    mem,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use super::tally::suite;

/// Folder of test binaries; documentation tests run elsewhere, in one run only.
const TEST_BINARIES: &str = "deps";

/// A folder with an empty file for each test binary that a run has claimed.
pub(super) struct Taken(PathBuf);

impl Taken {
    /// Creates the folder, which must not exist.
    pub(super) fn new(folder: PathBuf) -> io::Result<Self> {
        fs::create_dir(&folder)?;
        Ok(Self(folder))
    }

    /// The cargo configuration that starts test binaries through [`run`].
    pub(super) fn config(&self) -> io::Result<String> {
        let xtask = env::current_exe()?;
        // TOML literal strings have no escapes: a build path must not contain an apostrophe.
        Ok(format!(
            "target.'cfg(all())'.runner=['{}', 'share', '{}']",
            xtask.display(),
            self.0.display()
        ))
    }
}

/// Claims the binary; returns whether this run is the first to do so.
fn take(folder: &Path, binary: &Path) -> io::Result<bool> {
    let is_test = binary
        .parent()
        .is_some_and(|folder| folder.ends_with(TEST_BINARIES));
    let Some(name) = binary.file_name().filter(|_| is_test) else {
        return Ok(true);
    };
    let mark = folder.join(name);
    match OpenOptions::new().write(true).create_new(true).open(mark) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

/// `xtask share FOLDER BINARY…`: executes the test binary unless another run has claimed it.
///
/// `None` for an invalid command line.
pub(crate) fn run(arguments: &[String]) -> Option<ExitCode> {
    let [folder, binary, rest @ ..] = arguments else {
        return None;
    };
    let error = match take(Path::new(folder), Path::new(binary)) {
        Ok(false) => return Some(ExitCode::SUCCESS),
        Ok(true) => Command::new(binary).args(rest).exec(),
        Err(error) => error,
    };
    eprintln!("xtask: cannot start {binary}: {error}");
    Some(ExitCode::FAILURE)
}

/// Buffers the output of a run and prints whole suites, because interleaved lines of several runs are unreadable.
#[derive(Default)]
pub(super) struct Suites {
    held: Vec<u8>,
    /// Whether only the name of a suite is buffered.
    is_name: bool,
}

impl Suites {
    /// Buffers the line until its suite has ended; prints nothing for a suite that another run has claimed.
    pub(super) fn print(&mut self, line: &[u8], to: &mut impl Write) -> io::Result<()> {
        let text = String::from_utf8_lossy(line);
        if suite(text.trim_end()).is_some() {
            if self.is_name {
                self.held.clear();
            }
            self.is_name = true;
        } else if !text.trim().is_empty() {
            self.is_name = false;
        }
        self.held.extend_from_slice(line);
        if text.starts_with("test result: ") {
            self.end(to)?;
        }
        Ok(())
    }

    /// Prints the rest of the buffer.
    pub(super) fn end(&mut self, to: &mut impl Write) -> io::Result<()> {
        if mem::take(&mut self.is_name) {
            self.held.clear();
        }
        to.write_all(&mem::take(&mut self.held))?;
        to.flush()
    }
}

#[cfg(test)]
mod tests {
    //! A test binary that no run claims silently never runs; one that two runs claim runs twice.

    use super::*;
    use crate::test::Scratch;

    #[test]
    fn every_test_binary_is_taken_by_one_run() {
        let scratch = Scratch::new("share").unwrap();
        let folder = scratch.folder();
        let keys = Path::new("/project/target/debug/deps/keys-1f");
        let others = Path::new("/project/target/debug/deps/keys-20");
        assert!(take(folder, keys).unwrap());
        assert!(!take(folder, keys).unwrap());
        assert!(take(folder, others).unwrap());
        let gone = folder.join("gone");
        assert!(
            take(&gone, keys).is_err(),
            "a test file that did not run does not count as passed"
        );
    }

    #[test]
    fn documentation_tests_run_wherever_they_are_asked_for() {
        let scratch = Scratch::new("share-doc").unwrap();
        let binary = Path::new("/tmp/rustdoctest/rust_out");
        for _ in 0..2 {
            assert!(take(scratch.folder(), binary).unwrap());
        }
    }

    #[test]
    fn suites_are_printed_whole_and_those_of_other_runs_not_at_all() {
        let (mut suites, mut printed) = (Suites::default(), Vec::new());
        let mut print = |lines: &[&str]| {
            for line in lines {
                suites.print(format!("{line}\n").as_bytes(), &mut printed)?;
            }
            io::Result::Ok(String::from_utf8(mem::take(&mut printed)).unwrap())
        };
        let named =
            |name: &str| format!("     Running tests/{name}.rs (target/debug/deps/{name}-1f)");
        let lines = [&named("taken"), &named("keys"), "", "test a ... FAILED"];
        assert_eq!(print(&lines).unwrap(), "");
        let whole = print(&["test result: FAILED. 0 passed", &named("other")]).unwrap();
        let expected = format!(
            "{}\n\ntest a ... FAILED\ntest result: FAILED. 0 passed\n",
            named("keys")
        );
        assert_eq!(whole, expected);
        print(&["error: 1 target failed:"]).unwrap();
        suites.end(&mut printed).unwrap();
        let rest = String::from_utf8(printed).unwrap();
        assert!(rest.ends_with("error: 1 target failed:\n"), "{rest}");
    }
}
