//! PgBouncer, which tests start in front of a PostgreSQL server.

use refrain_servers::{PGBOUNCER_BIN, pgbouncer_binaries};

use super::package;

const PACKAGE: &str = "pgbouncer";

/// Installs or unpacks the package if `pgbouncer` is not installed.
pub(crate) fn find_or_install() -> Result<(), String> {
    if pgbouncer_binaries().is_some() {
        return Ok(());
    }
    eprintln!("xtask test: PgBouncer is not installed; installing the package");
    package::install_or_unpack(&[PACKAGE]).map_err(|problem| {
        format!(
            "PgBouncer: {problem}\nInstall it (Debian: apt-get install {PACKAGE}), \
             or set {PGBOUNCER_BIN} to its folder."
        )
    })
}
