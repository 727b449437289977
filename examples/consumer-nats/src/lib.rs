//! A consumer of NATS JetStream that ships each order once, however often the order is published or delivered.

use std::{fs::File, io::Write, path::Path, sync::Arc};

use refrain::{
    Engine, Outcome, Result,
    consume::{Consumer, Failure, KeySource, Source, Tally},
    store::AnyStore,
};
use serde::Deserialize;

/// What is published, as JSON.
#[derive(Debug, Deserialize)]
struct Order {
    id: String,
    to: String,
}

/// Ships the orders of a stream until `shutdown` is over. Records and the list of what was shipped are in `folder`.
///
/// # Errors
/// When the server cannot be reached, or the folder not be written.
pub async fn ship(
    url: &str,
    stream: &str,
    folder: &Path,
    shutdown: impl Future<Output = ()>,
) -> Result<Arc<Tally>> {
    let store = AnyStore::open(&format!("file:{}", folder.join("records").display())).await?;
    let broker = refrain_brokers::open(&Source::new(url, stream, "shipping")).await?;
    let list = folder.join("shipped.txt");
    // The order's own number is the key: a producer that publishes twice, under whatever message id, ships once.
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

/// What takes effect. The outcome is kept with the key, and tells later what was done.
fn ship_one(list: &Path, payload: &[u8]) -> Result<Outcome, Failure> {
    // What can never be read goes to the dead letters at once; every other error is tried again.
    let order: Order = serde_json::from_slice(payload)
        .map_err(|error| Failure::reject(format!("it is no order: {error}")))?;
    let mut file = File::options().create(true).append(true).open(list)?;
    writeln!(file, "{} to {}", order.id, order.to)?;
    file.sync_all()?;
    Ok(Outcome::new(0, format!("shipped to {}", order.to)))
}
