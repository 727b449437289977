//! Two neighbouring versions on one database: rows and tables of an earlier release are read, and a process that is
//! older than the tables continues while a newer one migrates them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use refrain::{ErrorKind, Settled, Settlement, Store as _, Verdict, clock::Timestamp};
use refrain_stores::postgres::{Options, Postgres, migrate};
use tokio_postgres::Client;

use crate::{
    kept,
    support::{Schema, claim, connect, id, url},
};

/// Stands for the schema in a dump.
const SCHEMA: &str = "kept_schema";
const DAY: Duration = Duration::from_secs(86_400);

fn dump_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/formats")
        .join(name)
}

/// A manual clock for handles on a dump.
#[derive(Clone)]
struct Time(Arc<AtomicU64>);

impl Time {
    fn start() -> Self {
        Self(Arc::new(AtomicU64::new(kept::START.0)))
    }

    fn advance(&self, span: Duration) {
        let millis = u64::try_from(span.as_millis()).unwrap();
        self.0.fetch_add(millis, Ordering::SeqCst);
    }

    async fn open(&self, schema: &Schema) -> Postgres {
        let time = self.clone();
        let options =
            Options::default().with_time(move || Timestamp(time.0.load(Ordering::SeqCst)), None);
        Postgres::open_with(&schema.url(), options).await.unwrap()
    }
}

async fn restore(admin: &Client, name: &str) -> Schema {
    let schema = Schema::new();
    let dump = fs::read_to_string(dump_file(name)).unwrap();
    let dump = dump.replace(SCHEMA, &schema.name);
    admin.batch_execute(&dump).await.unwrap();
    schema
}

/// Every record of every state, as `pg_dump` wrote the tables of version 3.
#[tokio::test]
async fn a_dump_with_every_state_is_restored_and_continues() {
    let admin = connect(&url()).await;
    let schema = restore(&admin, "postgres-3.sql").await;
    let time = Time::start();
    time.advance(kept::WRITTEN_AFTER);
    for _ in 0..2 {
        kept::check(&time.open(&schema).await, false).await;
    }
    time.advance(DAY);
    let store = time.open(&schema).await;
    kept::check(&store, true).await;
    kept::go_on(&store, true).await;
}

/// Run it with `--ignored` after a migration was added, for the dump of the new version beside the old one.
#[tokio::test]
#[ignore = "writes the file that the other tests read"]
async fn write_dump_with_every_state() {
    let admin = connect(&url()).await;
    let schema = Schema::new();
    let time = Time::start();
    let store = time.open(&schema).await;
    kept::write(&store, |span| time.advance(span)).await;
    drop(store);
    let version: i32 = version(&admin, &schema).await;
    let mut dump = Command::new("pg_dump");
    dump.args(["--inserts", "--no-owner", "--no-privileges", "--schema"]);
    let dumped = dump.args([&schema.name, &url()]).output().unwrap();
    assert!(dumped.status.success(), "{dumped:?}");
    let text = String::from_utf8(dumped.stdout).unwrap();
    let lines = text.lines().filter(|line| is_portable(line));
    let text: String = lines.map(|line| format!("{line}\n")).collect();
    let text = text.replace(&schema.name, SCHEMA);
    fs::write(dump_file(&format!("postgres-{version}.sql")), text).unwrap();
}

/// Keeps what every server executes: no comments, no commands of psql, no settings of the session.
fn is_portable(line: &str) -> bool {
    let skipped = ["--", "\\", "SET ", "SELECT pg_catalog.set_config"];
    !line.is_empty() && !skipped.iter().any(|start| line.starts_with(start))
}

async fn version(admin: &Client, schema: &Schema) -> i32 {
    let sql = format!("SELECT version FROM {}.meta", schema.name);
    admin.query_one(&sql, &[]).await.unwrap().get(0)
}

fn end() -> Settlement {
    Settlement::Complete {
        outcome: refrain::Outcome::new(200, "done"),
        retention: DAY,
        remember: DAY,
    }
}

/// What every release may do to the tables while earlier processes serve: add columns that may be NULL or have a default, add tables, and raise the version.
const NEXT_VERSION: &str = "ALTER TABLE kept_schema.records ADD COLUMN later bytea; \
     ALTER TABLE kept_schema.records ADD COLUMN later_count integer NOT NULL DEFAULT 0; \
     CREATE TABLE kept_schema.later_table (id uuid PRIMARY KEY); \
     UPDATE kept_schema.meta SET version = version + 1;";

/// Claims, renews and settles through a handle, and completes a claim that another handle was granted.
async fn serve(ours: &Postgres, theirs: &Postgres, number: u64) {
    let verdict = ours.claim(claim(number)).await.unwrap();
    let Verdict::Granted(grant) = verdict else {
        panic!("{verdict:?}");
    };
    let seen = theirs.claim(claim(number)).await.unwrap();
    assert!(matches!(seen, Verdict::InFlight { .. }), "{seen:?}");
    let renewed = ours.renew(id(number), grant.fence, DAY).await.unwrap();
    assert_eq!(renewed, Settled::Applied);
    let settled = theirs.settle(id(number), grant.fence, end()).await.unwrap();
    assert_eq!(settled, Settled::Applied);
    for store in [ours, theirs] {
        let verdict = store.claim(claim(number)).await.unwrap();
        assert!(matches!(verdict, Verdict::Replay(_)), "{verdict:?}");
    }
    let _ = ours.sweep(10).await.unwrap();
}

/// The tables move on while this build serves: its statements still work, and only a new start is refused.
#[tokio::test]
async fn a_running_process_continues_on_the_tables_of_the_next_version() {
    let schema = Schema::new();
    let (one, two) = (schema.open().await, schema.open().await);
    serve(&one, &two, 1).await;
    let admin = connect(&url()).await;
    let next = NEXT_VERSION.replace(SCHEMA, &schema.name);
    admin.batch_execute(&next).await.unwrap();
    for number in 2..6 {
        serve(&one, &two, number).await;
    }
    // A reconnect is not a new start.
    let broken = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                  WHERE pid <> pg_backend_pid() AND query LIKE '%' || $1 || '%'";
    let ended = admin.query(broken, &[&schema.name]).await.unwrap();
    assert!(!ended.is_empty(), "no connection of the store was found");
    refrain_testkit::wait::until("it serves again", async || {
        one.claim(claim(2)).await.is_ok() && two.claim(claim(2)).await.is_ok()
    })
    .await;
    serve(&one, &two, 6).await;
    let refused = Postgres::open(&schema.url()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    let told = refused.to_string();
    let supported = format!("supports version {}", version(&admin, &schema).await - 1);
    assert!(
        told.contains(&supported) && told.contains("upgrade Refrain"),
        "{told}"
    );
}

const STEPS: [&str; 2] = [
    include_str!("../../sql/postgres-1.sql"),
    include_str!("../../sql/postgres-2.sql"),
];

/// The tables of an earlier version, with a claim that one of its processes holds.
async fn earlier(admin: &Client, version: usize) -> Schema {
    let schema = Schema::new();
    let create = format!("CREATE SCHEMA {}", schema.name);
    admin.batch_execute(&create).await.unwrap();
    for step in &STEPS[..version] {
        let step = step.replace("__schema__", &schema.name);
        admin.batch_execute(&step).await.unwrap();
    }
    schema
}

/// Claims as an earlier version does: with the columns that all versions have.
async fn claim_as_earlier(admin: &Client, schema: &Schema, number: u64) {
    let (name, id) = (&schema.name, id(number));
    let insert = format!(
        "INSERT INTO {name}.records (id, fingerprint, fence_counter, claimant, settle_after, settles, lease_ends, \
         fence_epoch, fence_nonce, attempts, attempts_max, state, guarantee) SELECT '{id}', \
         '01010101-0101-0101-0101-010101010101', nextval('{name}.fences'), 7, 90000, t + 90000, t + 30000, \
         1, 7, 1, 10, 1, 1 FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint t) now"
    );
    admin.batch_execute(&insert).await.unwrap();
}

/// An earlier process claims before and after this build migrates the tables; this build sees and settles its claims.
#[tokio::test]
async fn claims_of_an_earlier_version_survive_the_migration() {
    let admin = connect(&url()).await;
    for version in 1..=STEPS.len() {
        let schema = earlier(&admin, version).await;
        claim_as_earlier(&admin, &schema, 1).await;
        let migrated = migrate(&schema.url()).await.unwrap();
        assert_eq!(migrated.from, i32::try_from(version).ok());
        claim_as_earlier(&admin, &schema, 2).await;
        let store = schema.open().await;
        for number in [1, 2] {
            let seen = store.claim(claim(number)).await.unwrap();
            assert!(matches!(seen, Verdict::InFlight { .. }), "{seen:?}");
            let reading = store.read(id(number)).await.unwrap().unwrap();
            let fence = reading.record.fence().unwrap();
            let settled = store.settle(id(number), fence, end()).await.unwrap();
            assert_eq!(settled, Settled::Applied);
        }
    }
}

/// A state or a guarantee that only a newer version knows: the row is refused, and stays as it is.
#[tokio::test]
async fn rows_of_a_newer_version_are_refused_and_kept() {
    let schema = Schema::new();
    let store = schema.open().await;
    for number in 0..3 {
        let _granted = store.claim(claim(number)).await.unwrap();
    }
    let admin = connect(&url()).await;
    let name = &schema.name;
    let newer = format!(
        "ALTER TABLE {name}.records DROP CONSTRAINT records_state_check; \
         UPDATE {name}.records SET state = 5 WHERE id = '{}'; \
         UPDATE {name}.records SET guarantee = 4 WHERE id = '{}';",
        id(0),
        id(1)
    );
    admin.batch_execute(&newer).await.unwrap();
    let rows = format!("SELECT r::text FROM {name}.records r ORDER BY id");
    let content = async || -> Vec<String> {
        let rows = admin.query(&rows, &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    };
    let before = content().await;
    for number in [0, 1] {
        let refused = store.claim(claim(number)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");
        let refused = store.erase(id(number)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");
    }
    let _ = store.sweep(10).await.unwrap();
    assert_eq!(content().await, before);
    let seen = store.claim(claim(2)).await.unwrap();
    assert!(matches!(seen, Verdict::InFlight { .. }), "{seen:?}");
}
