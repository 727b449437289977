//! Kafka with a consumer: handlers finish in any order, members join and leave, and brokers go down. The new owner of
//! a partition must start at the first unacknowledged message, or messages are lost.

#![cfg(feature = "kafka")]

use std::{
    collections::BTreeSet,
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    time::Duration,
};

use rdkafka::mocking::MockCluster;
use refrain::{
    ErrorKind, Result,
    consume::{Broker, Delivery, Message, Publisher as _, Source},
};
use refrain_brokers::kafka::{Kafka, KafkaPublisher};
use refrain_testkit::{
    broker_suite::{self, Fixture},
    wait,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::AbortHandle,
    time::Instant,
};

mod support;
use support::{full, nothing, outage_shows, text};

#[path = "kafka/gate.rs"]
mod gate;
#[path = "kafka/raw.rs"]
mod raw;
#[path = "kafka/redrive.rs"]
mod redrive;
#[path = "kafka/secured.rs"]
mod secured;
#[path = "kafka/unreadable.rs"]
mod unreadable;

/// The shortest session timeout that a cluster accepts: a dead member is removed after it.
const SETTINGS: &str = "session.timeout.ms=6000&heartbeat.interval.ms=500";
/// Time limit for a group to assign its partitions.
const JOINING: Duration = Duration::from_secs(90);

/// A mock Kafka cluster in this process, on real sockets. It runs on its own thread, because it cannot be
/// moved to another.
struct Cluster {
    servers: String,
    /// Commands to the cluster's thread, each with a sender for its completion.
    asks: mpsc::Sender<(Ask, mpsc::Sender<()>)>,
}

enum Ask {
    Make(String, i32),
    Down,
    Up,
}

impl Cluster {
    fn start() -> Self {
        let (asks, asked) = mpsc::channel::<(Ask, mpsc::Sender<()>)>();
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            let cluster = MockCluster::new(1).unwrap();
            tell.send(cluster.bootstrap_servers()).unwrap();
            for (ask, done) in asked {
                match ask {
                    // Creating an existing topic is an error here, which is ignored.
                    Ask::Make(topic, partitions) => {
                        let _ = cluster.create_topic(&topic, partitions, 1);
                    }
                    Ask::Down => cluster.broker_down(1).unwrap(),
                    Ask::Up => cluster.broker_up(1).unwrap(),
                }
                let _ = done.send(());
            }
        });
        let servers = told.recv().unwrap();
        Self { servers, asks }
    }

    fn ask(&self, ask: Ask) {
        let (done, is_done) = mpsc::channel();
        self.asks.send((ask, done)).unwrap();
        is_done.recv().unwrap();
    }

    fn source(&self, topic: &str, consumer: &str) -> Source {
        let url = format!("kafka://{}?{SETTINGS}", self.servers);
        Source::new(url, topic, consumer)
    }

    async fn join(&self, topic: &str, consumer: &str) -> Kafka {
        Kafka::connect(&self.source(topic, consumer)).await.unwrap()
    }

    fn make(&self, topic: &str, partitions: i32) {
        self.ask(Ask::Make(topic.into(), partitions));
    }
}

/// Waits for `count` deliveries, allowing for the time that the group takes to form.
async fn pull(broker: &Kafka, count: usize) -> Vec<Delivery> {
    let mut pulled = Vec::new();
    let until = Instant::now() + JOINING;
    while pulled.len() < count {
        assert!(Instant::now() < until, "{pulled:?}");
        let room = count - pulled.len();
        let more = broker.pull(room, Duration::from_secs(1)).await;
        pulled.extend(more.unwrap_or_default());
    }
    pulled
}

/// A TCP relay to a cluster of one broker; its connections can be cut while both ends keep running.
///
/// Clients connect to the address that a broker advertises, so the relay replaces that address in the
/// broker's responses.
struct KafkaRelay {
    servers: String,
    cuts: Arc<Mutex<Vec<AbortHandle>>>,
}

impl KafkaRelay {
    async fn to(cluster: &Cluster) -> Self {
        let (_, server) = cluster.servers.rsplit_once(':').unwrap();
        let server: u16 = server.parse().unwrap();
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let own = listener.local_addr().unwrap().port();
        let cuts = Arc::<Mutex<Vec<AbortHandle>>>::default();
        let handles = cuts.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let passing = tokio::spawn(pass(client, server, own));
                handles.lock().unwrap().push(passing.abort_handle());
            }
        });
        let servers = format!("127.0.0.1:{own}");
        Self { servers, cuts }
    }

    /// Cuts every open connection and returns their number; new connections are forwarded.
    fn cut(&self) -> usize {
        let open = std::mem::take(&mut *self.cuts.lock().unwrap());
        let open = open.iter().filter(|passing| !passing.is_finished());
        open.map(AbortHandle::abort).count()
    }
}

async fn pass(client: TcpStream, server: u16, own: u16) -> std::io::Result<()> {
    let server_side = TcpStream::connect(("127.0.0.1", server)).await?;
    let (mut from_server, mut to_server) = server_side.into_split();
    let (mut from_client, mut to_client) = client.into_split();
    let answers = async {
        loop {
            // Each message has a length prefix.
            let len = from_server.read_u32().await?;
            let mut message = vec![0; len as usize];
            from_server.read_exact(&mut message).await?;
            replace(&mut message, &place(server), &place(own));
            to_client.write_u32(len).await?;
            to_client.write_all(&message).await?;
        }
    };
    let asked = tokio::io::copy(&mut from_client, &mut to_server);
    tokio::select! {
        done = answers => done,
        done = asked => done.map(drop),
    }
}

/// A broker's advertised address as bytes.
fn place(port: u16) -> Vec<u8> {
    [b"127.0.0.1", &u32::from(port).to_be_bytes()[..]].concat()
}

fn replace(bytes: &mut [u8], from: &[u8], to: &[u8]) {
    for at in 0..bytes.len().saturating_sub(from.len() - 1) {
        if bytes[at..].starts_with(from) {
            bytes[at..at + to.len()].copy_from_slice(to);
        }
    }
}

/// Runs a test of this file in its own process, and retries if the mock cluster aborted that process: occasionally
/// one of its assertions fails when members rejoin after a connection loss.
fn run_alone(test: &str) {
    for _ in 0..5 {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--ignored", "--nocapture"]);
        let output = command.output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        if output.status.success() {
            assert!(said.contains("1 passed"), "{said}");
            return;
        }
        assert!(said.contains("rdkafka_mock_cgrp.c"), "{said}");
    }
    panic!("the mock cluster failed five times");
}

#[test]
fn connections_that_are_cut_in_mid_load_lose_nothing() {
    run_alone("cut_connections");
}

/// Connections are cut repeatedly under load: every message is handled.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "started by the test above, in a process of its own"]
async fn cut_connections() {
    const MESSAGES: usize = 400;
    const CUTS: usize = 8;
    let cluster = Cluster::start();
    cluster.make("orders", 2);
    let way = KafkaRelay::to(&cluster).await;
    let url = format!("kafka://{}?{SETTINGS}", way.servers);
    let source = Source::new(url.as_str(), "orders", "c");
    let broker = Kafka::connect(&source).await.unwrap();
    let publisher = KafkaPublisher::connect(&url).await.unwrap();
    let published = Arc::new(AtomicUsize::new(0));
    let publishing = tokio::spawn({
        let published = published.clone();
        async move {
            for number in 0..MESSAGES {
                let message = Message::new(number.to_string()).with_id(number.to_string());
                while publisher.publish("orders", &message).await.is_err() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                published.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    let cutting = tokio::spawn(async move {
        let mut cut = 0;
        for number in 1..=CUTS {
            let enough = number * MESSAGES / (CUTS + 1);
            let is_enough = || published.load(Ordering::Relaxed) >= enough;
            wait::until_true("more is published", is_enough).await;
            cut += way.cut();
        }
        (way, cut)
    });
    let mut handled = BTreeSet::new();
    let until = Instant::now() + JOINING;
    while handled.len() < MESSAGES {
        assert!(Instant::now() < until, "{} handled", handled.len());
        let pulled = broker.pull(16, Duration::from_secs(1)).await;
        for delivery in pulled.unwrap_or_default() {
            handled.insert(text(&delivery));
            // A delivery whose acknowledgement fails is redelivered.
            let _ = delivery.ticket.ack().await;
        }
    }
    publishing.await.unwrap();
    let (_way, cut) = cutting.await.unwrap();
    assert!(cut >= CUTS, "{cut} connections were cut");
}

struct Suite(Cluster);

impl Fixture for Suite {
    async fn connect(&self, queue: &str, consumer: &str, _: Duration) -> Result<Arc<dyn Broker>> {
        self.0.make(queue, 2);
        Ok(Arc::new(
            Kafka::connect(&self.0.source(queue, consumer)).await?,
        ))
    }

    fn patience(&self) -> Duration {
        JOINING
    }

    fn fans_out(&self) -> bool {
        true
    }

    async fn disconnect(&self) -> Result<bool> {
        self.0.ask(Ask::Down);
        tokio::time::sleep(Duration::from_millis(300)).await;
        self.0.ask(Ask::Up);
        Ok(true)
    }
}

#[test]
fn kafka_passes_the_suite() {
    run_alone("suite");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "started by the test above, in a process of its own"]
async fn suite() {
    broker_suite::run(Suite(Cluster::start())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_arrives_as_it_was_published() {
    let cluster = Cluster::start();
    cluster.make("orders", 1);
    let broker = cluster.join("orders", "c").await;
    let url = format!("kafka://{}", cluster.servers);
    let publisher = KafkaPublisher::connect(&url).await.unwrap();
    let mut message = full();
    publisher.publish("orders", &message).await.unwrap();
    let delivery = pull(&broker, 1).await.remove(0);
    message.subject = "orders".into();
    message.position = delivery.message.position.clone();
    assert_eq!(message.position.as_ref().unwrap().to_string(), "orders/0/0");
    assert_eq!(delivery.message, message);
}

#[tokio::test(flavor = "multi_thread")]
async fn next_consumer_starts_at_the_first_unacknowledged_message() {
    let cluster = Cluster::start();
    cluster.make("orders", 1);
    let first = cluster.join("orders", "c").await;
    for number in 0..6 {
        let message = Message::new(number.to_string()).with_group("g");
        first.publish("orders", &message).await.unwrap();
    }
    let mut held = pull(&first, 6).await;
    assert_eq!(held.iter().map(text).collect::<String>(), "012345");
    // 0, 1 and 4 are acknowledged; 2 is not, so nothing after it is committed.
    for place in [4, 1, 0] {
        held.remove(place).ticket.ack().await.unwrap();
    }
    first.close().await.unwrap();
    let stale = held.remove(0).ticket;
    stale.ack().await.unwrap_err();
    let second = cluster.join("orders", "c").await;
    let again = pull(&second, 4).await;
    assert_eq!(again.iter().map(text).collect::<String>(), "2345");
}

#[tokio::test(flavor = "multi_thread")]
async fn returned_or_dropped_message_is_redelivered_with_a_higher_attempt() {
    let cluster = Cluster::start();
    cluster.make("orders", 1);
    let broker = cluster.join("orders", "c").await;
    broker.publish("orders", &Message::new("a")).await.unwrap();
    let delivery = pull(&broker, 1).await.remove(0);
    delivery.ticket.extend().await.unwrap();
    let began = Instant::now();
    delivery
        .ticket
        .nack(Duration::from_millis(400))
        .await
        .unwrap();
    let again = pull(&broker, 1).await.remove(0);
    assert!(began.elapsed() >= Duration::from_millis(400));
    assert_eq!(again.attempt, 2);
    drop(again);
    let last = pull(&broker, 1).await.remove(0);
    assert_eq!(last.attempt, 3);
    last.ticket.ack().await.unwrap();
    nothing(&broker, Duration::from_secs(2)).await;
}

#[test]
fn an_outage_shows_until_a_broker_answers() {
    run_alone("outage");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "started by the test above, in a process of its own"]
async fn outage() {
    let cluster = Cluster::start();
    cluster.make("orders", 1);
    let broker = cluster.join("orders", "c").await;
    broker.ready(JOINING).await.unwrap();
    outage_shows(&broker, || cluster.ask(Ask::Down), || cluster.ask(Ask::Up)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_settings_are_rejected_with_the_fix() {
    let nowhere = Source::new("kafka://127.0.0.1:1?socket.timeout.ms=1000", "orders", "c");
    let error = Kafka::connect(&nowhere).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let odd = Source::new("kafka://127.0.0.1:1?no.such.setting=1", "orders", "c");
    let error = Kafka::connect(&odd).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(
        error.to_string().contains("does not know a setting"),
        "{error}"
    );
}
