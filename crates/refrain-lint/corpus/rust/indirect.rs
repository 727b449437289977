// snippet: backoff crate
use backoff::{future::retry, ExponentialBackoff};

async fn create_order(client: &reqwest::Client, order: &Order) -> Result<(), reqwest::Error> {
    retry(ExponentialBackoff::default(), || async {
        client.post("https://erp.example.com/orders").json(order).send().await?; // expect: retry-post-without-key
        Ok(())
    })
    .await
}

// snippet: nats acks first
async fn consume(mut messages: Stream) -> Result<(), Error> {
    while let Some(message) = messages.next().await {
        let message = message?;
        message.ack().await?; // expect: ack-before-handle
        book(&message.payload).await?;
    }
    Ok(())
}

// snippet: nats acks last
async fn consume(mut messages: Stream) -> Result<(), Error> {
    while let Some(message) = messages.next().await {
        let message = message?;
        book(&message.payload).await?;
        message.ack().await?;
    }
    Ok(())
}

// snippet: clock through a helper
fn payment_key(order: &Order) -> String {
    let millis = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    format!("{}-{}", order.id, millis)
}

async fn pay(client: &Client, order: &Order) -> Result<Response, Error> {
    let idempotency_key = payment_key(order); // expect: key-from-clock
    Ok(client.post(&order.url).header("Idempotency-Key", idempotency_key).json(order).send().await?)
}

// snippet: redis lock by name
async fn guarded(con: &mut MultiplexedConnection, name: &str) -> RedisResult<()> {
    let lock = format!("lock:{name}");
    let got: bool = redis::cmd("SET").arg(&lock).arg(1).arg("NX").arg("EX").arg(30).query_async(con).await?;
    if got {
        rebuild().await;
        let _: () = con.del(&lock).await?; // expect: unlock-without-owner-check
    }
    Ok(())
}

// snippet: sqlx check then act
async fn create(pool: &PgPool, tenant: Uuid, idempotency_key: &str, body: NewOrder) -> Result<Order, Error> {
    let existing = sqlx::query_as::<_, Order>("SELECT * FROM orders WHERE tenant = $1 AND idempotency_key = $2") // expect: check-then-act
        .bind(tenant)
        .bind(idempotency_key)
        .fetch_optional(pool)
        .await?;
    if let Some(order) = existing {
        return Ok(order);
    }
    let order = place(body).await?;
    sqlx::query("INSERT INTO orders (tenant, idempotency_key, id) VALUES ($1, $2, $3)") // expect: insert-without-conflict
        .bind(tenant)
        .bind(idempotency_key)
        .bind(order.id)
        .execute(pool)
        .await?;
    Ok(order)
}

// snippet: claim in one statement
async fn claim(pool: &PgPool, tenant: Uuid, key: &str) -> Result<bool, sqlx::Error> {
    let done = sqlx::query("INSERT INTO claims (tenant, idempotency_key) VALUES ($1, $2) ON CONFLICT DO NOTHING")
        .bind(tenant)
        .bind(key)
        .execute(pool)
        .await?;
    Ok(done.rows_affected() == 1)
}

// snippet: adyen over http
async fn refund(client: &reqwest::Client, psp: &str, amount: Amount) -> Result<(), Error> {
    let url = format!("https://checkout-test.adyen.com/v71/payments/{psp}/refunds");
    client.post(&url).json(&amount).send().await?; // expect: money-call-without-key
    Ok(())
}
