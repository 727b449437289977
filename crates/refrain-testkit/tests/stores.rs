//! Runs the store suite against the stores of the library.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use refrain::{
    Result,
    clock::Clock,
    store::{Embedded, Memory, embedded},
};
use refrain_testkit::store_suite::{self, Fixture};
use tempfile::TempDir;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory() {
    store_suite::run(|clock| async { Ok(Memory::with_options(1 << 30, clock)) }).await;
}

/// Each store in its own folder; a restart finds the folder by its number.
struct Folders {
    root: TempDir,
    opened: AtomicU32,
}

impl Folders {
    fn open_last(&self, clock: Arc<dyn Clock>) -> Result<Embedded> {
        let number = self.opened.load(Ordering::SeqCst);
        let folder = self.root.path().join(number.to_string());
        let options = embedded::Options {
            clock,
            ..embedded::Options::default()
        };
        Embedded::open(&folder, options)
    }
}

impl Fixture for Folders {
    type Store = Embedded;

    async fn open(&self, clock: Arc<dyn Clock>) -> Result<Embedded> {
        self.opened.fetch_add(1, Ordering::SeqCst);
        self.open_last(clock)
    }

    async fn reopen(&self, store: Embedded, clock: Arc<dyn Clock>) -> Result<Option<Embedded>> {
        drop(store);
        self.open_last(clock).map(Some)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded() {
    let root = tempfile::tempdir().unwrap();
    let opened = AtomicU32::new(0);
    store_suite::run(Folders { root, opened }).await;
}
