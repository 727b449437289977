//! Checks the example's documentation: an order ships once, across duplicates, kills and restarts.

use std::{path::Path, time::Duration};

use async_nats::jetstream::{
    self,
    consumer::{Consumer, pull},
};
use consumer_nats::ship;
use refrain::consume::{Broker as _, Count, Message, Publisher as _, Source};
use refrain_brokers::nats::Nats;
use refrain_testkit::{servers::PrivateNats, wait};

const SOON: Duration = Duration::from_secs(5);

fn shipped(folder: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(folder.join("shipped.txt")).unwrap_or_default();
    let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// Waits until every message of the stream is delivered to the consumer and acknowledged.
async fn all_acknowledged(url: String) {
    let client = async_nats::connect(url).await.unwrap();
    let jetstream = jetstream::new(client);
    wait::until("every order is acknowledged", async || {
        // The example creates the consumer when it starts.
        let found = jetstream.get_consumer_from_stream("shipping", "orders");
        let Ok(mut consumer) = found.await else {
            return false;
        };
        let consumer: &mut Consumer<pull::Config> = &mut consumer;
        let info = consumer.info().await.unwrap();
        info.num_pending == 0 && info.num_ack_pending == 0
    })
    .await;
}

/// Publishes the messages, and runs the consumer until it has acknowledged the whole stream.
async fn run(server: &PrivateNats, folder: &Path, messages: &[&str]) -> u64 {
    let nats = Nats::connect(&Source::new(server.url(), "orders", "test"))
        .await
        .unwrap();
    for message in messages {
        let message = Message::new((*message).to_owned());
        nats.publish("orders", &message).await.unwrap();
    }
    let done = all_acknowledged(server.url());
    let tally = ship(&server.url(), "orders", folder, done).await.unwrap();
    tally.get(Count::Duplicate)
}

#[tokio::test]
async fn an_order_ships_once_also_across_a_restart() {
    let server = PrivateNats::start().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let seven = r#"{"id":"order-7","to":"Alice"}"#;
    let eight = r#"{"id":"order-8","to":"Bob"}"#;
    let again = run(&server, folder.path(), &[seven, seven, "hello", eight]).await;
    let lines = ["order-7 to Alice", "order-8 to Bob"];
    assert_eq!(
        (shipped(folder.path()), again),
        (lines.map(Into::into).into(), 1)
    );

    let again = run(&server, folder.path(), &[seven]).await;
    assert_eq!(
        (shipped(folder.path()), again),
        (lines.map(Into::into).into(), 1)
    );

    let dead = Source::new(server.url(), "orders-dead", "test");
    let dead = Nats::connect(&dead).await.unwrap();
    let letters = dead.pull(10, SOON).await.unwrap();
    let texts: Vec<_> = letters
        .iter()
        .map(|letter| &letter.message.payload[..])
        .collect();
    assert_eq!(texts, [b"hello"]);
}
