//! No response does not mean "no messages": a redrive waits for the response, and a worker reports that it is not
//! ready.

use std::{sync::Arc, time::Duration};

use refrain::{
    Engine, ErrorKind,
    consume::{Broker as _, DEAD_SOURCE, Message, Publisher as _, Redrive},
    store,
};

use crate::{ACK_WAIT, Server, open_at, outage_shows};

/// More messages than one receive returns.
const LETTERS: u64 = 25;

#[tokio::test(flavor = "multi_thread")]
async fn a_redrive_waits_for_each_answer() {
    let server = Server::start();
    server.make("orders").await;
    server.make("dead").await;
    let dead = server.open("dead", ACK_WAIT * 60).await.unwrap();
    for number in 0..LETTERS {
        let letter = Message::new(number.to_string()).with_header(DEAD_SOURCE, "orders");
        dead.publish("dead", &letter).await.unwrap();
    }
    let to = server.open("orders", ACK_WAIT).await.unwrap();
    // Far too short for a response.
    let redrive = Redrive::new(
        Arc::new(dead),
        Arc::new(to),
        Engine::new(store::Memory::new()),
    )
    .with_idle(Duration::from_millis(1));
    let done = redrive.run().await.unwrap();
    assert_eq!((done.sent, done.left), (LETTERS, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_server_is_not_ready() {
    let server = Server::start();
    let relay = server.relay().await;
    server.make("orders").await;
    let url = relay.url(&server.0.url());
    let broker = open_at(url, "orders", ACK_WAIT).await.unwrap();
    relay.hold(true);
    let error = broker.ready(Duration::from_secs(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("no response"), "{error}");
    relay.hold(false);
    broker.ready(Duration::from_secs(60)).await.unwrap();
    outage_shows(&broker, || relay.hold(true), || relay.hold(false)).await;
}
