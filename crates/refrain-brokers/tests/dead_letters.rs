//! An operator lists dead letters before a redrive: listing removes none of them, and those already redriven
//! are not listed.

#![cfg(all(
    feature = "nats",
    feature = "postgres",
    feature = "redis",
    feature = "amqp",
    feature = "kafka",
    feature = "sqs"
))]

use std::time::Duration;

use aws_sdk_sqs::{
    Client,
    config::{BehaviorVersion, Credentials, Region},
};
use rdkafka::mocking::MockCluster;
use refrain::consume::{Broker, Delivery, Message, Source};
use refrain_testkit::{servers::PrivateSqs, wait};

/// Properties of listing on a broker.
#[derive(Clone, Copy)]
struct Listing {
    /// Whether a letter that a redrive holds is listed.
    lists_held: bool,
    /// Whether the broker counts the read as a delivery.
    is_counted: bool,
    /// Whether the broker knows when it received a letter.
    has_time: bool,
}

const FREE: Listing = Listing {
    lists_held: true,
    is_counted: false,
    has_time: true,
};

fn url(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: `cargo xtask test` sets it"))
}

fn letter(number: usize) -> Message {
    Message::new("payload")
        .with_id(format!("letter-{number}"))
        .with_group(format!("group-{number}"))
        .with_header("Refrain-Dead-Reason", "rejected")
        .with_header("Refrain-Dead-Attempts", "3")
        .with_header("Refrain-Dead-Key", format!("key-{number}"))
        .with_header("Refrain-Dead-Records", "a,b")
        .with_header("Refrain-Dead-Last-Failure", "no such customer")
}

fn queue() -> String {
    format!("dead-{:016x}", rand::random::<u64>())
}

async fn one(broker: &dyn Broker) -> Delivery {
    let mut pulled = Vec::new();
    wait::until("a letter comes", async || {
        pulled = broker.pull(1, Duration::from_secs(5)).await.unwrap();
        !pulled.is_empty()
    })
    .await;
    pulled.remove(0)
}

async fn check(url: &str, queue: &str, listing: Listing) {
    let source = Source::new(url, queue, "billing-redrive");
    let are_counted = async |letters: u64| {
        let lag = refrain_brokers::lag(&source).await.unwrap();
        lag.waiting.unwrap() + lag.unacknowledged.unwrap_or_default() == letters
    };
    let listed = async |at_most| {
        refrain_brokers::dead_letters(&source, at_most)
            .await
            .unwrap()
    };
    let broker = refrain_brokers::open(&source).await.unwrap();
    assert_eq!(listed(10).await, [], "{url}");
    for number in 0..3 {
        broker.publish(queue, &letter(number)).await.unwrap();
    }
    wait::until("three letters are counted", async || are_counted(3).await).await;
    for _ in 0..3 {
        let letters = listed(10).await;
        assert_eq!(letters.len(), 3, "{url}: {letters:?}");
        let mut digests: Vec<_> = letters.iter().map(|it| it.key_digest.clone()).collect();
        digests.sort();
        digests.dedup();
        assert_eq!(digests.len(), 3, "{url}: each letter once: {letters:?}");
        let first = &letters[0];
        assert_eq!(first.reason.as_deref(), Some("rejected"));
        assert_eq!(first.attempts, Some(3));
        assert_eq!(first.record.as_deref(), Some("b"));
        assert_eq!(first.last_failure.as_deref(), Some("no such customer"));
        assert_eq!(first.payload_bytes, 7);
        let is_dated = first.time.is_some_and(|time| time.0 > 1_700_000_000_000);
        assert_eq!(is_dated, listing.has_time, "{url}");
        let digest = first.key_digest.as_deref().unwrap();
        assert!(digest.len() == 16 && !digest.contains("key"), "{digest}");
    }
    assert_eq!(listed(2).await.len(), 2, "{url}");
    let delivery = one(&*broker).await;
    assert_eq!(delivery.attempt > 1, listing.is_counted, "{url}");
    let held = if listing.lists_held { 3 } else { 2 };
    assert_eq!(listed(10).await.len(), held, "{url}");
    delivery.ticket.ack().await.unwrap();
    broker.close().await.unwrap();
    wait::until("two letters are counted", async || are_counted(2).await).await;
    // RabbitMQ returns the letters that the closed consumer prefetched a moment later.
    wait::until("the acknowledged letter alone is gone", async || {
        listed(10).await.len() == 2
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn letters_are_listed_and_stay() {
    for name in ["REDIS", "POSTGRES", "NATS"] {
        check(&url(&format!("REFRAIN_TEST_{name}_URL")), &queue(), FREE).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn letters_on_kafka_are_listed_and_stay() {
    let cluster = MockCluster::new(1).unwrap();
    let url = format!("kafka://{}", cluster.bootstrap_servers());
    for partitions in [1, 3] {
        let queue = queue();
        cluster.create_topic(&queue, partitions, 1).unwrap();
        check(&url, &queue, FREE).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn letters_on_rabbitmq_are_listed_and_stay() {
    let listing = Listing {
        lists_held: false,
        is_counted: true,
        has_time: false,
    };
    check(&url("REFRAIN_TEST_AMQP_URL"), &queue(), listing).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn letters_on_sqs_are_listed_and_stay() {
    let listing = Listing {
        lists_held: false,
        is_counted: true,
        has_time: true,
    };
    let server = PrivateSqs::start().unwrap();
    let config = aws_sdk_sqs::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .region(Region::new("eu-central-1"))
        .credentials_provider(Credentials::new("key", "secret", None, None, "test"))
        .endpoint_url(server.endpoint())
        .build();
    let queue = queue();
    let client = Client::from_conf(config);
    client
        .create_queue()
        .queue_name(&queue)
        .send()
        .await
        .unwrap();
    check(&server.url(), &queue, listing).await;
}
