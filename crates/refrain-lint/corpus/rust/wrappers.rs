// snippet: async-stripe strategy and none
use stripe::{Client, CreatePaymentIntent, CreateRefund, PaymentIntent, Refund, RequestStrategy};

pub async fn collect(client: &Client, invoice: &Invoice) -> Result<PaymentIntent, stripe::StripeError> {
    let client = client.clone().with_strategy(RequestStrategy::Idempotent(format!("collect-{}", invoice.id)));
    PaymentIntent::create(&client, CreatePaymentIntent::new(invoice.cents, stripe::Currency::EUR)).await
}

pub async fn give_back(client: &Client, charge: stripe::ChargeId) -> Result<Refund, stripe::StripeError> {
    let mut params = CreateRefund::new();
    params.charge = Some(charge);
    Refund::create(client, params).await // expect: money-call-without-key
}

// snippet: nats message acked behind the work
pub async fn run(mut messages: pull::Stream, importer: Importer) -> anyhow::Result<()> {
    while let Some(message) = messages.next().await {
        let message = message?;
        let invoice: Invoice = serde_json::from_slice(&message.payload)?;
        importer.import(invoice).await?;
        message.ack().await.map_err(|error| anyhow!(error))?;
    }
    Ok(())
}

// snippet: nats message acked before the work
pub async fn run(mut messages: pull::Stream, importer: Importer) -> anyhow::Result<()> {
    while let Some(message) = messages.next().await {
        let message = message?;
        message.ack().await.map_err(|error| anyhow!(error))?; // expect: ack-before-handle
        let invoice: Invoice = serde_json::from_slice(&message.payload)?;
        importer.import(invoice).await?;
    }
    Ok(())
}

// snippet: middleware client that retries posts
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use reqwest_retry::{policies::ExponentialBackoff, RetryTransientMiddleware};

pub struct Erp {
    http: ClientWithMiddleware,
}

impl Erp {
    pub fn new() -> Self {
        let policy = ExponentialBackoff::builder().build_with_max_retries(3);
        let http = ClientBuilder::new(reqwest::Client::new()).with(RetryTransientMiddleware::new_with_policy(policy)).build();
        Self { http }
    }

    pub async fn create_order(&self, order: &Order) -> anyhow::Result<Created> {
        let response = self.http.post(format!("{BASE}/orders")).json(order).send().await?; // expect: retry-post-without-key
        Ok(response.json().await?)
    }
}

// snippet: sqlx insert of a key without a constraint
pub async fn remember(pool: &PgPool, key: &str, body: &Value) -> sqlx::Result<()> {
    sqlx::query("INSERT INTO replies (idempotency_key, body) VALUES ($1, $2)") // expect: insert-without-conflict
        .bind(key)
        .bind(body)
        .execute(pool)
        .await?;
    Ok(())
}
// file: schema.sql
CREATE TABLE replies (id uuid PRIMARY KEY, idempotency_key text NOT NULL, body jsonb);

// snippet: inbox row and effect in one transaction
pub async fn handle(pool: &PgPool, event: Event) -> anyhow::Result<()> {
    let mut tx = pool.begin().await?;
    let fresh = sqlx::query("INSERT INTO inbox (message_id) VALUES ($1) ON CONFLICT DO NOTHING")
        .bind(&event.id)
        .execute(&mut *tx)
        .await?
        .rows_affected();
    if fresh == 1 {
        ledger::credit(&mut tx, &event.account, event.cents).await?;
    }
    tx.commit().await?;
    Ok(())
}
