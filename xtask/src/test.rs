//! `cargo xtask test`: every test of the workspace with the servers that it needs, and one line that says how it went.

use std::{
    ffi::OsStr,
    io::{self, BufReader, Read},
    os::unix::process::CommandExt,
    process::{Command, ExitCode, ExitStatus},
    thread,
};

use refrain_servers::Guard;

use crate::{
    cargo,
    services::{Services, UNAVAILABLE, moto, tools},
};

pub(crate) mod lane;
mod scratch;
mod tally;

use lane::Lane;
use scratch::Scratch;
use tally::{Tally, follow};

/// Ends a whole process group: cargo and the tests that it runs.
const END_GROUP: &str = r#"kill -s TERM -- "-$1"; sleep 1; kill -s KILL -- "-$1""#;

/// Runs unit, integration and documentation tests; `arguments` go on to `cargo test`.
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    if let Err(problem) = tools::find_or_install().and_then(|()| moto::find_or_make()) {
        eprintln!("xtask test: {problem}");
        return ExitCode::from(UNAVAILABLE);
    }
    let services = match Services::start() {
        Ok(services) => services,
        Err(code) => return code,
    };
    match Scratch::new().and_then(|scratch| Tests { services, scratch }.run(arguments)) {
        Ok((status, tally)) => {
            println!("xtask test: {tally}");
            verdict(status, &tally)
        }
        Err(error) => cargo::not_run(&error),
    }
}

/// A filter that fits no test is a mistake, not a success.
fn verdict(status: ExitStatus, tally: &Tally) -> ExitCode {
    if status.success() && tally.ran_nothing() {
        eprintln!("xtask test: no test fits; `cargo xtask test -- --list` names them all");
        return ExitCode::FAILURE;
    }
    cargo::exit_code(status)
}

/// What tests stand on while they run.
struct Tests {
    services: Services,
    scratch: Scratch,
}

impl Tests {
    /// All tests run in two lanes; those that were asked for, one behind the other.
    fn run(&self, arguments: &[String]) -> io::Result<(ExitStatus, Tally)> {
        if !arguments.is_empty() {
            return follow_here(self.cargo(arguments));
        }
        let (built, ()) = guarded(self.cargo(&["--no-run"]), || Ok(()))?;
        if !built.success() {
            return Ok((built, Tally::default()));
        }
        let waiting = self.cargo(&["--tests", "--config", &Lane::Waiting.config()?]);
        let working = self.cargo(&["--config", &Lane::Working.config()?]);
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

    fn cargo(&self, arguments: &[impl AsRef<OsStr>]) -> Command {
        let mut command =
            cargo::command(&["test", "--workspace", "--all-features", "--no-fail-fast"]);
        self.services.tell(&mut command);
        command.args(arguments).env("TMPDIR", self.scratch.folder());
        command
    }
}

/// Runs cargo and passes on what it prints while it comes.
fn follow_here(mut command: Command) -> io::Result<(ExitStatus, Tally)> {
    let (printed, writer) = io::pipe()?;
    command.stdout(writer);
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
