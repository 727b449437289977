//! `refrain audit`: verifies the audit log, and exports its entries.

use std::{
    io::{IsTerminal as _, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

use refrain::{
    Error, ErrorKind,
    audit::{self, ChainHash, Check, Verified, Visit},
    policy::Secrets,
};
use serde_json::json;

use crate::{
    output::{complain, say},
    settings::{self, Flags},
};

mod export;
mod print;

const DAMAGED: u8 = 1;
const USAGE: u8 = 2;
const BAD_CONFIGURATION: u8 = 64;
const UNREACHABLE: u8 = 69;

/// Verify or export the audit log
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  refrain audit verify refrain-data/audit           detect changed, removed, moved and inserted lines
  refrain audit verify --config refrain.toml        verify the log that the file names
  refrain audit head                                print the hash of the last line, to be stored elsewhere
  refrain audit verify --head 9f86d081884c7d65…     check that a stored hash is still in the log
  refrain audit export --operation 'POST /v1/payments' --from 2026-11-01 --format csv --output november.csv
  refrain audit export --record 3f2a…               print every event of a record

The log may be in use: it is neither locked nor changed.
The default folder is that of REFRAIN_AUDIT_LOG, of --config, of ./refrain.toml if it exists, or refrain-data/audit, in this order.
Exit codes: 0 no damage, 1 damage found, 2 wrong usage, 64 no log, or bad configuration, 69 log unreadable.")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Verify the hash chain from the first line to the last
    #[command(after_help = "Examples:
  refrain audit verify refrain-data/audit
  refrain audit verify --head 9f86d081884c7d65… --json
  refrain audit verify archive --from-hash 60303ae22b998861…
                                        earlier files were moved away, and ended with this hash

Attempts without an end are listed: they still run, or their process was killed.
Exit codes: 0 no damage, 1 damage found, 2 wrong usage, 64 no log, or bad configuration, 69 log unreadable.")]
    Verify {
        #[command(flatten)]
        place: AuditLocation,
        /// Hash that was stored earlier, and must still be in the log
        #[arg(long, value_name = "HASH")]
        head: Option<String>,
        /// Hash that the first line must follow, if earlier files were moved away
        #[arg(long, value_name = "HASH")]
        from_hash: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Verify the log, and print only the hash of its last line
    #[command(after_help = "Example:
  refrain audit head refrain-data/audit >> /mnt/elsewhere/heads

Exit codes: as for verify.")]
    Head {
        #[command(flatten)]
        place: AuditLocation,
    },
    /// Print entries, filtered by time, operation, record and event
    Export(export::Export),
}

/// Which log.
#[derive(Debug, clap::Args)]
struct AuditLocation {
    /// Folder of the log
    #[arg(value_name = "DIR", conflicts_with = "config")]
    folder: Option<PathBuf>,
    /// Configuration file (refrain.toml) that names the log
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl AuditLocation {
    fn folder(&self) -> Result<PathBuf, AuditFailure> {
        if let Some(folder) = &self.folder {
            return Ok(folder.clone());
        }
        let config = settings::config(self.config.as_deref());
        let loaded = settings::load(config.as_deref(), Secrets::Store, &Flags::default());
        let loaded =
            loaded.map_err(|error| AuditFailure::new(BAD_CONFIGURATION, error.to_string()))?;
        Ok(loaded.settings.audit_folder())
    }
}

/// An error message, with the exit code of the command.
#[derive(Debug)]
struct AuditFailure {
    code: u8,
    message: String,
}

impl AuditFailure {
    fn new(code: u8, message: String) -> Self {
        Self { code, message }
    }
}

impl From<Error> for AuditFailure {
    fn from(error: Error) -> Self {
        let (code, help) = match error.kind() {
            ErrorKind::Invalid => (BAD_CONFIGURATION, "; pass the folder of the log"),
            _ => (UNREACHABLE, ""),
        };
        Self::new(code, format!("refrain: {error}{help}"))
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (done, is_json) = match &args.command {
        Command::Verify {
            place,
            head,
            from_hash,
            json,
        } => {
            let done = checks(head.as_deref(), from_hash.as_deref())
                .and_then(|check| verify(place, &check, *json));
            (done, *json)
        }
        Command::Head { place } => (head(place), false),
        Command::Export(export) => (export.run(), false),
    };
    let code = done.unwrap_or_else(|failure| {
        complain(&failure.message);
        if is_json {
            say(format_args!("{:#}", json!({ "error": failure.message })));
        }
        failure.code
    });
    Ok(code.into())
}

fn checks(head: Option<&str>, from: Option<&str>) -> Result<Check, AuditFailure> {
    let hash = |name: &str, text: Option<&str>| {
        let hash = text.map(str::parse::<ChainHash>).transpose();
        hash.map_err(|error| AuditFailure::new(USAGE, format!("refrain: {name}: {error}")))
    };
    Ok(Check {
        head: hash("--head", head)?,
        from: hash("--from-hash", from)?,
    })
}

fn verify(place: &AuditLocation, check: &Check, is_json: bool) -> Result<u8, AuditFailure> {
    let folder = place.folder()?;
    let found = walked(&folder, check, &mut |_, _| ())?;
    match is_json {
        true => say(format_args!("{:#}", print::json(&folder, &found))),
        false => print::text(&folder, &found, check),
    }
    Ok(code(&found))
}

fn head(place: &AuditLocation) -> Result<u8, AuditFailure> {
    let folder = place.folder()?;
    let found = walked(&folder, &Check::default(), &mut |_, _| ())?;
    print::complain_of(&found);
    say(found.head);
    Ok(code(&found))
}

fn code(found: &Verified) -> u8 {
    match found.damage_count {
        0 => 0,
        _ => DAMAGED,
    }
}

/// Walks a log, and prints progress to standard error if that is a terminal.
fn walked(
    folder: &Path,
    check: &Check,
    entry: &mut dyn FnMut(&audit::Written, &[u8]),
) -> refrain::Result<Verified> {
    let is_watched = std::io::stderr().is_terminal();
    let mut is_shown = false;
    let mut visit = |visit: Visit<'_>| match visit {
        Visit::Entry(written, line) => entry(written, line),
        Visit::Progress { bytes, of } if is_watched => {
            is_shown = true;
            let _ = write!(
                std::io::stderr(),
                "\r{} of {} MiB",
                bytes >> 20,
                of.div_ceil(1 << 20)
            );
        }
        Visit::Progress { .. } => {}
    };
    let found = audit::verify(folder, check, &mut visit);
    if is_shown {
        let _ = write!(std::io::stderr(), "\r                              \r");
    }
    found
}
