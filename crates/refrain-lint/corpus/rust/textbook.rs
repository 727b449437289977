// snippet: key-in-retry-loop
async fn pay(client: &reqwest::Client, order: &Order) -> Result<Response, Error> {
    for attempt in 0..3 {
        let key = Uuid::new_v4().to_string(); // expect: key-in-retry-loop
        let sent = client.post("https://api.example.com/payments").header("Idempotency-Key", key).json(order).send().await;
        match sent {
            Ok(response) => return Ok(response),
            Err(_) => tokio::time::sleep(Duration::from_secs(attempt)).await,
        }
    }
    Err(Error::GaveUp)
}

// snippet: key-per-attempt
use backon::{ExponentialBuilder, Retryable};

async fn send(client: &reqwest::Client, order: &Order) -> Result<Response, reqwest::Error> {
    let attempt = || async {
        client.post("https://api.example.com/orders")
            .header("Idempotency-Key", Uuid::new_v4().to_string()) // expect: key-per-attempt
            .json(order)
            .send()
            .await
    };
    attempt.retry(ExponentialBuilder::default()).await
}

// snippet: key-per-attempt, number of the attempt
async fn send(client: &reqwest::Client, order: &Order) -> Result<Response, Error> {
    for attempt in 0..5 {
        let idempotency_key = format!("{}-{}", order.id, attempt); // expect: key-per-attempt
        let sent = client.post("https://api.example.com/orders").header("Idempotency-Key", idempotency_key).json(order).send().await;
        if let Ok(response) = sent {
            return Ok(response);
        }
    }
    Err(Error::GaveUp)
}

// snippet: key-from-clock
async fn pay(client: &reqwest::Client, order: &Order) -> Result<Response, reqwest::Error> {
    let idempotency_key = format!("{}-{}", order.id, Utc::now().timestamp_millis()); // expect: key-from-clock
    client.post("https://api.example.com/payments").header("Idempotency-Key", idempotency_key).json(order).send().await
}

// snippet: key-truncated
fn make_key(customer_id: &str, cart_id: &str) -> String {
    let digest = hex::encode(Sha256::digest(format!("{customer_id}-{cart_id}")));
    let idempotency_key = &digest[..8]; // expect: key-truncated
    idempotency_key.to_string()
}

// snippet: unscoped-key
async fn create_order(headers: HeaderMap, State(mut redis): State<ConnectionManager>) -> Response {
    let key = headers.get("Idempotency-Key").unwrap().to_str().unwrap();
    let cached: Option<String> = redis.get(format!("idempotency:{key}")).await.unwrap(); // expect: unscoped-key
    match cached {
        Some(body) => body.into_response(),
        None => StatusCode::CONFLICT.into_response(),
    }
}

// snippet: money-call-without-key
use stripe::{Client, CreatePaymentIntent, Currency, PaymentIntent};

async fn charge(client: &Client, amount: i64) -> Result<PaymentIntent, stripe::StripeError> {
    PaymentIntent::create(client, CreatePaymentIntent::new(amount, Currency::EUR)).await // expect: money-call-without-key
}

// snippet: money-call-without-key, generic
async fn pay(client: &reqwest::Client, order: &Order) -> Result<Response, reqwest::Error> {
    client.post("https://psp.example.com/v1/payments").json(order).send().await // expect: money-call-without-key
}

// snippet: retry-post-without-key
async fn create_order(client: &reqwest::Client, order: &Order) -> Result<Response, Error> {
    let mut attempts = 0;
    loop {
        match client.post("https://api.example.com/orders").json(order).send().await { // expect: retry-post-without-key
            Ok(response) => return Ok(response),
            Err(error) if attempts >= 3 => return Err(error.into()),
            Err(_) => attempts += 1,
        }
    }
}

// snippet: resend-on-closed-connection
async fn send(client: &Client, order: &Order) -> Result<Response, reqwest::Error> {
    match client.post("https://api.example.com/orders").json(order).send().await {
        Err(error) if error.to_string().contains("connection closed before message completed") => { // expect: resend-on-closed-connection
            client.post("https://api.example.com/orders").json(order).send().await
        }
        other => other,
    }
}

// snippet: check-then-act
async fn create_order(tenant: &str, idempotency_key: &str, body: Order, redis: &mut Connection) -> Result<String> {
    let key = format!("idempotency:{tenant}:{idempotency_key}");
    if let Some(cached) = redis.get::<_, Option<String>>(&key).await? { // expect: check-then-act
        return Ok(cached);
    }
    let result = place_order(body).await?;
    redis.set_ex(&key, &result, 86_400).await?;
    Ok(result)
}

// snippet: mark-before-handle
async fn handle_event(event: Event, redis: &mut Connection) -> Result<()> {
    let key = format!("processed:{}", event.id);
    if redis.exists(&key).await? {
        return Ok(());
    }
    redis.set(&key, 1).await?; // expect: mark-before-handle
    ship_order(&event.order_id).await
}

// snippet: ack-before-handle
async fn run(mut consumer: Consumer) -> Result<()> {
    while let Some(delivery) = consumer.next().await {
        let delivery = delivery?;
        delivery.ack(BasicAckOptions::default()).await?; // expect: ack-before-handle
        process_order(&delivery.data).await?;
    }
    Ok(())
}

// snippet: ack-before-handle, automatic
async fn start(channel: &Channel) -> Result<()> {
    let consumer = channel
        .basic_consume("orders", "worker", BasicConsumeOptions { no_ack: true, ..Default::default() }, FieldTable::default()) // expect: ack-before-handle
        .await?;
    run(consumer).await
}

// snippet: publish-in-transaction
async fn create(pool: &PgPool, producer: &FutureProducer, order: Order) -> Result<()> {
    let mut tx = pool.begin().await?;
    sqlx::query("INSERT INTO orders (id, total) VALUES ($1, $2)").bind(order.id).bind(order.total).execute(&mut *tx).await?;
    producer.send(FutureRecord::to("orders").payload(&order.json()).key(""), Duration::from_secs(5)).await?; // expect: publish-in-transaction
    tx.commit().await?;
    Ok(())
}

// snippet: error-outcome-kept
async fn handle(key: &str, request: Request, redis: &mut Connection) -> Result<Body> {
    match charge(request).await {
        Ok(body) => {
            redis.set(format!("idempotency:{key}"), &body).await?;
            Ok(body)
        }
        Err(error) => {
            redis.set(format!("idempotency:{key}"), r#"{"status":500}"#).await?; // expect: error-outcome-kept
            Err(error)
        }
    }
}

// snippet: error-outcome-dropped
async fn pay(tenant: &str, idempotency_key: &str, order: &Order, redis: &mut Connection) -> Result<()> {
    let key = format!("idem:{tenant}:{idempotency_key}");
    if !redis.set_nx(&key, "in_progress").await? {
        return Err(Error::Conflict);
    }
    if let Err(error) = gateway.charge(order).await {
        redis.del(&key).await?; // expect: error-outcome-dropped
        return Err(error);
    }
    Ok(())
}

// snippet: unlock-without-owner-check
async fn run(redis: &mut Connection) -> Result<()> {
    let locked: bool = redis.set_nx("lock:report", 1).await?;
    if !locked {
        return Ok(());
    }
    build_report().await;
    redis.del("lock:report").await?; // expect: unlock-without-owner-check
    Ok(())
}

// snippet: insert-without-conflict
async fn save(pool: &PgPool, key: &str, amount: i64) -> Result<()> {
    sqlx::query("INSERT INTO payments (idempotency_key, amount) VALUES ($1, $2)") // expect: insert-without-conflict
        .bind(key)
        .bind(amount)
        .execute(pool)
        .await?;
    Ok(())
}

// snippet: ttl-shorter-than-retries
const IDEMPOTENCY_TTL: Duration = Duration::from_secs(60); // expect: ttl-shorter-than-retries
const MAX_RETRIES: u32 = 10;
const RETRY_DELAY: Duration = Duration::from_secs(60);
