//! The conformance suite for stores, including random histories against the model, on two handles with own connections.

use std::sync::{Arc, Mutex};

use refrain::{Result, Store as _, clock::Clock};
use refrain_stores::postgres::Postgres;
use refrain_testkit::store_suite::{self, Fixture, Options};

use crate::support::{Schema, Turned, claim};

/// Each store has its own schema. Clock and machine restarts are simulated: clients cannot set a server's clock.
#[derive(Default)]
struct Schemas(Mutex<Vec<(Schema, Turned)>>);

impl Schemas {
    fn last(&self) -> (String, Turned) {
        let schemas = self.0.lock().unwrap();
        let (schema, turned) = schemas.last().unwrap();
        (schema.url(), turned.clone())
    }

    async fn open_last(&self) -> Result<Postgres> {
        let (url, turned) = self.last();
        Postgres::open_with(&url, turned.options()).await
    }
}

impl Fixture for Schemas {
    type Store = Postgres;

    async fn open(&self, clock: Arc<dyn Clock>) -> Result<Postgres> {
        let opened = (Schema::new(), Turned::start(clock));
        self.0.lock().unwrap().push(opened);
        self.open_last().await
    }

    async fn another(&self, _: &Arc<Postgres>) -> Result<Arc<Postgres>> {
        self.open_last().await.map(Arc::new)
    }

    async fn reopen(&self, store: Postgres, clock: Arc<dyn Clock>) -> Result<Option<Postgres>> {
        drop(store);
        let resumed = self.last().1.resume(clock);
        if let Some((_, turned)) = self.0.lock().unwrap().last_mut() {
            *turned = resumed;
        }
        self.open_last().await.map(Some)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_passes_the_suite() {
    let options = Options {
        histories: 60,
        ..Options::default()
    };
    let report = store_suite::check(&Schemas::default(), &options).await;
    assert!(report.failures.is_empty(), "{report}");
}

#[tokio::test]
async fn watches_settlements_and_declares_shared_durability() {
    let schema = Schema::new();
    let store = schema.open().await;
    assert!(store.watch(claim(1).id).is_some());
    let promised = store.guarantees();
    assert!(promised.shared && promised.survives_process && promised.survives_power);
    assert!(!promised.lossy_failover);
}
