//! The project's own commands: `cargo xtask test`, `services`, `bench`, `peers`, `lint-corpus`, `tidy`,
//! `book`, `package`, `reference`.
//!
//! Depends on the standard library and `refrain-servers` alone, so that it builds fast on a fresh machine.

use std::process::ExitCode;

mod bench;
mod book;
mod cargo;
mod lint_corpus;
mod package;
mod peers;
mod services;
mod test;
mod tidy;

const HELP: &str = "\
The project's own commands.

Usage: cargo xtask COMMAND [ARGUMENT]...

Commands:
  test [--repeat N] [--busy] [ARGUMENT]...
                       run every test of the workspace; arguments are passed to `cargo test`.
                       Installs missing programs (servers, Python, Node, Chromium), starts the servers
                       that tests need, and stops them at the end.
                       --repeat N  run N times with the same servers; print a line for each run,
                                   and list the failed tests at the end
                       --busy      keep every core busy with another process
  services             start these servers, print their addresses, and keep them running until Ctrl-C
  bench [NAME]...      run the benchmarks, all of them or those named
  peers                run `refrain verify` on other idempotency libraries, and write docs/peers.md;
                       installs them into target/peers
  lint-corpus [PART]   print precision and recall of the `refrain lint` rules on the labelled corpus,
                       or on its files whose names contain PART
  tidy                 check project rules that the compiler does not check
  book                 build the documentation into target/book, and check its links, examples and generated pages
  package              build the Debian package into target/debian, and check the files in deploy/ with the
                       tools of their formats, as far as they are installed
  reference            regenerate the generated pages of the documentation
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
        None => return usage("no command given"),
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
        "package" if rest.is_empty() => package::run(),
        "package" => usage("package takes no arguments"),
        "tidy" if rest.is_empty() => tidy::run(),
        "tidy" => usage("tidy takes no arguments"),
        "book" if rest.is_empty() => book::run(),
        "reference" if rest.is_empty() => book::write_reference(),
        "book" | "reference" => usage(&format!("{command} takes no arguments")),
        "help" | "--help" | "-h" => {
            print!("{HELP}");
            ExitCode::SUCCESS
        }
        other => usage(&format!("unknown command `{other}`")),
    }
}

fn usage(problem: &str) -> ExitCode {
    eprint!("xtask: {problem}\n\n{HELP}");
    ExitCode::from(USAGE)
}
