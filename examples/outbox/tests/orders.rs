//! Runs the example and relays its outbox: there is a message for every order, and no other message.

use std::{process::Command, sync::Arc, time::Duration};

use refrain::consume::{Broker as _, Memory, Relay};
use refrain_stores::postgres::{PostgresOutbox, outbox};
use tokio_postgres::NoTls;

#[tokio::test]
async fn every_order_is_announced_in_order() {
    let server = refrain_testkit::servers::postgres_url();
    let schema = format!("refrain_outbox_{:016x}", rand::random::<u64>());
    let mark = if server.contains('?') { '&' } else { '?' };
    let url = format!("{server}{mark}options=-csearch_path%3D{schema}");
    let (client, connection) = tokio_postgres::connect(&server, NoTls).await.unwrap();
    tokio::spawn(connection);
    let make = format!(
        "CREATE SCHEMA {schema}; CREATE TABLE {schema}.orders (id bigserial, customer text, amount bigint)"
    );
    client.batch_execute(&make).await.unwrap();
    outbox::migrate(&url).await.unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_outbox"))
        .env("DATABASE_URL", &url)
        .args(["alice", "1", "bob", "2", "alice", "5000", "alice", "3"])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success() && said.contains("cannot order"),
        "{said}"
    );
    let broker = Memory::new();
    let queue = broker.subscribe("orders", "test");
    let reader = Arc::new(PostgresOutbox::open(&url).await.unwrap());
    let left = Relay::new(reader, Arc::new(broker)).drain().await.unwrap();
    assert_eq!((left.waiting, left.refused), (0, 0));
    let told = queue.pull(10, Duration::ZERO).await.unwrap();
    let of_alice = told
        .iter()
        .filter(|it| it.message.group.as_deref() == Some("alice"));
    let amounts: Vec<_> = of_alice
        .map(|it| String::from_utf8(it.message.payload.to_vec()).unwrap())
        .map(|body| {
            body.split("\"amount\":")
                .nth(1)
                .unwrap()
                .chars()
                .next()
                .unwrap()
        })
        .collect();
    assert_eq!((told.len(), amounts), (3, vec!['1', '3']));
    for delivery in told {
        let id = delivery.message.id.unwrap();
        assert!(said.contains(&id), "{id} was not announced: {said}");
    }
    let drop_schema = format!("DROP SCHEMA {schema} CASCADE");
    client.batch_execute(&drop_schema).await.unwrap();
}
