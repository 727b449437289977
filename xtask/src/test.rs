//! `cargo xtask test`: runs every test of the workspace with the servers that it needs, and prints a
//! one-line summary.

use std::{
    ffi::OsStr,
    io::{self, BufReader, Write},
    os::unix::process::CommandExt,
    process::{Command, ExitCode, ExitStatus},
    thread,
    time::Instant,
};

use refrain_servers::Guard;

use crate::{
    cargo,
    services::{Services, UNAVAILABLE, pgbouncer, pypi, tools},
};

mod busy;
mod options;
mod runs;
mod scratch;
pub(crate) mod share;
mod tally;

use busy::BusyCores;
use options::Options;
use runs::Runs;
use scratch::Scratch;
use share::{Suites, Taken};
use tally::{Tally, follow};

/// Suites that take minutes, for each of the concurrent `cargo test` runs that share the tests. A run starts with its
/// own, because a long suite that starts last is waited for alone.
const LONGEST: [&[&str]; 4] = [
    &["rabbitmq"],
    &["verify_worker"],
    &["gallery", "snippets"],
    &["embedded", "kafka", "postgres", "sqs"],
];
/// Ends a process group: cargo and its tests.
const END_GROUP: &str = r#"kill -s TERM -- "-$1"; sleep 1; kill -s KILL -- "-$1""#;

/// Runs unit, integration and documentation tests; passes unknown `arguments` on to `cargo test`.
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    let options = match Options::parse(arguments) {
        Ok(options) => options,
        Err(problem) => return crate::usage(&problem),
    };
    let needed = [
        tools::find_or_install,
        pypi::find_or_make,
        pgbouncer::find_or_install,
    ];
    if let Err(problem) = needed.iter().try_for_each(|find| find()) {
        eprintln!("xtask test: {problem}");
        return ExitCode::from(UNAVAILABLE);
    }
    let services = match Services::start() {
        Ok(services) => services,
        Err(code) => return code,
    };
    match Scratch::new("tests").and_then(|scratch| Tests { services, scratch }.run(&options)) {
        Ok(code) => code,
        Err(error) => cargo::not_run(&error),
    }
}

/// Services and temporary folder of the test runs.
struct Tests {
    services: Services,
    scratch: Scratch,
}

impl Tests {
    /// Builds everything, and runs the tests the requested number of times.
    fn run(&self, options: &Options) -> io::Result<ExitCode> {
        let (built, ()) = guarded(self.cargo(&["--no-run"], &options.cargo), || Ok(()))?;
        if !built.success() {
            return Ok(cargo::exit_code(built));
        }
        let _busy = options.busy.then(BusyCores::start).transpose()?;
        let mut runs = Runs::new(options);
        while runs.has_more() {
            let since = now();
            let (status, tally) = self.run_once(runs.number(), &options.cargo)?;
            runs.add(status, tally, since.elapsed());
        }
        Ok(runs.verdict())
    }

    /// Runs all tests in several concurrent cargo runs; with arguments, in a single run.
    fn run_once(&self, number: usize, arguments: &[String]) -> io::Result<(ExitStatus, Tally)> {
        if !arguments.is_empty() {
            return follow_cargo(self.cargo(&[], arguments), print_now);
        }
        let taken = Taken::new(self.scratch.folder().join(format!("taken-{number}")))?;
        let config = taken.config()?;
        thread::scope(|scope| {
            let config = ["--config", &config];
            let sharing: Vec<_> = (0..)
                .zip(LONGEST)
                .map(|(number, longest)| {
                    let first: Vec<_> = longest.iter().flat_map(|it| ["--test", it]).collect();
                    // Documentation tests are not binaries, so only the first run has them.
                    let rest: &[&str] = if number == 0 { &[] } else { &["--tests"] };
                    let runs = [first.as_slice(), rest].map(|kinds| [kinds, &config].concat());
                    let runs = runs.map(|arguments| self.cargo(&arguments, &[]));
                    scope.spawn(|| runs.into_iter().map(follow_shared).collect::<Vec<_>>())
                })
                .collect();
            let mut all: Option<(ExitStatus, Tally)> = None;
            for runs in sharing {
                for run in runs.join().map_err(|_| io::Error::other("panicked"))? {
                    let (status, tally) = run?;
                    all = Some(match all {
                        None => (status, tally),
                        Some((before, sum)) if before.success() => (status, sum + tally),
                        Some((before, sum)) => (before, sum + tally),
                    });
                }
            }
            all.ok_or_else(|| io::Error::other("no test ran"))
        })
    }

    /// `cargo test` with our own arguments before the user's, which may contain `--`.
    fn cargo(&self, ours: &[&str], typed: &[String]) -> Command {
        let mut command = cargo::command(&["test", "--all-features", "--no-fail-fast"]);
        if !options::names_package(typed) {
            command.arg("--workspace");
        }
        self.services.set_variables(&mut command);
        command.args(ours).args(typed);
        command.env("TMPDIR", self.scratch.folder());
        command
    }
}

/// Follows one of several cargo runs; prints each suite when it has ended.
fn follow_shared(command: Command) -> io::Result<(ExitStatus, Tally)> {
    let mut suites = Suites::default();
    let followed = follow_cargo(command, |line| suites.print(line, &mut io::stdout().lock()));
    suites.end(&mut io::stdout().lock())?;
    followed
}

fn print_now(line: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(line)?;
    stdout.flush()
}

/// Runs cargo and reads stdout and stderr as one stream, because cargo names the suite on stderr.
fn follow_cargo(
    mut command: Command,
    print: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<(ExitStatus, Tally)> {
    let (printed, writer) = io::pipe()?;
    command.stdout(writer.try_clone()?).stderr(writer);
    guarded(command, || follow(BufReader::new(printed), print))
}

/// Runs cargo in its own process group, which a guard ends with this process: orphaned tests would miss their servers.
fn guarded<T>(
    mut command: Command,
    follow: impl FnOnce() -> io::Result<T>,
) -> io::Result<(ExitStatus, T)> {
    let mut child = command.process_group(0).spawn()?;
    // The command holds the write end of the pipe, which must be closed for the reader to end.
    drop(command);
    let guard = Guard::new(END_GROUP, &[OsStr::new(&child.id().to_string())])?;
    let followed = follow()?;
    let status = child.wait()?;
    guard.disarm();
    Ok((status, followed))
}

#[expect(
    clippy::disallowed_methods,
    reason = "the elapsed time is only printed"
)]
fn now() -> Instant {
    Instant::now()
}
