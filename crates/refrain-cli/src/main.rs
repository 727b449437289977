//! The `refrain` command, with one module for each subcommand.
//!
//! Exit codes: 0 fine, 1 the check found problems, 2 wrong usage, 64 bad configuration, 69 a required resource is unreachable.

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

mod audit;
#[cfg(all(test, feature = "lint", feature = "tools"))]
mod book;
mod check;
mod client;
mod completions;
mod demo;
mod doctor;
mod encryption;
mod explain;
mod extproc;
mod key;
mod man;
mod mcp;
mod migrate;
mod output;
mod proxy;
mod records;
mod relay;
mod settings;
mod skill;
mod store;
mod top;
mod work;

// The developer tools. A build without them has the same commands, which print how to rebuild.
#[cfg(feature = "tools")]
mod chaos;
#[cfg(feature = "tools")]
mod find;
#[cfg(feature = "tools")]
mod init;
#[cfg(feature = "lint")]
mod lint;
#[cfg(feature = "tools")]
mod marks;
#[cfg(feature = "tools")]
mod plan;
#[cfg(feature = "tools")]
mod verify;

#[cfg(not(all(feature = "lint", feature = "tools")))]
mod left_out;
#[cfg(not(feature = "lint"))]
use left_out as lint;
#[cfg(not(feature = "tools"))]
use {left_out as chaos, left_out as init, left_out as plan, left_out as verify};

/// mimalloc, because the proxy mixes a few small long-lived allocations with many short-lived ones, and the system allocator is slow at that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Same key, same request, same outcome, once.
#[derive(Debug, Parser)]
#[command(
    name = "refrain",
    version,
    arg_required_else_help = true,
    after_help = "Examples:
  refrain demo                          show double charges without Refrain, and none with it
  refrain proxy --upstream http://127.0.0.1:3000
                                        guard a service, without any setup
  refrain extproc                       guard services behind Envoy, as its external processing server
  refrain work --config refrain.toml    deduplicate messages from brokers, and deliver them to services
  refrain chaos --upstream http://127.0.0.1:3000 --rule 'POST /v1/payments drop-answer 30%'
                                        lose responses on purpose, to test the retries of your clients
  refrain relay --outbox postgres://app@db/app --to redis://127.0.0.1:6379
                                        publish the messages of an outbox to a broker
  refrain verify http://127.0.0.1:3000 --op 'POST /v1/payments' --body @payment.json
                                        send every kind of duplicate, and report which ones the service handles wrongly
  refrain verify --worker --broker redis://127.0.0.1 --queue orders --body @order.json \\
      --effects-url http://127.0.0.1:3000/count
                                        the same for a message consumer
  refrain init                          set up a project in six stages, with questions
  refrain plan openapi.yaml             find operations that need keys; write policy, page for clients, tests
  refrain check refrain.toml            print what the file guards, and how
  refrain check refrain.toml --report   review the file: what is done, and what is open
  refrain doctor                        find what will go wrong on this machine, with the fix
  refrain lint src                      find code that may execute an effect twice
  refrain explain outcome-unknown       explain a problem code, and what to do
  refrain key --entity invoice-7 --action pay --params @payment.json
                                        derive a key that is the same on every retry
  refrain store check refrain-data      check a store for damage
  refrain migrate --store postgres://app@db/app
                                        create the tables of a store on PostgreSQL
  refrain records list                  list the records of a running proxy
  refrain top                           watch a running proxy in the terminal
  refrain audit verify                  verify that the audit log was not changed
  refrain migrate --receipts --print    print the table of receipts, for exactly-once
  refrain skill install .claude/skills  install the skill for an assistant

`refrain COMMAND --help` prints the help of a command.
Exit codes: 0 success, 1 problems found, 2 wrong usage, 64 bad configuration, 69 a required resource is unavailable."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::Args),
    Proxy(proxy::Args),
    Work(work::Args),
    Relay(relay::Args),
    Chaos(chaos::Args),
    Verify(Box<verify::Args>),
    Init(init::Args),
    Plan(plan::Args),
    Check(check::Args),
    Doctor(doctor::Args),
    Lint(lint::Args),
    Key(key::Args),
    Explain(explain::Args),
    Store(store::Args),
    Migrate(migrate::Args),
    Records(records::Args),
    Top(top::Args),
    Audit(audit::Args),
    Skill(skill::Args),
    Mcp(mcp::Args),
    Extproc(extproc::Args),
    Completions(completions::Args),
    Man(man::Args),
    /// Kill the proxy of a demo that has ended
    #[command(hide = true)]
    DemoWatch,
}

fn main() -> ExitCode {
    let command = Cli::parse().command;
    if command.serves() {
        take_small_pages();
        keep_memory_private();
    }
    let done = match command {
        Command::Demo(args) => demo::run(&args),
        Command::Proxy(args) => proxy::run(&args),
        Command::Work(args) => work::run(&args),
        Command::Relay(args) => relay::run(&args),
        Command::Chaos(args) => chaos::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Init(args) => init::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Lint(args) => lint::run(&args),
        Command::Key(args) => key::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Store(args) => store::run(&args),
        Command::Migrate(args) => migrate::run(&args),
        Command::Records(args) => records::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Audit(args) => audit::run(&args),
        Command::Skill(args) => skill::run(&args),
        Command::Mcp(args) => mcp::run(&args),
        Command::Extproc(args) => extproc::run(&args),
        Command::Completions(args) => completions::run(&args, Cli::command()),
        Command::Man(args) => man::run(&args, Cli::command()),
        Command::DemoWatch => demo::watch::run(),
    };
    done.unwrap_or_else(|error| {
        crate::output::complain(format_args!("refrain: {error:#}"));
        ExitCode::FAILURE
    })
}

impl Command {
    /// Whether the command runs a long-lived server.
    fn serves(&self) -> bool {
        use Command::{Chaos, Extproc, Proxy, Relay, Work};
        matches!(self, Chaos(_) | Extproc(_) | Proxy(_) | Relay(_) | Work(_))
    }
}

/// Disables transparent huge pages: the kernel clears a whole huge page on first touch, which blocks every task on that thread for milliseconds.
fn take_small_pages() {
    // A kernel without huge pages needs no change.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}

/// Disables core dumps, and tracing by other processes of the same user: memory and environment contain credentials,
/// requests and responses.
fn keep_memory_private() {
    use rustix::process::{DumpableBehavior, set_dumpable_behavior};
    // A sandbox may refuse it; requests can still be served.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}
