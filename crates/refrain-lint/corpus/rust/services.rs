// snippet: axum handler with a look into redis
use axum::{extract::State, http::HeaderMap, Json};
use redis::AsyncCommands;

async fn create_payment(
    State(app): State<App>,
    user: User,
    headers: HeaderMap,
    Json(body): Json<CreatePayment>,
) -> Result<Json<Payment>, AppError> {
    let key = headers.get("idempotency-key").and_then(|it| it.to_str().ok()).ok_or(AppError::NoKey)?;
    let name = format!("idem:{}:{}", user.id, key);
    let mut redis = app.redis.get_multiplexed_async_connection().await?;
    let known: Option<String> = redis.get(&name).await?; // expect: check-then-act
    if let Some(known) = known {
        return Ok(Json(serde_json::from_str(&known)?));
    }
    let payment = app.acquirer.authorise(&body).await?;
    let _: () = redis.set_ex(&name, serde_json::to_string(&payment)?, 86_400).await?;
    Ok(Json(payment))
}

// snippet: axum handler with a claim in postgres
use axum::{extract::State, http::HeaderMap, Json};

async fn create_payment(
    State(app): State<App>,
    user: User,
    headers: HeaderMap,
    Json(body): Json<CreatePayment>,
) -> Result<Json<Payment>, AppError> {
    let key = headers.get("idempotency-key").and_then(|it| it.to_str().ok()).ok_or(AppError::NoKey)?;
    let claimed = sqlx::query("INSERT INTO claims (account, key) VALUES ($1, $2) ON CONFLICT DO NOTHING")
        .bind(user.id)
        .bind(key)
        .execute(&app.pool)
        .await?
        .rows_affected();
    if claimed == 0 {
        return app.replay(user.id, key).await;
    }
    let payment = app.acquirer.authorise(&body).await?;
    sqlx::query("UPDATE claims SET response = $3 WHERE account = $1 AND key = $2")
        .bind(user.id)
        .bind(key)
        .bind(serde_json::to_value(&payment)?)
        .execute(&app.pool)
        .await?;
    Ok(Json(payment))
}

// snippet: backon on a closure that posts
use backon::{ExponentialBuilder, Retryable};
use reqwest::Client;

pub struct Crm {
    http: Client,
    base: String,
}

impl Crm {
    pub async fn create_contact(&self, contact: &Contact) -> anyhow::Result<String> {
        let send = || async {
            let response = self
                .http
                .post(format!("{}/contacts", self.base)) // expect: retry-post-without-key
                .json(contact)
                .send()
                .await?
                .error_for_status()?;
            Ok::<_, anyhow::Error>(response.json::<Created>().await?.id)
        };
        send.retry(ExponentialBuilder::default().with_max_times(4)).await
    }
}

// snippet: backon on a closure that posts with a key
use backon::{ExponentialBuilder, Retryable};
use reqwest::Client;

impl Crm {
    pub async fn create_contact(&self, contact: &Contact) -> anyhow::Result<String> {
        let send = || async {
            let response = self
                .http
                .post(format!("{}/contacts", self.base))
                .header("Idempotency-Key", contact.request_id.to_string())
                .json(contact)
                .send()
                .await?
                .error_for_status()?;
            Ok::<_, anyhow::Error>(response.json::<Created>().await?.id)
        };
        send.retry(ExponentialBuilder::default().with_max_times(4)).await
    }
}

// snippet: key made in each turn of a loop
use std::time::Duration;
use uuid::Uuid;

pub async fn pay_out(client: &reqwest::Client, payout: &Payout) -> Result<Receipt, Error> {
    let mut delay = Duration::from_millis(100);
    for _attempt in 0..5 {
        let result = client
            .post("https://bank.example/payouts")
            .header("Idempotency-Key", Uuid::new_v4().to_string()) // expect: key-in-retry-loop
            .json(payout)
            .send()
            .await;
        match result {
            Ok(response) if response.status().is_success() => return Ok(response.json().await?),
            _ => {
                tokio::time::sleep(delay).await;
                delay *= 2;
            }
        }
    }
    Err(Error::GaveUp)
}

// snippet: key made before the turns of a loop
use std::time::Duration;
use uuid::Uuid;

pub async fn pay_out(client: &reqwest::Client, payout: &Payout) -> Result<Receipt, Error> {
    let key = Uuid::new_v4().to_string();
    let mut delay = Duration::from_millis(100);
    for _attempt in 0..5 {
        let result = client
            .post("https://bank.example/payouts")
            .header("Idempotency-Key", &key)
            .json(payout)
            .send()
            .await;
        match result {
            Ok(response) if response.status().is_success() => return Ok(response.json().await?),
            _ => {
                tokio::time::sleep(delay).await;
                delay *= 2;
            }
        }
    }
    Err(Error::GaveUp)
}

// snippet: lapin consumer acks first
use futures::StreamExt;
use lapin::{options::*, types::FieldTable, Channel};

pub async fn run(channel: Channel, mailer: Mailer) -> anyhow::Result<()> {
    let mut consumer = channel
        .basic_consume("emails", "mailer", BasicConsumeOptions::default(), FieldTable::default())
        .await?;
    while let Some(delivery) = consumer.next().await {
        let delivery = delivery?;
        delivery.ack(BasicAckOptions::default()).await?; // expect: ack-before-handle
        let email: Email = serde_json::from_slice(&delivery.data)?;
        mailer.deliver(email).await?;
    }
    Ok(())
}

// snippet: lapin consumer acks last
use futures::StreamExt;
use lapin::{options::*, types::FieldTable, Channel};

pub async fn run(channel: Channel, mailer: Mailer) -> anyhow::Result<()> {
    let mut consumer = channel
        .basic_consume("emails", "mailer", BasicConsumeOptions::default(), FieldTable::default())
        .await?;
    while let Some(delivery) = consumer.next().await {
        let delivery = delivery?;
        let email: Email = serde_json::from_slice(&delivery.data)?;
        match mailer.deliver(email).await {
            Ok(()) => delivery.ack(BasicAckOptions::default()).await?,
            Err(_) => delivery.nack(BasicNackOptions { requeue: true, ..Default::default() }).await?,
        }
    }
    Ok(())
}

// snippet: rdkafka consumer that commits before it works
use rdkafka::consumer::{CommitMode, Consumer, StreamConsumer};
use rdkafka::Message;

pub async fn run(consumer: StreamConsumer, meter: Meter) -> anyhow::Result<()> {
    loop {
        let message = consumer.recv().await?;
        consumer.commit_message(&message, CommitMode::Sync)?; // expect: ack-before-handle
        if let Some(payload) = message.payload() {
            let usage: Usage = serde_json::from_slice(payload)?;
            meter.record(usage).await?;
        }
    }
}

// snippet: sqlx transaction with a kafka producer
use rdkafka::producer::{FutureProducer, FutureRecord};

impl Orders {
    pub async fn place(&self, order: Order) -> anyhow::Result<()> {
        let mut tx = self.pool.begin().await?;
        sqlx::query("INSERT INTO orders (id, total) VALUES ($1, $2)")
            .bind(order.id)
            .bind(order.total)
            .execute(&mut *tx)
            .await?;
        self.producer
            .send(FutureRecord::to("orders").key(&order.key()).payload(&order.json()), Duration::from_secs(5)) // expect: publish-in-transaction
            .await
            .map_err(|(error, _)| error)?;
        tx.commit().await?;
        Ok(())
    }
}

// snippet: sqlx transaction with an outbox, and a relay
impl Orders {
    pub async fn place(&self, order: Order) -> anyhow::Result<()> {
        let mut tx = self.pool.begin().await?;
        sqlx::query("INSERT INTO orders (id, total) VALUES ($1, $2)")
            .bind(order.id)
            .bind(order.total)
            .execute(&mut *tx)
            .await?;
        publish(&mut tx, "orders", &order.json()).await?;
        tx.commit().await?;
        Ok(())
    }
}

async fn publish(tx: &mut Transaction<'_, Postgres>, topic: &str, body: &str) -> anyhow::Result<()> {
    sqlx::query("INSERT INTO outbox (topic, body) VALUES ($1, $2)").bind(topic).bind(body).execute(&mut **tx).await?;
    Ok(())
}

// snippet: hyper's incomplete message is sent again
pub async fn submit(client: &Client<HttpConnector>, claim: &Claim) -> Result<Response<Body>, Error> {
    match client.request(claim.to_post_request()?).await {
        Err(error) if error.is_incomplete_message() => { // expect: resend-on-closed-connection
            client.request(claim.to_post_request()?).await.map_err(Error::from)
        }
        other => other.map_err(Error::from),
    }
}

// snippet: lock that is deleted by name
use redis::AsyncCommands;

pub async fn with_lock<T>(redis: &mut MultiplexedConnection, name: &str, work: impl Future<Output = T>) -> Result<T, Error> {
    let lock = format!("lock:{name}");
    let taken: bool = redis.set_nx(&lock, 1).await?;
    if !taken {
        return Err(Error::Busy);
    }
    let _: () = redis.expire(&lock, 30).await?;
    let out = work.await;
    let _: () = redis.del(&lock).await?; // expect: unlock-without-owner-check
    Ok(out)
}
