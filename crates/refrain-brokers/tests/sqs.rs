//! SQS with a consumer, standard and FIFO queues: message ids, visibility timeouts, and payloads that SQS does not
//! accept unencoded.

#![cfg(feature = "sqs")]

use std::{sync::Arc, time::Duration};

use aws_sdk_sqs::{
    Client,
    config::{BehaviorVersion, Credentials, Region},
    types::{MessageAttributeValue, QueueAttributeName},
};
use refrain::{
    ErrorKind, Result,
    consume::{Answer, Broker, Delivery, Guarantees, Lag, Message, Publisher, Source},
};
use refrain_brokers::sqs::Sqs;
use refrain_testkit::{
    broker_suite::{self, Fixture},
    servers::PrivateSqs,
};

use tokio::time::Instant;

mod support;
use support::{full, nothing, one, outage_shows, relay::Relay, text};

#[path = "sqs/credentials.rs"]
mod credentials;
#[path = "sqs/idle.rs"]
mod idle;
#[path = "sqs/silence.rs"]
mod silence;

const ACK_WAIT: Duration = Duration::from_secs(1);

struct Server(PrivateSqs);

impl Server {
    fn start() -> Self {
        Self(PrivateSqs::start().unwrap())
    }

    /// An SQS client of the application.
    fn client(&self) -> Client {
        let http = aws_smithy_http_client::Builder::new().build_http();
        let config = aws_sdk_sqs::Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .http_client(http)
            .region(Region::new("eu-central-1"))
            .credentials_provider(Credentials::new("key", "secret", None, None, "test"))
            .endpoint_url(self.0.endpoint())
            .build();
        Client::from_conf(config)
    }

    async fn relay(&self) -> Relay {
        let port = self.0.endpoint().rsplit(':').next().unwrap().parse();
        Relay::to(port.unwrap()).await
    }

    async fn make(&self, queue: &str) {
        let mut make = self.client().create_queue().queue_name(queue);
        if queue.ends_with(".fifo") {
            make = make.attributes(QueueAttributeName::FifoQueue, "true");
        }
        make.send().await.unwrap();
    }

    async fn open(&self, queue: &str, ack_wait: Duration) -> Result<Sqs> {
        open_at(self.0.url(), queue, ack_wait).await
    }

    /// Creates a queue and connects a consumer.
    async fn queue(&self, queue: &str) -> Sqs {
        self.make(queue).await;
        self.open(queue, ACK_WAIT).await.unwrap()
    }
}

async fn open_at(url: String, queue: &str, ack_wait: Duration) -> Result<Sqs> {
    let mut source = Source::new(url, queue, "c");
    source.ack_wait = ack_wait;
    Sqs::connect(&source).await
}

/// Conformance suite for both kinds of queue; a queue's name differs only in its suffix.
struct Suite {
    server: Server,
    /// All brokers connect through this relay, whose connections can be cut.
    relay: Relay,
    end: &'static str,
}

impl Suite {
    async fn start(end: &'static str) -> Self {
        let server = Server::start();
        let relay = server.relay().await;
        Self { server, relay, end }
    }
}

impl Fixture for Suite {
    async fn connect(&self, queue: &str, _: &str, ack_wait: Duration) -> Result<Arc<dyn Broker>> {
        let queue = format!("{queue}{}", self.end);
        self.server.make(&queue).await;
        let url = self.relay.url(&self.server.0.url());
        let inner = open_at(url, &queue, ack_wait).await?;
        Ok(Arc::new(Named {
            inner,
            end: self.end,
        }))
    }

    async fn disconnect(&self) -> Result<bool> {
        self.relay.cut();
        Ok(true)
    }
}

/// A broker that appends the suffix to the destination.
#[derive(Debug)]
struct Named {
    inner: Sqs,
    end: &'static str,
}

impl Publisher for Named {
    fn publish<'a>(&'a self, destination: &'a str, message: &'a Message) -> Answer<'a, ()> {
        Box::pin(async move {
            let name = destination.strip_suffix(self.end).unwrap_or(destination);
            let name = format!("{name}{}", self.end);
            self.inner.publish(&name, message).await
        })
    }
}

impl Broker for Named {
    fn pull(&self, at_most: usize, wait: Duration) -> Answer<'_, Vec<Delivery>> {
        self.inner.pull(at_most, wait)
    }

    fn guarantees(&self) -> Guarantees {
        self.inner.guarantees()
    }

    fn lag(&self) -> Answer<'_, Lag> {
        self.inner.lag()
    }

    fn close(&self) -> Answer<'_, ()> {
        self.inner.close()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn standard_queues_pass_the_suite() {
    broker_suite::run(Suite::start("").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fifo_queues_pass_the_suite() {
    broker_suite::run(Suite::start(".fifo").await).await;
}

#[tokio::test]
async fn a_message_arrives_as_it_was_published() {
    let server = Server::start();
    for queue in ["orders", "orders.fifo"] {
        let broker = server.queue(queue).await;
        let mut message = full();
        for number in 0..20 {
            message = message.with_header(format!("X-{number}"), "more than there are attributes");
        }
        broker.publish(queue, &message).await.unwrap();
        let delivery = one(&broker).await;
        message.subject = queue.into();
        assert_eq!(delivery.message, message, "{queue}");
        assert_eq!(broker.guarantees().is_ordered, queue.ends_with(".fifo"));
        let days = broker.guarantees().age_max.unwrap().as_secs() / 86_400;
        assert_eq!(days, 4, "as the queue says");
        delivery.ticket.ack().await.unwrap();
        nothing(&broker, ACK_WAIT * 2).await;
    }
}

#[tokio::test]
async fn reads_messages_of_other_senders() {
    let server = Server::start();
    let client = server.client();
    for (queue, id) in [("a", None), ("a.fifo", Some("dedupe-7"))] {
        let broker = server.queue(queue).await;
        let url = client.get_queue_url().queue_name(queue).send().await;
        let text = MessageAttributeValue::builder().data_type("String");
        let mut send = client
            .send_message()
            .queue_url(url.unwrap().queue_url.unwrap())
            .message_attributes("Tenant", text.string_value("7").build().unwrap())
            .message_body("hello");
        if let Some(id) = id {
            send = send.message_deduplication_id(id).message_group_id("g");
        }
        let sent = send.send().await.unwrap();
        let delivery = one(&broker).await;
        let message = &delivery.message;
        assert_eq!(message.payload, "hello");
        assert_eq!(message.header("tenant").unwrap(), "7");
        assert_eq!(message.id.as_deref(), id.or(sent.message_id.as_deref()));
        assert_eq!(message.group.as_deref(), id.map(|_| "g"));
    }
}

#[tokio::test]
async fn a_delay_is_not_cut_short() {
    let server = Server::start();
    let broker = server.queue("a").await;
    broker.publish("a", &Message::new("x")).await.unwrap();
    let began = Instant::now();
    let delay = Duration::from_millis(1_300);
    one(&broker).await.ticket.nack(delay).await.unwrap();
    let again = one(&broker).await;
    assert!(began.elapsed() >= delay, "{:?}", began.elapsed());
    assert_eq!((&*text(&again), again.attempt), ("x", 2));
}

#[tokio::test]
async fn a_fifo_queue_takes_an_id_once() {
    let server = Server::start();
    let broker = server.queue("a.fifo").await;
    // The first id is not valid as a deduplication id, the second one is.
    for id in ["with spaces, and long", "plain"] {
        for _ in 0..2 {
            let message = Message::new("x").with_id(id);
            broker.publish("a.fifo", &message).await.unwrap();
        }
        let delivery = one(&broker).await;
        assert_eq!(delivery.message.id.as_deref(), Some(id));
        delivery.ticket.ack().await.unwrap();
        nothing(&broker, Duration::from_millis(300)).await;
    }
}

#[tokio::test]
async fn invalid_settings_are_rejected_with_the_fix() {
    let server = Server::start();
    let error = server.open("absent", ACK_WAIT).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("create the queue"), "{error}");
    server.make("a").await;
    let error = server.open("a", ACK_WAIT / 2).await.unwrap_err();
    assert!(error.to_string().contains("use 1s to 12h"), "{error}");
    let nowhere = "sqs://key:secret@eu-central-1?endpoint=http://127.0.0.1:1";
    let error = Sqs::connect(&Source::new(nowhere, "a", "c"))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}
