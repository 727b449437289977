//! `cargo xtask test`: every test of the workspace with the servers that it needs, and one line that says how it went.

use std::{
    ffi::OsStr,
    io::{self, BufReader, Read},
    os::unix::process::CommandExt,
    process::{Command, ExitCode, ExitStatus},
    thread,
    time::Instant,
};

use refrain_servers::Guard;

use crate::{
    cargo,
    services::{Services, UNAVAILABLE, moto, pgbouncer, tools},
};

mod busy;
pub(crate) mod lane;
mod options;
mod runs;
mod scratch;
mod tally;

use busy::BusyCores;
use lane::Lane;
use options::Options;
use runs::Runs;
use scratch::Scratch;
use tally::{Tally, follow};

/// Ends a whole process group: cargo and the tests that it runs.
const END_GROUP: &str = r#"kill -s TERM -- "-$1"; sleep 1; kill -s KILL -- "-$1""#;

/// Runs unit, integration and documentation tests; what is not ours of `arguments` goes on to `cargo test`.
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    let options = match Options::parse(arguments) {
        Ok(options) => options,
        Err(problem) => return crate::usage(&problem),
    };
    let needed = [
        tools::find_or_install,
        moto::find_or_make,
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
    match Scratch::new().and_then(|scratch| Tests { services, scratch }.run(&options)) {
        Ok(code) => code,
        Err(error) => cargo::not_run(&error),
    }
}

/// What tests stand on while they run.
struct Tests {
    services: Services,
    scratch: Scratch,
}

impl Tests {
    /// Builds everything, and runs it as many times as was asked for.
    fn run(&self, options: &Options) -> io::Result<ExitCode> {
        let (built, ()) = guarded(self.cargo(&["--no-run"], &options.cargo), || Ok(()))?;
        if !built.success() {
            return Ok(cargo::exit_code(built));
        }
        let _busy = options.busy.then(BusyCores::start).transpose()?;
        let mut runs = Runs::new(options);
        while runs.has_more() {
            let since = now();
            let (status, tally) = self.run_once(&options.cargo)?;
            runs.add(status, tally, since.elapsed());
        }
        Ok(runs.verdict())
    }

    /// All tests run in two lanes; those that were asked for, one behind the other.
    fn run_once(&self, arguments: &[String]) -> io::Result<(ExitStatus, Tally)> {
        if !arguments.is_empty() {
            return follow_here(self.cargo(&[], arguments));
        }
        let waiting = self.cargo(&["--tests", "--config", &Lane::Waiting.config()?], &[]);
        let working = self.cargo(&["--config", &Lane::Working.config()?], &[]);
        thread::scope(|scope| {
            let waiting = scope.spawn(move || follow_apart(waiting));
            let (mut status, mut tally) = follow_here(working)?;
            let (waited, printed) = waiting.join().map_err(|_| io::Error::other("panicked"))??;
            tally += follow(printed.as_slice(), io::stdout())?;
            if status.success() {
                status = waited;
            }
            Ok((status, tally))
        })
    }

    /// `cargo test` with our own arguments before those that were typed, which may have a `--`.
    fn cargo(&self, ours: &[&str], typed: &[String]) -> Command {
        let mut command =
            cargo::command(&["test", "--workspace", "--all-features", "--no-fail-fast"]);
        self.services.tell(&mut command);
        command.args(ours).args(typed);
        command.env("TMPDIR", self.scratch.folder());
        command
    }
}

/// Runs cargo and passes on what it prints while it comes, both streams as one: cargo names the suite on the other.
fn follow_here(mut command: Command) -> io::Result<(ExitStatus, Tally)> {
    let (printed, writer) = io::pipe()?;
    command.stdout(writer.try_clone()?).stderr(writer);
    guarded(command, || follow(BufReader::new(printed), io::stdout()))
}

/// Runs cargo and keeps what it prints: two runs that print at once cannot be read.
fn follow_apart(mut command: Command) -> io::Result<(ExitStatus, Vec<u8>)> {
    let (mut reader, writer) = io::pipe()?;
    command.stdout(writer.try_clone()?).stderr(writer);
    guarded(command, || {
        let mut printed = Vec::new();
        reader.read_to_end(&mut printed)?;
        Ok(printed)
    })
}

/// Runs cargo in a group of its own that ends with us: tests that go on would find their servers gone.
fn guarded<T>(
    mut command: Command,
    follow: impl FnOnce() -> io::Result<T>,
) -> io::Result<(ExitStatus, T)> {
    let mut child = command.process_group(0).spawn()?;
    // It holds the other end of the pipe that is followed.
    drop(command);
    let guard = Guard::new(END_GROUP, &[OsStr::new(&child.id().to_string())])?;
    let followed = follow()?;
    let status = child.wait()?;
    guard.disarm();
    Ok((status, followed))
}

#[expect(clippy::disallowed_methods, reason = "how long it took is for people")]
fn now() -> Instant {
    Instant::now()
}
