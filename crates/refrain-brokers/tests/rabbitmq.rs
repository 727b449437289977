//! Checks what a consumer relies on in RabbitMQ, through the adapter, with quorum and classic queues: a
//! published message arrives, an acknowledged one does not return, a nacked one returns after its delay,
//! and the client reconnects to a killed server.
#![cfg(feature = "amqp")]

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use lapin::{
    Channel, Connection, ConnectionProperties, ExchangeKind,
    options::{
        ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions, QueueDeclareOptions,
        QueueDeleteOptions,
    },
    types::{AMQPValue, FieldTable},
};
use refrain::{
    ErrorKind,
    consume::{Broker, Delivery, Message, Publisher, Source},
};
use refrain_brokers::rabbitmq::{Rabbit, RabbitPublisher};
use refrain_testkit::{
    broker_suite::{self, Fixture},
    servers::{PrivateRabbit, amqp_url, free_port},
    wait,
};

use tokio::time::Instant;

mod support;
use support::{Counter, SOON, eventually, one, outage_shows, relay::Relay};

const MOMENT: Duration = Duration::from_millis(400);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Quorum,
    Classic,
}

const KINDS: [Kind; 2] = [Kind::Quorum, Kind::Classic];

/// A raw channel, for actions of an operator.
struct Operator {
    _connection: Connection,
    channel: Channel,
}

async fn operator(url: &str) -> Operator {
    let connection = Connection::connect(url, ConnectionProperties::default()).await;
    let connection = connection.unwrap();
    Operator {
        channel: connection.create_channel().await.unwrap(),
        _connection: connection,
    }
}

impl Operator {
    async fn declare(&self, queue: &str, kind: Kind) {
        let mut arguments = FieldTable::default();
        if kind == Kind::Quorum {
            let quorum = AMQPValue::LongString("quorum".into());
            arguments.insert("x-queue-type".into(), quorum);
        }
        let durable = QueueDeclareOptions::durable();
        let declared = self.channel.queue_declare(queue.into(), durable, arguments);
        declared.await.unwrap();
    }

    async fn delete(&self, queue: &str) {
        let deleted = self
            .channel
            .queue_delete(queue.into(), QueueDeleteOptions::default());
        deleted.await.unwrap();
    }
}

/// A name unique across tests and runs.
fn name(what: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{what}-{}-{count}", std::process::id())
}

fn source(queue: &str) -> Source {
    Source::new(amqp_url(), queue, "worker")
}

/// Declares a queue of this kind and connects a consumer.
async fn open(what: &str, kind: Kind) -> (String, Rabbit) {
    let queue = name(what);
    operator(&amqp_url()).await.declare(&queue, kind).await;
    let broker = Rabbit::connect(&source(&queue)).await.unwrap();
    (queue, broker)
}

async fn drop_queue(queue: &str) {
    operator(&amqp_url()).await.delete(queue).await;
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
    for kind in KINDS {
        let (queue, broker) = open("whole", kind).await;
        let sent = Message::new(vec![0, 255, 7])
            .with_id("m-1")
            .with_group("cart-1")
            .with_content_type("application/octet-stream")
            .with_header("Trace", "a")
            .with_header("bytes", vec![0, 255]);
        broker.publish(&queue, &sent).await.unwrap();
        let delivery = one(&broker).await;
        let mut got = delivery.message.clone();
        assert_eq!((&got.subject, delivery.attempt), (&queue, 1));
        got.subject.clear();
        got.headers.sort();
        let mut sent = sent;
        sent.headers.sort();
        assert_eq!(got, sent);
        delivery.ticket.ack().await.unwrap();
        drop_queue(&queue).await;
    }
}

#[tokio::test]
async fn acknowledged_messages_are_removed_and_returned_ones_come_after_their_delay() {
    for kind in KINDS {
        let (queue, broker) = open("acks", kind).await;
        let sent = Message::new("a").with_id("7").with_header("h", "1");
        broker.publish(&queue, &sent).await.unwrap();
        let first = one(&broker).await;
        let message = first.message.clone();
        first.ticket.nack(Duration::ZERO).await.unwrap();
        let second = one(&broker).await;
        assert_eq!(second.attempt, 2, "{kind:?}");
        let (given_back, delay) = (Instant::now(), Duration::from_secs(1));
        second.ticket.nack(delay).await.unwrap();
        let third = one(&broker).await;
        assert!(given_back.elapsed() >= delay.mul_f64(0.9), "{kind:?}");
        assert_eq!(third.attempt, 3, "{kind:?}");
        assert_eq!(third.message, message, "as it was published");
        third.ticket.nack(Duration::from_millis(50)).await.unwrap();
        let fourth = one(&broker).await;
        assert_eq!(fourth.attempt, 4, "{kind:?}");
        assert_eq!(fourth.message, message, "as it was published");
        fourth.ticket.ack().await.unwrap();
        nothing(&broker).await;
        drop_queue(&queue).await;
    }
}

#[tokio::test]
async fn a_short_delay_does_not_wait_for_a_long_one() {
    let (queue, broker) = open("delays", Kind::Quorum).await;
    for (text, delay) in [("long", 60_000), ("short", 100)] {
        broker.publish(&queue, &Message::new(text)).await.unwrap();
        let delivery = one(&broker).await;
        let delay = Duration::from_millis(delay);
        delivery.ticket.nack(delay).await.unwrap();
    }
    assert_eq!(text(&one(&broker).await), "short");
    drop_queue(&queue).await;
}

#[tokio::test]
async fn a_delivery_that_is_dropped_returns_at_once() {
    for kind in KINDS {
        let (queue, broker) = open("dropped", kind).await;
        broker.publish(&queue, &Message::new("a")).await.unwrap();
        drop(one(&broker).await);
        let again = one(&broker).await;
        assert_eq!(again.attempt, 2);
        again.ticket.ack().await.unwrap();
        drop_queue(&queue).await;
    }
}

#[tokio::test]
async fn a_closed_connection_gives_everything_back() {
    for kind in KINDS {
        let (queue, broker) = open("closed", kind).await;
        broker.publish(&queue, &Message::new("a")).await.unwrap();
        let held = one(&broker).await;
        broker.close().await.unwrap();
        assert!(held.ticket.extend().await.is_err(), "it is not ours");
        let late = held.ticket.ack().await.unwrap_err();
        assert!(
            late.to_string().contains("deliver the message again"),
            "{late}"
        );
        let again = Rabbit::connect(&source(&queue)).await.unwrap();
        let delivery = one(&again).await;
        assert_eq!(delivery.attempt, 2);
        delivery.ticket.ack().await.unwrap();
        drop_queue(&queue).await;
    }
}

#[tokio::test]
async fn pull_returns_at_most_the_requested_number_regardless_of_held_messages() {
    for kind in KINDS {
        let (queue, broker) = open("many", kind).await;
        for number in 0..25 {
            let message = Message::new(number.to_string());
            broker.publish(&queue, &message).await.unwrap();
        }
        let mut held = Vec::new();
        for at_most in [1, 1, 3, 10, 10] {
            let before = held.len();
            while held.len() < before + at_most && held.len() < 25 {
                let left = before + at_most - held.len();
                let mut more = Vec::new();
                wait::until("more messages are delivered", async || {
                    more = broker.pull(left, SOON).await.unwrap();
                    !more.is_empty()
                })
                .await;
                assert!(more.len() <= left);
                held.extend(more);
            }
        }
        let seen: HashSet<_> = held.iter().map(text).collect();
        assert_eq!(seen.len(), 25, "{kind:?}");
        for delivery in held {
            assert_eq!(delivery.attempt, 1);
            delivery.ticket.ack().await.unwrap();
        }
        nothing(&broker).await;
        assert!(broker.pull(0, MOMENT).await.unwrap().is_empty());
        drop_queue(&queue).await;
    }
}

#[tokio::test]
async fn a_pull_that_waits_or_is_dropped_loses_nothing() {
    let (queue, broker) = open("waits", Kind::Quorum).await;
    for _ in 0..5 {
        let dropped = tokio::time::timeout(Duration::from_millis(50), broker.pull(1, SOON)).await;
        assert!(dropped.is_err());
    }
    let publisher = RabbitPublisher::connect(&amqp_url()).await.unwrap();
    let (delivery, ()) = tokio::join!(one(&broker), async {
        tokio::time::sleep(MOMENT).await;
        publisher.publish(&queue, &Message::new("a")).await.unwrap();
    });
    delivery.ticket.ack().await.unwrap();
    drop_queue(&queue).await;
}

#[tokio::test]
async fn creates_a_missing_queue() {
    let queue = name("made");
    let publisher = RabbitPublisher::connect(&amqp_url()).await.unwrap();
    publisher.publish(&queue, &Message::new("a")).await.unwrap();
    let broker = Rabbit::connect(&source(&queue)).await.unwrap();
    let delivery = one(&broker).await;
    assert_eq!(text(&delivery), "a");
    delivery.ticket.ack().await.unwrap();
    drop_queue(&queue).await;
    // A queue deleted by an operator is declared again, and no message is lost. Waits first, because the server takes
    // a while to forget a quorum queue of the same name.
    tokio::time::sleep(Duration::from_secs(2)).await;
    wait::until("the queue is made again", async || {
        let published = publisher.publish(&queue, &Message::new("b")).await;
        published.is_ok()
    })
    .await;
    let again = Rabbit::connect(&source(&queue)).await.unwrap();
    assert_eq!(text(&one(&again).await), "b");
    drop_queue(&queue).await;
}

#[tokio::test]
async fn an_exchange_that_no_queue_is_bound_to_is_an_error() {
    let (queue, broker) = open("bound", Kind::Classic).await;
    let exchange = name("exchange");
    let operator = operator(&amqp_url()).await;
    let declared = operator.channel.exchange_declare(
        exchange.as_str().into(),
        ExchangeKind::Topic,
        ExchangeDeclareOptions::default(),
        FieldTable::default(),
    );
    declared.await.unwrap();
    let bound = operator.channel.queue_bind(
        queue.as_str().into(),
        exchange.as_str().into(),
        "orders.*".into(),
        QueueBindOptions::default(),
        FieldTable::default(),
    );
    bound.await.unwrap();
    let orders = format!("exchange:{exchange}/orders.eu");
    broker.publish(&orders, &Message::new("a")).await.unwrap();
    let delivery = one(&broker).await;
    assert_eq!(delivery.message.subject, orders);
    delivery
        .ticket
        .nack(Duration::from_millis(50))
        .await
        .unwrap();
    let again = one(&broker).await;
    assert_eq!(again.message.subject, orders, "also after waiting");
    again.ticket.ack().await.unwrap();

    for destination in [
        format!("exchange:{exchange}/carts.eu"),
        "exchange:none/x".into(),
    ] {
        let error = broker.publish(&destination, &Message::new("b")).await;
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    broker.publish(&orders, &Message::new("c")).await.unwrap();
    let deleted = operator
        .channel
        .exchange_delete(exchange.as_str().into(), ExchangeDeleteOptions::default());
    deleted.await.unwrap();
    drop_queue(&queue).await;
}

#[tokio::test]
async fn unusable_configuration_is_rejected_with_the_fix() {
    let good = amqp_url();
    let host = good.split_once('@').unwrap().1.split('/').next().unwrap();
    let nobody = free_port().unwrap();
    for (url, queue, kind, words) in [
        (
            format!("amqp://guest:wr0ng@{host}/%2f"),
            "q",
            ErrorKind::Invalid,
            "the password",
        ),
        (
            format!("amqp://guest:guest@{host}/none"),
            "q",
            ErrorKind::Invalid,
            "virtual host",
        ),
        (
            format!("amqp://guest:guest@127.0.0.1:{nobody}/%2f"),
            "q",
            ErrorKind::Unavailable,
            "check the address, and that the server is running",
        ),
        (good.clone(), "", ErrorKind::Invalid, "invalid queue name"),
        (
            good.clone(),
            "amq.reserved",
            ErrorKind::Invalid,
            "amq.reserved",
        ),
    ] {
        let error = Rabbit::connect(&Source::new(url, queue, "c"))
            .await
            .unwrap_err();
        let text = error.to_string();
        assert!(text.contains(words), "{text}");
        assert!(!text.contains("wr0ng"), "{text}");
        assert_eq!(error.kind(), kind, "{text}");
    }
}

#[tokio::test]
async fn a_queue_with_other_arguments_is_used_as_it_is() {
    let queue = name("other");
    let operator = operator(&amqp_url()).await;
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-length".into(), AMQPValue::LongLongInt(5));
    let durable = QueueDeclareOptions::durable();
    let declared = operator
        .channel
        .queue_declare(queue.as_str().into(), durable, arguments);
    declared.await.unwrap();
    let broker = Rabbit::connect(&source(&queue)).await.unwrap();
    broker.publish(&queue, &Message::new("a")).await.unwrap();
    let delivery = one(&broker).await;
    delivery.ticket.ack().await.unwrap();
    operator.delete(&queue).await;
}

#[tokio::test]
async fn a_full_queue_says_so() {
    let queue = name("full");
    let operator = operator(&amqp_url()).await;
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-length".into(), AMQPValue::LongLongInt(1));
    arguments.insert(
        "x-overflow".into(),
        AMQPValue::LongString("reject-publish".into()),
    );
    let durable = QueueDeclareOptions::durable();
    let declared = operator
        .channel
        .queue_declare(queue.as_str().into(), durable, arguments);
    declared.await.unwrap();
    let publisher = RabbitPublisher::connect(&amqp_url()).await.unwrap();
    publisher.publish(&queue, &Message::new("a")).await.unwrap();
    let error = publisher.publish(&queue, &Message::new("b")).await;
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    operator.delete(&queue).await;
}

/// One server for both cases, because it starts slowly: first it is down for a while, then it is killed repeatedly.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_is_found_again_and_nothing_confirmed_is_lost() {
    const DELAY: Duration = Duration::from_millis(100);
    let mut server = PrivateRabbit::start().unwrap();
    let queues = KINDS.map(|kind| (name("load"), kind));
    for (queue, kind) in &queues {
        operator(&server.url()).await.declare(queue, *kind).await;
        let source = Source::new(server.url(), queue, "c");
        let broker = Rabbit::connect(&source).await.unwrap();
        let early = Message::new("early");
        broker.publish(queue, &early).await.unwrap();
        one(&broker).await.ticket.nack(DELAY).await.unwrap();
        eventually(&broker).await.ticket.ack().await.unwrap();
    }
    // Persists the queues, those for delays included: a server that is killed right after it declared a quorum queue
    // may lose it.
    server.restart().unwrap();
    for (queue, _) in &queues {
        let source = Source::new(server.url(), queue, "c");
        let broker = Arc::new(Rabbit::connect(&source).await.unwrap());
        let first = Message::new("first");
        broker.publish(queue, &first).await.unwrap();
        let held = one(&*broker).await;
        server.kill().unwrap();
        wait::until("the loss of the connection is reported", async || {
            let pulled = broker.pull(1, MOMENT).await;
            pulled.is_err_and(|error| {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                assert!(error.to_string().contains("RabbitMQ"), "{error}");
                true
            })
        })
        .await;
        assert!(held.ticket.ack().await.is_err(), "the server takes it back");
        server.restart().unwrap();
        let again = eventually(&*broker).await;
        assert_eq!(text(&again), "first");
        again.ticket.ack().await.unwrap();
        mid_load(&mut server, queue, broker, DELAY).await;
    }
}

async fn mid_load(server: &mut PrivateRabbit, queue: &str, broker: Arc<Rabbit>, delay: Duration) {
    const MESSAGES: usize = 300;
    let publisher = RabbitPublisher::connect(&server.url()).await.unwrap();
    let (published, handled) = (Counter::default(), Counter::default());
    let publishing = tokio::spawn({
        let (published, target) = (published.clone(), queue.to_owned());
        async move {
            for number in 0..MESSAGES {
                let message = Message::new(number.to_string()).with_id(number.to_string());
                // The same message again, until the server confirms it.
                while publisher.publish(&target, &message).await.is_err() {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                published.set(number + 1);
            }
        }
    });
    let consuming = tokio::spawn({
        let handled = handled.clone();
        async move {
            let mut seen = HashSet::new();
            while seen.len() < MESSAGES {
                for delivery in broker.pull(20, SOON).await.unwrap_or_default() {
                    let text = text(&delivery);
                    // Three in ten fail at first.
                    let is_done = delivery.attempt > 1 || !text.ends_with(['3', '6', '9']);
                    // Delivered again if the acknowledgement is lost, unless the server got it before it died.
                    let _ = match is_done {
                        true => delivery.ticket.ack().await,
                        false => delivery.ticket.nack(delay).await,
                    };
                    if is_done {
                        seen.insert(text);
                    }
                }
                handled.set(seen.len());
            }
        }
    });
    wait::until_counted("more is published", || published.get(), MESSAGES / 3).await;
    server.kill().unwrap();
    server.restart().unwrap();
    wait::until_counted("everything arrives", || handled.get(), MESSAGES).await;
    publishing.await.unwrap();
    consuming.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_shows_until_the_server_is_back() {
    let server = std::cell::RefCell::new(PrivateRabbit::start().unwrap());
    let source = Source::new(server.borrow().url(), "orders", "c");
    let broker = Rabbit::connect(&source).await.unwrap();
    outage_shows(
        &broker,
        || server.borrow_mut().kill().unwrap(),
        || server.borrow_mut().restart().unwrap(),
    )
    .await;
}

/// A private server for the conformance suite, behind a relay whose connections can be cut.
struct Suite {
    kind: Kind,
    server: tokio::sync::Mutex<PrivateRabbit>,
    relay: Relay,
    url: String,
}

impl Fixture for Suite {
    async fn connect(
        &self,
        queue: &str,
        consumer: &str,
        _ack_wait: Duration,
    ) -> refrain::Result<Arc<dyn Broker>> {
        operator(&self.url).await.declare(queue, self.kind).await;
        let source = Source::new(&self.url, queue, consumer);
        refrain_brokers::open(&source).await
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(60)
    }

    async fn disconnect(&self) -> refrain::Result<bool> {
        self.relay.cut();
        Ok(true)
    }

    async fn restart(&self) -> refrain::Result<bool> {
        let mut server = self.server.lock().await;
        let restart = || {
            server.sync()?;
            server.kill()?;
            server.restart()
        };
        tokio::task::block_in_place(restart).unwrap();
        Ok(true)
    }
}

async fn check_suite(kind: Kind) {
    let server = PrivateRabbit::start().unwrap();
    let relay = Relay::to(server.port()).await;
    let suite = Suite {
        kind,
        url: relay.url(&server.url()),
        server: tokio::sync::Mutex::new(server),
        relay,
    };
    let report = broker_suite::check(&suite).await;
    assert!(report.failures.is_empty(), "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quorum_queue_passes_the_suite() {
    check_suite(Kind::Quorum).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_classic_queue_passes_the_suite() {
    check_suite(Kind::Classic).await;
}
