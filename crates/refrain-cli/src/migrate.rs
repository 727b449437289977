//! `refrain migrate`: creates the tables that Refrain needs in a database, or prints the statements.

use std::{path::PathBuf, process::ExitCode};

use refrain::{
    ErrorKind,
    policy::{
        Address, Secrets, Settings,
        schemes::{self, Backend, BackendId},
    },
};
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
const BAD_CONFIGURATION: u8 = 64;
const UNREACHABLE: u8 = 69;
const WHICH: &str = "no database; pass --store postgres://USER@HOST/DATABASE, set REFRAIN_STORE, or write `store` into refrain.toml";

/// Create or update the tables that Refrain needs in a database
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  refrain migrate --store postgres://app@db/app          create or update the tables
  refrain migrate                                        use the database that the refrain.toml of this folder names
  refrain migrate --config payments.toml                 use the database that another file names
  refrain migrate --print                                print the SQL, for a DBA
  refrain migrate --store postgres://app@db/app --print  print only the SQL that this database lacks
  refrain migrate --store 'postgres://app@db/app?schema=payments'
                                                         use the schema `payments` instead of `refrain`
  refrain migrate --receipts --print                     print the table of receipts, for a DBA or your own migrations
  refrain migrate --receipts --store postgres://app@db/app
                                                         create it in the database of the service
  refrain migrate --outbox --print                       print the outbox table, from which `refrain relay` publishes
  refrain migrate --outbox --store postgres://app@db/app
                                                         create it in the database of the service
  refrain migrate --queue --print                        print the table of the queues that workers read
  refrain migrate --queue --store postgres://app@db/app  create it

A proxy or service creates its tables at start, if its user has the permission; otherwise use this command.
The address comes from --store, else from REFRAIN_STORE (with --receipts, --queue or --outbox from REFRAIN_RECEIPTS,
REFRAIN_QUEUE or REFRAIN_OUTBOX; append _FILE to name a file that holds the value), else from the configuration file:
its `store`, `receipts`, workers and relays on PostgreSQL, or `outbox`.
Exit codes: 0 done or printed, 2 wrong usage, 64 bad configuration, 69 database unavailable, or its tables invalid.")]
pub(crate) struct Args {
    /// Address of the database: postgres://…
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Configuration file that names the database [default: refrain.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Create the table of receipts instead, for exactly-once operations
    #[arg(long)]
    receipts: bool,
    /// Create the table of message queues instead
    #[arg(long, conflicts_with = "receipts")]
    queue: bool,
    /// Create the outbox table instead, to which services append messages
    #[arg(long, conflicts_with_all = ["receipts", "queue"])]
    outbox: bool,
    /// Print the SQL, and change nothing; with the address of a store, only the SQL that its database lacks
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
        return match database(name, args) {
            Ok(address) => run(address, args.print),
            Err(message) => Ok(refused(args, &message, misconfigured(args))),
        };
    }
    let address = match address(args) {
        Ok(Some(address)) => address,
        // The script depends only on the schema, and this address has the default one.
        Ok(None) if args.print => {
            show(postgres::script("postgres://host/database")?);
            return Ok(ExitCode::SUCCESS);
        }
        Ok(None) => return Ok(refused(args, WHICH, USAGE)),
        Err(message) => return Ok(refused(args, &message, misconfigured(args))),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let done = match args.print {
        true => runtime.block_on(missing(&address)).map(show),
        false => runtime
            .block_on(postgres::migrate(&address))
            .map(|migrated| print_migrated(args, &migrated)),
    };
    Ok(match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => refused(args, &error.to_string(), UNREACHABLE),
    })
}

/// The statements that the database lacks, or all if it is unavailable.
async fn missing(address: &str) -> refrain::Result<String> {
    match postgres::missing_script(address).await {
        Err(error) if error.kind() == ErrorKind::Unavailable => {
            crate::output::complain(format_args!(
                "refrain migrate: {error}\n\
                 The version of its tables is unknown: the SQL is for a database without tables."
            ));
            postgres::script(address)
        }
        script => script,
    }
}

fn print_migrated(args: &Args, migrated: &Migrated) {
    let Migrated { schema, from, to } = migrated;
    if args.json {
        let told = json!({ "schema": schema, "from": from, "to": to });
        return say(format_args!("{told:#}"));
    }
    match from {
        None => say(format_args!("schema {schema}: created at version {to}")),
        Some(from) if from == to => say(format_args!(
            "schema {schema}: already at version {to}, nothing to do"
        )),
        Some(from) => say(format_args!(
            "schema {schema}: updated from version {from} to {to}"
        )),
    }
}

fn refused(args: &Args, message: &str, code: u8) -> ExitCode {
    crate::output::complain(format_args!("refrain migrate: {message}"));
    if args.json {
        say(format_args!("{:#}", json!({ "error": message })));
    }
    code.into()
}

/// The exit code for an unusable address, which may come from the file, if there is one.
fn misconfigured(args: &Args) -> u8 {
    match settings::config(args.config.as_deref()) {
        Some(_) => BAD_CONFIGURATION,
        None => USAGE,
    }
}

/// The address of the store, if one is named. Of two stores, the last one has the tables.
fn address(args: &Args) -> Result<Option<String>, String> {
    let flags = Flags {
        store: args.store.as_deref(),
        ..Flags::default()
    };
    let config = settings::config(args.config.as_deref());
    let loaded = settings::load(config.as_deref(), Secrets::Store, &flags);
    let loaded = loaded.map_err(|failure| failure.to_string())?;
    let is_given = loaded.overrides.iter().any(|(name, _)| *name == "store");
    if !is_given && config.is_none() {
        return Ok(None);
    }
    let Some(store) = loaded.settings.store.last() else {
        return Ok(None);
    };
    let row = Backend::named(store.scheme()).and_then(|it| it.store);
    if row.is_some_and(|it| it.has_tables) {
        return Ok(Some(store.as_str().into()));
    }
    // The SQL of --print does not depend on a file that was only found, not named.
    if args.print && !is_given && args.config.is_none() {
        return Ok(None);
    }
    let others = schemes::stores().filter(|(_, it)| it.has_tables);
    let others = schemes::alternatives(others.map(|(_, it)| it.usage()));
    let scheme = store.scheme();
    Err(format!(
        "a {scheme}: store has no tables; this is for {others} addresses"
    ))
}

/// A database other than the store: from the flag, `REFRAIN_NAME`, the file that `REFRAIN_NAME_FILE` names, or refrain.toml.
fn database(name: &str, args: &Args) -> Result<Option<Address>, String> {
    let value = settings::value(name, args.store.as_deref());
    let value = value.map_err(|failure| failure.to_string())?;
    // The SQL of --print needs no address: a file counts only if it is named.
    let file = match args.print {
        true => args.config.clone(),
        false => settings::config(args.config.as_deref()),
    };
    let (None, Some(file)) = (&value, &file) else {
        return Ok(value.map(Address::new));
    };
    let secrets = match name {
        "outbox" => Secrets::Relays(&[]),
        _ => Secrets::All,
    };
    let loaded = settings::load(Some(file), secrets, &Flags::default());
    let loaded = loaded.map_err(|failure| failure.to_string())?;
    let file = file.display();
    match &databases(name, &loaded.settings)[..] {
        [one] => Ok(Some(one.clone())),
        [] => Err(format!(
            "{file} names no database for --{name}; pass --store postgres://USER@HOST/DATABASE"
        )),
        several => {
            let several: Vec<_> = several.iter().map(ToString::to_string).collect();
            Err(format!(
                "{file} names several databases for --{name}: {}; pass one of them with --store",
                several.join(", ")
            ))
        }
    }
}

/// The databases that a file names for a table, without duplicates.
fn databases(name: &str, settings: &Settings) -> Vec<Address> {
    let (workers, relays) = (settings.workers.iter(), settings.relays.iter());
    let mut found: Vec<_> = match name {
        "receipts" => {
            let operations = settings.policy.operations();
            let operations = operations.filter_map(|it| it.receipts.clone());
            let workers = workers.filter_map(|it| it.receipts.clone());
            operations.chain(workers).collect()
        }
        "queue" => {
            let brokers = workers.map(|it| &it.source).chain(relays.map(|it| &it.to));
            let is_postgres = |it: &&Address| {
                Backend::named(it.scheme()).is_some_and(|it| it.id == BackendId::Postgres)
            };
            brokers.filter(is_postgres).cloned().collect()
        }
        _ => relays.map(|it| it.outbox.clone()).collect(),
    };
    found.sort_unstable_by(|a, b| a.as_str().cmp(b.as_str()));
    found.dedup();
    found
}
