//! A NATS JetStream consumer that ships each order once.
//!
//! ```sh
//! nats-server -js &
//! cargo run -p consumer-nats            # or: cargo run -p consumer-nats -- nats://127.0.0.1:4222 orders shipping-data
//!
//! # The same order twice, and an invalid message:
//! nats publish orders '{"id":"order-7","to":"Alice"}'
//! nats publish orders '{"id":"order-7","to":"Alice"}'
//! nats publish orders 'hello'
//! # One line for order-7:
//! cat shipping-data/shipped.txt
//! # The rejected message:
//! nats stream view orders-dead
//! ```
//!
//! Kill it with -9, start it again and publish order-7 once more: the order is not shipped again.

use std::path::Path;

use consumer_nats::ship;
use refrain::consume::Count;
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let url = args.next().unwrap_or("nats://127.0.0.1:4222".into());
    let stream = args.next().unwrap_or("orders".into());
    let folder = args.next().unwrap_or("shipping-data".into());
    std::fs::create_dir_all(&folder)?;
    println!("shipping the orders of {stream}; press Ctrl-C to stop");
    let tally = ship(&url, &stream, Path::new(&folder), stopped()?).await?;
    let (shipped, again) = (tally.get(Count::Completed), tally.get(Count::Duplicate));
    println!("{shipped} shipped, {again} duplicates skipped");
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
