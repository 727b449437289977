//! `refrain extproc`: an external processing server for Envoy, so that a service mesh guards operations.

use std::{path::PathBuf, process::ExitCode};

#[cfg(feature = "extproc")]
mod handover;
#[cfg(feature = "extproc")]
mod messages;
#[cfg(feature = "extproc")]
mod origin;
#[cfg(feature = "extproc")]
mod processor;
#[cfg(feature = "extproc")]
mod server;
#[cfg(feature = "extproc")]
mod session;

/// Guard services behind Envoy, as its external processing server
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  refrain extproc                       guard POST and PATCH, with records in ./refrain-data
  refrain extproc --config refrain.toml --listen 127.0.0.1:0
                                        use your own policy, on a free port

Envoy sends each request here before its upstream (envoy.service.ext_proc.v3.ExternalProcessor, gRPC without TLS);
docs/operating/envoy.md has the configuration of its filter. Needs a build with --features extproc.

Flags override the environment (REFRAIN_EXTPROC_LISTEN, REFRAIN_ADMIN, REFRAIN_STORE, REFRAIN_AUDIT_LOG,
REFRAIN_ACCESS_LOG, REFRAIN_LOG; append _FILE to name a file that holds the value), which overrides the file.
SIGTERM and Ctrl-C let running requests finish, for up to `drain` of [proxy]; a second signal stops at once.

Exit codes: 0 stopped by a signal, 2 wrong usage, 64 bad configuration or built without Envoy support,
69 port, store, audit log or access log unavailable.")]
pub(crate) struct Args {
    /// Address to listen on; port 0 takes a free port [default: 127.0.0.1:8381]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    #[arg(long, value_name = "STORE", help = crate::proxy::store_help())]
    store: Option<String>,
    /// Folder of the audit log [default: audit in the store's folder, else refrain-audit]
    #[arg(long, value_name = "DIR")]
    audit_log: Option<String>,
    /// File of the access log, or `stdout`: one JSON line for each request [default: no access log]
    #[arg(long, value_name = "FILE")]
    access_log: Option<String>,
    /// Address of the dashboard, health checks, metrics and the records API [default: 127.0.0.1:8378]
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<String>,
    /// Configuration file (refrain.toml)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Log level on standard error: error, warn, info, debug or trace [default: warn]
    #[arg(long, value_name = "LEVEL")]
    log: Option<String>,
}

/// Prints how to build with Envoy support.
#[cfg(not(feature = "extproc"))]
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let Args {
        listen: _,
        store: _,
        audit_log: _,
        access_log: _,
        admin: _,
        config: _,
        log: _,
    } = args;
    crate::output::complain(format_args!(
        "refrain: built without Envoy support; rebuild with --features extproc"
    ));
    Ok(64.into())
}

#[cfg(feature = "extproc")]
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match server::start(args) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(failure) => {
            crate::output::complain(&failure);
            Ok(failure.code())
        }
    }
}
