//! A message was given back 30 times while the store was down and processes restarted. Then its handler failed once,
//! and the message became a dead letter "after 31 attempts". Only the record counts attempts.

use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use refrain::{
    Engine, Guarantee, Outcome, Store as _,
    consume::{
        Backoff, Broker, Consumer, Count, DEAD_ATTEMPTS, DEAD_REASON, Failure, Job, Memory,
        Message, Publisher as _, Tally,
    },
    store::AnyStore,
};

use tokio::sync::watch;

use crate::{
    scripted::states,
    stage::{ATTEMPTS, DEAD, NAME, Stage, TOPIC, header, until},
};

/// A queue that outlives the processes that read it, and the folder on which they open their stores in turn.
struct Site {
    broker: Memory,
    folder: tempfile::TempDir,
    /// The attempt numbers that the handlers received.
    told: Arc<Mutex<Vec<u32>>>,
}

impl Site {
    async fn with_a_message() -> Self {
        let broker = Memory::new();
        let _ = broker.subscribe(TOPIC, NAME);
        let _ = broker.subscribe(DEAD, "undertaker");
        let message = Message::new("m").with_id("m");
        broker.publish(TOPIC, &message).await.unwrap();
        Self {
            broker,
            folder: tempfile::tempdir().unwrap(),
            told: Arc::default(),
        }
    }

    /// Processes that are stopping, or whose store is down, take the message and give it back.
    async fn give_back(&self, times: u32) {
        let queue = self.broker.subscribe(TOPIC, NAME);
        for _ in 0..times {
            let mut pulled = queue.pull(1, Duration::from_secs(30)).await.unwrap();
            let ticket = pulled.pop().unwrap().ticket;
            ticket.nack(Duration::ZERO).await.unwrap();
        }
    }

    /// Runs one process until all messages are done. Its handlers fail until the given number of them was started.
    /// With `stops_early` it is told to stop while its first handler runs.
    async fn process(
        &self,
        guarantee: Guarantee,
        failures: usize,
        stops_early: bool,
    ) -> Arc<Tally> {
        let store = open(self.folder.path()).await;
        let queue = Arc::new(self.broker.subscribe(TOPIC, NAME));
        let pause = Duration::from_millis(10);
        let consumer = Consumer::new(queue, Engine::new(store), NAME)
            .with_terms(Stage::terms(guarantee))
            .with_backoff(Backoff::new(pause, pause))
            .with_dead_letter(DEAD);
        let (started, is_started) = watch::channel(false);
        let (stop, is_stopping) = watch::channel(!stops_early);
        let told = self.told.clone();
        let handler = move |job: Job| {
            let number = {
                let mut told = told.lock().unwrap();
                told.push(job.attempt);
                told.len()
            };
            started.send_replace(true);
            let mut is_stopping = is_stopping.clone();
            async move {
                is_stopping.wait_for(|it| *it).await.unwrap();
                match number <= failures {
                    true => Err(Failure::retry("no").without_effect()),
                    false => Ok(Outcome::new(0, "")),
                }
            }
        };
        let tally = consumer.tally();
        let shutdown = async move {
            let mut is_started = is_started;
            match stops_early {
                true => drop(is_started.wait_for(|it| *it).await.unwrap()),
                false => until(|| is_done(&tally)).await,
            }
            stop.send_replace(true);
        };
        consumer.run(handler, shutdown).await.unwrap()
    }

    fn told(&self) -> Vec<u32> {
        self.told.lock().unwrap().clone()
    }
}

/// Retries, because the previous process may still be closing its files.
async fn open(folder: &Path) -> AnyStore {
    let address = format!("file:{}", folder.display());
    loop {
        match AnyStore::open(&address).await {
            Ok(store) => return store,
            Err(error) if error.is_retryable() => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

fn is_done(tally: &Tally) -> bool {
    tally.get(Count::Completed) + tally.get(Count::DeadLettered) > 0
}

#[tokio::test]
async fn deliveries_that_were_given_back_unhandled_are_no_attempts() {
    for guarantee in [Guarantee::AtLeastOnce, Guarantee::AtMostOnce] {
        let site = Site::with_a_message().await;
        site.give_back(30).await;
        let tally = site.process(guarantee, 1, false).await;
        assert_eq!(tally.get(Count::DeadLettered), 0, "{guarantee:?}");
        assert_eq!(site.told(), [1, 2], "{guarantee:?}");
    }
}

#[tokio::test]
async fn attempts_are_counted_across_restarts_and_by_nothing_else() {
    let site = Site::with_a_message().await;
    for number in 1..ATTEMPTS {
        let tally = site.process(Guarantee::AtLeastOnce, 100, true).await;
        assert_eq!(tally.get(Count::Retried), 1, "process {number}");
        site.give_back(5).await;
    }
    site.process(Guarantee::AtLeastOnce, 100, false).await;
    assert_eq!(site.told(), [1, 2, 3]);
    let dead = site.broker.subscribe(DEAD, "undertaker");
    let letter = &dead.pull(9, Duration::ZERO).await.unwrap()[0].message;
    assert_eq!(header(letter, DEAD_REASON), "attempts-used-up");
    assert_eq!(header(letter, DEAD_ATTEMPTS), ATTEMPTS.to_string());
    let store = open(site.folder.path()).await;
    assert!(store.guarantees().survives_process);
    assert!(
        states(&store).await.is_empty(),
        "the key must be free again"
    );
}

/// A message whose handler was never started has no attempts.
#[tokio::test(start_paused = true)]
async fn a_dead_letter_that_never_ran_says_so() {
    let stage = Stage::new();
    for payload in ["one", "two"] {
        stage.publish(Message::new(payload).with_id("m")).await;
        stage.run_out(stage.consumer()).await;
    }
    let letters = stage.letters().await;
    assert_eq!(header(&letters[0], DEAD_REASON), "key-reused");
    assert_eq!(header(&letters[0], DEAD_ATTEMPTS), "0");
}
