//! A payment is committed and its message is lost, published twice, or published before an earlier one. The outbox
//! prevents each of these, even if a process crashes.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use refrain::{
    Error, ErrorKind,
    consume::{
        Answer, Message, OnRefusal, Outbox as _, Publisher, Relay, RelayCounts, RelayOptions,
    },
};
use refrain_stores::postgres::{Outbox, PostgresOutbox, outbox};
use refrain_testkit::wait::until;
use tokio::{
    sync::{Notify, Semaphore},
    task::JoinHandle,
    time::sleep,
};
use tokio_postgres::Client;

use crate::{
    relay::{Mood, Relay as Way},
    support::{Schema, connect, url, with_query},
};

/// Destination and message of one publish.
type Seen = (String, Message);

/// Broker that records what it receives.
#[derive(Debug, Default)]
struct Book {
    seen: Mutex<Vec<Seen>>,
    /// Payloads that are rejected permanently.
    refuses: Mutex<HashSet<String>>,
    /// Whether the broker is unreachable.
    is_down: Mutex<bool>,
    /// Delay of each confirmation.
    pace: Duration,
    /// Permits for confirmations, if they are limited.
    confirmations: Option<Semaphore>,
}

impl Book {
    fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    fn payloads(&self) -> Vec<String> {
        let text = |(_, message): Seen| String::from_utf8(message.payload.to_vec()).unwrap();
        self.seen().into_iter().map(text).collect()
    }

    fn refuse(&self, payload: &str) {
        self.refuses.lock().unwrap().insert(payload.into());
    }

    fn set_down(&self, is_down: bool) {
        *self.is_down.lock().unwrap() = is_down;
    }
}

impl Publisher for Book {
    fn publish<'a>(&'a self, destination: &'a str, message: &'a Message) -> Answer<'a, ()> {
        Box::pin(async move {
            if *self.is_down.lock().unwrap() {
                return Err(Error::new(ErrorKind::Unavailable, "down"));
            }
            let payload = String::from_utf8_lossy(&message.payload).into_owned();
            if self.refuses.lock().unwrap().contains(&payload) {
                return Err(Error::new(ErrorKind::Invalid, "too large"));
            }
            // The broker stores the message before it confirms.
            self.seen
                .lock()
                .unwrap()
                .push((destination.into(), message.clone()));
            sleep(self.pace).await;
            if let Some(confirmations) = &self.confirmations {
                confirmations.acquire().await.unwrap().forget();
            }
            Ok(())
        })
    }
}

/// Outbox in its own schema.
struct Office {
    schema: Schema,
    outbox: Outbox,
}

impl Office {
    async fn open() -> Self {
        let schema = Schema::new();
        let admin = connect(&url()).await;
        let create = format!("CREATE SCHEMA {}", schema.name);
        admin.batch_execute(&create).await.unwrap();
        outbox::migrate(&schema.url()).await.unwrap();
        // Running the migration twice is harmless.
        outbox::migrate(&schema.url()).await.unwrap();
        let outbox = Outbox::in_schema(&schema.name);
        Self { schema, outbox }
    }

    async fn append(&self, client: &mut Client, group: Option<&str>, payload: &str) -> String {
        let transaction = client.transaction().await.unwrap();
        let mut message = Message::new(payload.to_owned());
        message.group = group.map(Into::into);
        let id = self.outbox.append(&transaction, "there", &message).await;
        transaction.commit().await.unwrap();
        id.unwrap()
    }

    async fn reader(&self) -> Arc<PostgresOutbox> {
        Arc::new(PostgresOutbox::open(&self.schema.url()).await.unwrap())
    }

    async fn relay(&self, book: &Arc<Book>) -> Relay {
        Relay::new(self.reader().await, book.clone()).with_options(options())
    }

    async fn count(&self, condition: &str) -> i64 {
        let admin = connect(&url()).await;
        let count = format!(
            "SELECT count(*) FROM {}.refrain_outbox WHERE {condition}",
            self.schema.name
        );
        admin.query_one(&count, &[]).await.unwrap().get(0)
    }
}

fn options() -> RelayOptions {
    let mut options = RelayOptions::default();
    // Longer than any stall, and shorter than a test waits.
    options.lease = Duration::from_secs(20);
    options.poll = Duration::from_millis(200);
    options.attempts = 2;
    options.drain = Duration::from_secs(5);
    options
}

/// Relay that runs until it is stopped.
struct Running {
    task: JoinHandle<()>,
    stop: Arc<Notify>,
    is_told: Arc<Notify>,
    relay: Relay,
}

impl Running {
    fn start(relay: Relay) -> Self {
        let (stop, is_told) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (running, stopped, told) = (relay.clone(), stop.clone(), is_told.clone());
        let stopped = async move {
            stopped.notified().await;
            told.notify_one();
        };
        let task = tokio::spawn(async move { running.run(stopped).await });
        Self {
            task,
            stop,
            is_told,
            relay,
        }
    }

    async fn stop(self) -> RelayCounts {
        self.tell_to_stop().await;
        self.end().await
    }

    /// Returns after the relay has received the signal.
    async fn tell_to_stop(&self) {
        self.stop.notify_one();
        self.is_told.notified().await;
    }

    async fn end(self) -> RelayCounts {
        self.task.await.unwrap();
        self.relay.counters().read()
    }
}

/// Checks that in each group the payloads `GROUP-NUMBER` first appear in order, and that none is missing.
fn check_order(book: &Book, groups: usize, each: usize) {
    let mut latest: BTreeMap<String, i64> = BTreeMap::new();
    for (_, message) in book.seen() {
        let Some(group) = message.group.clone() else {
            continue;
        };
        let payload = String::from_utf8(message.payload.to_vec()).unwrap();
        let number: i64 = payload.rsplit_once('-').unwrap().1.parse().unwrap();
        let latest = latest.entry(group).or_insert(-1);
        assert!(number <= *latest + 1, "{payload} came before its turn");
        *latest = (*latest).max(number);
    }
    assert_eq!(latest.len(), groups);
    for (group, latest) in latest {
        assert_eq!(latest + 1, i64::try_from(each).unwrap(), "{group}");
    }
}

#[tokio::test]
async fn a_message_stands_or_falls_with_its_transaction_and_arrives_as_it_was() {
    let (office, book) = (Office::open().await, Arc::new(Book::default()));
    let mut client = connect(&url()).await;
    let message = Message::new("paid")
        .with_group("order-7")
        .with_content_type("text/plain")
        .with_header("Trace", "abc")
        .with_header("Raw", vec![0, 255]);
    let transaction = client.transaction().await.unwrap();
    office
        .outbox
        .append(&transaction, "orders", &message)
        .await
        .unwrap();
    transaction.rollback().await.unwrap();
    assert_eq!(office.count("true").await, 0);
    let transaction = client.transaction().await.unwrap();
    let id = office
        .outbox
        .append(&transaction, "orders", &message)
        .await
        .unwrap();
    let own = message.clone().with_id("own");
    let kept = office
        .outbox
        .append(&transaction, "orders", &own)
        .await
        .unwrap();
    assert_eq!(kept, "own");
    let relay = office.relay(&book).await;
    assert_eq!(relay.drain().await.unwrap().waiting, 0, "uncommitted");
    assert!(book.seen().is_empty());
    transaction.commit().await.unwrap();
    relay.drain().await.unwrap();
    let seen = book.seen();
    assert_eq!(seen.len(), 2);
    for ((destination, seen), id) in seen.iter().zip([id.as_str(), "own"]) {
        assert_eq!(destination, "orders");
        let mut wanted = message.clone().with_id(id);
        wanted.subject = "orders".into();
        assert_eq!(*seen, wanted);
    }
    assert_eq!(office.count("true").await, 0, "published rows remain");
}

#[tokio::test]
async fn a_group_has_the_order_of_the_commits_and_not_of_the_numbers() {
    let (office, book) = (Arc::new(Office::open().await), Arc::new(Book::default()));
    let (mut one, mut two) = (connect(&url()).await, connect(&url()).await);
    let running = Running::start(office.relay(&book).await);
    let first = one.transaction().await.unwrap();
    let message = Message::new("g-0").with_group("g");
    office
        .outbox
        .append(&first, "there", &message)
        .await
        .unwrap();
    let late = {
        let office = office.clone();
        tokio::spawn(async move { office.append(&mut two, Some("g"), "g-1").await })
    };
    // Other groups, and messages without a group, do not wait.
    let mut three = connect(&url()).await;
    office.append(&mut three, Some("h"), "h-0").await;
    office.append(&mut three, None, "alone").await;
    until("the others are published", async || book.seen().len() == 2).await;
    assert!(!late.is_finished(), "the group is locked until the commit");
    first.commit().await.unwrap();
    late.await.unwrap();
    until("all are published", async || book.seen().len() == 4).await;
    assert_eq!(running.stop().await.published, 4);
    let mut payloads = book.payloads();
    payloads.retain(|payload| payload.starts_with("g-"));
    assert_eq!(payloads, ["g-0", "g-1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_relays_publish_each_message_once_and_each_group_in_order() {
    const GROUPS: usize = 12;
    const EACH: usize = 40;
    let office = Arc::new(Office::open().await);
    let book = Arc::new(Book {
        pace: Duration::from_millis(1),
        ..Book::default()
    });
    let mut running = Vec::new();
    for _ in 0..4 {
        running.push(Running::start(office.relay(&book).await));
    }
    let writers: Vec<_> = (0..GROUPS)
        .map(|group| {
            let office = office.clone();
            tokio::spawn(async move {
                let mut client = connect(&url()).await;
                let name = format!("g{group}");
                for number in 0..EACH {
                    office
                        .append(&mut client, Some(&name), &format!("{name}-{number}"))
                        .await;
                    if number % 4 == 0 {
                        office
                            .append(&mut client, None, &format!("{name}-alone-{number}"))
                            .await;
                    }
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    until("all are published", async || {
        office.count("true").await == 0
    })
    .await;
    let mut published = 0;
    for running in running {
        published += running.stop().await.published;
    }
    let payloads = book.payloads();
    let different: BTreeSet<_> = payloads.iter().collect();
    assert_eq!(different.len(), GROUPS * (EACH + EACH / 4));
    assert_eq!(
        payloads.len(),
        different.len(),
        "something was published twice"
    );
    assert_eq!(published, payloads.len() as u64);
    check_order(&book, GROUPS, EACH);
}

#[tokio::test]
async fn a_group_longer_than_what_is_held_at_once_is_drained_to_its_end() {
    let (office, book) = (Office::open().await, Arc::new(Book::default()));
    let mut client = connect(&url()).await;
    for number in 0..21 {
        let payload = format!("g-{number}");
        office.append(&mut client, Some("g"), &payload).await;
    }
    let mut narrow = options();
    narrow.in_flight_max = 4;
    let relay = office.relay(&book).await.with_options(narrow);
    let left = relay.drain().await.unwrap();
    assert_eq!((left.waiting, book.seen().len()), (0, 21));
    check_order(&book, 1, 21);
}

#[tokio::test]
async fn while_the_broker_is_down_messages_wait_and_then_go_in_order() {
    let (office, book) = (Office::open().await, Arc::new(Book::default()));
    let mut client = connect(&url()).await;
    book.set_down(true);
    let relay = office.relay(&book).await;
    for number in 0..20 {
        office
            .append(&mut client, Some("g"), &format!("g-{number}"))
            .await;
    }
    let error = relay.drain().await.unwrap_err();
    assert!(
        error.is_retryable() && error.to_string().contains("down"),
        "{error}"
    );
    assert_eq!(office.count("refusals > 0").await, 0, "refusals");
    let running = Running::start(relay);
    let has_failed = async || running.relay.counters().read().failed > 0;
    until("it has failed", has_failed).await;
    sleep(Duration::from_millis(500)).await;
    book.set_down(false);
    until("all are published", async || {
        office.count("true").await == 0
    })
    .await;
    let counts = running.stop().await;
    assert_eq!(counts.published, 20);
    assert!(
        (1..40).contains(&counts.failed),
        "{counts:?}: no pause between two tries"
    );
    check_order(&book, 1, 20);
}

#[tokio::test]
async fn rejected_message_blocks_its_group_or_is_set_aside() {
    for (on_refusal, before, after) in [
        (OnRefusal::Hold, vec!["g-0"], vec!["g-0", "g-1", "g-2"]),
        (
            OnRefusal::Park,
            vec!["g-0", "g-2"],
            vec!["g-0", "g-2", "g-1"],
        ),
    ] {
        let (office, book) = (Office::open().await, Arc::new(Book::default()));
        let mut client = connect(&url()).await;
        book.refuse("g-1");
        book.refuse("alone");
        for number in 0..3 {
            office
                .append(&mut client, Some("g"), &format!("g-{number}"))
                .await;
        }
        office.append(&mut client, None, "alone").await;
        office.append(&mut client, Some("h"), "h-0").await;
        let mut options = options();
        options.on_refusal = on_refusal;
        let relay = office.relay(&book).await.with_options(options);
        let reader = office.reader().await;
        let running = Running::start(relay);
        let in_g = || -> Vec<String> {
            book.payloads()
                .into_iter()
                .filter(|it| it.starts_with("g-"))
                .collect()
        };
        until("two are given up", async || {
            reader.backlog().await.unwrap().refused == 2 && in_g().len() == before.len()
        })
        .await;
        sleep(Duration::from_millis(400)).await;
        assert_eq!(in_g(), before, "{on_refusal:?}");
        assert!(
            book.payloads().contains(&"h-0".into()),
            "another group waits"
        );
        let refused = reader.refused(10).await.unwrap();
        let held: Vec<_> = refused
            .iter()
            .map(|it| (it.group.is_some(), it.is_held))
            .collect();
        assert_eq!(
            held,
            [(true, on_refusal == OnRefusal::Hold), (false, false)]
        );
        assert!(
            refused.iter().all(|it| it.error == "too large"),
            "{refused:?}"
        );
        // The broker accepts the messages again.
        book.refuses.lock().unwrap().clear();
        assert_eq!(reader.redrive().await.unwrap(), 2);
        until("all are published", async || {
            office.count("true").await == 0
        })
        .await;
        let counts = running.stop().await;
        assert_eq!(
            (counts.published, counts.refused, counts.given_up),
            (5, 4, 2)
        );
        assert_eq!(in_g(), after, "{on_refusal:?}");
    }
}

#[tokio::test]
async fn a_relay_that_dies_between_publish_and_mark_has_it_published_again_under_the_same_id() {
    let office = Office::open().await;
    let slow = Arc::new(Book {
        pace: Duration::from_secs(60),
        ..Book::default()
    });
    let mut client = connect(&url()).await;
    let id = office.append(&mut client, Some("g"), "g-0").await;
    office.append(&mut client, Some("g"), "g-1").await;
    let mut long = options();
    long.lease = Duration::from_secs(600);
    let dying = Running::start(office.relay(&slow).await.with_options(long));
    until("the broker has it", async || slow.seen().len() == 1).await;
    dying.task.abort();
    // The dead relay holds its lease until it lapses.
    let book = Arc::new(Book::default());
    let relay = office.relay(&book).await;
    assert_eq!(relay.drain().await.unwrap().waiting, 2);
    assert!(book.seen().is_empty());
    let lapse = format!(
        "UPDATE {}.refrain_outbox SET not_before = now() WHERE taken_by IS NOT NULL",
        office.schema.name
    );
    assert!(client.execute(&lapse, &[]).await.unwrap() > 0);
    let running = Running::start(relay);
    until("all are published", async || {
        office.count("true").await == 0
    })
    .await;
    running.stop().await;
    assert_eq!(slow.seen()[0].1.id.as_deref(), Some(&*id));
    assert_eq!(book.seen()[0].1.id.as_deref(), Some(&*id));
    assert_eq!(book.payloads(), ["g-0", "g-1"]);
}

#[tokio::test]
async fn a_slow_broker_is_waited_for_with_the_lease_renewed() {
    let office = Office::open().await;
    let slow = Arc::new(Book {
        pace: Duration::from_secs(15),
        ..Book::default()
    });
    let mut client = connect(&url()).await;
    office.append(&mut client, Some("g"), "g-0").await;
    // Longer than any delay of a renewal in this process.
    let mut short = options();
    short.lease = Duration::from_secs(10);
    short.timeout = Duration::from_secs(60);
    let one = Running::start(office.relay(&slow).await.with_options(short));
    let two = Running::start(office.relay(&slow).await.with_options(short));
    until("all are published", async || {
        office.count("true").await == 0
    })
    .await;
    assert_eq!(one.stop().await.published + two.stop().await.published, 1);
    assert_eq!(slow.payloads(), ["g-0"]);
}

#[tokio::test]
async fn stop_finishes_running_publishes_and_returns_the_rest() {
    let office = Office::open().await;
    let slow = Arc::new(Book {
        confirmations: Some(Semaphore::new(0)),
        ..Book::default()
    });
    let mut client = connect(&url()).await;
    for number in 0..3 {
        office
            .append(&mut client, Some("g"), &format!("g-{number}"))
            .await;
    }
    let running = Running::start(office.relay(&slow).await);
    until("the broker has one", async || slow.seen().len() == 1).await;
    running.tell_to_stop().await;
    slow.confirmations.as_ref().unwrap().add_permits(3);
    assert_eq!(running.end().await.published, 1);
    assert_eq!(office.count("true").await, 2);
    assert_eq!(
        office.count("taken_by IS NOT NULL").await,
        0,
        "the other messages must be free at once"
    );
}

#[tokio::test]
async fn lost_answers_of_the_database_cost_neither_messages_nor_their_order() {
    let office = Office::open().await;
    let book = Arc::new(Book::default());
    let server = url();
    let config: tokio_postgres::Config = server.parse().unwrap();
    let way = Way::start(format!("127.0.0.1:{}", config.get_ports()[0])).await;
    let port = format!(":{}/", config.get_ports()[0]);
    let through = url().replace(&port, &format!(":{}/", way.port));
    let through = with_query(
        &through,
        &format!("sslmode=disable&schema={}", office.schema.name),
    );
    let reader = Arc::new(PostgresOutbox::open(&through).await.unwrap());
    let mut quick = options();
    quick.lease = Duration::from_secs(1);
    quick.in_flight_max = 4;
    let running = Running::start(Relay::new(reader, book.clone()).with_options(quick));
    let mut client = connect(&url()).await;
    let mut number = 0;
    for round in 0..9 {
        let moods = [
            Mood::LosesNextAnswer,
            Mood::LosesNextRequest,
            Mood::Faithful,
        ];
        let (mood, cuts) = (moods[round % 3], way.cuts());
        way.set(mood);
        for _ in 0..8 {
            let payload = format!("g-{number}");
            office.append(&mut client, Some("g"), &payload).await;
            number += 1;
        }
        let is_cut = async || mood == Mood::Faithful || way.cuts() > cuts;
        until("a connection is cut", is_cut).await;
    }
    way.set(Mood::Faithful);
    until("all are published", async || {
        office.count("true").await == 0
    })
    .await;
    assert!(
        way.cuts() >= 6,
        "{} cuts are too few for a valid test",
        way.cuts()
    );
    running.stop().await;
    check_order(&book, 1, number);
}
