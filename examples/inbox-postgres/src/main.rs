//! A consumer whose effect and record are one commit: each order is paid exactly once, even if a process is
//! killed in between.
//!
//! ```sh
//! DATABASE_URL=postgres://app@localhost/app BROKER_URL=nats://127.0.0.1:4222 cargo run -p inbox-postgres
//! ```
//!
//! Requires a table `payments (order_id text, amount bigint)` in its database; Refrain creates its own
//! tables. Works with any of Refrain's brokers; `postgres://…` is a queue in a table.

use std::{env, time::Duration};

use anyhow::Context as _;
use refrain::{
    Outcome,
    consume::{Backoff, Consumer, Count, Source},
};
use refrain_stores::postgres::{InTransaction as _, Inbox};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
struct Order {
    id: String,
    amount: i64,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let database = env::var("DATABASE_URL").context("DATABASE_URL is not set")?;
    let broker = env::var("BROKER_URL").unwrap_or_else(|_| database.clone());
    let mut source = Source::new(broker, "orders", "billing");
    if let Some(ack_wait) = millis("ACK_WAIT_MILLIS") {
        source.ack_wait = ack_wait;
    }
    let broker = refrain_brokers::open(&source).await?;
    let inbox = Inbox::open(&database).await?;
    let consumer = Consumer::new(broker, inbox.engine(), "billing")
        .with_backoff(Backoff::new(
            Duration::from_millis(100),
            Duration::from_secs(10),
        ))
        .with_dead_letter("orders-dead");
    println!("waiting for orders");
    let slow = millis("HANDLING_MILLIS").unwrap_or_default();
    let tally = consumer
        .in_transaction(
            inbox,
            move |transaction, job| {
                Box::pin(async move {
                    let order: Order = serde_json::from_slice(&job.message.payload)?;
                    let insert = "INSERT INTO payments (order_id, amount) VALUES ($1, $2)";
                    transaction
                        .execute(insert, &[&order.id, &order.amount])
                        .await?;
                    // The tests slow this down, to kill the process right here.
                    tokio::time::sleep(slow).await;
                    // On return, the effect is committed together with the record; only then is the message
                    // acknowledged.
                    Ok(Outcome::new(0, ""))
                })
            },
            async { drop(tokio::signal::ctrl_c().await) },
        )
        .await?;
    println!(
        "{} paid, {} duplicates",
        tally.get(Count::Completed),
        tally.get(Count::Duplicate)
    );
    Ok(())
}

fn millis(variable: &str) -> Option<Duration> {
    let text = env::var(variable).ok()?;
    text.parse().ok().map(Duration::from_millis)
}
