// snippet: retry loop with a clock
async fn pay(client: &Client, order: &Order) -> Result<Response> {
    loop {
        let key = format!("{}-{}", order.id, chrono::Utc::now().timestamp()); // expect: key-from-clock
        let sent = client.post(PAYMENTS).header("Idempotency-Key", &key).json(order).send().await;
        match sent {
            Ok(response) => return Ok(response),
            Err(error) if error.is_timeout() => tokio::time::sleep(SECOND).await,
            Err(error) => return Err(error.into()),
        }
    }
}

// snippet: incomplete message
async fn forward(client: &Client, request: Request<Body>) -> Result<Response<Body>, hyper::Error> {
    let again = copy(&request);
    match client.request(request).await {
        Err(error) if error.is_incomplete_message() => client.request(again).await, // expect: resend-on-closed-connection
        other => other,
    }
}

// snippet: axum without scope
async fn create(State(state): State<App>, headers: HeaderMap, Json(body): Json<Order>) -> impl IntoResponse {
    let key = headers.get("idempotency-key").and_then(|it| it.to_str().ok()).unwrap_or_default();
    let claimed: bool = state.redis.clone().set_nx(format!("idem:{key}"), "in_progress").await.unwrap(); // expect: unscoped-key
    if !claimed {
        return StatusCode::CONFLICT;
    }
    StatusCode::ACCEPTED
}

// snippet: lapin without ack
async fn listen(channel: Channel) -> Result<()> {
    let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() }; // expect: ack-before-handle
    let mut consumer = channel.basic_consume("orders", "billing", options, FieldTable::default()).await?;
    while let Some(delivery) = consumer.next().await {
        bill(delivery?.data).await?;
    }
    Ok(())
}

// snippet: publish after commit
async fn place(pool: &PgPool, nats: &async_nats::Client, order: Order) -> Result<()> {
    let mut tx = pool.begin().await?;
    insert_order(&mut tx, &order).await?;
    tx.commit().await?;
    nats.publish("orders", order.bytes()).await?;
    Ok(())
}

// snippet: publish before commit
async fn place(pool: &PgPool, nats: &async_nats::Client, order: Order) -> Result<()> {
    let mut tx = pool.begin().await?;
    insert_order(&mut tx, &order).await?;
    nats.publish("orders", order.bytes()).await?; // expect: publish-in-transaction
    tx.commit().await?;
    Ok(())
}

// snippet: claim dropped
async fn charge(redis: &mut Redis, tenant: &str, idempotency_key: &str, order: &Order) -> Result<Receipt> {
    let key = format!("idem:{tenant}:{idempotency_key}");
    if !claim(redis, &key).await? {
        return Err(Error::InProgress);
    }
    match psp.charge(order).await {
        Ok(receipt) => Ok(receipt),
        Err(error) => {
            redis.del(&key).await?; // expect: error-outcome-dropped
            Err(error)
        }
    }
}

// snippet: constants that fit
const RETRY_WINDOW: Duration = Duration::from_secs(3600);
const IDEMPOTENCY_RETENTION: Duration = Duration::from_secs(7 * 86_400);
