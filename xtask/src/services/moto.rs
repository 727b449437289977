//! `moto`, which stands in for Amazon SQS: an environment of Python's, made once.

use std::process::{Command, Stdio};

use refrain_servers::{cache_folder, sqs_binaries};

/// What is taken from PyPI.
const WANTED: &str = "moto[server]==5.2.1";

/// Makes the environment where there is no `moto_server` on this machine.
pub(crate) fn find_or_make() -> Result<(), String> {
    if sqs_binaries().is_some() {
        return Ok(());
    }
    let folder = cache_folder().join("moto");
    eprintln!("xtask test: moto: not on this machine; taking {WANTED} from PyPI");
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
            "{command:?} ended with {status}; the tests of SQS need it"
        )),
        Err(error) => Err(format!("{command:?}: {error}; the tests of SQS need it")),
    }
}
