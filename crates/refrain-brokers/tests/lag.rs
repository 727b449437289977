//! Lag in unusual states: an operator who reads 0 must be able to rely on it, so a number that is not exact says so.

#![cfg(all(feature = "postgres", feature = "redis"))]

use std::time::Duration;

use refrain::consume::{Lag, Message, Publisher, Source};
use refrain_testkit::servers::{postgres_url, redis_url};

const SOON: Duration = Duration::from_secs(5);
const LONG: Duration = Duration::from_secs(600);

fn source(url: String) -> Source {
    let queue = format!("lag-{:016x}", rand::random::<u64>());
    let mut source = Source::new(url, queue, "billing");
    source.ack_wait = LONG;
    source
}

async fn publish(publisher: &dyn Publisher, queue: &str, count: usize) {
    for number in 0..count {
        let message = Message::new(format!("m{number}"));
        // Every second message is in a group, which some brokers keep apart.
        let message = match number % 2 {
            0 => message,
            _ => message.with_group(format!("group-{number}")),
        };
        publisher.publish(queue, &message).await.unwrap();
    }
}

async fn ask<T: redis::FromRedisValue>(words: &[&str]) -> T {
    let client = redis::Client::open(redis_url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    command.query_async(&mut connection).await.unwrap()
}

fn counts(lag: &Lag) -> (Option<u64>, Option<u64>, bool) {
    (lag.waiting, lag.unacknowledged, lag.is_approximate)
}

/// Counting creates neither the stream nor the group, and messages wait before anybody consumes them.
#[tokio::test]
async fn redis_counts_what_waits_for_a_group_that_does_not_exist() {
    let source = source(redis_url());
    let lag = refrain_brokers::lag(&source).await.unwrap();
    assert_eq!(counts(&lag), (Some(0), Some(0), false));
    let exists: i64 = ask(&["EXISTS", &source.queue]).await;
    assert_eq!(exists, 0);
    let publisher = refrain_brokers::open_publisher(&redis_url()).await.unwrap();
    publish(&*publisher, &source.queue, 3).await;
    let lag = refrain_brokers::lag(&source).await.unwrap();
    assert_eq!((lag.waiting, lag.unacknowledged), (Some(3), Some(0)));
    assert!(lag.oldest.is_some(), "{lag:?}");
    let _: i64 = ask(&["DEL", &source.queue]).await;
}

/// After a deletion in the middle Redis does not count any more.
#[tokio::test]
async fn redis_marks_an_upper_bound_and_is_exact_again_when_nothing_waits() {
    let source = source(redis_url());
    let broker = refrain_brokers::open(&source).await.unwrap();
    publish(&*broker, &source.queue, 4).await;
    type Entries = Vec<(String, Vec<String>)>;
    let entries: Entries = ask(&["XRANGE", &source.queue, "-", "+"]).await;
    let _: i64 = ask(&["XDEL", &source.queue, &entries[2].0]).await;
    let first = broker.pull(1, SOON).await.unwrap();
    assert_eq!(first.len(), 1);
    let lag = broker.lag().await.unwrap();
    assert_eq!(counts(&lag), (Some(3), Some(1), true), "two wait");
    let rest = broker.pull(8, SOON).await.unwrap();
    assert_eq!(rest.len(), 2);
    let lag = broker.lag().await.unwrap();
    assert_eq!(counts(&lag), (Some(0), Some(3), false));
    for delivery in first.into_iter().chain(rest) {
        delivery.ticket.ack().await.unwrap();
    }
    let lag = broker.lag().await.unwrap();
    assert_eq!(counts(&lag), (Some(0), Some(0), false));
    assert_eq!(lag.oldest, None);
    broker.close().await.unwrap();
    let _: i64 = ask(&["DEL", &source.queue]).await;
}

/// A message that was returned waits again, and other queues of the table are not counted.
#[tokio::test]
async fn postgres_counts_one_queue_with_and_without_groups() {
    let source = source(postgres_url());
    let broker = refrain_brokers::open(&source).await.unwrap();
    publish(&*broker, &format!("{}-other", source.queue), 1).await;
    publish(&*broker, &source.queue, 4).await;
    let mut held = broker.pull(3, SOON).await.unwrap();
    assert_eq!(held.len(), 3);
    let returned = held.pop().unwrap();
    returned.ticket.nack(LONG).await.unwrap();
    let own = broker.lag().await.unwrap();
    let apart = refrain_brokers::lag(&source).await.unwrap();
    for lag in [own, apart] {
        assert_eq!(counts(&lag), (Some(2), Some(2), false));
        assert!(lag.oldest.is_some_and(|age| age < LONG), "{lag:?}");
    }
    for delivery in held {
        delivery.ticket.ack().await.unwrap();
    }
    let lag = broker.lag().await.unwrap();
    assert_eq!(counts(&lag), (Some(2), Some(0), false));
    broker.close().await.unwrap();
    remove(&source.queue).await;
}

/// Removes the messages of a test from the table.
async fn remove(queue: &str) {
    let url = postgres_url();
    let connected = tokio_postgres::connect(&url, tokio_postgres::NoTls).await;
    let (client, connection) = connected.unwrap();
    tokio::spawn(connection);
    let delete = "DELETE FROM refrain_queue WHERE queue LIKE $1 || '%'";
    client.execute(delete, &[&queue]).await.unwrap();
}
