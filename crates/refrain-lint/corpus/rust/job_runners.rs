// snippet: for loop with backoff
async fn pay(http: &reqwest::Client, body: &Payment) -> anyhow::Result<()> {
    for attempt in 0..MAX_ATTEMPTS {
        let key = Uuid::new_v4(); // expect: key-in-retry-loop
        let response = http.post(PAYMENTS_URL).header("idempotency-key", key.to_string()).json(body).send().await;
        if response.is_ok() {
            return Ok(());
        }
        sleep(backoff(attempt)).await;
    }
    bail!("gave up")
}

// snippet: retried post without a key
async fn create_order(http: &reqwest::Client, order: &Order) -> Result<Response, Error> {
    let mut retries = 0;
    loop {
        match http.post(ORDERS_URL).json(order).send().await { // expect: retry-post-without-key
            Ok(response) => return Ok(response),
            Err(_) if retries < 5 => {
                retries += 1;
                sleep(Duration::from_secs(1)).await;
            }
            Err(error) => return Err(error),
        }
    }
}

// snippet: get in a loop
async fn read_order(http: &reqwest::Client, id: &str) -> Result<Response, Error> {
    let mut retries = 0;
    loop {
        match http.get(format!("{ORDERS_URL}/{id}")).send().await {
            Ok(response) => return Ok(response),
            Err(_) if retries < 5 => retries += 1,
            Err(error) => return Err(error),
        }
    }
}

// snippet: key of the request, unscoped
async fn claim(State(app): State<App>, headers: HeaderMap, body: Bytes) -> Result<Reply> {
    let key = headers.get("idempotency-key").and_then(|it| it.to_str().ok()).unwrap_or_default();
    let fresh: bool = app.redis().set_nx(format!("idem:{key}"), "pending").await?; // expect: unscoped-key
    if !fresh {
        return Ok(Reply::conflict());
    }
    app.pay(body).await
}

// snippet: insert with and without
async fn save(pool: &PgPool, key: &str, amount: i64) -> Result<()> {
    sqlx::query("INSERT INTO payments (idempotency_key, amount) VALUES ($1, $2)") // expect: insert-without-conflict
        .bind(key)
        .bind(amount)
        .execute(pool)
        .await?;
    Ok(())
}

async fn save_once(pool: &PgPool, key: &str, amount: i64) -> Result<bool> {
    let done = sqlx::query("INSERT INTO payments (idempotency_key, amount) VALUES ($1, $2) ON CONFLICT DO NOTHING")
        .bind(key)
        .bind(amount)
        .execute(pool)
        .await?;
    Ok(done.rows_affected() == 1)
}

// snippet: mark before handle
async fn on_message(redis: &mut Connection, message: Message) -> Result<()> {
    let fresh: bool = redis.set_nx(format!("processed:{}", message.id), 1).await?; // expect: mark-before-handle
    if !fresh {
        return Ok(());
    }
    warehouse::pick(&message.order).await?;
    Ok(())
}

// snippet: unlock
async fn with_lock(redis: &mut Connection, id: &str) -> Result<()> {
    let lock_key = format!("lock:{id}");
    if !redis.set_nx(&lock_key, "1").await? {
        return Err(Error::Busy);
    }
    work(id).await?;
    redis.del(&lock_key).await?; // expect: unlock-without-owner-check
    Ok(())
}

// snippet: stored key
async fn refund(client: &Client, db: &Db, payment: &Payment) -> Result<()> {
    let key = Uuid::new_v4().to_string();
    db.insert_attempt(payment.id, &key).await?;
    client.post(format!("{BASE}/refunds")).header("Idempotency-Key", &key).json(payment).send().await?;
    Ok(())
}

// snippet: message of hyper
fn should_retry(error: &hyper::Error) -> bool {
    error.to_string().contains("connection closed before message completed") // expect: resend-on-closed-connection
}
