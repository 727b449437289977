//! Helpers shared by the tests of all brokers.
#![allow(dead_code)]

pub(crate) mod pki;
pub(crate) mod relay;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use refrain::consume::{Broker, Delivery, Message};
use refrain_testkit::wait;

pub(crate) const SOON: Duration = Duration::from_secs(5);
pub(crate) const NOW: Duration = Duration::from_millis(1);

/// Waits for one delivery.
pub(crate) async fn one(broker: &dyn Broker) -> Delivery {
    let mut pulled = Vec::new();
    wait::until("a message comes", async || {
        pulled = broker.pull(1, SOON).await.unwrap();
        !pulled.is_empty()
    })
    .await;
    assert_eq!(pulled.len(), 1, "one was asked for");
    pulled.remove(0)
}

/// As [`one`], but ignores errors while the server is restarting.
pub(crate) async fn eventually(broker: &dyn Broker) -> Delivery {
    let mut pulled = Vec::new();
    wait::until("a message comes", async || {
        pulled = broker.pull(1, SOON).await.unwrap_or_default();
        !pulled.is_empty()
    })
    .await;
    pulled.remove(0)
}

/// Checks what readiness relies on: from the first sign of an outage until the server answers again, each pull
/// fails or `trouble` returns the error.
pub(crate) async fn outage_shows(broker: &dyn Broker, down: impl FnOnce(), up: impl FnOnce()) {
    let is_in_trouble = async || {
        let pulled = broker.pull(1, Duration::from_millis(200)).await;
        pulled.is_err() || broker.trouble().is_some()
    };
    wait::until("the server answers", async || !is_in_trouble().await).await;
    down();
    wait::until("the outage shows", is_in_trouble).await;
    for pull in 0..5 {
        assert!(
            is_in_trouble().await,
            "pull {pull}: the server is down, and no error was reported"
        );
    }
    up();
    wait::until("the server is back", async || !is_in_trouble().await).await;
}

/// Checks that no delivery arrives within this time.
pub(crate) async fn nothing(broker: &dyn Broker, wait: Duration) {
    let pulled = broker.pull(8, wait).await.unwrap();
    assert!(pulled.is_empty(), "{pulled:?}");
}

/// A message with every field set.
pub(crate) fn full() -> Message {
    Message::new(vec![0, 159, 146, 150])
        .with_id("id-1")
        .with_group("g")
        .with_content_type("application/x-thing")
        .with_header("Trace", "abc")
        .with_header("trace", vec![0, 255])
}

/// The payload as text.
pub(crate) fn text(delivery: &Delivery) -> String {
    String::from_utf8(delivery.message.payload.to_vec()).unwrap()
}

/// Progress of a task, for waiting tests.
#[derive(Clone, Default)]
pub(crate) struct Counter(Arc<AtomicUsize>);

impl Counter {
    pub(crate) fn set(&self, count: usize) {
        self.0.store(count, Relaxed);
    }

    pub(crate) fn get(&self) -> usize {
        self.0.load(Relaxed)
    }
}
