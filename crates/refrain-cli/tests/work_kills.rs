//! A worker of NATS or RabbitMQ that is killed must not lose an order, and only orders in flight at a kill may be
//! delivered twice.
//!
//! `REFRAIN_WORKER_KILLS` sets the minimum number of kills.

#![cfg(all(feature = "nats", feature = "amqp"))]
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use std::{
    collections::HashMap,
    env, fs,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use refrain::consume::Message;
use refrain_testkit::servers::{PrivateNats, PrivateRabbit};
use support::{Upstream, answer, until};
use tempfile::TempDir;

/// Default number of kills.
const KILLS: usize = 6;
const CONCURRENCY: usize = 8;
/// Orders that are delivered between two kills.
const ORDERS_A_LIFE: usize = 15;

/// The target's own ledger: deliveries by key.
type Ledger = Arc<Mutex<HashMap<String, usize>>>;

fn target(ledger: &Ledger) -> Upstream {
    let ledger = ledger.clone();
    Upstream::start(move |seen, stream| {
        let key = seen.header("idempotency-key").unwrap().to_owned();
        *ledger.lock().unwrap().entry(key).or_default() += 1;
        std::thread::sleep(Duration::from_millis(5));
        answer(stream, "200 OK", &[], b"")
    })
}

/// A worker that is killed on drop.
struct Worker(Child);

impl Worker {
    fn start(folder: &TempDir) -> Self {
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(folder.path().join("log"))
            .unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_refrain"))
            .args(["work", "--admin", "127.0.0.1:0"])
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn();
        Self(child.unwrap())
    }

    fn kill(&mut self) {
        assert_eq!(
            self.0.try_wait().unwrap(),
            None,
            "the worker exited before the kill"
        );
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Both fail only if the process has exited already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Publishes each order twice, like a producer that got no confirmation of the first.
fn publish(url: &str, orders: usize) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let publisher = refrain_brokers::open_publisher(url).await.unwrap();
        for number in 0..orders {
            let message = Message::new(format!("{{\"order\":{number}}}"))
                .with_id(format!("order-{number}"))
                .with_content_type("application/json");
            for _ in 0..2 {
                publisher.publish("orders", &message).await.unwrap();
            }
        }
    });
}

fn check(url: &str) {
    let kills = env::var("REFRAIN_WORKER_KILLS").map_or(KILLS, |text| text.parse().unwrap());
    let orders = (kills + 1) * ORDERS_A_LIFE;
    let (folder, ledger) = (TempDir::new().unwrap(), Ledger::default());
    let target = target(&ledger);
    let text = format!(
        "store = \"file:records\"\n[[worker]]\nname = \"billing\"\nsource = \"{url}\"\nqueue = \"orders\"\n\
         deliver = \"http://{}/events\"\nbackoff = \"20ms\"\nbackoff_max = \"200ms\"\nack_wait = \"2s\"\n\
         lease = \"8s\"\nconcurrency = {CONCURRENCY}\nattempts = 50\ndead_letter = \"dead\"\n",
        target.address
    );
    fs::write(folder.path().join("refrain.toml"), text).unwrap();
    // The queue has to exist before a producer can publish to it.
    let mut worker = Worker::start(&folder);
    publish(url, orders);
    let delivered = || ledger.lock().unwrap().len();
    let log = || fs::read_to_string(folder.path().join("log")).unwrap();
    for kill in 1..=kills {
        until("the worker makes progress", || {
            delivered() >= kill * ORDERS_A_LIFE
        });
        worker.kill();
        worker = Worker::start(&folder);
    }
    until("every order is delivered", || delivered() == orders);
    assert!(!log().contains("panicked"), "{}", log());
    let ledger = ledger.lock().unwrap();
    let twice = ledger.values().filter(|times| **times > 1).count();
    println!(
        "{kills} kills, {orders} orders, each published twice: {twice} delivered more than once"
    );
    assert!(twice <= kills * CONCURRENCY, "{twice} of {kills} kills");
}

#[test]
fn a_worker_of_nats_that_is_killed_again_and_again_loses_nothing() {
    let server = PrivateNats::start().unwrap();
    check(&server.url());
}

#[test]
fn a_worker_of_rabbitmq_that_is_killed_again_and_again_loses_nothing() {
    let server = PrivateRabbit::start().unwrap();
    check(&server.url());
}
