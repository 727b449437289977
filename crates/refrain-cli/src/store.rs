//! `refrain store`: checks or repairs the folder of an embedded store that no process has open.

use std::{
    io::{self, BufRead as _, IsTerminal as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

use refrain::{
    Error, ErrorKind,
    encryption::MasterKey,
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
Until the damage is accepted, every key that may be affected is refused, so that nothing executes twice.
After that, damaged records count as absent: their outcomes are lost, and a retry of such a request
EXECUTES AGAIN. If you have a backup of the folder, restore it instead.";

/// Check or repair an embedded store
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  refrain store check refrain-data              read every byte, and report damage
  refrain store check refrain-data --json       the same as JSON
  refrain store accept-damage refrain-data      discard damaged records
  refrain store generate-key > refrain-key      a key that encrypts records, for key_file in [encryption]

The folder must not be in use: stop the service first.
Exit codes: 0 no damage, or damage accepted, 1 damage found, 2 wrong usage, 64 not a store,
69 folder unreadable, or in use by another process.")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Generate a key for [encryption], and print it
    GenerateKey,
    /// Read every byte of a store, and report damage
    Check {
        /// Folder of the store
        dir: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Discard damaged records; a retry of their requests executes again
    AcceptDamage {
        /// Folder of the store
        dir: PathBuf,
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
        /// Print JSON; needs --yes
        #[arg(long, requires = "yes")]
        json: bool,
    },
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (code, is_json, dir) = match &args.command {
        Command::GenerateKey => {
            say(MasterKey::generate());
            return Ok(ExitCode::SUCCESS);
        }
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
        print_json(&damage_list_json(dir, "damage", &damage));
    } else if damage.is_empty() {
        say(format_args!(
            "{}: no damage, every record is readable",
            dir.display()
        ));
    } else {
        print_damage(dir, &damage);
        let dir = dir.display();
        say(format_args!(
            "\nRestore the folder from a backup, or discard damaged records with `refrain store accept-damage {dir}`."
        ));
    }
    Ok(if damage.is_empty() { 0 } else { DAMAGED })
}

fn accept(dir: &Path, is_sure: bool, is_json: bool) -> refrain::Result<u8> {
    let damage = damage_in(dir)?;
    if damage.is_empty() && !is_json {
        say(format_args!(
            "{}: no damage, nothing was changed",
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
            "Nothing was changed: no terminal to confirm on; pass --yes."
        ));
        return Ok(USAGE);
    }
    if !is_sure && !confirm_discard() {
        say(format_args!("Nothing was changed."));
        return Ok(DAMAGED);
    }
    let accepted = Embedded::accept_damage(dir)?;
    match is_json {
        true => print_json(&damage_list_json(dir, "accepted", &accepted)),
        false => say(format_args!(
            "\nAccepted: {} discarded.",
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
            "{} is not a Refrain store: it has no file `{MARK}`; pass the DIR of store = \"file:DIR\"",
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
    say(format_args!("{}: {}", dir.display(), places(damage.len())));
    for damage in damage {
        say(format_args!("  {damage}"));
    }
}

fn places(count: usize) -> String {
    match count {
        1 => "1 damaged place".into(),
        count => format!("{count} damaged places"),
    }
}

fn damage_list_json(dir: &Path, name: &str, damage: &[Damage]) -> Value {
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

fn confirm_discard() -> bool {
    show("\nDiscard the damaged records? Type yes: ");
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line);
    read.is_ok() && line.trim() == "yes"
}
