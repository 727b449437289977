//! `moto`, which emulates Amazon SQS: a Python environment, created once.

use std::process::{Command, Stdio};

use refrain_servers::{cache_folder, sqs_binaries};

/// The package to install from PyPI.
const WANTED: &str = "moto[server]==5.2.1";

/// Creates the environment if `moto_server` is not installed.
pub(crate) fn find_or_make() -> Result<(), String> {
    if sqs_binaries().is_some() {
        return Ok(());
    }
    let folder = cache_folder().join("moto");
    eprintln!("xtask test: moto is not installed; installing {WANTED} from PyPI");
    done(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
    let pip = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        WANTED,
    ];
    done(Command::new(folder.join("bin/python")).args(pip))
}

fn done(command: &mut Command) -> Result<(), String> {
    let status = command.stdin(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!(
            "{command:?} failed with {status}; the SQS tests need it"
        )),
        Err(error) => Err(format!("{command:?}: {error}; the SQS tests need it")),
    }
}
