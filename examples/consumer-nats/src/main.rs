//! A consumer of NATS JetStream that ships each order once.
//!
//! ```sh
//! nats-server -js &
//! cargo run -p consumer-nats            # or: cargo run -p consumer-nats -- nats://127.0.0.1:4222 orders shipping-data
//!
//! # Twice the same order, and one that is none:
//! nats publish orders '{"id":"order-7","to":"Alice"}'
//! nats publish orders '{"id":"order-7","to":"Alice"}'
//! nats publish orders 'hello'
//! # One line for order-7:
//! cat shipping-data/shipped.txt
//! # What could not be read:
//! nats stream view orders-dead
//! ```
//!
//! Kill it with -9 and start it again, and publish order-7 once more: it is not shipped again.

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
    println!("shipping the orders of {stream}; Ctrl-C ends it");
    let tally = ship(&url, &stream, Path::new(&folder), stopped()?).await?;
    let (shipped, again) = (tally.get(Count::Completed), tally.get(Count::Duplicate));
    println!("{shipped} shipped, {again} duplicates skipped");
    Ok(())
}

/// Ready on Ctrl-C or SIGTERM.
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
