//! Store and broker fail: no handler runs without a claim, no message is lost, and no retry loop runs without a
//! pause.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use refrain::{
    ErrorKind, Guarantee,
    consume::{
        Answer, Broker, Consumer, Count, DEAD_ATTEMPTS, DEAD_REASON, Delivery, Guarantees, Memory,
        MemoryQueue, Message, Publisher,
    },
    policy::Terms,
};
use tokio::time::sleep;

use crate::{
    scripted::{Fault, Op},
    stage::{ATTEMPTS, Act, NAME, Stage, TOPIC, header, until},
};

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_holds_everything_up_and_costs_no_attempts() {
    let stage = Stage::new();
    stage
        .store
        .set(Op::Claim, 10_000, Fault::Fails(ErrorKind::Unavailable));
    for number in 0..5 {
        stage.publish_text(&format!("m{number}")).await;
    }
    let away = async {
        sleep(Duration::from_secs(120)).await;
        assert_eq!(stage.handler.calls(), 0);
        let asked = stage.store.calls(Op::Claim);
        // Each claim is tried twice, because a response may get lost.
        assert!(
            asked < 100,
            "the store was asked {asked} times in two minutes"
        );
        stage.store.mend(Op::Claim);
    };
    let (tally, ()) = tokio::join!(stage.run_out(stage.consumer()), away);
    assert_eq!(tally.get(Count::Completed), 5);
    assert!(tally.get(Count::Unavailable) > u64::from(ATTEMPTS) * 2);
    assert_eq!(tally.get(Count::DeadLettered), 0);
    assert!(stage.letters().await.is_empty());
    let calls = stage.handler.calls.lock().unwrap();
    assert!(calls.iter().all(|call| call.job.attempt == 1));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_behind_the_handler_does_not_make_it_run_twice() {
    let stage = Stage::new();
    let fault = Fault::Fails(ErrorKind::Unavailable);
    stage.store.set(Op::Settle, 3, fault);
    stage.publish_text("m").await;
    let tally = stage.run_out(stage.consumer()).await;
    assert_eq!(stage.handler.calls(), 1);
    assert_eq!(tally.get(Count::Unsettled), 1);
    assert_eq!(tally.get(Count::Duplicate), 1);
}

#[tokio::test(start_paused = true)]
async fn a_damaged_record_is_a_dead_letter_and_does_not_run() {
    let stage = Stage::new();
    stage
        .store
        .set(Op::Claim, 1, Fault::Fails(ErrorKind::Corrupt));
    stage.publish_text("m").await;
    stage.run_out(stage.consumer()).await;
    assert_eq!(stage.handler.calls(), 0);
    let letters = stage.letters().await;
    assert_eq!(header(&letters[0], DEAD_REASON), "record-damaged");
}

/// The in-memory queue without some of its features.
#[derive(Debug)]
struct Lesser {
    queue: MemoryQueue,
    counts: bool,
    age_max: Option<Duration>,
    /// Number of pulls that still fail.
    failures: AtomicUsize,
    kind: ErrorKind,
}

impl Lesser {
    fn new(memory: &Memory) -> Self {
        Self {
            queue: memory.subscribe(TOPIC, NAME),
            counts: true,
            age_max: None,
            failures: AtomicUsize::new(0),
            kind: ErrorKind::Unavailable,
        }
    }
}

impl Publisher for Lesser {
    fn publish<'a>(&'a self, destination: &'a str, message: &'a Message) -> Answer<'a, ()> {
        self.queue.publish(destination, message)
    }
}

impl Broker for Lesser {
    fn pull(&self, at_most: usize, wait: Duration) -> Answer<'_, Vec<Delivery>> {
        let left = self.failures.load(Ordering::SeqCst);
        if left > 0 {
            self.failures.store(left - 1, Ordering::SeqCst);
            let error = refrain::Error::new(self.kind, "scripted");
            return Box::pin(async { Err(error) });
        }
        Box::pin(async move {
            let mut pulled = self.queue.pull(at_most, wait).await?;
            if !self.counts {
                pulled.iter_mut().for_each(|it| it.attempt = 1);
            }
            Ok(pulled)
        })
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees {
            counts_attempts: self.counts,
            age_max: self.age_max,
            ..self.queue.guarantees()
        }
    }

    fn close(&self) -> Answer<'_, ()> {
        self.queue.close()
    }
}

fn consumer_on(stage: &Stage, broker: Lesser) -> Consumer {
    Consumer::new(Arc::new(broker), stage.engine.clone(), NAME)
        .with_attempts(ATTEMPTS)
        .with_dead_letter(crate::stage::DEAD)
}

#[tokio::test(start_paused = true)]
async fn attempts_are_counted_here_where_the_broker_does_not() {
    let stage = Stage::new();
    stage.handler.script(&[Act::Retry; 10]);
    stage.publish_text("m").await;
    let broker = Lesser {
        counts: false,
        ..Lesser::new(&stage.broker)
    };
    stage.run_out(consumer_on(&stage, broker)).await;
    assert_eq!(stage.handler.calls(), usize::from(ATTEMPTS));
    let letters = stage.letters().await;
    assert_eq!(header(&letters[0], DEAD_ATTEMPTS), ATTEMPTS.to_string());
}

/// With a store that forgets, only the broker knows how often a message was delivered in vain.
#[tokio::test(start_paused = true)]
async fn message_delivered_too_often_is_not_handled_on_a_volatile_store() {
    let stage = Stage::new();
    stage.publish_text("m").await;
    let queue = stage.broker.subscribe(TOPIC, NAME);
    for _ in 0..ATTEMPTS {
        let mut pulled = queue.pull(1, Duration::from_secs(1)).await.unwrap();
        let ticket = pulled.pop().unwrap().ticket;
        ticket.nack(Duration::ZERO).await.unwrap();
    }
    stage.run_out(stage.consumer()).await;
    assert_eq!(stage.handler.calls(), 0);
    let letters = stage.letters().await;
    assert_eq!(header(&letters[0], DEAD_REASON), "attempts-used-up");
    assert_eq!(
        header(&letters[0], DEAD_ATTEMPTS),
        "0",
        "the handler never ran"
    );
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_is_away_is_waited_for_and_one_that_refuses_ends_the_consumer() {
    let stage = Stage::new();
    stage.publish_text("m").await;
    let broker = Lesser {
        failures: AtomicUsize::new(5),
        ..Lesser::new(&stage.broker)
    };
    let tally = stage.run_out(consumer_on(&stage, broker)).await;
    assert_eq!(tally.get(Count::Completed), 1);

    let broker = Lesser {
        failures: AtomicUsize::new(1),
        kind: ErrorKind::Unsupported,
        ..Lesser::new(&stage.broker)
    };
    let consumer = consumer_on(&stage, broker);
    let ended = consumer.run(stage.handler.handle(), std::future::pending());
    assert_eq!(ended.await.unwrap_err().kind(), ErrorKind::Unsupported);
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_is_away_is_told_for_as_long_as_it_is() {
    let stage = Stage::new();
    stage.publish_text("m").await;
    let broker = Lesser {
        failures: AtomicUsize::new(3),
        ..Lesser::new(&stage.broker)
    };
    let consumer = consumer_on(&stage, broker);
    let tally = consumer.tally();
    assert_eq!(tally.broker_trouble(), None);
    let shutdown = async {
        until(|| tally.broker_trouble().is_some_and(|it| it == "scripted")).await;
        until(|| tally.broker_trouble().is_none()).await;
    };
    consumer
        .run(stage.handler.handle(), shutdown)
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn settings_that_cannot_work_are_refused_before_anything_is_pulled() {
    let stage = Stage::new();
    stage.publish_text("m").await;
    let late = || Lesser {
        age_max: Some(Duration::from_secs(30 * 86_400)),
        ..Lesser::new(&stage.broker)
    };
    let long = Terms {
        retention: Duration::from_secs(31 * 86_400),
        ..Stage::terms(Guarantee::AtLeastOnce)
    };
    let refused = [
        ("remembered for", consumer_on(&stage, late())),
        ("key source", stage.consumer().with_key([])),
        ("name", stage.plain_consumer(Guarantee::AtLeastOnce, "")),
        ("name", stage.plain_consumer(Guarantee::AtLeastOnce, "a\nb")),
    ];
    for (word, consumer) in refused {
        let ended = consumer.run(stage.handler.handle(), std::future::pending());
        let error = ended.await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(word), "{error}");
    }
    assert_eq!(stage.handler.calls(), 0);
    stage
        .run_out(consumer_on(&stage, late()).with_terms(long))
        .await;
    assert_eq!(stage.handler.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_slow_handler_keeps_its_message_and_its_lease() {
    let stage = Stage::on(Memory::new().with_ack_wait(Duration::from_secs(3)));
    let time = Duration::from_secs(200);
    stage.handler.script(&[Act::Slow(time)]);
    stage.publish_text("m").await;
    let second = stage.consumer();
    let tally = second.tally();
    let started = stage.handler.clone();
    let later = async {
        until(|| started.calls() > 0).await;
        let done = until(|| stage.backlog() == 0);
        second.run(stage.handler.handle(), done).await.unwrap()
    };
    let (first, _) = tokio::join!(stage.run_out(stage.consumer()), later);
    assert_eq!(stage.handler.calls(), 1);
    assert_eq!(first.get(Count::Completed) + tally.get(Count::Completed), 1);
    // No message was delivered a second time.
    assert!(Count::ALL.iter().all(|count| tally.get(*count) == 0));
}
