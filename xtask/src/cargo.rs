//! Starting cargo, from the root of the workspace.

use std::{
    env,
    path::PathBuf,
    process::{Command, ExitCode, ExitStatus},
};

use crate::services::tools;

/// A cargo command, to be run at the root of the workspace with the same cargo that runs us.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(arguments).current_dir(root());
    // The broker for Kafka brings OpenSSL as source; a machine that has it need not compile it.
    if tools::works("pkg-config", &["--exists", "openssl"]) {
        command.env("OPENSSL_NO_VENDOR", "1");
    }
    command
}

/// The root of the workspace, wherever in it we were called.
pub(crate) fn root() -> PathBuf {
    // The variable is set by `cargo run`; the built-in value serves a binary that is started by hand.
    let xtask =
        env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let mut root = PathBuf::from(xtask);
    root.pop();
    root
}

/// Passes a child's exit code on; a child that was killed has none and counts as failed.
pub(crate) fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    ExitCode::from(code.unwrap_or(1))
}

/// Says that a child could not be started or followed.
pub(crate) fn not_run(error: &std::io::Error) -> ExitCode {
    eprintln!("xtask: cargo could not be run: {error}; is it on the PATH?");
    ExitCode::FAILURE
}
