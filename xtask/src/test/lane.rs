//! Suites that mostly wait run beside those that mostly work.
//!
//! `cargo test` runs one test binary behind the other. Brokers are asked to redeliver late, so their suites take as long as
//! all the others together and leave the cores idle. Hence two runs of cargo over the same build, one in each lane:
//! cargo starts each test binary through this command, which lets only those of its lane run.

use std::{
    env,
    ffi::OsStr,
    io,
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, ExitCode},
};

/// The package whose test binaries mostly wait.
const WAITING: &str = "refrain-brokers";
/// Where cargo puts test binaries; those of documentation tests are elsewhere, and run in whichever lane has them.
const TEST_BINARIES: &str = "deps";

/// Which test binaries run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    Waiting,
    Working,
}

impl Lane {
    fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Working => "working",
        }
    }

    /// What makes cargo start test binaries through [`run`].
    pub(super) fn config(self) -> io::Result<String> {
        let xtask = env::current_exe()?;
        // A TOML string without escapes: no path of a build holds an apostrophe.
        Ok(format!(
            "target.'cfg(all())'.runner=['{}', 'lane', '{}']",
            xtask.display(),
            self.name()
        ))
    }

    fn has(self, package: Option<&OsStr>, binary: &Path) -> bool {
        let is_test = binary
            .parent()
            .is_some_and(|folder| folder.ends_with(TEST_BINARIES));
        let waits = package == Some(OsStr::new(WAITING));
        !is_test || waits == (self == Self::Waiting)
    }
}

/// `xtask lane NAME BINARY…`: becomes the test binary if it is in the lane, else ends at once.
///
/// `None` when the command line was not understood.
pub(crate) fn run(arguments: &[String]) -> Option<ExitCode> {
    let [name, binary, rest @ ..] = arguments else {
        return None;
    };
    let lane = [Lane::Waiting, Lane::Working]
        .into_iter()
        .find(|lane| lane.name() == name)?;
    // Cargo tells a test binary where its package is.
    let package = env::var_os("CARGO_MANIFEST_DIR");
    let package = package
        .as_deref()
        .and_then(|folder| Path::new(folder).file_name());
    if !lane.has(package, Path::new(binary)) {
        return Some(ExitCode::SUCCESS);
    }
    let error = Command::new(binary).args(rest).exec();
    eprintln!("xtask: {binary} could not be started: {error}");
    Some(ExitCode::FAILURE)
}

#[cfg(test)]
mod tests {
    //! A test binary that is in no lane is a test that silently never runs; one in both is run twice.

    use super::*;

    fn lanes(package: Option<&str>, binary: &str) -> Vec<Lane> {
        let has = |lane: &Lane| lane.has(package.map(OsStr::new), Path::new(binary));
        [Lane::Waiting, Lane::Working]
            .into_iter()
            .filter(has)
            .collect()
    }

    #[test]
    fn every_test_binary_is_in_exactly_one_lane() {
        let binary = "/project/target/debug/deps/nats-1f";
        assert_eq!(lanes(Some("refrain-brokers"), binary), [Lane::Waiting]);
        assert_eq!(lanes(Some("refrain-stores"), binary), [Lane::Working]);
        assert_eq!(lanes(None, binary), [Lane::Working]);
    }

    #[test]
    fn documentation_tests_run_wherever_they_are_asked_for() {
        let both = [Lane::Waiting, Lane::Working];
        assert_eq!(
            lanes(Some("refrain-brokers"), "/tmp/rustdoctest/rust_out"),
            both
        );
    }

    #[test]
    fn the_waiting_package_is_one_of_ours() {
        let manifest = crate::cargo::root()
            .join("crates")
            .join(WAITING)
            .join("Cargo.toml");
        assert!(manifest.is_file(), "{}", manifest.display());
    }
}
