//! Whether the store can be opened, keeps what it acknowledges, and has a clock like that of this machine.

use std::{os::unix::fs::PermissionsExt as _, path::Path, time::Duration};

use refrain::{
    clock::wall_time,
    policy::{
        Address, Settings,
        schemes::{Backend, BackendId},
    },
};
use refrain_stores::postgres::{self, Dial};
use rustix::fs::{FsWord, statfs, statvfs};
use tokio::time::timeout;

use super::{Finding, machine};

/// Less free space than this is an error: the store refuses new claims soon.
const FREE_ERROR: u64 = 256 << 20;
const FREE_WARNING: u64 = 2 << 30;
/// A larger difference between two clocks is reported.
const SKEW_MAX: Duration = Duration::from_secs(2);
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// File systems that lose data, or that acknowledge a sync before the data is safe.
const UNSAFE: [(FsWord, &str); 4] = [
    (0x0102_1994, "tmpfs, which is empty after a restart"),
    (
        0x794c_7630,
        "overlayfs, the layer of a container, which is removed with the container",
    ),
    (0x6969, "NFS, whose locks and syncs depend on the server"),
    (
        0x6573_5546,
        "a FUSE file system, whose syncs depend on its program",
    ),
];

pub(super) async fn check(settings: &Settings) -> Vec<Finding> {
    let mut findings = Vec::new();
    for address in &settings.store {
        let found = match Backend::named(address.scheme()).map(|it| it.id) {
            Some(BackendId::Postgres) => of_postgres(address).await,
            Some(BackendId::Embedded) => of_folder(folder(address)),
            Some(BackendId::Memory) => vec![Finding::warning(
                "store",
                "memory: loses all records when the process ends; a retry after that executes again",
                "use store = \"file:refrain-data\", except in tests",
            )],
            _ => of_server(address).await,
        };
        findings.extend(found);
    }
    findings
}

fn folder(address: &Address) -> &Path {
    let text = address.as_str();
    Path::new(text.strip_prefix("file:").unwrap_or(text))
}

fn of_folder(folder: &Path) -> Vec<Finding> {
    let mut findings = vec![machine::writable("store", folder)];
    let existing = machine::nearest(folder);
    let shown = folder.display();
    if let Ok(metadata) = folder.metadata()
        && metadata.permissions().mode() & 0o077 != 0
    {
        let message = format!("{shown} has outcomes of your operations, and others may read it");
        findings.push(Finding::warning(
            "permissions",
            message,
            format!("chmod 700 {shown}"),
        ));
    }
    if let Ok(system) = statfs(&existing)
        && let Some((_, name)) = UNSAFE.iter().find(|(kind, _)| *kind == system.f_type)
    {
        let message = format!("{shown} is on {name}");
        findings.push(Finding::warning(
            "store",
            message,
            "put the store on a local disk or a persistent volume",
        ));
    }
    if let Ok(system) = statvfs(&existing) {
        findings.push(free_space(
            folder,
            system.f_bavail.saturating_mul(system.f_frsize),
        ));
    }
    findings
}

fn free_space(folder: &Path, free: u64) -> Finding {
    let gibibytes = free as f64 / f64::from(1 << 30);
    let message = format!("{} has {gibibytes:.1} GiB of free space", folder.display());
    let fix = "free space on this disk, shorten `retention`, or move the store; new claims are refused while the disk is full";
    match free {
        free if free < FREE_ERROR => Finding::error("store", message, fix),
        free if free < FREE_WARNING => Finding::warning("store", message, fix),
        _ => Finding::ok("store", message),
    }
}

async fn of_postgres(address: &Address) -> Vec<Finding> {
    let looked = timeout(ANSWER_MAX, look(address)).await;
    match looked.unwrap_or_else(|_| Err("it did not answer in time".into())) {
        Ok(findings) => findings,
        Err(error) => vec![unreachable(address, &error)],
    }
}

async fn look(address: &Address) -> Result<Vec<Finding>, String> {
    let missing = postgres::missing_script(address.as_str()).await;
    let tables = match missing.map_err(|error| error.to_string())? {
        sql if sql.is_empty() => {
            Finding::ok("store", format!("{address} has the tables of this version"))
        }
        _ => Finding::warning(
            "store",
            format!(
                "{address} lacks tables of this version; the first process that starts creates them"
            ),
            "run `refrain migrate` first, if that process may not create tables",
        ),
    };
    let dial = Dial::new(address.as_str()).map_err(|error| error.to_string())?;
    let wire = dial.look().await.map_err(|error| error.to_string())?;
    let before = wall_time();
    let told = wire
        .client()
        .query_one("SELECT extract(epoch FROM clock_timestamp())::float8", &[]);
    let row = told.await.map_err(|error| dial.told(&error).to_string())?;
    let (after, theirs) = (wall_time(), Duration::from_secs_f64(row.get(0)));
    Ok(vec![
        tables,
        skew(&address.to_string(), (before + after) / 2, theirs),
    ])
}

async fn of_server(address: &Address) -> Vec<Finding> {
    let opened = timeout(ANSWER_MAX, refrain_stores::open(address.as_str())).await;
    let store = match opened {
        Ok(Ok(store)) => store,
        Ok(Err(error)) => return vec![unreachable(address, &error.to_string())],
        Err(_) => return vec![unreachable(address, "it did not answer in time")],
    };
    let losses = store.losses();
    vec![match losses.is_empty() {
        true => Finding::ok("store", format!("{address} keeps what it acknowledges")),
        false => Finding::warning(
            "store",
            format!("{address} may lose acknowledged writes: {losses}"),
            "use it as a cache in front of PostgreSQL, or set appendonly yes and appendfsync always",
        ),
    }]
}

fn unreachable(address: &Address, error: &str) -> Finding {
    Finding::error(
        "store",
        format!("{address}: {error}"),
        "start the server, or correct `store`",
    )
}

/// Compares a clock with that of this machine.
pub(super) fn skew(name: &str, ours: Duration, theirs: Duration) -> Finding {
    let skew = ours.abs_diff(theirs);
    let message = format!(
        "the clock of {name} differs by {:.1} s from that of this machine",
        skew.as_secs_f64()
    );
    match skew > SKEW_MAX {
        true => Finding::warning(
            "clocks",
            format!(
                "{message}; tokens and signed webhooks are checked with the clock of this machine"
            ),
            "synchronise the clocks of both machines, for example with chrony",
        ),
        false => Finding::ok("clocks", message),
    }
}
