//! `refrain migrate`: makes the tables that Refrain needs in a database, or prints what would make them.

use std::process::ExitCode;

mod receipts;

/// Make the tables that Refrain needs in a database
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  refrain migrate --receipts --print                     the table of receipts, for a DBA or for your own migrations
  refrain migrate --receipts --store postgres://app@db/app
                                                         make it in the database of the service itself

Exit codes: 0 done, or printed, 2 wrong usage, 69 the database cannot be had.")]
pub(crate) struct Args {
    /// The table of receipts, which exactly-once operations write to
    #[arg(long, required = true)]
    receipts: bool,
    /// The database: postgres://…
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Print the statements, and connect to nothing
    #[arg(long)]
    print: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    debug_assert!(args.receipts, "there is nothing else to make yet");
    receipts::run(args.store.as_deref(), args.print)
}
