//! Redis in front of PostgreSQL, both real: Redis serves outcomes, PostgreSQL is authoritative. Losing all of Redis may
//! only cost time.

use std::time::Duration;

use refrain::{
    Encryption, Engine, ErrorKind, Intent, Key, Outcome, Scope, Store, Verdict,
    encryption::MasterKey,
    record::Erased,
    store::{AnyStore, Tiered, embedded},
};
use refrain_testkit::{
    servers::{PrivateRedis, postgres_url, redis_url},
    wait,
};

use crate::support::{Prefix, ask, claim, complete, granted, id, replayed, verdict, words};

/// Schema of one test; dropped by `drop_schema`, which has to wait for the server.
struct Schema(String);

impl Schema {
    fn new() -> Self {
        Self(format!("refrain_tier_{:016x}", rand::random::<u64>()))
    }

    fn address(&self) -> String {
        let url = postgres_url();
        let mark = if url.contains('?') { '&' } else { '?' };
        format!("{url}{mark}schema={}", self.0)
    }

    async fn connect() -> tokio_postgres::Client {
        let connected = tokio_postgres::connect(&postgres_url(), tokio_postgres::NoTls).await;
        let (client, connection) = connected.unwrap();
        tokio::spawn(connection);
        client
    }

    async fn drop_schema(self) {
        let sql = format!("DROP SCHEMA IF EXISTS {} CASCADE", self.0);
        Self::connect().await.batch_execute(&sql).await.unwrap();
    }
}

async fn open(front: &str, schema: &Schema) -> AnyStore {
    let addresses = [front.to_owned(), schema.address()];
    refrain_stores::open_all(&addresses, embedded::Options::default())
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outcomes_come_from_redis_and_the_truth_from_sql() {
    let (prefix, schema) = (Prefix::new(), Schema::new());
    let store = open(&prefix.address, &schema).await;
    assert!(!store.guarantees().lossy_failover);
    complete(&store, 1, "done").await;
    let front = prefix.key(id(1), "f");
    let began = tokio::time::Instant::now();
    let left = loop {
        assert_eq!(replayed(&store, 1).await, "done");
        let kept: Vec<u8> = ask(&redis_url(), redis::cmd("GET").arg(&front));
        let left: i64 = ask(&redis_url(), redis::cmd("PTTL").arg(&front));
        // On a slow machine it may have expired meanwhile.
        if kept.windows(4).any(|window| window == b"done") && left > 0 {
            break left;
        }
        assert!(began.elapsed() < Duration::from_secs(30));
    };
    assert!(left <= 5_000, "{left}");
    let sql = format!(
        "SELECT tablename FROM pg_tables WHERE schemaname = '{}'",
        schema.0
    );
    let client = Schema::connect().await;
    let tables = client.query(&sql, &[]).await.unwrap();
    assert!(!tables.is_empty());
    let behind = refrain_stores::open(&schema.address()).await.unwrap();
    // Erased only in the store: the front may still replay it for a short time.
    assert_eq!(behind.erase(id(1)).await.unwrap(), Erased::Gone);
    granted_in_time(&store, 1).await;
    // Erased through both: it is gone immediately and permanently.
    complete(&store, 2, "done").await;
    assert_eq!(replayed(&store, 2).await, "done");
    wait::until("it is erased", async || match store.erase(id(2)).await {
        Ok(erased) => {
            assert_eq!(erased, Erased::Gone);
            true
        }
        // Redis was too slow; nothing is erased.
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            false
        }
    })
    .await;
    complete(&store, 2, "again").await;
    assert_eq!(replayed(&store, 2).await, "again");
    drop((store, behind));
    schema.drop_schema().await;
}

/// A record erased without the front is no longer replayed after `STALE_MAX`.
async fn granted_in_time(store: &AnyStore, number: u64) {
    let erased = tokio::time::Instant::now();
    loop {
        let asked = erased.elapsed();
        match verdict(store, &claim(number)).await.unwrap() {
            Verdict::Granted(_) => return,
            Verdict::Replay(_) => assert!(asked <= Tiered::<(), ()>::STALE_MAX, "{asked:?}"),
            other => panic!("erased, but the verdict is {other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn losing_all_of_redis_changes_nothing_but_speed() {
    let schema = Schema::new();
    let mut server =
        PrivateRedis::start_with(&[("appendonly", "no"), ("maxmemory-policy", "allkeys-lru")])
            .unwrap();
    let store = open(&server.url(), &schema).await;
    for number in 0..20 {
        complete(&store, number, &format!("done {number}")).await;
        assert_eq!(replayed(&store, number).await, format!("done {number}"));
    }
    let _: redis::Value = ask(&server.url(), &words("FLUSHALL"));
    check(&store, "flushed").await;
    server.kill().unwrap();
    check(&store, "killed").await;
    let error = store.erase(id(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    server.restart().unwrap();
    check(&store, "restarted, empty").await;
    server.pause().unwrap();
    check(&store, "hanging").await;
    server.resume().unwrap();
    drop(store);
    schema.drop_schema().await;
}

async fn check(store: &AnyStore, what: &str) {
    let began = tokio::time::Instant::now();
    for number in 0..20 {
        assert_eq!(
            replayed(store, number).await,
            format!("done {number}"),
            "{what}"
        );
    }
    let number = rand::random::<u32>().into();
    let grant = granted(store, &claim(number)).await;
    let duplicate = verdict(store, &claim(number)).await.unwrap();
    assert!(
        matches!(duplicate, Verdict::InFlight { .. }),
        "{what}: {duplicate:?}"
    );
    let released = store.settle(id(number), grant.fence, refrain::Settlement::Release);
    assert_eq!(released.await.unwrap(), refrain::Settled::Applied, "{what}");
    assert!(began.elapsed() < wait::PATIENCE, "{what}");
}

#[tokio::test]
async fn a_front_that_is_not_there_does_not_keep_the_store_from_opening() {
    let schema = Schema::new();
    let nobody = refrain_testkit::servers::free_port().unwrap();
    for front in [
        format!("redis://127.0.0.1:{nobody}"),
        format!("redis+cluster://127.0.0.1:{nobody}"),
        format!("redis+sentinel://127.0.0.1:{nobody}/main"),
    ] {
        let store = open(&front, &schema).await;
        let number = rand::random::<u32>().into();
        complete(&store, number, "done").await;
        assert_eq!(replayed(&store, number).await, "done", "{front}");
        assert_eq!(replayed(&store, number).await, "done", "{front}");
    }
    schema.drop_schema().await;
}

/// The store below a front keeps what the two encrypt together, and has no keys of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn encrypted_outcomes_are_replayed_from_the_store_without_its_front() {
    let folder = tempfile::tempdir().unwrap();
    let nobody = refrain_testkit::servers::free_port().unwrap();
    let addresses = [
        format!("redis://127.0.0.1:{nobody}"),
        format!("file:{}", folder.path().join("store").display()),
    ];
    let opened = refrain_stores::open_all(&addresses, embedded::Options::default()).await;
    let keys = Encryption::new(MasterKey::new([7; 32]));
    let engine = Engine::new(opened.unwrap().with_encryption(keys));
    let intent = Intent::new(Scope::none().with("tenant", "acme"), Key::new("k").unwrap());
    let Verdict::Granted(guard) = engine.claim(&intent).await.unwrap() else {
        panic!("the key is not free");
    };
    let outcome = Outcome::new(201, "a secret result");
    let settled = guard.start().complete(outcome).await.unwrap();
    assert_eq!(settled, refrain::Settled::Applied);
    let Verdict::Replay(outcome) = engine.claim(&intent).await.unwrap() else {
        panic!("no replay");
    };
    assert_eq!(&outcome.body()[..], b"a secret result");
    let files = std::fs::read_dir(folder.path().join("store")).unwrap();
    let files = files.map(|file| std::fs::read(file.unwrap().path()).unwrap_or_default());
    let is_clear = |bytes: Vec<u8>| bytes.windows(15).any(|it| it == b"a secret result");
    assert!(!files.into_iter().any(is_clear), "stored in the clear");
}

#[tokio::test]
async fn two_nodes_share_a_front() {
    let (prefix, schema) = (Prefix::new(), Schema::new());
    let one = open(&prefix.address, &schema).await;
    let two = open(&prefix.address, &schema).await;
    complete(&one, 1, "done").await;
    complete(&one, 2, "done too").await;
    for store in [&one, &two] {
        assert_eq!(replayed(store, 2).await, "done too");
    }
    assert_eq!(replayed(&one, 1).await, "done");
    // The second handle knows the store's time by now, and replays from the front, but not for long.
    let behind = refrain_stores::open(&schema.address()).await.unwrap();
    assert_eq!(behind.erase(id(1)).await.unwrap(), Erased::Gone);
    granted_in_time(&two, 1).await;
    drop((one, two, behind));
    schema.drop_schema().await;
}
