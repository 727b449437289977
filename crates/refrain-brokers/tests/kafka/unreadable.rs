//! A batch with an unknown compression blocks its partition: the worker must report it instead of looking
//! ready and idle.

use std::{sync::Arc, time::Duration};

use rdkafka::{
    ClientConfig,
    producer::{FutureProducer, FutureRecord},
};
use refrain::{
    Engine, Outcome,
    consume::{Broker as _, Consumer, Count},
    store,
};
use tokio::time::{Instant, sleep};

use crate::{Cluster, JOINING, raw};

async fn publish(cluster: &Cluster, partition: i32, body: &str) {
    let producer: FutureProducer = ClientConfig::new()
        .set("bootstrap.servers", &cluster.servers)
        .create()
        .unwrap();
    let record = FutureRecord::<(), _>::to("orders")
        .partition(partition)
        .payload(body);
    producer
        .send(record, Duration::from_secs(30))
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn unreadable_batch_is_reported_and_no_later_message_is_skipped() {
    for (compression, cause) in [
        (raw::UNKNOWN, "its compression or format is not supported"),
        (raw::GZIP, "its compression is damaged, or not supported"),
    ] {
        let cluster = Cluster::start();
        cluster.make("orders", 2);
        raw::produce(&cluster.servers, "orders", 0, compression);
        publish(&cluster, 0, "behind").await;
        publish(&cluster, 1, "beside").await;
        let broker = Arc::new(cluster.join("orders", "c").await);
        let engine = Engine::new(store::Memory::new());
        let consumer = Consumer::new(broker.clone(), engine, "c");
        let tally = consumer.tally();
        let told = async {
            let until = Instant::now() + JOINING;
            loop {
                let trouble = tally.broker_trouble().unwrap_or_default();
                // Both: messages of other partitions are handled, and the error is still reported.
                if tally.get(Count::Completed) == 1 && trouble.contains(cause) {
                    return trouble;
                }
                assert!(
                    Instant::now() < until,
                    "{trouble:?}, {}",
                    tally.get(Count::Completed)
                );
                sleep(Duration::from_millis(50)).await;
            }
        };
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let handler = |_| std::future::ready(Ok(Outcome::new(0, "")));
        let shutdown = async { drop(stopped.await) };
        let running = tokio::spawn(consumer.run(handler, shutdown));
        let told = told.await;
        for word in ["Kafka, orders", "is blocked", "--reset-offsets"] {
            assert!(told.contains(word), "{told}");
        }
        // librdkafka fetches the batch again and again, and nothing after it arrives.
        sleep(Duration::from_secs(2)).await;
        assert_eq!(tally.get(Count::Completed), 1);
        assert!(broker.trouble().is_some());
        drop(stop);
        running.await.unwrap().unwrap();
    }
}
