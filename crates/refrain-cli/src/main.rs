//! The `refrain` command: one file for each of its commands.
//!
//! Exit codes: 0 fine, 1 the check found problems, 2 usage, 64 bad configuration, 69 something needed cannot be reached.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod check;
mod demo;
mod output;
mod records;
mod store;

/// Same key, same request, same outcome, once.
#[derive(Debug, Parser)]
#[command(
    name = "refrain",
    version,
    arg_required_else_help = true,
    after_help = "Examples:
  refrain demo                          double charges without Refrain, none with it
  refrain check refrain.toml            what the file guards, and how
  refrain store check refrain-data      whether every record can be read
  refrain records list                  what a running proxy holds

`refrain COMMAND --help` says more.
Exit codes: 0 fine, 1 problems found, 2 wrong usage, 64 bad configuration, 69 something needed cannot be reached."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::Args),
    Check(check::Args),
    Store(store::Args),
    Records(records::Args),
    /// The service of the demo, in a process of its own that can be killed
    #[command(hide = true)]
    DemoShop(demo::shop::Args),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Demo(args) => demo::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Store(args) => store::run(&args),
        Command::Records(args) => records::run(&args),
        Command::DemoShop(args) => demo::shop::run(&args),
    };
    done.unwrap_or_else(|error| {
        eprintln!("refrain: {error:#}");
        ExitCode::FAILURE
    })
}
