//! Redis Streams with a consumer: if a holder of a message dies, is slow or nacks, the message is
//! redelivered with its attempt count, never before its time. Streams are deleted, servers are killed, and
//! programs in other languages add their own entries.

#![cfg(feature = "redis")]

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use refrain::{
    ErrorKind,
    consume::{Broker, Message, Publisher, Source},
};
use refrain_brokers::redis_streams::{RedisPublisher, RedisStreams};
use refrain_testkit::{
    servers::{PrivateRedis, redis_url},
    wait,
};

use tokio::time::Instant;

mod support;
mod suite {
    //! The conformance suite of all brokers.

    use super::*;
    use refrain::Result;
    use refrain_testkit::broker_suite::{self, Fixture};

    struct Streams(tokio::sync::Mutex<PrivateRedis>);

    impl Fixture for Streams {
        async fn connect(
            &self,
            queue: &str,
            consumer: &str,
            ack_wait: Duration,
        ) -> Result<Arc<dyn Broker>> {
            let mut source = Source::new(self.0.lock().await.url(), queue, consumer);
            source.ack_wait = ack_wait;
            Ok(Arc::new(RedisStreams::connect(&source).await?))
        }

        fn fans_out(&self) -> bool {
            true
        }

        async fn disconnect(&self) -> Result<bool> {
            let url = self.0.lock().await.url();
            let cut: i64 = ask(&url, "CLIENT KILL TYPE normal");
            Ok(cut > 0)
        }

        async fn restart(&self) -> Result<bool> {
            let mut server = self.0.lock().await;
            tokio::task::block_in_place(|| {
                server.kill().unwrap();
                server.restart().unwrap();
            });
            Ok(true)
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn redis_streams_pass() {
        let server = PrivateRedis::start().unwrap();
        broker_suite::run(Streams(tokio::sync::Mutex::new(server))).await;
    }
}
use support::{NOW, SOON, full, nothing, one, text};

/// Longer than this process is ever stalled.
const ACK_WAIT: Duration = Duration::from_secs(1);
/// For deliveries that must not lapse between two extensions, however slow the machine is.
const HELD: Duration = Duration::from_secs(8);

/// A stream on the shared server, unique to the test and deleted on drop.
struct Stream(String);

impl Stream {
    fn new() -> Self {
        Self(format!("test:{:016x}", rand::random::<u64>()))
    }

    fn source(&self, consumer: &str, query: &str) -> Source {
        let mut source = Source::new(format!("{}{query}", redis_url()), &self.0, consumer);
        source.ack_wait = ACK_WAIT;
        source
    }

    /// A consumer that takes over no entry of another one during a test.
    async fn join_held(&self, consumer: &str) -> RedisStreams {
        let mut source = self.source(consumer, "");
        source.ack_wait = HELD;
        RedisStreams::connect(&source).await.unwrap()
    }

    async fn join(&self, consumer: &str) -> RedisStreams {
        RedisStreams::connect(&self.source(consumer, ""))
            .await
            .unwrap()
    }

    async fn publish(&self, broker: &dyn Publisher, texts: &[&str]) {
        for text in texts {
            let message = Message::new((*text).to_owned());
            broker.publish(&self.0, &message).await.unwrap();
        }
    }

    /// Sends a command about the stream, bypassing the broker.
    fn ask<T: redis::FromRedisValue>(&self, words: &str) -> T {
        ask(&redis_url(), &words.replace("STREAM", &self.0))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let keys: Vec<String> = self.ask("KEYS STREAM*");
        for key in keys {
            let _: i64 = ask(&redis_url(), &format!("DEL {key}"));
        }
    }
}

fn ask<T: redis::FromRedisValue>(url: &str, words: &str) -> T {
    let mut words = words.split_whitespace();
    let mut command = redis::cmd(words.next().unwrap());
    for word in words {
        command.arg(word);
    }
    let mut connection = redis::Client::open(url).unwrap().get_connection().unwrap();
    command.query(&mut connection).unwrap()
}

#[tokio::test]
async fn a_message_arrives_as_it_was_published() {
    let stream = Stream::new();
    let broker = stream.join("c").await;
    let publisher = RedisPublisher::connect(&redis_url()).await.unwrap();
    publisher.publish(&stream.0, &full()).await.unwrap();
    let delivery = one(&broker).await;
    let position = delivery.message.position.clone().unwrap();
    assert_eq!((&position.log, position.partition), (&stream.0, 0));
    let mut expected = full();
    expected.subject = stream.0.clone();
    expected.position = Some(position);
    assert_eq!(delivery.message, expected);
    assert_eq!(delivery.attempt, 1);
    delivery.ticket.ack().await.unwrap();
    nothing(&broker, ACK_WAIT * 2).await;
}

#[tokio::test]
async fn reads_entries_of_other_producers() {
    let stream = Stream::new();
    let broker = stream.join("c").await;
    let _: String = stream.ask("XADD STREAM * order 17 amount 5");
    let delivery = one(&broker).await;
    assert_eq!(text(&delivery), r#"{"amount":"5","order":"17"}"#);
}

#[tokio::test]
async fn unacknowledged_entry_is_redelivered_to_any_consumer_with_a_higher_attempt() {
    let stream = Stream::new();
    let (first, second) = (stream.join_held("c").await, stream.join("c").await);
    stream.publish(&first, &["a", "b", "c"]).await;
    // Before the pull: `ack_wait` counts from the pull, not from its reply.
    let began = Instant::now();
    let held = first.pull(3, SOON).await.unwrap();
    assert_eq!(held.len(), 3);
    let mut again = Vec::new();
    wait::until("all entries are redelivered", async || {
        again.extend(second.pull(8, SOON).await.unwrap());
        again.len() == 3
    })
    .await;
    assert!(began.elapsed() >= ACK_WAIT - Duration::from_millis(50));
    let mut texts: Vec<_> = again.iter().map(text).collect();
    texts.sort();
    assert_eq!(texts, ["a", "b", "c"]);
    assert!(again.iter().all(|delivery| delivery.attempt == 2));
    // The first deliveries have expired: they neither nack nor extend the entry that another member holds.
    for stale in held {
        assert_eq!(
            stale.ticket.extend().await.unwrap_err().kind(),
            ErrorKind::Held
        );
        stale.ticket.nack(Duration::ZERO).await.unwrap();
    }
    nothing(&first, ACK_WAIT / 4).await;
    for delivery in again {
        delivery.ticket.ack().await.unwrap();
    }
    nothing(&second, ACK_WAIT * 2).await;
}

#[tokio::test]
async fn ticket_of_a_lapsed_delivery_does_not_settle_the_next_one() {
    let stream = Stream::new();
    let broker = stream.join("c").await;
    stream.publish(&broker, &["a"]).await;
    let first = one(&broker).await;
    let second = one(&broker).await;
    assert_eq!(second.attempt, 2);
    first.ticket.extend().await.unwrap_err();
    second.ticket.extend().await.unwrap();
}

#[tokio::test]
async fn extended_delivery_is_not_redelivered() {
    let stream = Stream::new();
    let (broker, other) = (stream.join_held("c").await, stream.join_held("c").await);
    stream.publish(&broker, &["a"]).await;
    let held = one(&broker).await;
    for _ in 0..6 {
        nothing(&other, HELD / 4).await;
        held.ticket.extend().await.unwrap();
    }
    held.ticket.ack().await.unwrap();
    nothing(&other, HELD).await;
}

/// Nacks a message with this delay, and measures when it returns.
async fn check_delay(delay: Duration) {
    let stream = Stream::new();
    let (broker, other) = (stream.join("c").await, stream.join("c").await);
    stream.publish(&broker, &["a"]).await;
    let began = Instant::now();
    one(&broker).await.ticket.nack(delay).await.unwrap();
    let again = one(&other).await;
    let waited = began.elapsed();
    assert_eq!(
        again.attempt, 2,
        "a search for due messages must not count as an attempt"
    );
    assert!(
        waited + Duration::from_millis(5) >= delay,
        "{delay:?}: came after {waited:?}"
    );
    again.ticket.ack().await.unwrap();
    nothing(&broker, ACK_WAIT * 2).await;
}

#[tokio::test]
async fn returned_message_is_redelivered_after_its_delay() {
    for delay in [
        Duration::ZERO,
        ACK_WAIT / 2,
        ACK_WAIT,
        ACK_WAIT * 2 + ACK_WAIT / 3,
        ACK_WAIT * 4,
    ] {
        check_delay(delay).await;
    }
}

#[tokio::test]
async fn two_consumers_each_have_every_message() {
    let stream = Stream::new();
    let (one_of_them, other) = (stream.join("a").await, stream.join("b").await);
    stream.publish(&one_of_them, &["x"]).await;
    for broker in [&one_of_them, &other] {
        let delivery = one(broker).await;
        assert_eq!((&*text(&delivery), delivery.attempt), ("x", 1));
        delivery.ticket.ack().await.unwrap();
    }
}

#[tokio::test]
async fn new_group_starts_at_the_configured_position() {
    let stream = Stream::new();
    let publisher = RedisPublisher::connect(&redis_url()).await.unwrap();
    stream.publish(&publisher, &["old"]).await;
    let all = stream.join("all").await;
    let source = stream.source("new", "?start=new");
    let new = RedisStreams::connect(&source).await.unwrap();
    stream.publish(&publisher, &["young"]).await;
    assert_eq!(text(&one(&all).await), "old");
    assert_eq!(text(&one(&new).await), "young");
}

#[tokio::test]
async fn a_pull_that_is_dropped_loses_nothing() {
    let stream = Stream::new();
    let broker = stream.join_held("c").await;
    for round in 0..20_u64 {
        let pulling = broker.pull(1, SOON);
        let dropped = tokio::time::timeout(Duration::from_millis(round), pulling).await;
        assert!(dropped.is_err());
        stream.publish(&broker, &["x"]).await;
        let delivery = one(&broker).await;
        assert_eq!(delivery.attempt, 1, "delivered only after a redelivery");
        delivery.ticket.ack().await.unwrap();
    }
}

#[tokio::test]
async fn deleted_consumer_group_is_created_again() {
    let stream = Stream::new();
    let broker = stream.join("c").await;
    stream.publish(&broker, &["a"]).await;
    one(&broker).await.ticket.ack().await.unwrap();
    let _: i64 = stream.ask("DEL STREAM");
    stream.publish(&broker, &["b"]).await;
    assert_eq!(text(&one(&broker).await), "b");
    let _: i64 = stream.ask("XGROUP DESTROY STREAM c");
    assert_eq!(text(&one(&broker).await), "b", "nothing is left out");
}

#[tokio::test]
async fn deleted_unhandled_entry_does_not_block_the_others() {
    let stream = Stream::new();
    let broker = stream.join("c").await;
    stream.publish(&broker, &["a", "b"]).await;
    let held = broker.pull(2, SOON).await.unwrap();
    let offset = &held[0].message.position.as_ref().unwrap().offset;
    let _: i64 = stream.ask(&format!("XDEL STREAM {offset}"));
    let again = one(&broker).await;
    assert_eq!(text(&again), "b");
    again.ticket.ack().await.unwrap();
    nothing(&broker, ACK_WAIT * 2).await;
    let (pending, ..): (i64, redis::Value, redis::Value, redis::Value) =
        stream.ask("XPENDING STREAM c");
    assert_eq!(pending, 0);
}

#[tokio::test]
async fn close_returns_fetched_entries_and_removes_idle_consumers() {
    let stream = Stream::new();
    let (leaving, staying) = (stream.join("c").await, stream.join("c").await);
    let pulling = leaving.pull(1, SOON);
    assert!(
        tokio::time::timeout(Duration::from_millis(100), pulling)
            .await
            .is_err()
    );
    stream.publish(&staying, &["a"]).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    leaving.close().await.unwrap();
    assert_eq!(
        leaving.pull(1, NOW).await.unwrap_err().kind(),
        ErrorKind::Unavailable
    );
    let delivery = one(&staying).await;
    assert_eq!(text(&delivery), "a");
    delivery.ticket.ack().await.unwrap();
    staying.close().await.unwrap();
    let consumers: Vec<BTreeMap<String, redis::Value>> = stream.ask("XINFO CONSUMERS STREAM c");
    // The first member held a message when it left: removing the member would have lost the message.
    assert!(consumers.len() <= 1, "{consumers:?}");
}

#[tokio::test]
async fn trim_removes_only_entries_handled_by_every_group() {
    let stream = Stream::new();
    let slow = stream.join("slow").await;
    let source = stream.source("quick", "?trim=handled");
    let quick = RedisStreams::connect(&source).await.unwrap();
    stream.publish(&quick, &["a", "b", "c", "d"]).await;
    for delivery in quick.pull(4, SOON).await.unwrap() {
        delivery.ticket.ack().await.unwrap();
    }
    let held = slow.pull(2, SOON).await.unwrap();
    let wait_for_trim = Duration::from_millis(5_500);
    nothing(&quick, wait_for_trim).await;
    assert_eq!(
        stream.ask::<i64>("XLEN STREAM"),
        4,
        "the slow group holds the first"
    );
    for delivery in held {
        delivery.ticket.ack().await.unwrap();
    }
    wait::until(
        "all entries that all groups handled are trimmed",
        async || {
            nothing(&quick, ACK_WAIT / 4).await;
            stream.ask::<i64>("XLEN STREAM") == 3
        },
    )
    .await;
    let rest = slow.pull(8, SOON).await.unwrap();
    assert_eq!(rest.iter().map(text).collect::<Vec<_>>(), ["c", "d"]);
}

#[tokio::test]
async fn invalid_settings_are_rejected_with_the_fix() {
    let stream = Stream::new();
    let _: String = stream.ask("SET STREAM text");
    let error = RedisStreams::connect(&stream.source("c", ""))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(
        error.to_string().contains("use another stream name"),
        "{error}"
    );
    let server = PrivateRedis::start_with(&[("requirepass", "right")]).unwrap();
    let wrong = server.url().replace("redis://", "redis://:secret@");
    let error = RedisPublisher::connect(&wrong).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let text = error.to_string();
    assert!(
        text.contains("user or password") && !text.contains("secret"),
        "{text}"
    );
}

/// The server is killed and restarted under load: every message is handled, and acknowledged ones do not return.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_in_mid_load_loses_nothing() {
    const MESSAGES: usize = 600;
    let mut server = PrivateRedis::start().unwrap();
    let mut source = Source::new(server.url(), "orders", "c");
    source.ack_wait = Duration::from_secs(1);
    let broker = Arc::new(RedisStreams::connect(&source).await.unwrap());
    let publishing = tokio::spawn({
        let broker = broker.clone();
        async move {
            for number in 0..MESSAGES {
                let message = Message::new(number.to_string()).with_id(number.to_string());
                // Publishes under the same id until the server confirms it.
                while broker.publish("orders", &message).await.is_err() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    });
    let killing = tokio::task::spawn_blocking(move || {
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(250));
            server.kill().unwrap();
            std::thread::sleep(Duration::from_millis(100));
            server.restart().unwrap();
        }
        server
    });
    let mut handled = BTreeMap::<String, u32>::new();
    let mut moved = Instant::now();
    while handled.len() < MESSAGES {
        assert!(
            moved.elapsed() < wait::PATIENCE,
            "{} handled",
            handled.len()
        );
        let Ok(pulled) = broker.pull(16, Duration::from_secs(1)).await else {
            continue;
        };
        let before = handled.len();
        for delivery in pulled {
            *handled.entry(text(&delivery)).or_default() += 1;
            let _ = delivery.ticket.ack().await;
        }
        if handled.len() > before {
            moved = Instant::now();
        }
    }
    publishing.await.unwrap();
    let _server = killing.await.unwrap();
    // Acknowledged messages do not return; those whose acknowledgement failed do.
    while let Ok(pulled) = broker.pull(16, Duration::from_secs(2)).await
        && !pulled.is_empty()
    {
        for delivery in pulled {
            delivery.ticket.ack().await.unwrap();
        }
    }
    nothing(&*broker, Duration::from_secs(2)).await;
}
