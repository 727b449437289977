//! Runs cargo at the workspace root.

use std::{
    env,
    ffi::OsString,
    path::PathBuf,
    process::{Command, ExitCode, ExitStatus},
};

use crate::services::tools;

/// A cargo command at the workspace root, with the cargo that runs this program.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(arguments).current_dir(root());
    // `cargo xtask` describes its own package in these. Build scripts that watch them would rebuild ring, and all that
    // uses TLS, whenever `cargo xtask` and `cargo` take turns.
    let describes_package = |name: &OsString| {
        let name = name.to_string_lossy();
        name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
    };
    let names = env::vars_os().map(|(name, _)| name);
    for name in names.filter(describes_package) {
        command.env_remove(name);
    }
    // The Kafka client builds OpenSSL from source; an installed OpenSSL saves that time.
    if tools::works("pkg-config", &["--exists", "openssl"]) {
        command.env("OPENSSL_NO_VENDOR", "1");
    }
    command
}

/// The workspace root, independent of the working directory.
pub(crate) fn root() -> PathBuf {
    // `cargo run` sets the variable; the compile-time value serves a binary started directly.
    let xtask =
        env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let mut root = PathBuf::from(xtask);
    root.pop();
    root
}

/// Converts a child's exit status; a child killed by a signal has no exit code and counts as failed.
pub(crate) fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    ExitCode::from(code.unwrap_or(1))
}

/// Reports that a child process could not be started or followed.
pub(crate) fn not_run(error: &std::io::Error) -> ExitCode {
    eprintln!("xtask: cannot run cargo: {error}; check that it is on the PATH");
    ExitCode::FAILURE
}
