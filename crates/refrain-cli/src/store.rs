//! `refrain store`: checks or repairs the folder of an embedded store that no process has open.

use std::{
    io::{self, BufRead as _, IsTerminal as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

use refrain::{
    Error, ErrorKind,
    store::{Embedded, embedded::Damage},
};
use serde_json::{Value, json};

use crate::output::{say, show};

const DAMAGED: u8 = 1;
const USAGE: u8 = 2;
const NO_STORE: u8 = 64;
const UNREACHABLE: u8 = 69;

/// The file that every store has in its folder.
const MARK: &str = "refrain.store";

/// The consequences of accepting damage, for the user.
const MEANING: &str = "\
Until then every key that may be in there is refused, so nothing runs twice.
Accepted, records in there count as absent: their outcomes are gone for good, and a request whose record
was in there RUNS AGAIN when it is retried. A backup of the folder, if you have one, is better.";

/// Look after the folder of an embedded store
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  refrain store check refrain-data              read every byte, and report what is damaged
  refrain store check refrain-data --json       the same for a program
  refrain store accept-damage refrain-data      give up what is damaged

The folder must not be in use: stop the service first.
Exit codes: 0 nothing is damaged, or it was accepted, 1 damage, 2 wrong usage, 64 not a store,
69 the folder is held by another process or cannot be read.")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Read every byte of a store and report what is damaged
    Check {
        /// The store's folder
        dir: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Give up what is damaged: records in there may run again
    AcceptDamage {
        /// The store's folder
        dir: PathBuf,
        /// Do not ask
        #[arg(long)]
        yes: bool,
        /// Print JSON; needs --yes
        #[arg(long, requires = "yes")]
        json: bool,
    },
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (code, is_json, dir) = match &args.command {
        Command::Check { dir, json } => (check(dir, *json), *json, dir),
        Command::AcceptDamage { dir, yes, json } => (accept(dir, *yes, *json), *json, dir),
    };
    Ok(code
        .unwrap_or_else(|error| refused(dir, &error, is_json))
        .into())
}

fn check(dir: &Path, is_json: bool) -> refrain::Result<u8> {
    let damage = damage_in(dir)?;
    if is_json {
        print_json(&told(dir, "damage", &damage));
    } else if damage.is_empty() {
        say(format_args!("{}: every record can be read", dir.display()));
    } else {
        print_damage(dir, &damage);
        let dir = dir.display();
        say(format_args!(
            "\nRestore the folder from a backup, or see `refrain store accept-damage {dir}`."
        ));
    }
    Ok(if damage.is_empty() { 0 } else { DAMAGED })
}

fn accept(dir: &Path, is_sure: bool, is_json: bool) -> refrain::Result<u8> {
    let damage = damage_in(dir)?;
    if damage.is_empty() && !is_json {
        say(format_args!(
            "{}: nothing is damaged, nothing was changed",
            dir.display()
        ));
        return Ok(0);
    }
    if !is_json {
        print_damage(dir, &damage);
        say(format_args!("\n{MEANING}"));
    }
    if !is_sure && !std::io::stdin().is_terminal() {
        crate::output::complain(format_args!(
            "Nothing was changed: there is nobody to ask; add --yes to accept it."
        ));
        return Ok(USAGE);
    }
    if !is_sure && !asked() {
        say(format_args!("Nothing was changed."));
        return Ok(DAMAGED);
    }
    let accepted = Embedded::accept_damage(dir)?;
    match is_json {
        true => print_json(&told(dir, "accepted", &accepted)),
        false => say(format_args!(
            "\nAccepted: {} given up.",
            places(accepted.len())
        )),
    }
    Ok(0)
}

/// The damage in a store. Checks that the store exists, because opening it would create one.
fn damage_in(dir: &Path) -> refrain::Result<Vec<Damage>> {
    let is_store = match dir.join(MARK).metadata() {
        Ok(found) => found.is_file(),
        // The folder cannot be read; the store's own error says what to do.
        Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
    };
    if !is_store {
        let message = format!(
            "{} is no Refrain store: there is no `{MARK}` in it; name the folder behind `file:`",
            dir.display()
        );
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    Embedded::check(dir)
}

fn refused(dir: &Path, error: &Error, is_json: bool) -> u8 {
    crate::output::complain(format_args!("refrain: {error}"));
    if is_json {
        print_json(&json!({ "folder": dir.display().to_string(), "error": error.to_string() }));
    }
    match error.kind() {
        // The store's own metadata is damaged, which cannot be accepted.
        ErrorKind::Corrupt => DAMAGED,
        ErrorKind::Unsupported | ErrorKind::Invalid => NO_STORE,
        _ => UNREACHABLE,
    }
}

fn print_damage(dir: &Path, damage: &[Damage]) {
    say(format_args!(
        "{}: {} damaged",
        dir.display(),
        places(damage.len())
    ));
    for damage in damage {
        say(format_args!("  {damage}"));
    }
}

fn places(count: usize) -> String {
    match count {
        1 => "1 place".into(),
        count => format!("{count} places"),
    }
}

fn told(dir: &Path, name: &str, damage: &[Damage]) -> Value {
    let damage: Vec<_> = damage.iter().map(as_json).collect();
    json!({ "folder": dir.display().to_string(), name: damage })
}

fn as_json(damage: &Damage) -> Value {
    json!({
        "segment": damage.segment,
        "offset": damage.offset,
        // Damage of a whole segment has no known end.
        "end": Some(damage.end).filter(|end| *end != u64::MAX),
        "record": damage.record.map(|id| id.to_string()),
        "what": damage.what,
    })
}

fn print_json(value: &Value) {
    say(format_args!("{value:#}"));
}

fn asked() -> bool {
    show("\nGive it up? Type yes: ");
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line);
    read.is_ok() && line.trim() == "yes"
}
