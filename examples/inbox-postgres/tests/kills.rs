//! Kills the consumer with -9 repeatedly, before, during and after a payment, while producers publish
//! duplicates. The ledger must have every order once.

use std::{
    process::{Child, Command, Stdio},
    time::Duration,
};

use refrain::consume::{Message, Publisher as _};
use refrain_brokers::postgres::PostgresPublisher;
use refrain_testkit::wait;
use tokio_postgres::{Client, NoTls};

const ORDERS: usize = 400;
const KILLS: usize = 12;

/// A private schema on the shared server, and a consumer that uses it.
struct Stage {
    schema: String,
    url: String,
    client: Client,
}

impl Stage {
    async fn open() -> Self {
        let server = refrain_testkit::servers::postgres_url();
        let schema = format!("refrain_inbox_{:016x}", rand::random::<u64>());
        let mark = if server.contains('?') { '&' } else { '?' };
        let url = format!("{server}{mark}schema={schema}&options=-csearch_path%3D{schema}");
        let (client, connection) = tokio_postgres::connect(&server, NoTls).await.unwrap();
        tokio::spawn(connection);
        let make = format!(
            "CREATE SCHEMA {schema}; SET search_path = {schema};
             CREATE TABLE payments (order_id text, amount bigint)"
        );
        client.batch_execute(&make).await.unwrap();
        Self {
            schema,
            url,
            client,
        }
    }

    fn consumer(&self) -> Child {
        Command::new(env!("CARGO_BIN_EXE_inbox-postgres"))
            .env("DATABASE_URL", &self.url)
            .env_remove("BROKER_URL")
            .env("ACK_WAIT_MILLIS", "3000")
            .env("HANDLING_MILLIS", "40")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }

    async fn publish(&self, publisher: &PostgresPublisher) {
        for number in 0..ORDERS {
            let body = format!(r#"{{"id":"order-{number}","amount":{number}}}"#);
            let message = Message::new(body).with_id(format!("order-{number}"));
            publisher.publish("orders", &message).await.unwrap();
        }
    }

    async fn count(&self, sql: &str) -> i64 {
        self.client.query_one(sql, &[]).await.unwrap().get(0)
    }

    async fn paid(&self) -> i64 {
        self.count("SELECT count(DISTINCT order_id) FROM payments")
            .await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_order_is_paid_once_although_processes_are_killed() {
    let stage = Stage::open().await;
    let publisher = PostgresPublisher::connect(&stage.url).await.unwrap();
    stage.publish(&publisher).await;
    let mut kills = 0;
    let mut consumer = stage.consumer();
    let mut in_the_middle = 0;
    while kills < KILLS {
        // Every second kill waits for progress, so that it hits the consumer at work even on a slow
        // machine; the others hit at random.
        if kills % 2 == 1 {
            let before = stage.paid().await;
            let gets_on = async || stage.paid().await > before || before == ORDERS as i64;
            wait::until("the consumer gets on", gets_on).await;
        }
        tokio::time::sleep(Duration::from_millis(rand::random_range(0..300))).await;
        consumer.kill().unwrap();
        consumer.wait().unwrap();
        kills += 1;
        in_the_middle += u32::from((1..ORDERS as i64).contains(&stage.paid().await));
        // The producer does not know which messages it has published, so it publishes all again.
        if kills % 4 == 0 {
            stage.publish(&publisher).await;
        }
        consumer = stage.consumer();
    }
    // However long it takes, as long as the queue gets shorter.
    let mut left = i64::MAX;
    while left > 0 || stage.paid().await < ORDERS as i64 {
        let before = left;
        wait::until("the queue gets shorter", async || {
            left = stage.count("SELECT count(*) FROM refrain_queue").await;
            left == 0 || left < before
        })
        .await;
    }
    consumer.kill().unwrap();
    consumer.wait().unwrap();
    assert_eq!(
        stage.count("SELECT count(*) FROM payments").await,
        ORDERS as i64,
        "each once"
    );
    assert!(
        in_the_middle >= 3,
        "{in_the_middle} kills hit it at work: too few to prove anything"
    );
    let drop_schema = format!("DROP SCHEMA {} CASCADE", stage.schema);
    stage.client.batch_execute(&drop_schema).await.unwrap();
}
