//! The service's own database: a schema on the test server, with payments and receipts.

use std::process::Command;

use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls};

/// The database of the service under test: its own schema, which is dropped with this value.
pub(crate) struct ServiceDatabase {
    name: String,
    runtime: Runtime,
    client: Client,
}

fn server() -> String {
    std::env::var("REFRAIN_TEST_POSTGRES_URL").expect(
        "REFRAIN_TEST_POSTGRES_URL is not set; `cargo xtask test` starts PostgreSQL and sets it",
    )
}

impl ServiceDatabase {
    /// With both tables; that of receipts is created with the SQL that operators use.
    pub(crate) fn new() -> Self {
        let place = Self::empty();
        place.run("CREATE TABLE payments (id bigserial PRIMARY KEY, customer text NOT NULL, amount bigint NOT NULL)");
        let made = Command::new(env!("CARGO_BIN_EXE_refrain"))
            .args(["migrate", "--receipts", "--store", &place.url()])
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        place
    }

    /// Without any table.
    pub(crate) fn empty() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let server = server();
        let connecting = tokio_postgres::connect(&server, NoTls);
        let (client, connection) = runtime.block_on(connecting).unwrap();
        runtime.spawn(connection);
        let unique = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos();
        let name = format!("shop_{unique}_{}", std::process::id());
        let place = Self {
            runtime,
            client,
            name,
        };
        let name = &place.name;
        place.run(&format!("CREATE SCHEMA {name}; SET search_path = {name}"));
        place
    }

    /// The address of this schema, for the service and for the proxy.
    pub(crate) fn url(&self) -> String {
        format!("{}?options=-csearch_path%3D{}", server(), self.name)
    }

    pub(crate) fn run(&self, sql: &str) {
        let running = self.client.batch_execute(sql);
        self.runtime.block_on(running).unwrap();
    }

    pub(crate) fn payments_of(&self, customer: &str) -> i64 {
        let sql = "SELECT count(*) FROM payments WHERE customer = $1";
        let counting = async { self.client.query_one(sql, &[&customer]).await };
        self.runtime.block_on(counting).unwrap().get(0)
    }
}

impl Drop for ServiceDatabase {
    fn drop(&mut self) {
        // A service that died in a transaction may still hold locks on its tables.
        let sql = format!("SET lock_timeout = '5s'; DROP SCHEMA {} CASCADE", self.name);
        let dropping = self.client.batch_execute(&sql);
        if let Err(error) = self.runtime.block_on(dropping) {
            eprintln!("schema {} stays behind: {error}", self.name);
        }
    }
}
