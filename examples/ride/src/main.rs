//! A service that books a ride, charges for it and mails the receipt, in steps.
//!
//! ```sh
//! cargo run -p ride            # or: cargo run -p ride -- 127.0.0.1:3000 ride-data
//!
//! # 201 and the receipt
//! curl -i localhost:3000/v1/rides -H 'Idempotency-Key: order-7' -H 'Content-Type: application/json' \
//!     -d '{"passenger": "anna@example.org", "fare": 20}'
//! # 402, and the ride is cancelled: the card is declined above 100
//! curl -i localhost:3000/v1/rides -H 'Idempotency-Key: order-8' -H 'Content-Type: application/json' \
//!     -d '{"passenger": "bo@example.org", "fare": 200}'
//! ```

use std::path::Path;

use ride::{app, town::Town};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let address = args.next().unwrap_or("127.0.0.1:3000".into());
    let folder = args.next().unwrap_or("ride-data".into());
    let app = app(Path::new(&folder), Town::default()).await?;
    let listener = TcpListener::bind(&address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let stopped = async { drop(tokio::signal::ctrl_c().await) };
    axum::serve(listener, app)
        .with_graceful_shutdown(stopped)
        .await?;
    Ok(())
}
