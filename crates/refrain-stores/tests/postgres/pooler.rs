//! PgBouncer in front of the database. In transaction mode, the settings of one client remain on server connections
//! that others use: sequential scans were disabled for them, their search path was empty, and their lock waits failed
//! after half a second.

use refrain::{
    ErrorKind, Outcome, Settled, Settlement, Store as _, Verdict, policy::Address,
    receipts::Receipts as _,
};
use refrain_stores::{
    postgres::{Postgres, PostgresOutbox, migrate, outbox},
    receipts::PostgresReceipts,
};
use refrain_testkit::servers::{PoolMode, PrivatePgBouncer, PrivatePostgres};

use crate::support::{claim, connect, id};

/// Settings that the store, the receipts and the outbox change for their sessions.
const SETTINGS: &str = "SELECT name, setting FROM pg_settings WHERE source = 'session' AND name IN \
     ('enable_seqscan', 'enable_hashjoin', 'search_path', 'statement_timeout', 'lock_timeout', 'jit', \
      'idle_in_transaction_session_timeout', 'plan_cache_mode', 'random_page_cost', 'client_min_messages')";

/// Settings, prepared statements and channels that other clients find on connections of the pool.
async fn leftovers(url: &str) -> Vec<String> {
    let client = connect(url).await;
    let mut found = Vec::new();
    let all = format!(
        "{SETTINGS} UNION ALL SELECT 'statement', name FROM pg_prepared_statements \
         UNION ALL SELECT 'channel', * FROM pg_listening_channels()"
    );
    for message in client.simple_query(&all).await.unwrap() {
        if let tokio_postgres::SimpleQueryMessage::Row(row) = message {
            found.push(format!("{:?} = {:?}", row.get(0), row.get(1)));
        }
    }
    found
}

fn check_refused<T>(opened: refrain::Result<T>, what: &str) {
    let Err(error) = opened else {
        panic!("{what} goes through a pooler in transaction mode");
    };
    let text = error.to_string();
    for words in [
        "pool_mode = transaction",
        "set pool_mode = session",
        "connect to the server directly",
    ] {
        assert!(text.contains(words), "{what}: `{words}` is not in: {text}");
    }
}

/// Server on which all tables exist, so that only the pooler can cause an error.
async fn server() -> PrivatePostgres {
    let server = PrivatePostgres::start().unwrap();
    let receipts = Address::new(server.url());
    PostgresReceipts::migrate(&receipts).await.unwrap();
    outbox::migrate(&server.url()).await.unwrap();
    migrate(&server.url()).await.unwrap();
    server
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_in_transaction_mode_is_refused_and_finds_its_connections_as_they_were() {
    let server = server().await;
    let one = [("default_pool_size", "1")];
    let turns = [("server_round_robin", "1"), ("min_pool_size", "5")];
    for (mode, settings) in [
        (PoolMode::Transaction, &[][..]),
        (PoolMode::Transaction, &one),
        (PoolMode::Transaction, &turns),
        (PoolMode::Statement, &[]),
    ] {
        let pooler = PrivatePgBouncer::start_with(server.port(), mode, settings).unwrap();
        let url = pooler.url();
        for _ in 0..3 {
            let opened = Postgres::open(&url).await;
            let kind = opened.as_ref().err().map(refrain::Error::kind);
            assert_eq!(kind, Some(ErrorKind::Unsupported), "{opened:?}");
            check_refused(opened, "the store");
            check_refused(
                PostgresReceipts::open(&Address::new(&url)).await,
                "receipts",
            );
            check_refused(PostgresOutbox::open(&url).await, "the outbox");
            check_refused(migrate(&url).await, "migrating");
        }
        for _ in 0..10 {
            assert_eq!(leftovers(&url).await, [""; 0], "{mode:?} {settings:?}");
        }
    }
}

/// Other clients hold all server connections, so the check gets no answer until they give up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_saturated_pooler_is_refused_and_finds_its_connections_as_they_were() {
    let server = server().await;
    let one = [("default_pool_size", "1")];
    let pooler = PrivatePgBouncer::start_with(server.port(), PoolMode::Transaction, &one).unwrap();
    let url = pooler.url();
    let holder = connect(&url).await;
    holder.batch_execute("BEGIN").await.unwrap();
    let error = Postgres::open(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    holder.batch_execute("COMMIT").await.unwrap();
    check_refused(Postgres::open(&url).await, "the store");
    for _ in 0..3 {
        assert_eq!(leftovers(&url).await, [""; 0]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_in_session_mode_is_as_good_as_none_and_finds_its_connections_as_they_were() {
    let server = server().await;
    let pooler = PrivatePgBouncer::start(server.port(), PoolMode::Session).unwrap();
    let url = pooler.url();
    let (one, two) = (
        Postgres::open(&url).await.unwrap(),
        Postgres::open(&url).await.unwrap(),
    );
    for number in 0..20 {
        let verdict = one.claim(claim(number)).await.unwrap();
        let Verdict::Granted(grant) = verdict else {
            panic!("a new key is granted, not {verdict:?}");
        };
        let end = Settlement::Complete {
            outcome: Outcome::new(200, "done"),
            retention: std::time::Duration::from_secs(600),
            remember: std::time::Duration::from_secs(600),
        };
        let settled = one.settle(id(number), grant.fence, end).await.unwrap();
        assert_eq!(settled, Settled::Applied);
        let verdict = two.claim(claim(number)).await.unwrap();
        assert!(matches!(verdict, Verdict::Replay(_)), "{verdict:?}");
    }
    let receipts = PostgresReceipts::open(&Address::new(&url)).await.unwrap();
    assert_eq!(receipts.find(id(1)).await.unwrap(), None);
    let outbox = PostgresOutbox::open(&url).await.unwrap();
    drop((one, two, receipts, outbox));
    for _ in 0..10 {
        assert_eq!(leftovers(&url).await, [""; 0]);
    }
}
