//! `refrain mcp`: read-only tools for an assistant.

use std::process::ExitCode;

#[cfg(feature = "mcp")]
mod server;
#[cfg(feature = "mcp")]
mod tools;

/// Serve the read-only commands to an assistant, over standard input and output
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  refrain mcp                           command to register as a server of the Model Context Protocol
  refrain mcp --admin http://127.0.0.1:8378
                                        also give access to the records of this proxy

Tools: check, review, plan, lint, explain, list_records, show_record. None of them changes anything.
Exits when standard input closes. Needs a build with --features mcp.
Exit codes: 0 the client disconnected, 2 wrong usage, 64 built without MCP support, 69 protocol error.")]
pub(crate) struct Args {
    /// Admin address of the proxy
    #[arg(long, value_name = "URL")]
    admin: Option<String>,
}

/// Prints how to build with MCP support.
#[cfg(not(feature = "mcp"))]
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let Args { admin: _ } = args;
    crate::output::complain(format_args!(
        "refrain: built without MCP support; rebuild with --features mcp"
    ));
    Ok(64.into())
}

#[cfg(feature = "mcp")]
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    /// Exit code: the protocol failed.
    const UNAVAILABLE: u8 = 69;
    /// Standard input and output take one thread each; the others run concurrent calls.
    const BLOCKING_THREADS_MAX: usize = 8;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .build()?;
    let served = runtime.block_on(server::serve(args.admin.clone()));
    // A blocking read of standard input cannot be cancelled, so do not wait for it.
    runtime.shutdown_background();
    match served {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(why) => {
            crate::output::complain(format_args!("refrain: {why}"));
            Ok(UNAVAILABLE.into())
        }
    }
}
