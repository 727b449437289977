//! An operator lists dead letters before a redrive: listing consumes none of them, and those already
//! redriven are not listed.

#![cfg(all(
    feature = "nats",
    feature = "postgres",
    feature = "redis",
    feature = "amqp"
))]

use std::time::Duration;

use refrain::{
    ErrorKind,
    consume::{Message, Source},
};

fn url(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: `cargo xtask test` sets it"))
}

fn letter(number: usize) -> Message {
    Message::new("payload")
        .with_id(format!("letter-{number}"))
        .with_header("Refrain-Dead-Reason", "rejected")
        .with_header("Refrain-Dead-Attempts", "3")
        .with_header("Refrain-Dead-Key", format!("key-{number}"))
        .with_header("Refrain-Dead-Records", "a,b")
        .with_header("Refrain-Dead-Last-Failure", "no such customer")
}

async fn check(url: &str) {
    let queue = format!("dead-{:016x}", rand::random::<u64>());
    let source = Source::new(url, &queue, "billing-redrive");
    let listed = async |at_most| {
        refrain_brokers::dead_letters(&source, at_most)
            .await
            .unwrap()
    };
    let broker = refrain_brokers::open(&source).await.unwrap();
    assert_eq!(listed(10).await, [], "{url}");
    for number in 0..3 {
        broker.publish(&queue, &letter(number)).await.unwrap();
    }
    for _ in 0..3 {
        let letters = listed(10).await;
        assert_eq!(letters.len(), 3, "{url}: {letters:?}");
        let first = &letters[0];
        assert_eq!(first.reason.as_deref(), Some("rejected"));
        assert_eq!(first.attempts, Some(3));
        assert_eq!(first.record.as_deref(), Some("b"));
        assert_eq!(first.last_failure.as_deref(), Some("no such customer"));
        assert_eq!(first.payload_bytes, 7);
        assert!(
            first.time.is_some_and(|time| time.0 > 1_700_000_000_000),
            "{url}"
        );
        let digest = first.key_digest.as_deref().unwrap();
        assert!(digest.len() == 16 && !digest.contains("key"), "{digest}");
    }
    assert_eq!(listed(2).await.len(), 2, "{url}");
    // A dead letter held by a redrive is still listed; an acknowledged one is not.
    let pulled = broker.pull(1, Duration::from_secs(30)).await.unwrap();
    let delivery = pulled.into_iter().next().unwrap();
    assert_eq!(delivery.attempt, 1, "{url}: looking counted as a delivery");
    assert_eq!(listed(10).await.len(), 3, "{url}");
    delivery.ticket.ack().await.unwrap();
    assert_eq!(listed(10).await.len(), 2, "{url}");
    broker.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn letters_are_listed_and_stay() {
    for name in ["REDIS", "POSTGRES", "NATS"] {
        check(&url(&format!("REFRAIN_TEST_{name}_URL"))).await;
    }
}

#[tokio::test]
async fn a_broker_that_cannot_show_them_says_so() {
    let source = Source::new("amqp://127.0.0.1:1", "dead", "billing-redrive");
    let error = refrain_brokers::dead_letters(&source, 10)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("management page"), "{error}");
}
