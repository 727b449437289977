// snippet: key in a loop
async fn charge(client: &Client, order: &Order) -> Result<Response> {
    let mut attempts = 0;
    loop {
        let sent = client
            .post(format!("{BASE}/charges"))
            .header("Idempotency-Key", Uuid::new_v4().to_string()) // expect: key-in-retry-loop
            .json(order)
            .send()
            .await;
        match sent {
            Ok(response) => return Ok(response),
            Err(error) if attempts < 3 => {
                attempts += 1;
                tokio::time::sleep(Duration::from_millis(200 * attempts)).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

// snippet: key before the loop
async fn charge(client: &Client, store: &Store, order: &Order) -> Result<Response> {
    let key = store.key_of(order.id).await?;
    let mut attempts = 0;
    loop {
        let sent = client.post(format!("{BASE}/charges")).header("Idempotency-Key", &key).json(order).send().await;
        match sent {
            Ok(response) => return Ok(response),
            Err(error) if attempts < 3 => attempts += 1,
            Err(error) => return Err(error.into()),
        }
    }
}

// snippet: backon around a fresh key
async fn refund(client: &Client, payment: &str) -> Result<()> {
    retry(policy(), || async {
        let key = Uuid::new_v4().to_string(); // expect: key-per-attempt
        client.post(format!("{BASE}/payments/{payment}/refunds")).header("Idempotency-Key", key).send().await?;
        Ok(())
    })
    .await
}

// snippet: default headers
fn build_headers(token: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("authorization", bearer(token));
    headers.insert("idempotency-key", Uuid::now_v7().to_string().parse().unwrap()); // expect: key-per-attempt
    headers
}

// snippet: clock
async fn transfer(client: &Client, account: &str, amount: u64) -> Result<()> {
    let key = format!("{account}-{}", Utc::now().timestamp_millis()); // expect: key-from-clock
    client.post(TRANSFERS).header("Idempotency-Key", key).json(&amount).send().await?;
    Ok(())
}

// snippet: post to payments
async fn pay(client: &Client, body: &Payment) -> Result<Response> {
    Ok(client.post(format!("{BASE}/v1/payments")).json(body).send().await?) // expect: money-call-without-key
}

async fn pay_once(client: &Client, body: &Payment) -> Result<Response> {
    let headers = keyed(body);
    Ok(client.post(format!("{BASE}/v1/payments")).headers(headers).json(body).send().await?)
}

fn keyed(body: &Payment) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("Idempotency-Key", body.key.parse().unwrap());
    headers
}

// snippet: async-stripe
use stripe::{Client, CreateRefund, Refund, RequestStrategy};

async fn refund(client: &Client, params: CreateRefund<'_>) -> Result<Refund, StripeError> {
    Refund::create(client, params).await // expect: money-call-without-key
}

async fn refund_once(client: &Client, params: CreateRefund<'_>, id: &str) -> Result<Refund, StripeError> {
    let client = client.clone().with_strategy(RequestStrategy::Idempotent(format!("refund-{id}")));
    Refund::create(&client, params).await
}

// snippet: reqwest-retry
fn client() -> ClientWithMiddleware {
    let policy = ExponentialBackoff::builder().build_with_max_retries(3);
    ClientBuilder::new(reqwest::Client::new()).with(RetryTransientMiddleware::new_with_policy(policy)).build()
}

async fn create(order: &Order) -> Result<Response> {
    let client = client();
    Ok(client.post(ORDERS).json(order).send().await?) // expect: retry-post-without-key
}

// snippet: check then act
async fn handle(state: &App, tenant: &str, idempotency_key: &str, body: Body) -> Result<Reply> {
    let mut redis = state.redis.clone();
    let key = format!("idem:{tenant}:{idempotency_key}");
    let cached: Option<String> = redis.get(&key).await?; // expect: check-then-act
    if let Some(cached) = cached {
        return Ok(Reply::cached(cached));
    }
    let reply = state.payments.charge(body).await?;
    redis.set_ex(&key, reply.json(), 86_400).await?;
    Ok(reply)
}

// snippet: claim
async fn handle(state: &App, tenant: &str, idempotency_key: &str, body: Body) -> Result<Reply> {
    let mut redis = state.redis.clone();
    let key = format!("idem:{tenant}:{idempotency_key}");
    if !redis.set_nx(&key, "in_progress").await? {
        return Ok(Reply::in_flight());
    }
    let reply = state.payments.charge(body).await?;
    redis.set_ex(&key, reply.json(), 86_400).await?;
    Ok(reply)
}

// snippet: lapin without acknowledgement
async fn run(channel: Channel) -> Result<()> {
    let options = BasicConsumeOptions { no_ack: true, ..Default::default() }; // expect: ack-before-handle
    let mut consumer = channel.basic_consume("orders", "worker", options, FieldTable::default()).await?;
    while let Some(delivery) = consumer.next().await {
        ship(delivery?.data).await?;
    }
    Ok(())
}

// snippet: ack first
async fn run(mut messages: Stream) -> Result<()> {
    while let Some(message) = messages.next().await {
        let message = message?;
        message.ack().await?; // expect: ack-before-handle
        ship(&message.payload).await?;
    }
    Ok(())
}

// snippet: ack last
async fn run(mut messages: Stream) -> Result<()> {
    while let Some(message) = messages.next().await {
        let message = message?;
        ship(&message.payload).await?;
        message.ack().await?;
    }
    Ok(())
}

// snippet: publish before commit
async fn place(pool: &PgPool, nats: &Client, order: Order) -> Result<()> {
    let mut tx = pool.begin().await?;
    sqlx::query("INSERT INTO orders (id) VALUES ($1)").bind(order.id).execute(&mut *tx).await?;
    nats.publish("orders.placed", order.bytes()).await?; // expect: publish-in-transaction
    tx.commit().await?;
    Ok(())
}

// snippet: publish after commit
async fn place(pool: &PgPool, nats: &Client, order: Order) -> Result<()> {
    let mut tx = pool.begin().await?;
    sqlx::query("INSERT INTO orders (id) VALUES ($1)").bind(order.id).execute(&mut *tx).await?;
    tx.commit().await?;
    nats.publish("orders.placed", order.bytes()).await?;
    Ok(())
}

// snippet: incomplete message
async fn send(client: &Client, request: Request) -> Result<Response> {
    match client.request(request.clone()).await {
        Err(error) if error.is_incomplete_message() => client.request(request).await, // expect: resend-on-closed-connection
        other => other,
    }
}

// snippet: key cut
fn idempotency_key(order: &Order) -> String {
    let digest = hex::encode(Sha256::digest(order.bytes()));
    digest[..12].to_string() // expect: key-truncated
}

// snippet: an acknowledgement that is put together first
async fn forget(client: &Client, queue: &str, receipt: &str) -> Result<(), Error> {
    let mut request = client.delete_message();
    request = request.queue_url(queue);
    request = request.receipt_handle(receipt);
    request.send().await?;
    Ok(())
}
