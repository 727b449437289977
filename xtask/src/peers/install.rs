//! Installs the peers from their registries into `target/peers`.

use std::{fs, io, path::Path, process::Command};

use super::list::{ASGI, EXPRESS_IDEMPOTENCY, NODE_IDEMPOTENCY, POWERTOOLS, source};
use crate::{cargo, services::tools};

/// Builds and installs everything that is missing.
pub(super) fn all(place: &Path) -> io::Result<()> {
    tools::find_or_install().map_err(io::Error::other)?;
    done(&mut cargo::command(&[
        "build",
        "--quiet",
        "--package",
        "refrain-cli",
    ]))?;
    let mut axum = cargo::command(&["build", "--quiet", "--manifest-path"]);
    axum.arg(source("axum/Cargo.toml"));
    done(axum.arg("--target-dir").arg(place.join("axum")))?;
    node(&place.join("node"))?;
    // Separate environments, because each needs another version of the Redis client.
    let header = format!("asgi-idempotency-header=={ASGI}");
    python(
        &place.join("asgi"),
        &[&header, "redis<5", "fastapi", "uvicorn"],
    )?;
    let powertools = format!("aws-lambda-powertools[aws-sdk,redis]=={POWERTOOLS}");
    python(
        &place.join("powertools"),
        &[&powertools, "fastapi", "uvicorn"],
    )
}

fn node(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-audit", "--no-fund", "--no-package-lock"]);
    npm.args(["--loglevel=error", "express@4"]);
    npm.arg(format!("express-idempotency@{EXPRESS_IDEMPOTENCY}"));
    npm.arg(format!("@node-idempotency/core@{NODE_IDEMPOTENCY}"));
    npm.arg("@node-idempotency/storage-adapter-redis@1.0.2");
    done(npm.arg("--prefix").arg(folder))
}

fn python(folder: &Path, packages: &[&str]) -> io::Result<()> {
    if !folder.join("bin/python").exists() {
        done(Command::new("python3").args(["-m", "venv"]).arg(folder))?;
    }
    let mut pip = Command::new(folder.join("bin/python"));
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]);
    done(pip.args(packages))
}

fn done(command: &mut Command) -> io::Result<()> {
    let status = command.status()?;
    match status.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!("{command:?} failed: {status}"))),
    }
}
