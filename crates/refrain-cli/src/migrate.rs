//! `refrain migrate`: makes the tables that Refrain needs in a database, or prints what would make them.

use std::process::ExitCode;

use refrain::{ErrorKind, policy::Address};
use refrain_stores::postgres::{self, Migrated};
use serde_json::json;

use crate::{
    output::{say, show},
    settings::{self, Flags},
};

mod outbox;
mod queue;
mod receipts;

const USAGE: u8 = 2;
const UNREACHABLE: u8 = 69;
const WHICH: &str =
    "which store? write --store postgres://USER@HOST/DATABASE, or set REFRAIN_STORE";

/// Make the tables that Refrain needs in a database
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  refrain migrate --store postgres://app@db/app          make or update the tables
  refrain migrate --print                                what would make them, for a DBA
  refrain migrate --store postgres://app@db/app --print  only what the tables that are there lack
  refrain migrate --store 'postgres://app@db/app?schema=payments'
                                                         in a schema of that name, not `refrain`
  refrain migrate --receipts --print                     the table of receipts, for a DBA or for your own migrations
  refrain migrate --receipts --store postgres://app@db/app
                                                         make it in the database of the service itself
  refrain migrate --outbox --print                       the outbox, which `refrain relay` publishes from
  refrain migrate --outbox --store postgres://app@db/app
                                                         make it in the database of the service itself
  refrain migrate --queue --print                        the table of the queues that workers read
  refrain migrate --queue --store postgres://app@db/app  make it

A proxy or service makes its tables itself when it starts and may; this is for those that may not.
Without --store the address is taken from REFRAIN_STORE, or from the file that REFRAIN_STORE_FILE names;
with --receipts, --queue or --outbox from REFRAIN_RECEIPTS, REFRAIN_QUEUE or REFRAIN_OUTBOX, or such a file.
Exit codes: 0 done, or printed, 2 wrong usage, 69 the database cannot be had, or is not in order.")]
pub(crate) struct Args {
    /// The store's address: postgres://…
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// The table of receipts instead, which exactly-once operations write to
    #[arg(long)]
    receipts: bool,
    /// The table of message queues instead
    #[arg(long, conflicts_with = "receipts")]
    queue: bool,
    /// The outbox instead, which services append messages to
    #[arg(long, conflicts_with_all = ["receipts", "queue"])]
    outbox: bool,
    /// Print the statements and change nothing; with a store's address, only those that its database lacks
    #[arg(long)]
    print: bool,
    /// Print JSON
    #[arg(long, conflicts_with_all = ["print", "receipts", "queue", "outbox"])]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let tables = [
        (args.receipts, "receipts", receipts::run as fn(_, _) -> _),
        (args.queue, "queue", queue::run),
        (args.outbox, "outbox", outbox::run),
    ];
    if let Some((_, name, run)) = tables.into_iter().find(|(is_meant, ..)| *is_meant) {
        return match database(name, args.store.as_deref()) {
            Ok(address) => run(address, args.print),
            Err(message) => Ok(refused(args, &message, USAGE)),
        };
    }
    let address = match address(args.store.as_deref()) {
        Ok(Some(address)) => address,
        // What is printed depends on the schema alone, and this has the usual one.
        Ok(None) if args.print => {
            show(postgres::script("postgres://host/database")?);
            return Ok(ExitCode::SUCCESS);
        }
        Ok(None) => return Ok(refused(args, WHICH, USAGE)),
        Err(message) => return Ok(refused(args, &message, USAGE)),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let done = match args.print {
        true => runtime.block_on(missing(&address)).map(show),
        false => runtime
            .block_on(postgres::migrate(&address))
            .map(|migrated| tell(args, &migrated)),
    };
    Ok(match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => refused(args, &error.to_string(), UNREACHABLE),
    })
}

/// What the database lacks; everything, where it cannot be asked.
async fn missing(address: &str) -> refrain::Result<String> {
    match postgres::missing_script(address).await {
        Err(error) if error.kind() == ErrorKind::Unavailable => {
            crate::output::complain(format_args!(
                "refrain migrate: {error}\n\
                 The version of its tables is not known: what is printed is for a database that has none."
            ));
            postgres::script(address)
        }
        script => script,
    }
}

fn tell(args: &Args, migrated: &Migrated) {
    let Migrated { schema, from, to } = migrated;
    if args.json {
        let told = json!({ "schema": schema, "from": from, "to": to });
        return say(format_args!("{told:#}"));
    }
    match from {
        None => say(format_args!("schema {schema}: made at version {to}")),
        Some(from) if from == to => say(format_args!(
            "schema {schema}: at version {to} already, nothing to do"
        )),
        Some(from) => say(format_args!("schema {schema}: from version {from} to {to}")),
    }
}

fn refused(args: &Args, message: &str, code: u8) -> ExitCode {
    crate::output::complain(format_args!("refrain migrate: {message}"));
    if args.json {
        say(format_args!("{:#}", json!({ "error": message })));
    }
    code.into()
}

/// Which store, if any is named. Of two, the last has tables.
fn address(flag: Option<&str>) -> Result<Option<String>, String> {
    let flags = Flags {
        store: flag,
        ..Flags::default()
    };
    let loaded = settings::load(None, &flags).map_err(|failure| failure.to_string())?;
    if loaded.overrides.iter().all(|(name, _)| *name != "store") {
        return Ok(None);
    }
    let store = loaded.settings.store.last();
    match store.map(|store| (store, store.scheme())) {
        Some((store, "postgres" | "postgresql")) => Ok(Some(store.as_str().into())),
        Some((_, scheme)) => Err(format!(
            "a {scheme}: store has no tables; this is for postgres://… addresses"
        )),
        None => Ok(None),
    }
}

/// A database that is no store: from the flag, `REFRAIN_NAME`, or the file that `REFRAIN_NAME_FILE` names.
fn database(name: &str, flag: Option<&str>) -> Result<Option<Address>, String> {
    let value = settings::value(name, flag).map_err(|failure| failure.to_string())?;
    Ok(value.map(Address::new))
}
