//! A payments service that is safe to retry: axum, Refrain's layer, and records in a folder.
//!
//! ```sh
//! cargo run -p axum-payments            # or: cargo run -p axum-payments -- 127.0.0.1:3000 payments-data
//!
//! # 201 and the payment
//! curl -i localhost:3000/v1/payments -H 'Idempotency-Key: order-7' -d amount=20 -d to=alice
//! # 201 and the same payment, with Idempotent-Replayed: true; the handler did not run
//! curl -i localhost:3000/v1/payments -H 'Idempotency-Key: order-7' -d amount=20 -d to=alice
//! # 422 key-reused: the same key for another payment
//! curl -i localhost:3000/v1/payments -H 'Idempotency-Key: order-7' -d amount=99 -d to=alice
//! # 400 key-missing: money does not move without a key
//! curl -i localhost:3000/v1/payments -d amount=20 -d to=alice
//! # 200: the lookup with which the layer also probes an attempt with an unknown outcome
//! curl -i 'localhost:3000/v1/payments?key=order-7'
//! ```
//!
//! Kill it with -9 and start it again: the first request still returns the original payment.

use std::path::Path;

use axum_payments::app;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let address = args.next().unwrap_or("127.0.0.1:3000".into());
    let folder = args.next().unwrap_or("payments-data".into());
    let app = app(Path::new(&folder)).await?;
    let listener = TcpListener::bind(&address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    // Running requests finish first; the store is closed after the last one.
    axum::serve(listener, app)
        .with_graceful_shutdown(stopped()?)
        .await?;
    Ok(())
}

/// Completes on Ctrl-C or SIGTERM.
fn stopped() -> std::io::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}
