//! The project's own commands: `cargo xtask test`, `services`, `bench`, `peers`, `lint-corpus`, `tidy`,
//! `book`, `reference`.
//!
//! Depends on the standard library and `refrain-servers` alone, so that it builds fast on a fresh machine.

use std::process::ExitCode;

mod bench;
mod book;
mod cargo;
mod lint_corpus;
mod peers;
mod services;
mod test;
mod tidy;

const HELP: &str = "\
The project's own commands.

Usage: cargo xtask COMMAND [ARGUMENT]...

Commands:
  test [--repeat N] [--busy] [ARGUMENT]...
                       run every test of the workspace; arguments go on to `cargo test`.
                       Installs what is missing (servers, Python, Node, Chromium), brings up the servers
                       that tests need, and takes them down again.
                       --repeat N  run N times in a row with the same servers; print a line for each run,
                                   and name the tests that failed at the end
                       --busy      keep every core busy with another process meanwhile
  services             bring those servers up, print their addresses, and keep them until Ctrl-C
  bench [NAME]...      run the benchmarks, all of them or those named
  peers                verify the idempotency libraries of others, and write docs/peers.md;
                       installs them into target/peers
  lint-corpus [PART]   print how the rules of `refrain lint` do on the labelled corpus,
                       or on the files of it whose names hold PART
  tidy                 check the house rules that no compiler checks
  book                 build the documentation into target/book, and check its links, examples and generated pages
  reference            write the generated pages of the documentation anew
  help                 print this page

Exit codes: 0 fine, 1 a check found something, 2 usage,
69 a server or tool is missing; a failing cargo's own code is passed on.
";

/// Exit code for an invalid command line.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (command, rest) = match arguments.split_first() {
        Some((command, rest)) => (command.as_str(), rest),
        None => return usage("no command was given"),
    };
    match command {
        "test" => test::run(rest),
        // Internal: `test` makes cargo start test binaries through this command.
        "share" => {
            test::share::run(rest).unwrap_or_else(|| usage("share takes a folder and a binary"))
        }
        "bench" => bench::run(rest),
        "lint-corpus" => lint_corpus::run(rest),
        "services" if rest.is_empty() => services::run(),
        "services" => usage("services takes no arguments"),
        "peers" if rest.is_empty() => peers::run(),
        "peers" => usage("peers takes no arguments"),
        "tidy" if rest.is_empty() => tidy::run(),
        "tidy" => usage("tidy takes no arguments"),
        "book" if rest.is_empty() => book::run(),
        "reference" if rest.is_empty() => book::write_reference(),
        "book" | "reference" => usage(&format!("{command} takes no arguments")),
        "help" | "--help" | "-h" => {
            print!("{HELP}");
            ExitCode::SUCCESS
        }
        other => usage(&format!("there is no command `{other}`")),
    }
}

fn usage(problem: &str) -> ExitCode {
    eprint!("xtask: {problem}\n\n{HELP}");
    ExitCode::from(USAGE)
}
