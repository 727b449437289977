//! Checks what a consumer relies on in JetStream, through the adapter: a published message arrives, an
//! acknowledged one does not return, a nacked one returns after its delay, and the client reconnects to a
//! killed server.
#![cfg(feature = "nats")]

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use refrain::{
    ErrorKind,
    consume::{Broker, Delivery, Message, Publisher, Source},
};
use refrain_brokers::nats::{Nats, NatsPublisher};
use refrain_testkit::{
    broker_suite::{self, Fixture},
    servers::{PrivateNats, nats_url},
    wait,
};

use tokio::time::Instant;

mod support;
use support::{Counter, SOON, eventually, one, outage_shows, relay::Relay};

const MOMENT: Duration = Duration::from_millis(300);

/// A name unique across tests and runs.
fn name(what: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{what}-{}-{count}", std::process::id())
}

fn source(queue: &str) -> Source {
    Source::new(nats_url(), queue, "worker")
}

/// A raw JetStream context, for actions of an operator.
async fn operator(url: &str) -> async_nats::jetstream::Context {
    async_nats::jetstream::new(async_nats::connect(url).await.unwrap())
}

/// Deletes a stream.
async fn drop_stream(queue: &str) {
    let stream = queue.replace('.', "_");
    let _ = operator(&nats_url()).await.delete_stream(stream).await;
}

async fn nothing(broker: &impl Broker) {
    let all = broker.pull(10, MOMENT).await.unwrap();
    assert!(all.is_empty(), "{all:?}");
}

fn text(delivery: &Delivery) -> String {
    String::from_utf8(delivery.message.payload.to_vec()).unwrap()
}

#[tokio::test]
async fn all_of_a_message_arrives() {
    let queue = name("whole");
    let broker = Nats::connect(&source(&queue)).await.unwrap();
    let sent = Message::new(vec![0, 255, 7])
        .with_id("m-1")
        .with_group("cart-1")
        .with_content_type("application/octet-stream")
        .with_header("Trace", "a")
        .with_header("trace-2", "\u{e4}");
    broker.publish(&queue, &sent).await.unwrap();
    let delivery = one(&broker).await;
    let mut got = delivery.message.clone();
    assert_eq!(got.subject, queue);
    assert_eq!(delivery.attempt, 1);
    let position = got.position.take().unwrap().to_string();
    assert_eq!(position, format!("{queue}/0/1"));
    got.subject.clear();
    assert_eq!(got, sent);
    drop_stream(&queue).await;
}

#[tokio::test]
async fn acknowledged_messages_are_removed_and_returned_ones_come_after_their_delay() {
    let queue = name("acks");
    let broker = Nats::connect(&source(&queue)).await.unwrap();
    broker.publish(&queue, &Message::new("a")).await.unwrap();
    let first = one(&broker).await;
    first.ticket.nack(Duration::ZERO).await.unwrap();
    let second = one(&broker).await;
    assert_eq!(second.attempt, 2);
    let (given_back, delay) = (Instant::now(), Duration::from_secs(1));
    second.ticket.nack(delay).await.unwrap();
    let third = one(&broker).await;
    assert!(given_back.elapsed() >= delay.mul_f64(0.9));
    assert_eq!((third.attempt, text(&third)), (3, "a".into()));
    third.ticket.ack().await.unwrap();
    nothing(&broker).await;
    drop_stream(&queue).await;
}

#[tokio::test]
async fn a_delivery_that_is_held_too_long_returns_unless_it_is_extended() {
    let queue = name("held");
    let mut source = source(&queue);
    source.ack_wait = Duration::from_secs(8);
    let broker = Nats::connect(&source).await.unwrap();
    assert_eq!(broker.guarantees().ack_wait, Some(source.ack_wait));
    broker.publish(&queue, &Message::new("a")).await.unwrap();
    let held = one(&broker).await;
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_secs(2)).await;
        held.ticket.extend().await.unwrap();
    }
    nothing(&broker).await;
    drop(held);
    let again = one(&broker).await;
    assert_eq!(again.attempt, 2);
    again.ticket.ack().await.unwrap();
    drop_stream(&queue).await;
}

#[tokio::test]
async fn message_with_the_same_id_is_stored_once() {
    let queue = name("same");
    let broker = Nats::connect(&source(&queue)).await.unwrap();
    for id in ["1", "1", "2"] {
        let message = Message::new(id).with_id(id);
        broker.publish(&queue, &message).await.unwrap();
    }
    let all = [one(&broker).await, one(&broker).await];
    assert_eq!(all.each_ref().map(text), ["1", "2"]);
    nothing(&broker).await;
    drop_stream(&queue).await;
}

#[tokio::test]
async fn pull_returns_at_most_the_requested_number() {
    let queue = name("many");
    let broker = Nats::connect(&source(&queue)).await.unwrap();
    for number in 0..25 {
        let message = Message::new(number.to_string());
        broker.publish(&queue, &message).await.unwrap();
    }
    let mut seen = Vec::new();
    for expected in [10, 10, 5] {
        let mut all = Vec::new();
        while all.len() < expected {
            all.extend(broker.pull(10 - all.len(), SOON).await.unwrap());
        }
        assert_eq!(all.len(), expected);
        seen.extend(all.iter().map(text));
        for delivery in all {
            assert_eq!(
                delivery.attempt, 1,
                "a delivery was lost to an abandoned pull"
            );
            delivery.ticket.ack().await.unwrap();
        }
    }
    let expected: Vec<_> = (0..25).map(|number| number.to_string()).collect();
    assert_eq!(seen, expected);
    nothing(&broker).await;
    assert!(broker.pull(0, MOMENT).await.unwrap().is_empty());
    drop_stream(&queue).await;
}

#[tokio::test]
async fn a_pull_that_waits_or_is_dropped_loses_nothing() {
    let queue = name("waits");
    let broker = Nats::connect(&source(&queue)).await.unwrap();
    for _ in 0..5 {
        let dropped = tokio::time::timeout(Duration::from_millis(30), broker.pull(1, SOON)).await;
        assert!(dropped.is_err());
    }
    let publisher = NatsPublisher::connect(&nats_url()).await.unwrap();
    let (delivery, ()) = tokio::join!(one(&broker), async {
        tokio::time::sleep(MOMENT).await;
        publisher.publish(&queue, &Message::new("a")).await.unwrap();
    });
    assert_eq!(delivery.attempt, 1);
    delivery.ticket.ack().await.unwrap();
    drop_stream(&queue).await;
}

#[tokio::test]
async fn a_subject_of_a_stream_that_is_there_can_be_consumed_alone() {
    let stream = name("SHOP");
    let context = operator(&nats_url()).await;
    let subjects = format!("{stream}.>");
    let settings = async_nats::jetstream::stream::Config {
        name: stream.clone(),
        subjects: vec![subjects],
        max_age: Duration::from_secs(3600),
        ..Default::default()
    };
    context.create_stream(settings).await.unwrap();
    let (orders, carts) = (format!("{stream}.orders"), format!("{stream}.carts"));
    let broker = Nats::connect(&source(&orders)).await.unwrap();
    assert_eq!(
        broker.guarantees().age_max,
        Some(Duration::from_secs(3600)),
        "the limit of the stream"
    );
    broker.publish(&carts, &Message::new("c")).await.unwrap();
    broker.publish(&orders, &Message::new("o")).await.unwrap();
    let delivery = one(&broker).await;
    assert_eq!(text(&delivery), "o");
    delivery.ticket.ack().await.unwrap();
    nothing(&broker).await;

    let error = broker.publish(&stream, &Message::new("x")).await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains("as the destination"), "{error}");
    drop_stream(&stream).await;
}

#[tokio::test]
async fn two_consumers_of_a_stream_each_get_everything() {
    let queue = name("two");
    let url = nats_url();
    let one_of_two = Nats::connect(&Source::new(&url, &queue, "mail"))
        .await
        .unwrap();
    let other = Nats::connect(&Source::new(&url, &queue, "stock"))
        .await
        .unwrap();
    other.publish(&queue, &Message::new("a")).await.unwrap();
    for broker in [&one_of_two, &other] {
        let delivery = one(broker).await;
        assert_eq!((text(&delivery), delivery.attempt), ("a".into(), 1));
        delivery.ticket.ack().await.unwrap();
    }
    drop_stream(&queue).await;
}

#[tokio::test]
async fn creates_a_stream_for_an_unclaimed_subject() {
    let queue = format!("{}.dead", name("made"));
    let publisher = NatsPublisher::connect(&nats_url()).await.unwrap();
    publisher.publish(&queue, &Message::new("a")).await.unwrap();
    let broker = Nats::connect(&source(&queue)).await.unwrap();
    assert_eq!(text(&one(&broker).await), "a");
    assert_eq!(broker.guarantees().age_max, None);
    drop_stream(&queue).await;
}

#[tokio::test]
async fn unusable_configuration_is_rejected_with_the_fix() {
    let server = PrivateNats::start_with(&[("authorization", "{ user: app, password: s3cret }")]);
    let server = server.unwrap();
    let host = server.url().replace("nats://", "");
    let without = PrivateNats::start_with(&[("jetstream", "disabled")]).unwrap();
    let nobody = refrain_testkit::servers::free_port().unwrap();
    let good = format!("nats://app:s3cret@{host}");
    Nats::connect(&Source::new(&good, "q", "c")).await.unwrap();
    for (url, queue, consumer, kind, words) in [
        (
            format!("nats://app:wr0ng@{host}"),
            "q",
            "c",
            ErrorKind::Invalid,
            "USER:PASSWORD@",
        ),
        (
            format!("nats://127.0.0.1:{nobody}"),
            "q",
            "c",
            ErrorKind::Unavailable,
            "check the address, and that the server is running",
        ),
        (
            without.url(),
            "q",
            "c",
            ErrorKind::Unavailable,
            "start nats-server with -js",
        ),
        (good.clone(), "q", "a.b", ErrorKind::Invalid, "remove dots"),
        (good.clone(), "q.*", "c", ErrorKind::Invalid, "no stream"),
        (good.clone(), "q r", "c", ErrorKind::Invalid, "neither"),
    ] {
        let error = Nats::connect(&Source::new(url, queue, consumer))
            .await
            .unwrap_err();
        let text = error.to_string();
        assert!(text.contains(words), "{text}");
        assert!(
            !text.contains("wr0ng") && !text.contains("s3cret"),
            "{text}"
        );
        assert_eq!(error.kind(), kind, "{text}");
    }
}

#[tokio::test]
async fn a_consumer_that_would_lose_messages_is_refused() {
    use async_nats::jetstream::consumer::{AckPolicy, pull, push};
    let queue = name("foreign");
    let context = operator(&nats_url()).await;
    let _made = Nats::connect(&source(&queue)).await.unwrap();
    let none = pull::Config {
        durable_name: Some("none".into()),
        ack_policy: AckPolicy::None,
        ..Default::default()
    };
    context
        .create_consumer_on_stream(none, &queue)
        .await
        .unwrap();
    let push = push::Config {
        durable_name: Some("push".into()),
        deliver_subject: name("inbox"),
        ..Default::default()
    };
    context
        .create_consumer_on_stream(push, &queue)
        .await
        .unwrap();
    for (consumer, words) in [("none", "explicit"), ("push", "push consumer")] {
        let source = Source::new(nats_url(), &queue, consumer);
        let error = Nats::connect(&source).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(words), "{error}");
    }
    drop_stream(&queue).await;
}

#[tokio::test]
async fn a_message_that_is_too_large_is_refused_and_not_tried_again() {
    let server = PrivateNats::start_with(&[("max_payload", "1024")]).unwrap();
    let broker = Nats::connect(&Source::new(server.url(), "q", "c"))
        .await
        .unwrap();
    let error = broker.publish("q", &Message::new(vec![0; 4096])).await;
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("max_payload"), "{error}");
}

#[tokio::test]
async fn a_stream_that_is_full_says_so() {
    let queue = name("full");
    let context = operator(&nats_url()).await;
    let settings = async_nats::jetstream::stream::Config {
        name: queue.clone(),
        subjects: vec![queue.clone()],
        max_messages: 1,
        discard: async_nats::jetstream::stream::DiscardPolicy::New,
        ..Default::default()
    };
    context.create_stream(settings).await.unwrap();
    let broker = Nats::connect(&source(&queue)).await.unwrap();
    broker.publish(&queue, &Message::new("a")).await.unwrap();
    let error = broker
        .publish(&queue, &Message::new("b"))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    drop_stream(&queue).await;
}

#[tokio::test]
async fn a_closed_connection_gives_everything_back() {
    let queue = name("closed");
    let mut source = source(&queue);
    source.ack_wait = Duration::from_secs(1);
    let broker = Nats::connect(&source).await.unwrap();
    broker.publish(&queue, &Message::new("a")).await.unwrap();
    let held = one(&broker).await;
    broker.close().await.unwrap();
    drop(held);
    let again = Nats::connect(&source).await.unwrap();
    assert_eq!(one(&again).await.attempt, 2);
    drop_stream(&queue).await;
}

#[tokio::test]
async fn unreachable_server_is_an_error_within_the_timeout_and_reconnects() {
    let mut server = PrivateNats::start().unwrap();
    let broker = Nats::connect(&Source::new(server.url(), "q", "c"))
        .await
        .unwrap();
    broker.publish("q", &Message::new("a")).await.unwrap();
    server.kill().unwrap();
    // The client notices the lost connection at its next read or write.
    wait::until("the loss is told", async || {
        broker.pull(1, MOMENT).await.is_err_and(|error| {
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(error.to_string().contains(&server.url()), "{error}");
            true
        })
    })
    .await;
    server.restart().unwrap();
    assert_eq!(text(&eventually(&broker).await), "a");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_confirmed_is_lost_when_the_server_is_killed_in_mid_load() {
    let mut server = PrivateNats::start().unwrap();
    let mut source = Source::new(server.url(), "load", "c");
    source.ack_wait = Duration::from_secs(2);
    let broker = Nats::connect(&source).await.unwrap();
    let publisher = NatsPublisher::connect(&server.url()).await.unwrap();
    let (published, handled) = (Counter::default(), Counter::default());
    let publishing = tokio::spawn({
        let published = published.clone();
        async move {
            for number in 0..600 {
                let message = Message::new(number.to_string()).with_id(number.to_string());
                // The same message again, until the server confirms it.
                while publisher.publish("load", &message).await.is_err() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                published.set(number + 1);
            }
        }
    });
    let consuming = tokio::spawn({
        let handled = handled.clone();
        async move {
            let mut seen = HashSet::new();
            while seen.len() < 600 {
                for delivery in broker.pull(20, SOON).await.unwrap_or_default() {
                    seen.insert(text(&delivery));
                    // A message whose acknowledgement is lost is delivered again.
                    let _ = delivery.ticket.ack().await;
                }
                handled.set(seen.len());
            }
        }
    });
    for kill in 1..=3 {
        wait::until_counted("more is published", || published.get(), kill * 150).await;
        server.kill().unwrap();
        tokio::time::sleep(Duration::from_millis(150)).await;
        server.restart().unwrap();
    }
    wait::until_counted("everything arrives", || handled.get(), 600).await;
    publishing.await.unwrap();
    consuming.await.unwrap();
}

/// A server that accepts connections and does not respond: whether there are messages is unknown.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_server_is_an_error_and_not_an_empty_queue() {
    let server = PrivateNats::start().unwrap();
    let source = Source::new(server.url(), "orders", "worker");
    let broker = Nats::connect(&source).await.unwrap();
    nothing(&broker).await;
    server.pause().unwrap();
    let pulled = broker.pull(1, MOMENT).await;
    server.resume().unwrap();
    let error = pulled.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    outage_shows(
        &broker,
        || server.pause().unwrap(),
        || server.resume().unwrap(),
    )
    .await;
}

/// A private server for the conformance suite, behind a relay whose connections can be cut.
struct Suite {
    server: tokio::sync::Mutex<PrivateNats>,
    relay: Relay,
    url: String,
}

impl Fixture for Suite {
    async fn connect(
        &self,
        queue: &str,
        consumer: &str,
        ack_wait: Duration,
    ) -> refrain::Result<Arc<dyn Broker>> {
        let mut source = Source::new(&self.url, queue, consumer);
        source.ack_wait = ack_wait;
        refrain_brokers::open(&source).await
    }

    fn fans_out(&self) -> bool {
        true
    }

    async fn disconnect(&self) -> refrain::Result<bool> {
        self.relay.cut();
        Ok(true)
    }

    async fn restart(&self) -> refrain::Result<bool> {
        let mut server = self.server.lock().await;
        tokio::task::block_in_place(|| server.kill().and_then(|()| server.restart())).unwrap();
        Ok(true)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jetstream_passes_the_suite() {
    let server = PrivateNats::start().unwrap();
    let relay = Relay::to(server.port()).await;
    let suite = Suite {
        url: relay.url(&server.url()),
        server: tokio::sync::Mutex::new(server),
        relay,
    };
    let report = broker_suite::check(&suite).await;
    assert!(report.failures.is_empty(), "{report}");
    assert_eq!(report.left_out, ["groups_stay_in_order"]);
}
