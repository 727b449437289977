// snippet: tokio-retry with a key inside
use tokio_retry::{strategy::ExponentialBackoff, Retry};

async fn pay(client: &reqwest::Client, order: &Order) -> Result<reqwest::Response, reqwest::Error> {
    let strategy = ExponentialBackoff::from_millis(100).take(4);
    Retry::spawn(strategy, || async {
        client
            .post("https://api.example.com/payments")
            .header("Idempotency-Key", uuid::Uuid::new_v4().to_string()) // expect: key-per-attempt
            .json(order)
            .send()
            .await
    })
    .await
}

// snippet: mark in the database first
async fn handle_message(pool: &PgPool, message: Message) -> Result<(), Error> {
    let inserted = sqlx::query("INSERT INTO processed_messages (message_id) VALUES ($1) ON CONFLICT DO NOTHING") // expect: mark-before-handle
        .bind(&message.id)
        .execute(pool)
        .await?;
    if inserted.rows_affected() == 0 {
        return Ok(());
    }
    ship_order(&message.order_id).await
}

// snippet: failure becomes the outcome
async fn run(store: &Store, idempotency_key: &str, request: Request) -> Response {
    match process(request).await {
        Ok(response) => {
            store.set(idempotency_key, &response).await;
            response
        }
        Err(error) => {
            let response = Response::internal_error(error);
            store.set(idempotency_key, &response).await; // expect: error-outcome-kept
            response
        }
    }
}

// snippet: middleware retries posts
use reqwest_middleware::ClientBuilder;
use reqwest_retry::{policies::ExponentialBackoff, RetryTransientMiddleware};

async fn create_order(order: &Order) -> Result<(), Error> {
    let policy = ExponentialBackoff::builder().build_with_max_retries(3);
    let client = ClientBuilder::new(reqwest::Client::new())
        .with(RetryTransientMiddleware::new_with_policy(policy))
        .build();
    client.post("https://erp.example.com/orders").json(order).send().await?; // expect: retry-post-without-key
    Ok(())
}

// snippet: short key
fn idempotency_key(tenant: &str, reference: &str) -> String {
    let digest = blake3::hash(format!("{tenant}:{reference}").as_bytes()).to_hex();
    digest.chars().take(12).collect() // expect: key-truncated
}

// snippet: key before the loop
async fn pay(client: &reqwest::Client, order: &Order) -> Result<reqwest::Response, Error> {
    let key = format!("order-{}-payment", order.id);
    for attempt in 0..5 {
        let sent = client
            .post("https://api.example.com/payments")
            .header("Idempotency-Key", &key)
            .json(order)
            .send()
            .await;
        match sent {
            Ok(response) => return Ok(response),
            Err(error) => tracing::warn!(attempt, %error, "trying again"),
        }
    }
    Err(Error::GaveUp)
}

// snippet: outbox row in the transaction
async fn place(pool: &PgPool, order: &Order) -> Result<(), sqlx::Error> {
    let mut tx = pool.begin().await?;
    sqlx::query("INSERT INTO orders (id, total) VALUES ($1, $2)").bind(order.id).bind(order.total).execute(&mut *tx).await?;
    sqlx::query("INSERT INTO outbox (topic, payload) VALUES ('orders', $1)").bind(order.json()).execute(&mut *tx).await?;
    tx.commit().await
}
