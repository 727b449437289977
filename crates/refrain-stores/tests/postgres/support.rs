//! Test schemas, which are dropped at the end.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use refrain::{
    Claim, Fingerprint, RecordId,
    clock::{Clock, ClockMark, StoreClock, Timestamp},
};
use refrain_stores::postgres::{Options, Postgres};
use tokio_postgres::{Client, NoTls};

/// Address of the server for tests.
pub(crate) fn url() -> String {
    std::env::var("REFRAIN_TEST_POSTGRES_URL").unwrap_or_else(|_| {
        panic!("REFRAIN_TEST_POSTGRES_URL is not set: `cargo xtask test` starts a PostgreSQL and sets it")
    })
}

/// Appends query parameters to an address.
pub(crate) fn with_query(url: &str, query: &str) -> String {
    let mark = if url.contains('?') { '&' } else { '?' };
    format!("{url}{mark}{query}")
}

/// Opens a connection for the test itself.
pub(crate) async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls)
        .await
        .unwrap_or_else(|error| panic!("no PostgreSQL at REFRAIN_TEST_POSTGRES_URL ({error:?}): `cargo xtask test` starts one"));
    tokio::spawn(connection);
    client
}

/// Schema of one test; dropped with this value.
#[derive(Debug)]
pub(crate) struct Schema {
    pub(crate) name: String,
}

impl Schema {
    pub(crate) fn new() -> Self {
        let name = format!("refrain_test_{:016x}", rand::random::<u64>());
        Self { name }
    }

    pub(crate) fn url(&self) -> String {
        with_query(&url(), &format!("schema={}", self.name))
    }

    pub(crate) async fn open(&self) -> Postgres {
        Postgres::open(&self.url()).await.unwrap()
    }
}

impl Drop for Schema {
    fn drop(&mut self) {
        let drop_schema = format!("DROP SCHEMA IF EXISTS {} CASCADE", self.name);
        // On its own thread, because this may be dropped on a runtime that must not block.
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime.unwrap().block_on(async {
                let client = connect(&url()).await;
                client.batch_execute(&drop_schema).await.unwrap();
            });
        });
        let dropped = dropped.join();
        assert!(dropped.is_ok() || std::thread::panicking());
    }
}

/// Manual clock for all handles on one schema. Like a server's clock, it never runs backwards.
#[derive(Debug, Clone)]
pub(crate) struct Turned {
    clock: StoreClock,
    mark: ClockMark,
    latest: Arc<AtomicU64>,
}

impl Turned {
    pub(crate) fn start(clock: Arc<dyn Clock>) -> Self {
        let clock = StoreClock::start(clock);
        Self {
            mark: clock.mark(),
            latest: Arc::new(AtomicU64::new(clock.now().0)),
            clock,
        }
    }

    pub(crate) fn resume(&self, clock: Arc<dyn Clock>) -> Self {
        let latest = Timestamp(self.latest.load(Ordering::SeqCst));
        let clock = StoreClock::resume(clock, self.mark, latest);
        Self {
            mark: clock.mark(),
            clock,
            latest: self.latest.clone(),
        }
    }

    pub(crate) fn options(&self) -> Options {
        let (clock, latest) = (self.clock.clone(), self.latest.clone());
        let time = move || {
            let now = clock.now();
            latest.fetch_max(now.0, Ordering::SeqCst);
            now
        };
        Options::default().with_time(time, None)
    }
}

/// Claim of the record with this number.
pub(crate) fn claim(number: u64) -> Claim {
    Claim::new(id(number), Fingerprint([1; 16]))
}

/// Distributes numbers over the writers and the index, like digests.
pub(crate) fn id(number: u64) -> RecordId {
    let mixed = u128::from(number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    RecordId((mixed << 64 | u128::from(number)).to_be_bytes())
}
