//! A PostgreSQL queue with a consumer: if a holder of a message dies, is slow or nacks, the message is
//! redelivered with its attempt count, by the database's clock and in order within its group. Other
//! programs publish with a plain INSERT.

#![cfg(feature = "postgres")]

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use refrain::{
    ErrorKind,
    consume::{Broker, Message, Publisher, Source},
};
use refrain_brokers::postgres::{PostgresPublisher, PostgresQueue, SCHEMA, migrate, publish_in};
use refrain_testkit::{
    servers::{PoolMode, PrivatePgBouncer, PrivatePostgres, postgres_url},
    wait,
};
use tokio_postgres::{Client, NoTls};

use tokio::time::Instant;

mod support;
mod suite {
    //! The conformance suite of all brokers.

    use super::*;
    use refrain::Result;
    use refrain_testkit::broker_suite::{self, Fixture};

    struct Table(tokio::sync::Mutex<PrivatePostgres>);

    impl Fixture for Table {
        async fn connect(
            &self,
            queue: &str,
            consumer: &str,
            ack_wait: Duration,
        ) -> Result<Arc<dyn Broker>> {
            let mut source = Source::new(self.0.lock().await.url(), queue, consumer);
            source.ack_wait = ack_wait;
            Ok(Arc::new(PostgresQueue::connect(&source).await?))
        }

        async fn disconnect(&self) -> Result<bool> {
            let url = self.0.lock().await.url();
            let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
            tokio::spawn(connection);
            let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                       WHERE application_name = 'refrain'";
            client.execute(cut, &[]).await.unwrap();
            Ok(true)
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
    async fn a_queue_in_a_table_passes() {
        let server = PrivatePostgres::start().unwrap();
        broker_suite::run(Table(tokio::sync::Mutex::new(server))).await;
    }
}
use support::{SOON, full, nothing, one, outage_shows, text};

/// Longer than this process is ever stalled.
const ACK_WAIT: Duration = Duration::from_secs(1);
/// For deliveries that must not lapse between two extensions, however slow the machine is.
const HELD: Duration = Duration::from_secs(8);

/// A schema on the shared server, unique to the test and dropped at the end.
struct Schema(String);

impl Schema {
    async fn new() -> Self {
        let schema = Self(format!("refrain_test_{:016x}", rand::random::<u64>()));
        let create = format!("CREATE SCHEMA {}", schema.0);
        client().await.batch_execute(&create).await.unwrap();
        schema
    }

    fn url(&self) -> String {
        let url = postgres_url();
        let mark = if url.contains('?') { '&' } else { '?' };
        format!("{url}{mark}schema={}", self.0)
    }

    fn source(&self) -> Source {
        let mut source = Source::new(self.url(), "orders", "c");
        source.ack_wait = ACK_WAIT;
        source
    }

    async fn open(&self) -> PostgresQueue {
        PostgresQueue::connect(&self.source()).await.unwrap()
    }

    /// A consumer whose deliveries do not lapse during a test.
    async fn open_held(&self) -> PostgresQueue {
        let mut source = self.source();
        source.ack_wait = HELD;
        PostgresQueue::connect(&source).await.unwrap()
    }

    /// A database connection of the application.
    async fn client(&self) -> Client {
        let client = client().await;
        let choose = format!("SET search_path = {}", self.0);
        client.batch_execute(&choose).await.unwrap();
        client
    }
}

impl Drop for Schema {
    fn drop(&mut self) {
        let drop_schema = format!("DROP SCHEMA {} CASCADE", self.0);
        // On a separate thread: `drop` runs on a runtime that must not block.
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime.unwrap().block_on(async {
                client().await.batch_execute(&drop_schema).await.unwrap();
            });
        });
        assert!(dropping.join().is_ok() || std::thread::panicking());
    }
}

async fn client() -> Client {
    let (client, connection) = tokio_postgres::connect(&postgres_url(), NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    client
}

async fn publish(broker: &dyn Publisher, texts: &[(&str, Option<&str>)]) {
    for (text, group) in texts {
        let mut message = Message::new((*text).to_owned());
        message.group = group.map(Into::into);
        broker.publish("orders", &message).await.unwrap();
    }
}

#[tokio::test]
async fn a_message_arrives_as_it_was_published() {
    let schema = Schema::new().await;
    let broker = schema.open().await;
    let publisher = PostgresPublisher::connect(&schema.url()).await.unwrap();
    let mut message = full();
    publisher.publish("orders", &message).await.unwrap();
    let delivery = one(&broker).await;
    message.subject = "orders".into();
    message.position = delivery.message.position.clone();
    assert_eq!(message.position.as_ref().unwrap().log, "orders");
    assert_eq!(delivery.message, message);
    assert_eq!(delivery.attempt, 1);
    delivery.ticket.ack().await.unwrap();
    nothing(&broker, ACK_WAIT * 2).await;
}

#[tokio::test]
async fn plain_insert_is_delivered_and_wakes_a_waiting_pull() {
    let schema = Schema::new().await;
    let mut source = schema.source();
    // A long `ack_wait` makes the polling interval 250 ms, so that a faster delivery comes from `NOTIFY`.
    source.ack_wait = Duration::from_secs(30);
    let broker = PostgresQueue::connect(&source).await.unwrap();
    let client = schema.client().await;
    let insert = r#"INSERT INTO refrain_queue (queue, payload, headers) VALUES ('orders', 'x', '{"Tenant": "a"}')"#;
    // A busy machine delays everything, so one fast delivery out of many is enough.
    wait::until("who waits is woken", async || {
        let waiting = async { (one(&broker).await, Instant::now()) };
        let inserting = async {
            tokio::time::sleep(Duration::from_millis(60)).await;
            let began = Instant::now();
            client.batch_execute(insert).await.unwrap();
            began
        };
        let ((delivery, came), inserted) = tokio::join!(waiting, inserting);
        assert_eq!(delivery.message.header("tenant").unwrap(), "a");
        assert_eq!(
            (&*text(&delivery), &*delivery.message.subject),
            ("x", "orders")
        );
        delivery.ticket.ack().await.unwrap();
        came.duration_since(inserted) < Duration::from_millis(50)
    })
    .await;
}

#[tokio::test]
async fn publishing_belongs_to_the_callers_transaction() {
    let schema = Schema::new().await;
    let broker = schema.open().await;
    let mut client = schema.client().await;
    let message = Message::new("x").with_id("one");
    let transaction = client.transaction().await.unwrap();
    assert!(publish_in(&transaction, "orders", &message).await.unwrap());
    nothing(&broker, Duration::from_millis(100)).await;
    transaction.rollback().await.unwrap();
    nothing(&broker, Duration::from_millis(100)).await;
    let transaction = client.transaction().await.unwrap();
    assert!(publish_in(&transaction, "orders", &message).await.unwrap());
    transaction.commit().await.unwrap();
    assert_eq!(text(&one(&broker).await), "x");
    assert!(!publish_in(&client, "orders", &message).await.unwrap());
}

#[tokio::test]
async fn duplicate_id_is_ignored_while_its_message_exists() {
    let schema = Schema::new().await;
    let broker = schema.open().await;
    let message = Message::new("x").with_id("one");
    for queue in ["orders", "orders", "others"] {
        broker.publish(queue, &message).await.unwrap();
    }
    let held = one(&broker).await;
    broker.publish("orders", &message).await.unwrap();
    held.ticket.ack().await.unwrap();
    nothing(&broker, ACK_WAIT * 2).await;
    broker.publish("orders", &message).await.unwrap();
    assert_eq!(
        one(&broker).await.attempt,
        1,
        "a republished message starts again"
    );
}

#[tokio::test]
async fn unacknowledged_message_is_redelivered_and_the_first_ticket_is_void() {
    let schema = Schema::new().await;
    let (first, second) = (schema.open().await, schema.open_held().await);
    publish(&first, &[("a", None), ("b", Some("g")), ("c", None)]).await;
    // Before the pull: `ack_wait` counts from the pull, not from its reply.
    let began = Instant::now();
    let held = first.pull(8, SOON).await.unwrap();
    assert_eq!(held.len(), 3);
    let mut again = second.pull(8, SOON).await.unwrap();
    assert!(began.elapsed() >= ACK_WAIT - Duration::from_millis(100));
    while again.len() < 3 {
        again.extend(second.pull(8, SOON).await.unwrap());
    }
    assert!(again.iter().all(|delivery| delivery.attempt == 2));
    for stale in held {
        assert_eq!(
            stale.ticket.extend().await.unwrap_err().kind(),
            ErrorKind::Held
        );
        assert_eq!(
            stale.ticket.ack().await.unwrap_err().kind(),
            ErrorKind::Held
        );
    }
    for delivery in again {
        delivery.ticket.extend().await.unwrap();
        delivery.ticket.ack().await.unwrap();
    }
    nothing(&first, ACK_WAIT * 2).await;
}

#[tokio::test]
async fn returning_a_message_of_another_holder_changes_nothing() {
    let schema = Schema::new().await;
    let broker = schema.open().await;
    publish(&broker, &[("a", None)]).await;
    let first = one(&broker).await;
    let second = one(&schema.open_held().await).await;
    first.ticket.nack(Duration::ZERO).await.unwrap();
    nothing(&broker, ACK_WAIT / 4).await;
    second.ticket.ack().await.unwrap();
}

#[tokio::test]
async fn extended_delivery_is_not_redelivered() {
    let schema = Schema::new().await;
    let (broker, other) = (schema.open_held().await, schema.open_held().await);
    publish(&broker, &[("a", None)]).await;
    let held = one(&broker).await;
    for _ in 0..6 {
        nothing(&other, HELD / 4).await;
        held.ticket.extend().await.unwrap();
    }
    held.ticket.ack().await.unwrap();
    nothing(&other, HELD).await;
}

#[tokio::test]
async fn returned_message_is_redelivered_after_its_delay() {
    let schema = Schema::new().await;
    let (broker, other) = (schema.open().await, schema.open().await);
    for delay in [Duration::ZERO, ACK_WAIT / 2, ACK_WAIT * 3] {
        publish(&broker, &[("a", None)]).await;
        let began = Instant::now();
        one(&broker).await.ticket.nack(delay).await.unwrap();
        let again = one(&other).await;
        let waited = began.elapsed();
        assert_eq!(again.attempt, 2);
        assert!(waited >= delay, "{delay:?}: came after {waited:?}");
        again.ticket.ack().await.unwrap();
    }
}

#[tokio::test]
async fn group_is_delivered_one_message_at_a_time_in_order() {
    let schema = Schema::new().await;
    let (broker, other) = (schema.open_held().await, schema.open_held().await);
    let (g, h) = (Some("g"), Some(""));
    publish(
        &broker,
        &[("g1", g), ("g2", g), ("h1", h), ("g3", g), ("x", None)],
    )
    .await;
    let first = broker.pull(8, SOON).await.unwrap();
    let texts: BTreeSet<_> = first.iter().map(text).collect();
    assert_eq!(
        texts,
        BTreeSet::from(["g1".into(), "h1".into(), "x".into()])
    );
    nothing(&other, ACK_WAIT / 4).await;
    for delivery in first {
        // A nacked message is still the first of its group, and blocks the others.
        delivery.ticket.nack(HELD).await.unwrap();
    }
    nothing(&other, ACK_WAIT / 4).await;
    let mut order = Vec::new();
    while order.len() < 5 {
        let broker = if order.len() % 2 == 0 {
            &broker
        } else {
            &other
        };
        let delivery = one(broker).await;
        order.push(text(&delivery));
        delivery.ticket.ack().await.unwrap();
    }
    order.retain(|text| text.starts_with('g'));
    assert_eq!(order, ["g1", "g2", "g3"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_consumers_keep_group_order_and_share_the_work() {
    const GROUPS: usize = 10;
    const EACH: usize = 20;
    let schema = Schema::new().await;
    let publisher = schema.open().await;
    for number in 0..EACH {
        for group in 0..GROUPS {
            let group = group.to_string();
            publish(&publisher, &[(&number.to_string(), Some(&group))]).await;
        }
    }
    let seen = Arc::new(std::sync::Mutex::new(Vec::<(String, usize)>::new()));
    let mut workers = Vec::new();
    for _ in 0..4 {
        let (broker, seen) = (schema.open_held().await, seen.clone());
        workers.push(tokio::spawn(async move {
            while seen.lock().unwrap().len() < GROUPS * EACH {
                for delivery in broker.pull(3, Duration::from_millis(50)).await.unwrap() {
                    assert_eq!(delivery.attempt, 1);
                    let group = delivery.message.group.clone().unwrap();
                    seen.lock()
                        .unwrap()
                        .push((group, text(&delivery).parse().unwrap()));
                    delivery.ticket.ack().await.unwrap();
                }
            }
        }));
    }
    for worker in workers {
        worker.await.unwrap();
    }
    let mut groups = BTreeMap::<String, Vec<usize>>::new();
    for (group, number) in seen.lock().unwrap().drain(..) {
        groups.entry(group).or_default().push(number);
    }
    let in_order: Vec<_> = (0..EACH).collect();
    assert_eq!(groups.len(), GROUPS);
    assert!(
        groups.values().all(|numbers| *numbers == in_order),
        "{groups:?}"
    );
}

#[tokio::test]
async fn groups_take_turns() {
    let schema = Schema::new().await;
    let broker = schema.open().await;
    for group in ["a", "b", "c", "d"] {
        publish(&broker, &[("1", Some(group)), ("2", Some(group))]).await;
    }
    let mut turns = Vec::new();
    for _ in 0..4 {
        let delivery = one(&broker).await;
        turns.push(delivery.message.group.clone().unwrap());
        delivery.ticket.ack().await.unwrap();
    }
    assert_eq!(turns, ["a", "b", "c", "d"]);
}

#[tokio::test]
async fn a_pull_that_is_dropped_loses_nothing() {
    let schema = Schema::new().await;
    let broker = schema.open_held().await;
    for round in 0..20_u64 {
        let pulling = broker.pull(1, SOON);
        let dropped = tokio::time::timeout(Duration::from_millis(round), pulling).await;
        assert!(dropped.is_err());
        publish(&broker, &[("x", None)]).await;
        let delivery = one(&broker).await;
        assert_eq!(delivery.attempt, 1, "delivered only after a redelivery");
        delivery.ticket.ack().await.unwrap();
    }
}

#[tokio::test]
async fn table_is_created_once_by_a_user_with_permission() {
    let schema = Schema::new().await;
    assert!(migrate(&schema.url()).await.unwrap());
    assert!(!migrate(&schema.url()).await.unwrap());
    // The printed script can be run again.
    schema.client().await.batch_execute(SCHEMA).await.unwrap();
    let absent = schema.url().replace(&schema.0, "refrain_test_absent");
    let error = migrate(&absent).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(
        error.to_string().contains("refrain migrate --queue"),
        "{error}"
    );
}

#[tokio::test]
async fn table_with_other_columns_is_reported() {
    let schema = Schema::new().await;
    let client = schema.client().await;
    client
        .batch_execute("CREATE TABLE refrain_queue (id int)")
        .await
        .unwrap();
    let broker = schema.open().await;
    let error = broker.pull(1, Duration::from_millis(50)).await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("refrain migrate --queue --print"),
        "{error}"
    );
}

/// The server is killed and restarted under load: every message is handled, in order within its group.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_in_mid_load_loses_nothing() {
    const MESSAGES: usize = 400;
    let mut server = PrivatePostgres::start().unwrap();
    let mut source = Source::new(server.url(), "orders", "c");
    source.ack_wait = Duration::from_secs(1);
    let broker = Arc::new(PostgresQueue::connect(&source).await.unwrap());
    let publishing = tokio::spawn({
        let broker = broker.clone();
        async move {
            for number in 0..MESSAGES {
                let message = Message::new(number.to_string())
                    .with_id(number.to_string())
                    .with_group((number % 7).to_string());
                while broker.publish("orders", &message).await.is_err() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
    });
    let killing = tokio::task::spawn_blocking(move || {
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(300));
            server.kill().unwrap();
            server.restart().unwrap();
        }
        server
    });
    let mut handled = Vec::<usize>::new();
    let mut moved = Instant::now();
    let distinct = |handled: &[usize]| handled.iter().collect::<BTreeSet<_>>().len();
    while distinct(&handled) < MESSAGES {
        let before = distinct(&handled);
        assert!(moved.elapsed() < wait::PATIENCE, "{before} handled");
        let Ok(pulled) = broker.pull(16, Duration::from_secs(1)).await else {
            continue;
        };
        for delivery in pulled {
            handled.push(text(&delivery).parse().unwrap());
            let _ = delivery.ticket.ack().await;
        }
        if distinct(&handled) > before {
            moved = Instant::now();
        }
    }
    publishing.await.unwrap();
    let _server = killing.await.unwrap();
    let mut firsts = BTreeSet::new();
    handled.retain(|number| firsts.insert(*number));
    for group in 0..7 {
        let numbers: Vec<_> = handled
            .iter()
            .filter(|number| **number % 7 == group)
            .collect();
        assert!(numbers.is_sorted(), "{numbers:?}");
    }
    while let Ok(pulled) = broker.pull(16, Duration::from_secs(2)).await
        && !pulled.is_empty()
    {
        for delivery in pulled {
            delivery.ticket.ack().await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_shows_until_the_server_is_back() {
    let server = std::cell::RefCell::new(PrivatePostgres::start().unwrap());
    let source = Source::new(server.borrow().url(), "orders", "c");
    let broker = PostgresQueue::connect(&source).await.unwrap();
    outage_shows(
        &broker,
        || server.borrow_mut().kill().unwrap(),
        || server.borrow_mut().restart().unwrap(),
    )
    .await;
}

/// A PgBouncer in transaction mode shares connections, so that other clients would get the queue's settings and LISTEN.
#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_is_used_in_session_mode_and_refused_in_transaction_mode() {
    let server = PrivatePostgres::start().unwrap();
    migrate(&server.url()).await.unwrap();
    let shared = PrivatePgBouncer::start(server.port(), PoolMode::Transaction).unwrap();
    for error in [
        PostgresQueue::connect(&Source::new(shared.url(), "orders", "one"))
            .await
            .unwrap_err(),
        PostgresPublisher::connect(&shared.url()).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        let text = error.to_string();
        assert!(text.contains("set pool_mode = session"), "{text}");
    }
    let own = PrivatePgBouncer::start(server.port(), PoolMode::Session).unwrap();
    let queue = PostgresQueue::connect(&Source::new(own.url(), "orders", "one"))
        .await
        .unwrap();
    let publisher = PostgresPublisher::connect(&own.url()).await.unwrap();
    publisher
        .publish("orders", &Message::new("1"))
        .await
        .unwrap();
    let pulled = queue.pull(1, Duration::from_secs(30)).await.unwrap();
    assert_eq!(pulled.len(), 1);
}
