//! Tables of the store: created on first use by one process at a time, or with a script by a DBA.

use refrain::{Error, ErrorKind, Result, Secret};
use tokio_postgres::{Client, Transaction, error::SqlState};

use super::{address::Address, errors};

/// Migration for each version.
const STEPS: [&str; 4] = [
    include_str!("../../sql/postgres-1.sql"),
    include_str!("../../sql/postgres-2.sql"),
    include_str!("../../sql/postgres-3.sql"),
    include_str!("../../sql/postgres-4.sql"),
];
/// Schema version that this build reads and writes.
pub(super) const VERSION: i32 = STEPS.len() as i32;

/// SQL that upgrades the tables from this version to the build's, for a DBA. `from` is `None` if there are no tables.
pub(super) fn script(address: &Address, from: Option<i32>) -> String {
    let schema = address.quoted_schema();
    let mut script = match from {
        None => format!(
            "-- Creates the tables of Refrain's PostgreSQL store, version {VERSION}, in a database that has none of them.\n\
             BEGIN;\nCREATE SCHEMA IF NOT EXISTS {schema};\n"
        ),
        Some(VERSION) => {
            return format!(
                "-- The tables of Refrain's PostgreSQL store in {schema} are at version {VERSION}: nothing to do.\n"
            );
        }
        // On another version the script would skip migrations, or run some twice.
        Some(from) => format!(
            "-- Upgrades the tables of Refrain's PostgreSQL store in {schema} from version {from} to {VERSION}.\nBEGIN;\n\
             DO $$ BEGIN\n    IF (SELECT version FROM {schema}.meta) <> {from} THEN\n        \
             RAISE EXCEPTION 'the schema is not at version {from}; run refrain migrate --print again';\n    \
             END IF;\nEND $$;\n"
        ),
    };
    let done = usize::try_from(from.unwrap_or(0)).unwrap_or(0);
    for step in &STEPS[done.min(STEPS.len())..] {
        script.push('\n');
        script.push_str(&step.replace("__schema__", &schema));
    }
    script.push_str("\nCOMMIT;\n");
    script
}

/// State of the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SchemaVersion {
    Nothing,
    Version(i32),
}

impl SchemaVersion {
    fn version(self) -> Option<i32> {
        match self {
            Self::Nothing => None,
            Self::Version(version) => Some(version),
        }
    }
}

/// Upgrades the tables to this build's version; returns the previous version, if any.
pub(super) async fn ensure(client: &mut Client, address: &Address) -> Result<Option<i32>> {
    let failed = |error: tokio_postgres::Error| errors::convert_error(&error, address);
    let found = read_schema_version(client, address).await?;
    if found != SchemaVersion::Version(VERSION) {
        let transaction = client.transaction().await.map_err(failed)?;
        migrate(&transaction, address).await?;
        transaction.commit().await.map_err(failed)?;
    }
    check_rights(client, address).await?;
    Ok(found.version())
}

/// Version of the tables, if they exist.
pub(super) async fn version(client: &Client, address: &Address) -> Result<Option<i32>> {
    Ok(read_schema_version(client, address).await?.version())
}

async fn read_schema_version(client: &Client, address: &Address) -> Result<SchemaVersion> {
    let failed = |error: tokio_postgres::Error| errors::convert_error(&error, address);
    let schema = address.quoted_schema();
    let tables = "SELECT n.nspname IS NOT NULL, m.oid IS NOT NULL, r.oid IS NOT NULL FROM (SELECT) one \
         LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = $1 \
         LEFT JOIN pg_catalog.pg_class m ON m.relnamespace = n.oid AND m.relname = 'meta' \
         LEFT JOIN pg_catalog.pg_class r ON r.relnamespace = n.oid AND r.relname IN ('records', 'fences') \
         LIMIT 1";
    let row = client
        .query_one(tables, &[&address.schema])
        .await
        .map_err(failed)?;
    let get = |place| row.try_get::<_, bool>(place).map_err(failed);
    match (get(1)?, get(2)?) {
        (false, false) => return Ok(SchemaVersion::Nothing),
        (false, true) => {
            return Err(foreign(
                address,
                "it has tables with the names of Refrain's tables, but no table `meta`",
            ));
        }
        (true, _) => {}
    }
    let marked = format!("SELECT product, version FROM {schema}.meta");
    let rows = match client.query(&marked, &[]).await {
        Ok(rows) => rows,
        Err(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
            return Err(failed(error));
        }
        Err(error) => return Err(foreign(address, &errors::describe_error(&error))),
    };
    let read = rows.first().and_then(|row| {
        let product: String = row.try_get(0).ok()?;
        let version: i32 = row.try_get(1).ok()?;
        (product == "refrain").then_some(version)
    });
    match read {
        Some(version) if version > VERSION => {
            let message = format!(
                "{address}: the schema {schema} has version {version}, but this build supports version {VERSION}; upgrade Refrain, or use another schema with ?schema="
            );
            Err(Error::new(ErrorKind::Invalid, message))
        }
        Some(version) if version > 0 => Ok(SchemaVersion::Version(version)),
        _ => Err(foreign(
            address,
            "its table `meta` was not created by Refrain",
        )),
    }
}

fn foreign(address: &Address, why: &str) -> Error {
    let schema = &address.schema;
    let message = format!(
        "{address}: the schema \"{schema}\" belongs to another application: {why}; use another schema with ?schema="
    );
    Error::new(ErrorKind::Invalid, message)
}

/// Runs the missing migrations, in one process at a time (advisory lock).
async fn migrate(transaction: &Transaction<'_>, address: &Address) -> Result<()> {
    let failed = |error: tokio_postgres::Error| errors::convert_error(&error, address);
    let lock = "SELECT pg_advisory_xact_lock(hashtextextended('refrain ' || $1, 0))";
    // Another process may migrate for longer than the usual lock timeout.
    transaction
        .batch_execute("SET LOCAL lock_timeout = '60s'; SET LOCAL statement_timeout = '120s'")
        .await
        .map_err(failed)?;
    transaction
        .execute(lock, &[&address.schema])
        .await
        .map_err(failed)?;
    let found = read_schema_version(transaction.client(), address).await?;
    let schema = address.quoted_schema();
    let done = match found {
        SchemaVersion::Version(version) => version,
        SchemaVersion::Nothing => {
            create_schema(transaction, address).await?;
            0
        }
    };
    let steps = STEPS.iter().skip(usize::try_from(done).unwrap_or(0));
    for step in steps {
        let step = step.replace("__schema__", &schema);
        transaction.batch_execute(&step).await.map_err(failed)?;
    }
    Ok(())
}

/// Creates the schema if it is missing. `CREATE SCHEMA IF NOT EXISTS` would need a privilege even if the schema exists.
async fn create_schema(transaction: &Transaction<'_>, address: &Address) -> Result<()> {
    let failed = |error: tokio_postgres::Error| errors::convert_error(&error, address);
    let there = "SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = $1";
    let there = transaction
        .query_opt(there, &[&address.schema])
        .await
        .map_err(failed)?;
    if there.is_none() {
        let create = format!("CREATE SCHEMA {}", address.quoted_schema());
        transaction.batch_execute(&create).await.map_err(failed)?;
    }
    Ok(())
}

/// Checks the privileges at start-up, not at the first claim.
async fn check_rights(client: &Client, address: &Address) -> Result<()> {
    let failed = |error: tokio_postgres::Error| errors::convert_error(&error, address);
    let schema = address.quoted_schema();
    let rights = format!(
        "SELECT has_table_privilege('{schema}.meta', 'SELECT') AND has_table_privilege('{schema}.meta', 'UPDATE') \
         AND has_table_privilege('{schema}.records', 'SELECT') AND has_table_privilege('{schema}.records', 'INSERT') \
         AND has_table_privilege('{schema}.records', 'UPDATE') AND has_table_privilege('{schema}.records', 'DELETE') \
         AND has_table_privilege('{schema}.sequences', 'SELECT') AND has_table_privilege('{schema}.sequences', 'INSERT') \
         AND has_table_privilege('{schema}.sequences', 'UPDATE') \
         AND has_table_privilege('{schema}.scope_keys', 'SELECT') AND has_table_privilege('{schema}.scope_keys', 'INSERT') \
         AND has_table_privilege('{schema}.scope_keys', 'UPDATE') \
         AND has_sequence_privilege('{schema}.fences', 'USAGE')"
    );
    let has: bool = client
        .query_one_scalar(&rights, &[])
        .await
        .map_err(failed)?;
    if has {
        return Ok(());
    }
    let user = address.config.get_user().unwrap_or("the user");
    let database = address.config.get_dbname().unwrap_or(user);
    let fix = errors::rights(user, database, &address.schema);
    let message = format!(
        "{address}: {user} has no permission to read and write the tables of {schema}; {fix}"
    );
    Err(Error::new(ErrorKind::Invalid, message))
}

/// Reads the key of the store's keyed digests.
pub(super) async fn secret(client: &Client, address: &Address, sql: &str) -> Result<Secret> {
    let failed = |error: tokio_postgres::Error| errors::convert_error(&error, address);
    let bytes: Vec<u8> = client.query_one_scalar(sql, &[]).await.map_err(failed)?;
    let bytes: [u8; 32] = bytes
        .try_into()
        .map_err(|_| foreign(address, "the secret in its table `meta` is invalid"))?;
    Ok(Secret::from(bytes))
}
