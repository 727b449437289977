//! Receipts on a real server: read as committed, over connections that break, and rejected if they are unreliable.

#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use refrain::{ErrorKind, RecordId, policy::Address, receipts::Receipts as _};
use refrain_stores::receipts::{self, PostgresReceipts};
use refrain_testkit::wait;
use tokio_postgres::{Client, NoTls};

fn server() -> String {
    std::env::var("REFRAIN_TEST_POSTGRES_URL").expect(
        "REFRAIN_TEST_POSTGRES_URL names no server; `cargo xtask test` starts one and sets it",
    )
}

/// Schema of one test.
struct TestSchema {
    name: String,
    client: Client,
}

impl TestSchema {
    async fn new() -> Self {
        let (client, connection) = tokio_postgres::connect(&server(), NoTls).await.unwrap();
        tokio::spawn(connection);
        let name = format!("receipts_{:016x}", rand::random::<u64>());
        let sql = format!("CREATE SCHEMA {name}; SET search_path = {name}");
        client.batch_execute(&sql).await.unwrap();
        Self { name, client }
    }

    async fn with_table() -> Self {
        let place = Self::new().await;
        PostgresReceipts::migrate(&place.address()).await.unwrap();
        place
    }

    fn address(&self) -> Address {
        self.address_with("")
    }

    fn address_with(&self, more: &str) -> Address {
        let (server, name) = (server(), &self.name);
        Address::new(format!("{server}?options=-csearch_path%3D{name}{more}"))
    }

    async fn run(&self, sql: &str) {
        self.client.batch_execute(sql).await.unwrap();
    }

    async fn open(&self) -> PostgresReceipts {
        receipts::open(&self.address()).await.unwrap()
    }

    /// Checks that opening fails with this message.
    async fn check_refused(&self, words: &str) {
        let error = receipts::open(&self.address()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains(words), "{words}: {error}");
    }

    /// Terminates the one connection with this application name.
    ///
    /// The server still lists a terminated backend until it exits, so this waits until there is one.
    async fn end_backend(&self, name: &str) {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1";
        let is_alone = async || self.count(sql, name).await == 1;
        wait::until("there is one connection", is_alone).await;
        let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = $1";
        assert_eq!(self.count(sql, name).await, 1);
    }

    async fn count(&self, sql: &str, name: &str) -> i64 {
        self.client.query_one(sql, &[&name]).await.unwrap().get(0)
    }

    async fn drop(self) {
        let sql = format!("DROP SCHEMA {} CASCADE", self.name);
        self.client.batch_execute(&sql).await.unwrap();
    }
}

fn id(number: u8) -> RecordId {
    RecordId([number; 16])
}

#[tokio::test]
async fn reads_only_committed_receipts() {
    let place = TestSchema::with_table().await;
    let receipts = place.open().await;
    let insert = format!(
        "INSERT INTO refrain_receipts (record, fence, status, body)
         VALUES ('{}', '1.2.0000000a', 201, '{{\"id\":\"é\\\\\"}}')",
        id(1)
    );
    for sql in ["", &format!("BEGIN; {insert}"), "ROLLBACK"] {
        place.run(sql).await;
        assert_eq!(receipts.find(id(1)).await.unwrap(), None, "{sql}");
    }
    place.run(&insert).await;
    let found = receipts.find(id(1)).await.unwrap().unwrap();
    assert_eq!((found.fence.as_str(), found.status), ("1.2.0000000a", 201));
    assert_eq!(found.body, "{\"id\":\"é\\\\\"}");
    assert_eq!(found.content_type.as_deref(), Some("application/json"));
    assert_eq!(found.location, None);
    assert!(found.age.as_secs() < 60, "{:?}", found.age);
    let seen = receipts.seen(&[id(2), id(1), id(3), id(1)]).await;
    assert_eq!(seen.unwrap(), [false, true, false, true]);
    assert!(receipts.seen(&[]).await.unwrap().is_empty());
    assert!(place.client.batch_execute(&insert).await.is_err());
    place.drop().await;
}

#[tokio::test]
async fn bodies_may_be_bytes_or_json() {
    for (kind, value, expected) in [
        ("bytea", "'\\x00ff10'", &b"\x00\xff\x10"[..]),
        ("json", "'{\"a\" :1}'", b"{\"a\" :1}"),
        ("text", "''", b""),
        ("text", "NULL", b""),
    ] {
        let place = TestSchema::with_table().await;
        let sql = format!(
            "ALTER TABLE refrain_receipts DROP COLUMN body, ADD COLUMN body {kind};
             INSERT INTO refrain_receipts (record, fence, status, body) VALUES ('{}', 'f', 200, {value})",
            id(1)
        );
        place.run(&sql).await;
        let found = place.open().await.find(id(1)).await.unwrap().unwrap();
        assert_eq!(found.body, expected, "{kind}");
        place.drop().await;
    }
}

#[tokio::test]
async fn broken_connection_is_reopened() {
    let place = TestSchema::with_table().await;
    let name = format!("{}_to_kill", place.name);
    let address = place.address_with(&format!("&application_name={name}"));
    let receipts = receipts::open(&address).await.unwrap();
    for _ in 0..3 {
        place.end_backend(&name).await;
        assert_eq!(receipts.find(id(1)).await.unwrap(), None);
    }
    place.drop().await;
}

/// A caller may be cancelled at any time: the next caller gets its own response.
#[tokio::test]
async fn cancelled_query_does_not_answer_another_one() {
    let place = TestSchema::with_table().await;
    let insert = format!(
        "INSERT INTO refrain_receipts (record, fence, status) VALUES ('{}', 'one', 200), ('{}', 'two', 200)",
        id(1),
        id(2)
    );
    place.run(&insert).await;
    let receipts = place.open().await;
    for round in 0..200 {
        let patience = std::time::Duration::from_micros(round * 5);
        let _ = tokio::time::timeout(patience, receipts.find(id(1))).await;
        let found = receipts.find(id(2)).await.unwrap().unwrap();
        assert_eq!(found.fence, "two");
    }
    place.drop().await;
}

#[tokio::test]
async fn unreliable_receipt_tables_are_rejected_at_start() {
    let place = TestSchema::new().await;
    let create = "no table refrain_receipts; create it with the statements that `refrain migrate --receipts --print`";
    place.check_refused(create).await;
    place
        .run("CREATE TABLE refrain_receipts (record text, fence text)")
        .await;
    place.check_refused("no column `status`").await;
    let error = PostgresReceipts::migrate(&place.address()).await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains("no column `status`"), "{error}");
    place.run("DROP TABLE refrain_receipts").await;
    for _ in 0..2 {
        PostgresReceipts::migrate(&place.address()).await.unwrap();
        place.open().await;
    }
    let not_unique = "ALTER TABLE refrain_receipts DROP CONSTRAINT refrain_receipts_pkey";
    place.run(not_unique).await;
    place.check_refused("is not unique; ALTER TABLE").await;
    for index in ["(record) WHERE status > 200", "(record, fence)"] {
        let create = format!("CREATE UNIQUE INDEX one ON refrain_receipts {index}");
        place.run(&create).await;
        place.check_refused("is not unique").await;
        place.run("DROP INDEX one").await;
    }
    place
        .run("CREATE UNIQUE INDEX one ON refrain_receipts (record)")
        .await;
    place.open().await;
    place.drop().await;
}

#[tokio::test]
async fn the_schema_that_an_address_names_is_where_the_table_is() {
    let place = TestSchema::new().await;
    let (server, name) = (server(), &place.name);
    let address = Address::new(format!("{server}?schema={name}"));
    PostgresReceipts::migrate(&address).await.unwrap();
    place
        .run(&format!("SELECT record FROM {name}.refrain_receipts"))
        .await;
    drop(receipts::open(&address).await.unwrap());
    place.drop().await;
}

#[tokio::test]
async fn failed_login_is_explained() {
    let server = server();
    let (front, behind) = server.split_once('@').unwrap();
    let (_, user) = front.split_once("://").unwrap();
    for (address, words) in [
        (
            format!("postgres://nobody_of_that_name@{behind}"),
            "\"nobody_of_that_name\" does not exist",
        ),
        (
            server.replace(&format!("/{user}"), "/no_such_database"),
            "\"no_such_database\" does not exist",
        ),
    ] {
        let error = receipts::open(&Address::new(&address)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[tokio::test]
async fn missing_read_permission_is_reported() {
    let place = TestSchema::with_table().await;
    let (name, role) = (&place.name, format!("{}_reader", place.name));
    let sql = format!(
        "CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA {name} TO {role};
         ALTER ROLE {role} SET default_transaction_read_only = on"
    );
    place.run(&sql).await;
    let address = place.address();
    let (_, behind) = address.as_str().split_once('@').unwrap();
    let as_role = Address::new(format!("postgres://{role}@{behind}"));
    let error = receipts::open(&as_role).await.unwrap_err();
    assert!(error.to_string().contains("GRANT SELECT"), "{error}");
    let sql = format!("GRANT SELECT ON refrain_receipts TO {role}");
    place.run(&sql).await;
    drop(receipts::open(&as_role).await.unwrap());
    let sql = format!("DROP OWNED BY {role}; DROP ROLE {role}");
    place.run(&sql).await;
    place.drop().await;
}

#[tokio::test]
async fn an_address_that_leads_nowhere_says_which_and_hides_its_password() {
    for (address, kind, words) in [
        (
            "postgres://app:secret@127.0.0.1:1/app",
            ErrorKind::Unavailable,
            "Connection refused (os error 111); check host and port",
        ),
        (
            "postgres://app:secret@127.0.0.1:x/app",
            ErrorKind::Unsupported,
            "a port that is not a number",
        ),
        (
            "postgres://app:secret@127.0.0.1/app?sslmode=some",
            ErrorKind::Unsupported,
            "unknown sslmode=some",
        ),
        (
            "mysql://app:secret@db/app",
            ErrorKind::Unsupported,
            "write postgres://",
        ),
    ] {
        let error = receipts::open(&Address::new(address)).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        let text = error.to_string();
        assert!(text.contains(words) && !text.contains("secret"), "{text}");
    }
}
