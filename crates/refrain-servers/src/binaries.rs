//! Locates the server programs.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::home::is_root;

/// Environment variable with the folder of PostgreSQL's programs.
pub const POSTGRES_BIN: &str = "REFRAIN_TEST_POSTGRES_BIN";
/// Environment variable with the folder of Redis' programs.
pub const REDIS_BIN: &str = "REFRAIN_TEST_REDIS_BIN";
/// Environment variable with the folder of `moto_server`.
pub const SQS_BIN: &str = "REFRAIN_TEST_SQS_BIN";

/// Environment variable with the folder of `envoy`.
pub const ENVOY_BIN: &str = "REFRAIN_TEST_ENVOY_BIN";

/// Environment variable with the folder of `nats-server`.
pub const NATS_BIN: &str = "REFRAIN_TEST_NATS_BIN";
/// Environment variable with the folder of RabbitMQ's programs.
pub const AMQP_BIN: &str = "REFRAIN_TEST_AMQP_BIN";

/// Environment variable with the folder of `pgbouncer`.
pub const PGBOUNCER_BIN: &str = "REFRAIN_TEST_PGBOUNCER_BIN";

/// Returns the folder of `postgres` and `initdb`, if installed.
///
/// Searches in this order: [`POSTGRES_BIN`], the newest version below `/usr/lib/postgresql`, the `PATH`,
/// [`cache_folder`].
#[must_use]
pub fn postgres_binaries() -> Option<PathBuf> {
    let all = ["postgres", "initdb"];
    from_variable(POSTGRES_BIN, &all)
        .or_else(|| newest(Path::new("/"), &all))
        .or_else(|| on_path(&all))
        .or_else(|| newest(&cache_folder().join("postgresql"), &all))
}

/// Returns the folder of `redis-server`, if installed.
///
/// Searches in this order: [`REDIS_BIN`], the `PATH`, [`cache_folder`].
#[must_use]
pub fn redis_binaries() -> Option<PathBuf> {
    let all = ["redis-server"];
    let cached = cache_folder().join("redis-server/usr/bin");
    from_variable(REDIS_BIN, &all)
        .or_else(|| on_path(&all))
        .or_else(|| Some(cached).filter(|folder| has(folder, &all)))
}

/// Returns the folder of `moto_server`, if installed.
///
/// Searches in this order: [`SQS_BIN`], the Python environment that `cargo xtask` creates in
/// [`cache_folder`], the `PATH`.
#[must_use]
pub fn sqs_binaries() -> Option<PathBuf> {
    let all = ["moto_server"];
    let cached = cache_folder().join("moto/bin");
    from_variable(SQS_BIN, &all)
        .or_else(|| Some(cached).filter(|folder| has(folder, &all)))
        .or_else(|| on_path(&all))
}

/// Returns the folder of `envoy`, if installed.
///
/// Searches in this order: [`ENVOY_BIN`], the Python environment that `cargo xtask` creates in
/// [`cache_folder`], the `PATH`.
#[must_use]
pub fn envoy_binaries() -> Option<PathBuf> {
    let all = ["envoy"];
    let cached = cache_folder().join("envoy/bin");
    from_variable(ENVOY_BIN, &all)
        .or_else(|| Some(cached).filter(|folder| has(folder, &all)))
        .or_else(|| on_path(&all))
}

/// Returns the folder of `nats-server`, if installed.
///
/// Searches in this order: [`NATS_BIN`], the `PATH`, `/usr/sbin`, [`cache_folder`].
#[must_use]
pub fn nats_binaries() -> Option<PathBuf> {
    let all = ["nats-server"];
    let cached = cache_folder().join("nats-server/usr/sbin");
    let places = [PathBuf::from("/usr/sbin"), cached];
    from_variable(NATS_BIN, &all)
        .or_else(|| on_path(&all))
        .or_else(|| places.into_iter().find(|folder| has(folder, &all)))
}

/// Returns the folder of `pgbouncer`, if installed.
///
/// Searches in this order: [`PGBOUNCER_BIN`], the `PATH`, `/usr/sbin`, [`cache_folder`].
#[must_use]
pub fn pgbouncer_binaries() -> Option<PathBuf> {
    let all = ["pgbouncer"];
    let cached = cache_folder().join("pgbouncer/usr/sbin");
    let places = [PathBuf::from("/usr/sbin"), cached];
    from_variable(PGBOUNCER_BIN, &all)
        .or_else(|| on_path(&all))
        .or_else(|| places.into_iter().find(|folder| has(folder, &all)))
}

/// Returns the folder of RabbitMQ's own `rabbitmq-server`, if installed.
///
/// Searches in this order: [`AMQP_BIN`], the last folder by name below `/usr/lib/rabbitmq/lib`,
/// [`cache_folder`]. Not the `PATH`: Debian's `rabbitmq-server` there is a wrapper that runs the server as
/// the user `rabbitmq`.
#[must_use]
pub fn rabbitmq_binaries() -> Option<PathBuf> {
    let all = ["rabbitmq-server", "rabbitmq-env"];
    from_variable(AMQP_BIN, &all)
        .or_else(|| rabbitmq_below(Path::new("/"), &all))
        .or_else(|| rabbitmq_below(&cache_folder().join("rabbitmq-server"), &all))
}

/// Example: `usr/lib/rabbitmq/lib/rabbitmq_server-3.10.8/sbin`.
fn rabbitmq_below(root: &Path, programs: &[&str]) -> Option<PathBuf> {
    let versions = folders_in(&root.join("usr/lib/rabbitmq/lib")).map(|folder| folder.join("sbin"));
    versions.filter(|folder| has(folder, programs)).max()
}

/// Returns the folder into which the package of these programs was unpacked; `None` for an installed package.
pub(crate) fn unpacked_root(binaries: &Path) -> Option<PathBuf> {
    let cache = cache_folder();
    let package = binaries.strip_prefix(&cache).ok()?.components().next()?;
    Some(cache.join(package))
}

/// Returns the folder for packages that `cargo xtask` unpacks without installing: one subfolder per package.
#[must_use]
pub fn cache_folder() -> PathBuf {
    if is_root() {
        // Root's home folder is closed to the user that PostgreSQL runs as.
        return "/var/cache/refrain-test-servers".into();
    }
    let home = || env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let base = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let base = base.filter(|base| base.is_absolute()).or_else(home);
    base.unwrap_or_else(env::temp_dir)
        .join("refrain-test-servers")
}

/// Sets the library path of a program that was unpacked below [`cache_folder`].
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

/// Example: `usr/lib/x86_64-linux-gnu`.
fn is_of_libraries(folder: &Path) -> bool {
    let name = folder.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.contains("-linux-"))
}

fn from_variable(variable: &str, programs: &[&str]) -> Option<PathBuf> {
    let folder = env::var_os(variable).map(PathBuf::from)?;
    has(&folder, programs).then_some(folder)
}

fn on_path(programs: &[&str]) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).find(|folder| has(folder, programs))
}

/// Debian has a folder per version, none of them on the `PATH`.
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
