//! The conformance suite for stores, with the Lua scripts on a real server.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use refrain::{
    Result,
    clock::{Clock, ClockMark, StoreClock, Timestamp},
};
use refrain_stores::redis::{Options, Redis};
use refrain_testkit::{
    servers::{PrivateRedis, redis_url},
    store_suite::{self, Fixture},
};

use crate::support::Prefix;

/// Stores on one server, each with its own prefix and a manual clock.
struct Servers {
    url: String,
    opened: Mutex<HashMap<String, Opened>>,
}

struct Opened {
    prefix: Arc<Prefix>,
    clock: ServerClock,
}

/// Clock of the server: it keeps running when stores are closed and opened.
#[derive(Clone)]
struct ServerClock {
    clock: StoreClock,
    mark: ClockMark,
    latest: Arc<AtomicU64>,
}

impl ServerClock {
    fn new(clock: StoreClock) -> Self {
        let mark = clock.mark();
        let latest = Arc::new(AtomicU64::new(clock.now().0));
        Self {
            clock,
            mark,
            latest,
        }
    }

    fn options(&self) -> Options {
        let (clock, latest) = (self.clock.clone(), self.latest.clone());
        Options::default().with_clock(move || {
            let now = clock.now();
            latest.store(now.0, Ordering::Relaxed);
            now
        })
    }

    fn resumed(&self, clock: Arc<dyn Clock>) -> Self {
        let latest = Timestamp(self.latest.load(Ordering::Relaxed));
        Self::new(StoreClock::resume(clock, self.mark, latest))
    }
}

impl Servers {
    async fn open_at(&self, prefix: Arc<Prefix>, clock: ServerClock) -> Result<Redis> {
        let store = prefix.open(clock.options()).await?;
        let name = format!("{store:?}");
        let opened = Opened { prefix, clock };
        self.opened.lock().unwrap().insert(name, opened);
        Ok(store)
    }

    fn find(&self, store: &Redis) -> (Arc<Prefix>, ServerClock) {
        let opened = self.opened.lock().unwrap();
        let opened = &opened[&format!("{store:?}")];
        (opened.prefix.clone(), opened.clock.clone())
    }
}

impl Fixture for Servers {
    type Store = Redis;

    async fn open(&self, clock: Arc<dyn Clock>) -> Result<Redis> {
        let clock = ServerClock::new(StoreClock::start(clock));
        self.open_at(Arc::new(Prefix::on(&self.url)), clock).await
    }

    async fn another(&self, store: &Arc<Redis>) -> Result<Arc<Redis>> {
        let (prefix, clock) = self.find(store);
        Ok(Arc::new(prefix.open(clock.options()).await?))
    }

    async fn reopen(&self, store: Redis, clock: Arc<dyn Clock>) -> Result<Option<Redis>> {
        let (prefix, before) = self.find(&store);
        drop(store);
        let opened = self.open_at(prefix, before.resumed(clock)).await?;
        Ok(Some(opened))
    }
}

async fn check(url: String) {
    let opened = Mutex::default();
    let servers = Servers { url, opened };
    let report = store_suite::check(&servers, &store_suite::Options::default()).await;
    assert!(report.failures.is_empty(), "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_store_passes_the_suite() {
    check(redis_url()).await;
}

/// On such a server claims and settlements are sent by separate tasks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_store_passes_the_suite_on_a_server_that_syncs_later() {
    let server = PrivateRedis::start_with(&[("appendfsync", "everysec")]).unwrap();
    check(server.url()).await;
}
