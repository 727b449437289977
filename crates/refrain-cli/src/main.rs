//! The `refrain` command: one file for each of its commands.
//!
//! Exit codes: 0 fine, 1 the check found problems, 2 usage, 64 bad configuration, 69 something needed cannot be reached.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod check;

/// Same key, same request, same outcome, once.
#[derive(Debug, Parser)]
#[command(name = "refrain", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Check(check::Args),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Check(args) => check::run(&args),
    };
    done.unwrap_or_else(|error| {
        eprintln!("refrain: {error:#}");
        ExitCode::FAILURE
    })
}
