//! Where the servers' programs are.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::home::is_root;

/// Names the variable with the folder of PostgreSQL's programs.
pub const POSTGRES_BIN: &str = "REFRAIN_TEST_POSTGRES_BIN";
/// Names the variable with the folder of Redis' programs.
pub const REDIS_BIN: &str = "REFRAIN_TEST_REDIS_BIN";
/// Names the variable with the folder of `moto_server`.
pub const SQS_BIN: &str = "REFRAIN_TEST_SQS_BIN";

/// Names the variable with the folder of NATS' program.
pub const NATS_BIN: &str = "REFRAIN_TEST_NATS_BIN";
/// Names the variable with the folder of RabbitMQ's programs.
pub const AMQP_BIN: &str = "REFRAIN_TEST_AMQP_BIN";

/// Names the variable with the folder of PgBouncer's program.
pub const PGBOUNCER_BIN: &str = "REFRAIN_TEST_PGBOUNCER_BIN";

/// The folder of `postgres` and `initdb`, if there is one on this machine.
///
/// The first of: [`POSTGRES_BIN`], the newest below `/usr/lib/postgresql`, the `PATH`, [`cache_folder`].
#[must_use]
pub fn postgres_binaries() -> Option<PathBuf> {
    let all = ["postgres", "initdb"];
    named(POSTGRES_BIN, &all)
        .or_else(|| newest(Path::new("/"), &all))
        .or_else(|| on_path(&all))
        .or_else(|| newest(&cache_folder().join("postgresql"), &all))
}

/// The folder of `redis-server`, if there is one on this machine.
///
/// The first of: [`REDIS_BIN`], the `PATH`, [`cache_folder`].
#[must_use]
pub fn redis_binaries() -> Option<PathBuf> {
    let all = ["redis-server"];
    let cached = cache_folder().join("redis-server/usr/bin");
    named(REDIS_BIN, &all)
        .or_else(|| on_path(&all))
        .or_else(|| Some(cached).filter(|folder| has(folder, &all)))
}

/// The folder of `moto_server`, if there is one on this machine.
///
/// The first of: [`SQS_BIN`], the environment that `cargo xtask` makes in [`cache_folder`], the `PATH`.
#[must_use]
pub fn sqs_binaries() -> Option<PathBuf> {
    let all = ["moto_server"];
    let cached = cache_folder().join("moto/bin");
    named(SQS_BIN, &all)
        .or_else(|| Some(cached).filter(|folder| has(folder, &all)))
        .or_else(|| on_path(&all))
}

/// The folder of `nats-server`, if there is one on this machine.
///
/// The first of: [`NATS_BIN`], the `PATH`, `/usr/sbin`, [`cache_folder`].
#[must_use]
pub fn nats_binaries() -> Option<PathBuf> {
    let all = ["nats-server"];
    let cached = cache_folder().join("nats-server/usr/sbin");
    let places = [PathBuf::from("/usr/sbin"), cached];
    named(NATS_BIN, &all)
        .or_else(|| on_path(&all))
        .or_else(|| places.into_iter().find(|folder| has(folder, &all)))
}

/// The folder of `pgbouncer`, if there is one on this machine.
///
/// The first of: [`PGBOUNCER_BIN`], the `PATH`, `/usr/sbin`, [`cache_folder`].
#[must_use]
pub fn pgbouncer_binaries() -> Option<PathBuf> {
    let all = ["pgbouncer"];
    let cached = cache_folder().join("pgbouncer/usr/sbin");
    let places = [PathBuf::from("/usr/sbin"), cached];
    named(PGBOUNCER_BIN, &all)
        .or_else(|| on_path(&all))
        .or_else(|| places.into_iter().find(|folder| has(folder, &all)))
}

/// The folder of RabbitMQ's own `rabbitmq-server`, if there is one on this machine.
///
/// The first of: [`AMQP_BIN`], the newest below `/usr/lib/rabbitmq`, [`cache_folder`].
/// What Debian has on the `PATH` is another program, which runs the server as a user of its own.
#[must_use]
pub fn rabbitmq_binaries() -> Option<PathBuf> {
    let all = ["rabbitmq-server", "rabbitmq-env"];
    named(AMQP_BIN, &all)
        .or_else(|| rabbitmq_below(Path::new("/"), &all))
        .or_else(|| rabbitmq_below(&cache_folder().join("rabbitmq-server"), &all))
}

/// As in `usr/lib/rabbitmq/lib/rabbitmq_server-3.10.8/sbin`.
fn rabbitmq_below(root: &Path, programs: &[&str]) -> Option<PathBuf> {
    let versions = folders_in(&root.join("usr/lib/rabbitmq/lib")).map(|folder| folder.join("sbin"));
    versions.filter(|folder| has(folder, programs)).max()
}

/// The folder into which the package of these programs was unpacked, if it was.
pub(crate) fn unpacked_root(binaries: &Path) -> Option<PathBuf> {
    let cache = cache_folder();
    let package = binaries.strip_prefix(&cache).ok()?.components().next()?;
    Some(cache.join(package))
}

/// Where `cargo xtask` unpacks a package that it does not install: a folder for each package.
#[must_use]
pub fn cache_folder() -> PathBuf {
    if is_root() {
        // Root's own folder is closed to the user that PostgreSQL runs as.
        return "/var/cache/refrain-test-servers".into();
    }
    let home = || env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let base = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let base = base.filter(|base| base.is_absolute()).or_else(home);
    base.unwrap_or_else(env::temp_dir)
        .join("refrain-test-servers")
}

/// Lets a program that was unpacked below [`cache_folder`] find the libraries that were unpacked with it.
pub(crate) fn with_libraries(mut command: Command, binaries: &Path) -> Command {
    let Some(root) = unpacked_root(binaries) else {
        return command;
    };
    let mut libraries = Vec::new();
    for folder in [root.join("usr/lib"), root.join("lib")] {
        libraries.extend(folders_in(&folder).filter(|folder| is_of_libraries(folder)));
        libraries.push(folder);
    }
    if let Ok(path) = env::join_paths(libraries) {
        command.env("LD_LIBRARY_PATH", path);
    }
    command
}

/// As in `usr/lib/x86_64-linux-gnu`.
fn is_of_libraries(folder: &Path) -> bool {
    let name = folder.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.contains("-linux-"))
}

fn named(variable: &str, programs: &[&str]) -> Option<PathBuf> {
    let folder = env::var_os(variable).map(PathBuf::from)?;
    has(&folder, programs).then_some(folder)
}

fn on_path(programs: &[&str]) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).find(|folder| has(folder, programs))
}

/// Debian has a folder for each version, and none of them on the `PATH`.
fn newest(root: &Path, programs: &[&str]) -> Option<PathBuf> {
    let versions = folders_in(&root.join("usr/lib/postgresql")).map(|folder| folder.join("bin"));
    versions
        .filter(|folder| has(folder, programs))
        .max_by_key(|folder| version(folder))
}

fn version(binaries: &Path) -> u32 {
    let name = binaries.parent().and_then(Path::file_name);
    let number = name.and_then(|name| name.to_str()?.parse().ok());
    number.unwrap_or(0)
}

fn folders_in(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}

fn has(folder: &Path, programs: &[&str]) -> bool {
    programs
        .iter()
        .all(|program| folder.join(program).is_file())
}
