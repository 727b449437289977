//! A payments service that is exactly-once behind Refrain: axum, tokio-postgres, and one extra INSERT.
//!
//! ```sh
//! DATABASE_URL=postgres://app@localhost/app PORT=3000 cargo run -p receipts-rust
//! ```
//!
//! `refrain migrate --receipts --print` prints the receipts table; `refrain.toml` is next to the manifest.
//! The service does not link Refrain: it only reads two request headers.

use std::{env, process};

use anyhow::Context as _;
use axum::{
    Json, Router,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_postgres::{Client, NoTls, Transaction};

#[derive(Debug, Deserialize)]
struct Payment {
    customer: String,
    amount: i64,
}

async fn pay(headers: HeaderMap, Json(payment): Json<Payment>) -> Result<Response, Trouble> {
    let mut db = connect().await?;
    let transaction = db.transaction().await?;
    let row = transaction
        .query_one(
            "INSERT INTO payments (customer, amount) VALUES ($1, $2) RETURNING id",
            &[&payment.customer, &payment.amount],
        )
        .await?;
    let body = json!({ "id": row.get::<_, i64>(0), "amount": payment.amount }).to_string();
    fail(&headers, "before-commit").await?;
    receipt(&transaction, &headers, StatusCode::CREATED, &body).await?;
    transaction.commit().await?;
    // Payment and receipt are committed together, or neither is.
    fail(&headers, "after-commit").await?;
    let json = [(header::CONTENT_TYPE, "application/json")];
    Ok((StatusCode::CREATED, json, body).into_response())
}

/// Inserts the receipt. Without Refrain in front there are no headers, and no receipt is written.
async fn receipt(
    transaction: &Transaction<'_>,
    headers: &HeaderMap,
    status: StatusCode,
    body: &str,
) -> Result<(), Trouble> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    if let (Some(record), Some(fence)) = (text("refrain-record"), text("refrain-fence")) {
        let insert =
            "INSERT INTO refrain_receipts (record, fence, status, body) VALUES ($1, $2, $3, $4)";
        let status = i32::from(status.as_u16());
        transaction
            .execute(insert, &[&record, &fence, &status, &body])
            .await?;
    }
    Ok(())
}

async fn ledger() -> Result<Json<Value>, Trouble> {
    let count = "SELECT customer, count(*) FROM payments GROUP BY customer";
    let rows = connect().await?.query(count, &[]).await?;
    let line = |row: &tokio_postgres::Row| json!({ "customer": row.get::<_, String>(0), "payments": row.get::<_, i64>(1) });
    Ok(Json(rows.iter().map(line).collect()))
}

/// Faults that the tests inject; a real service has nothing like it.
async fn fail(headers: &HeaderMap, moment: &str) -> anyhow::Result<()> {
    let fault = headers.get("x-fail").and_then(|value| value.to_str().ok());
    match fault.and_then(|fault| fault.strip_suffix(moment)) {
        Some("die-") => process::abort(),
        Some("hang-") => std::future::pending().await,
        Some("error-") => anyhow::bail!("injected fault"),
        _ => Ok(()),
    }
}

async fn connect() -> anyhow::Result<Client> {
    let url = env::var("DATABASE_URL").context("DATABASE_URL is not set")?;
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// Any error becomes a 500: the transaction is rolled back, including the receipt.
struct Trouble(anyhow::Error);

impl<E: Into<anyhow::Error>> From<E> for Trouble {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for Trouble {
    fn into_response(self) -> Response {
        eprintln!("{:#}", self.0);
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let app = Router::new()
        .route("/v1/payments", post(pay))
        .route("/ledger", get(ledger));
    let port = env::var("PORT").unwrap_or_else(|_| "3000".into());
    let listener = tokio::net::TcpListener::bind(format!("127.0.0.1:{port}")).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}
