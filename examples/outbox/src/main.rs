//! A shop that publishes a message for every order: the order and its message are one commit.
//!
//! ```sh
//! refrain migrate --outbox --store postgres://app@localhost/app
//! DATABASE_URL=postgres://app@localhost/app cargo run -p outbox -- alice 20 bob 35
//! refrain relay --outbox postgres://app@localhost/app --to nats://127.0.0.1:4222
//! ```
//!
//! Requires a table `orders (id bigserial, customer text, amount bigint)`.

use std::env;

use anyhow::{Context as _, bail};
use refrain::consume::Message;
use refrain_stores::postgres::Outbox;
use serde_json::json;
use tokio_postgres::{Client, NoTls};

/// Limit for the amount of an order.
const AMOUNT_MAX: i64 = 1_000;

async fn order(client: &mut Client, customer: &str, amount: i64) -> anyhow::Result<String> {
    let transaction = client.transaction().await?;
    let insert = "INSERT INTO orders (customer, amount) VALUES ($1, $2) RETURNING id";
    let row = transaction.query_one(insert, &[&customer, &amount]).await?;
    let body = json!({ "order": row.get::<_, i64>(0), "customer": customer, "amount": amount });
    // Messages of one customer are published in commit order.
    let placed = Message::new(body.to_string())
        .with_group(customer)
        .with_content_type("application/json");
    let id = Outbox::new()
        .append(&transaction, "orders", &placed)
        .await?;
    // If anything fails up to here, neither the order nor the message exists.
    if amount > AMOUNT_MAX {
        bail!("{customer} cannot order for {amount}");
    }
    transaction.commit().await?;
    Ok(id)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url = env::var("DATABASE_URL").context("DATABASE_URL is not set")?;
    let (mut client, connection) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(connection);
    let arguments: Vec<_> = env::args().skip(1).collect();
    for pair in arguments.chunks(2) {
        let [customer, amount] = pair else {
            bail!("pass one or more pairs of CUSTOMER AMOUNT");
        };
        match order(&mut client, customer, amount.parse()?).await {
            Ok(id) => println!("{customer}: ordered; message {id}"),
            Err(error) => println!("{customer}: {error}"),
        }
    }
    Ok(())
}
