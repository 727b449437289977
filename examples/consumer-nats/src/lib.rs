//! A NATS JetStream consumer that ships each order once, even if the order is published or delivered several times.

use std::{fs::File, io::Write, path::Path, sync::Arc};

use refrain::{
    Engine, Outcome, Result,
    consume::{Consumer, Failure, KeySource, Source, Tally},
    store::AnyStore,
};
use serde::Deserialize;

/// An order, published as JSON.
#[derive(Debug, Deserialize)]
struct Order {
    id: String,
    to: String,
}

/// Ships the orders of a stream until `shutdown` completes. `folder` holds the records and the list of shipped orders.
///
/// # Errors
/// If the server is unreachable, or the folder is not writable.
pub async fn ship(
    url: &str,
    stream: &str,
    folder: &Path,
    shutdown: impl Future<Output = ()>,
) -> Result<Arc<Tally>> {
    let store = AnyStore::open(&format!("file:{}", folder.join("records").display())).await?;
    let broker = refrain_brokers::open(&Source::new(url, stream, "shipping")).await?;
    let list = folder.join("shipped.txt");
    // The order's own id is the key: an order that is published twice, even under different message ids, ships once.
    let key: KeySource = "body:/id".parse()?;
    Consumer::new(broker, Engine::new(store), "shipping")
        .with_key([key])
        .with_attempts(5)
        .with_dead_letter(format!("{stream}-dead"))
        .run(
            move |job| {
                let list = list.clone();
                async move { ship_one(&list, &job.message.payload) }
            },
            shutdown,
        )
        .await
}

/// The effect. The outcome is stored under the key and shows later what was done.
fn ship_one(list: &Path, payload: &[u8]) -> Result<Outcome, Failure> {
    // An unreadable message goes to the dead letters at once; any other error is retried.
    let order: Order = serde_json::from_slice(payload)
        .map_err(|error| Failure::reject(format!("the message is not a valid order: {error}")))?;
    let mut file = File::options().create(true).append(true).open(list)?;
    writeln!(file, "{} to {}", order.id, order.to)?;
    file.sync_all()?;
    Ok(Outcome::new(0, format!("shipped to {}", order.to)))
}
