//! A payment is booked and its message acknowledged, or neither, in spite of failures, panics and lost connections.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

use bytes::Bytes;
use refrain::{
    Fence, Outcome, RecordId,
    consume::{
        Backoff, Consumer, Count, Failure, Gap, Memory, Message, Publisher as _, Sequence, Tally,
    },
    store::Front,
};
use refrain_stores::postgres::{InTransaction as _, Inbox, inbox::Pool};
use refrain_testkit::wait;

use crate::{
    relay::{Mood, Relay as Way},
    support::{Schema, connect, url, with_query},
};

/// A queue, an inbox, and a table for effects.
struct Shop {
    schema: Schema,
    broker: Memory,
    in_flight_max: usize,
    attempts: u16,
}

impl Shop {
    async fn open() -> Self {
        let schema = Schema::new();
        drop(schema.open().await);
        let admin = connect(&url()).await;
        let table = format!("CREATE TABLE {}.effects (body text)", schema.name);
        admin.batch_execute(&table).await.unwrap();
        let broker = Memory::new().with_ack_wait(Duration::from_secs(30));
        Self {
            schema,
            broker,
            in_flight_max: 16,
            attempts: 3,
        }
    }

    async fn inbox(&self) -> Inbox {
        Inbox::open(&self.schema.url()).await.unwrap()
    }

    fn consumer(&self, inbox: &Inbox) -> Consumer {
        let queue = Arc::new(self.broker.subscribe("orders", "billing"));
        let backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(50));
        Consumer::new(queue, inbox.engine(), "billing")
            .with_backoff(backoff)
            .with_attempts(self.attempts)
            .with_in_flight_max(self.in_flight_max)
            .with_dead_letter("dead")
    }

    async fn publish(&self, id: &str, body: &str) {
        let message = Message::new(body.to_owned()).with_id(id);
        self.broker.publish("orders", &message).await.unwrap();
    }

    async fn effects(&self) -> Vec<String> {
        let admin = connect(&url()).await;
        let all = format!(
            "SELECT body FROM {}.effects ORDER BY body",
            self.schema.name
        );
        let rows = admin.query(&all, &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// Handles messages until `ends` are counted. The handler inserts the body of each message that does not fail.
    async fn handle(&self, inbox: Inbox, fails: Fails, ends: u64) -> Arc<Tally> {
        let [tally] = self.handle_together([inbox], fails, ends).await;
        tally
    }

    /// As [`handle`](Self::handle), with a consumer for each inbox; `ends` is the sum of all.
    async fn handle_together<const N: usize>(
        &self,
        inboxes: [Inbox; N],
        fails: Fails,
        ends: u64,
    ) -> [Arc<Tally>; N] {
        let consumers = inboxes.map(|inbox| (self.consumer(&inbox), inbox));
        let tallies = consumers.each_ref().map(|(consumer, _)| consumer.tally());
        let insert: Arc<str> =
            format!("INSERT INTO {}.effects VALUES ($1)", self.schema.name).into();
        let running = consumers.map(|(consumer, inbox)| {
            let (counted, insert, fails) = (tallies.clone(), insert.clone(), fails.clone());
            let ended = async move {
                let all = [Count::Completed, Count::Duplicate, Count::DeadLettered];
                let of = |tally: &Arc<Tally>| all.map(|count| tally.get(count)).iter().sum::<u64>();
                let ended = || counted.iter().map(of).sum::<u64>() as usize;
                wait::until_counted("messages that ended", ended, ends as usize).await;
            };
            consumer.in_transaction(
                inbox,
                move |transaction, job| {
                    let (insert, fails) = (insert.clone(), fails.clone());
                    Box::pin(async move {
                        let body = std::str::from_utf8(&job.message.payload)?;
                        transaction.execute(&*insert, &[&body]).await?;
                        fails(body)?;
                        Ok(Outcome::new(0, body))
                    })
                },
                ended,
            )
        });
        for ran in futures_util::future::join_all(running).await {
            ran.unwrap();
        }
        tallies
    }
}

/// How the handler fails after its effect.
type Fails = Arc<dyn Fn(&str) -> Result<(), Failure> + Send + Sync>;

fn never() -> Fails {
    Arc::new(|_| Ok(()))
}

#[tokio::test]
async fn effect_and_mark_are_one_commit_and_duplicates_are_skipped() {
    let shop = Shop::open().await;
    for id in ["a", "b", "a", "c", "b", "a"] {
        shop.publish(id, id).await;
    }
    let tally = shop.handle(shop.inbox().await, never(), 6).await;
    assert_eq!(
        (tally.get(Count::Completed), tally.get(Count::Duplicate)),
        (3, 3)
    );
    assert_eq!(shop.effects().await, ["a", "b", "c"]);
    // Another process finds the marks.
    shop.publish("a", "a").await;
    let tally = shop.handle(shop.inbox().await, never(), 1).await;
    assert_eq!(
        (tally.get(Count::Completed), tally.get(Count::Duplicate)),
        (0, 1)
    );
    assert_eq!(shop.effects().await, ["a", "b", "c"]);
    // The same key with another body is another message.
    shop.publish("a", "x").await;
    let tally = shop.handle(shop.inbox().await, never(), 1).await;
    assert_eq!(tally.get(Count::DeadLettered), 1);
    assert_eq!(
        shop.broker.backlog("orders", "billing"),
        0,
        "all are acknowledged"
    );
}

#[tokio::test]
async fn failed_handler_is_rolled_back() {
    let shop = Shop::open().await;
    let tries = Arc::new(AtomicU32::new(0));
    let counted = tries.clone();
    let fails: Fails = Arc::new(move |body: &str| match body {
        "fails twice" if counted.fetch_add(1, SeqCst) < 2 => Err(Failure::retry("not yet")),
        "rejects" => Err(Failure::reject("never")),
        "always fails" => Err(Failure::retry("no")),
        "panics" => panic!("injected fault"),
        _ => Ok(()),
    });
    for body in ["fails twice", "rejects", "always fails", "panics", "fine"] {
        shop.publish(body, body).await;
    }
    let dead = shop.broker.subscribe("dead", "person");
    let tally = shop.handle(shop.inbox().await, fails, 5).await;
    assert_eq!(shop.effects().await, ["fails twice", "fine"]);
    assert_eq!(
        (tally.get(Count::Completed), tally.get(Count::DeadLettered)),
        (2, 3)
    );
    assert_eq!(
        (tally.get(Count::Retried), tally.get(Count::Panicked)),
        (2 + 2, 2)
    );
    let letters = refrain::consume::Broker::pull(&dead, 10, Duration::ZERO)
        .await
        .unwrap();
    let mut reasons: Vec<_> = letters
        .iter()
        .map(|letter| {
            letter
                .message
                .header("Refrain-Dead-Reason")
                .unwrap()
                .clone()
        })
        .collect();
    reasons.sort();
    assert_eq!(
        reasons,
        ["attempts-used-up", "attempts-used-up", "rejected"]
    );
}

#[tokio::test]
async fn a_lost_answer_to_the_commit_is_found_out_by_the_next_delivery() {
    let shop = Shop::open().await;
    let server = url();
    let config: tokio_postgres::Config = server.parse().unwrap();
    let way = Way::start(format!("127.0.0.1:{}", config.get_ports()[0])).await;
    let port = format!(":{}/", config.get_ports()[0]);
    let through = server.replace(&port, &format!(":{}/", way.port));
    let through = with_query(&through, "sslmode=disable");
    let mut unsettled = 0;
    for round in 0..6 {
        let mood = [
            Mood::LosesAnswerToCommit,
            Mood::LosesNextAnswer,
            Mood::LosesNextRequest,
        ][round % 3];
        let store = Arc::new(shop.schema.open().await);
        let inbox = Inbox::new(store, Pool::new(&through).unwrap());
        let body = format!("round {round}");
        shop.publish(&body, &body).await;
        let (lossy, once) = (way.clone(), AtomicU32::new(0));
        // Set after the effect: the mark and the commit come next.
        let fails: Fails = Arc::new(move |_| {
            if once.fetch_add(1, SeqCst) == 0 {
                lossy.set(mood);
            }
            Ok(())
        });
        let tally = shop.handle(inbox, fails, 1).await;
        unsettled += tally.get(Count::Unsettled);
        let committed = mood == Mood::LosesAnswerToCommit;
        assert_eq!(
            tally.get(Count::Duplicate),
            u64::from(committed),
            "{mood:?}"
        );
    }
    assert_eq!((way.cuts(), unsettled), (6, 2));
    assert_eq!(shop.effects().await.len(), 6, "each once");
}

#[tokio::test]
async fn two_consumers_of_one_message_and_one_message_at_two_consumers() {
    let shop = Shop::open().await;
    for number in 0..40 {
        for _ in 0..3 {
            shop.publish(&format!("{number}"), &format!("{number:02}"))
                .await;
        }
    }
    // Two processes of one consumer share the queue, and messages are delivered several times concurrently.
    let inboxes = [shop.inbox().await, shop.inbox().await];
    let [one, two] = shop.handle_together(inboxes, never(), 100).await;
    // They stop before the end; the third handles the rest.
    let left = 120
        - [&one, &two]
            .iter()
            .map(|it| it.get(Count::Completed) + it.get(Count::Duplicate))
            .sum::<u64>();
    let three = shop.handle(shop.inbox().await, never(), left).await;
    let completed: u64 = [one, two, three]
        .iter()
        .map(|it| it.get(Count::Completed))
        .sum();
    assert_eq!(completed, 40);
    assert_eq!(shop.effects().await.len(), 40);
}

async fn check_sequence(gap: Gap, numbers: &[u64], handled: &[&str], dead: u64) {
    let mut shop = Shop::open().await;
    if dead == 0 {
        // An event waits for its predecessor however slow the machine is.
        shop.attempts = 1_000;
    }
    let sequence = Sequence::new("header:Order", "header:Version")
        .unwrap()
        .with_gap(gap);
    let mut ends = 0;
    for round in 0..2 {
        // The second round has new ids: a stream that is replayed after its records are forgotten.
        for number in numbers {
            let mut message = Message::new(number.to_string()).with_id(format!("{round}-{ends}"));
            message.set_header("Order", "7");
            message.set_header("Version", number.to_string());
            shop.broker.publish("orders", &message).await.unwrap();
            ends += 1;
        }
        let inbox = shop.inbox().await.with_sequence(sequence.clone());
        let tally = shop.handle(inbox, never(), numbers.len() as u64).await;
        assert_eq!(
            shop.effects().await,
            handled,
            "{gap:?} {numbers:?}, round {round}"
        );
        assert_eq!(tally.get(Count::DeadLettered), dead, "{gap:?} {numbers:?}");
    }
}

#[tokio::test]
async fn events_are_handled_once_and_in_order_also_when_the_stream_is_replayed() {
    check_sequence(Gap::Hold, &[1, 2, 2, 3], &["1", "2", "3"], 0).await;
    check_sequence(Gap::Hold, &[3, 1, 2], &["1", "2", "3"], 0).await;
    check_sequence(Gap::Pass, &[1, 4, 2], &["1", "2", "4"], 0).await;
    check_sequence(Gap::Hold, &[1, 3], &["1"], 1).await;
}

/// In-memory front that counts its hits.
#[derive(Debug, Clone, Default)]
struct Shelf {
    kept: Arc<Mutex<HashMap<RecordId, Bytes>>>,
    found: Arc<AtomicU32>,
}

impl Front for Shelf {
    async fn find(&self, id: RecordId) -> refrain::Result<Option<Bytes>> {
        let found = self.kept.lock().unwrap().get(&id).cloned();
        self.found.fetch_add(u32::from(found.is_some()), SeqCst);
        Ok(found)
    }

    async fn keep(&self, id: RecordId, _: Fence, entry: Bytes, _: Duration) -> refrain::Result<()> {
        self.kept.lock().unwrap().insert(id, entry);
        Ok(())
    }

    async fn erase(&self, id: RecordId, _: Duration) -> refrain::Result<()> {
        self.kept.lock().unwrap().remove(&id);
        Ok(())
    }
}

#[tokio::test]
async fn a_front_answers_duplicates_before_a_transaction_is_begun() {
    let (mut shop, shelf) = (Shop::open().await, Shelf::default());
    shop.in_flight_max = 1;
    for _ in 0..5 {
        shop.publish("a", "a").await;
    }
    let inbox = shop.inbox().await.with_front(shelf.clone());
    let tally = shop.handle(inbox, never(), 5).await;
    assert_eq!(tally.get(Count::Duplicate), 4);
    // The database answered the first duplicate, and then the front was filled.
    assert_eq!(shelf.found.load(SeqCst), 3);
    assert_eq!(shop.effects().await, ["a"]);
}
