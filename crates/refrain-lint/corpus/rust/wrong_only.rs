// snippet: p1 rdkafka
async fn run(consumer: StreamConsumer) {
    loop {
        let message = consumer.recv().await.unwrap();
        consumer.commit_message(&message, CommitMode::Sync).unwrap(); // expect: ack-before-handle
        handle_order(message.payload()).await;
    }
}

// snippet: p2 hash map
async fn handle(store: &Store, tenant: &str, idempotency_key: &str, order: Order) -> Receipt {
    let key = format!("{tenant}:{idempotency_key}");
    if let Some(receipt) = store.get(&key).await { // expect: check-then-act
        return receipt;
    }
    let receipt = charge(order).await;
    store.put(&key, &receipt).await;
    receipt
}

// snippet: p3 loop mark
async fn run(mut consumer: Consumer, redis: &mut Redis) -> Result<()> {
    while let Some(delivery) = consumer.next().await {
        let delivery = delivery?;
        let id = message_id(&delivery);
        if redis.exists(format!("processed:{id}")).await? {
            continue;
        }
        redis.set(format!("processed:{id}"), 1).await?; // expect: mark-before-handle
        ship(&delivery.data).await?;
        delivery.ack(BasicAckOptions::default()).await?;
    }
    Ok(())
}

// snippet: p4 ttl
const MAX_ATTEMPTS: u32 = 12;
const RETRY_DELAY_SECS: u64 = 600;

async fn remember(redis: &mut Redis, key: &str) -> Result<()> {
    redis.set_ex(format!("idempotency:{key}"), "done", 900).await // expect: ttl-shorter-than-retries
}

// snippet: p5 while post
async fn create(client: &reqwest::Client, order: &Order) -> Result<Response> {
    let mut tries = 0;
    while tries < 3 {
        if let Ok(response) = client.post(URL).json(order).send().await { // expect: retry-post-without-key
            return Ok(response);
        }
        tries += 1;
    }
    bail!("gave up")
}

// snippet: p6 truncate
fn key(a: &str, b: &str) -> String {
    let mut idempotency_key = format!("{a}-{b}");
    idempotency_key.truncate(16); // expect: key-truncated
    idempotency_key
}

// snippet: p7 kept
async fn serve(redis: &mut Redis, key: &str, response: Response) -> Result<()> {
    let saved = Saved { status: response.status().as_u16(), body: response.text().await? };
    redis.set_ex(format!("idem:{key}"), serde_json::to_string(&saved)?, 86_400).await // expect: error-outcome-kept
}
