//! An in-memory broker, a store with scripted faults, and a handler that follows a script.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use refrain::{
    Engine, Guarantee, Outcome, Terms,
    consume::{Backoff, Broker, Consumer, Failure, Job, Memory, Message, Publisher, Tally},
};
use tokio::time::sleep;

use crate::scripted::Scripted;

pub(crate) const TOPIC: &str = "orders";
pub(crate) const NAME: &str = "billing";
pub(crate) const DEAD: &str = "dead";
pub(crate) const ATTEMPTS: u16 = 3;
pub(crate) const LEASE: Duration = Duration::from_secs(30);

/// An outcome is kept, and its key remembered, for this long.
pub(crate) const RETENTION: Duration = Duration::from_secs(600);

/// What the handler does with a message.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Act {
    Done,
    Retry,
    RetryAfter(Duration),
    Reject,
    RetryWithoutEffect,
    RejectWithoutEffect,
    Panic,
    /// Takes this long, then succeeds.
    Slow(Duration),
    Hang,
}

pub(crate) struct Stage {
    pub(crate) broker: Memory,
    pub(crate) store: Scripted,
    pub(crate) engine: Engine,
    pub(crate) handler: Handler,
}

/// Follows a script, call by call, and logs each call. Calls after the end of the script succeed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Handler {
    acts: Arc<Mutex<Vec<Act>>>,
    pub(crate) calls: Arc<Mutex<Vec<Call>>>,
    done: Arc<Mutex<Vec<String>>>,
}

#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) job: Job,
}

impl Stage {
    pub(crate) fn new() -> Self {
        Self::on(Memory::new())
    }

    pub(crate) fn on(broker: Memory) -> Self {
        let store = Scripted::on_runtime_clock();
        let stage = Self {
            engine: Engine::new(store.clone()),
            store,
            broker,
            handler: Handler::default(),
        };
        // Subscribed from the start, so that no published message is missed.
        let _ = stage.broker.subscribe(TOPIC, NAME);
        let _ = stage.broker.subscribe(DEAD, "undertaker");
        stage
    }

    pub(crate) fn terms(guarantee: Guarantee) -> Terms {
        Terms {
            guarantee,
            attempts_max: ATTEMPTS,
            lease: LEASE,
            wait: Duration::from_secs(1),
            retention: RETENTION,
            remember: RETENTION,
            ..Terms::default()
        }
    }

    pub(crate) fn consumer(&self) -> Consumer {
        self.consumer_of(Guarantee::AtLeastOnce)
    }

    pub(crate) fn consumer_of(&self, guarantee: Guarantee) -> Consumer {
        self.plain_consumer(guarantee, NAME).with_dead_letter(DEAD)
    }

    pub(crate) fn plain_consumer(&self, guarantee: Guarantee, name: &str) -> Consumer {
        let queue = Arc::new(self.broker.subscribe(TOPIC, name));
        let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(8));
        Consumer::new(queue, self.engine.clone(), name)
            .with_terms(Self::terms(guarantee))
            .with_backoff(backoff)
            .with_drain(Duration::from_secs(5))
    }

    pub(crate) async fn publish(&self, message: Message) {
        self.broker.publish(TOPIC, &message).await.unwrap();
    }

    /// Publishes a message with an id.
    pub(crate) async fn publish_text(&self, text: &str) {
        self.publish(Message::new(text.to_owned()).with_id(text))
            .await;
    }

    /// Runs a consumer with the script until the condition holds, then stops it.
    pub(crate) async fn run(
        &self,
        consumer: Consumer,
        is_so: impl Fn(&Tally) -> bool,
    ) -> Arc<Tally> {
        let tally = consumer.tally();
        let shutdown = {
            let tally = tally.clone();
            until(move || is_so(&tally))
        };
        consumer.run(self.handler.handle(), shutdown).await.unwrap()
    }

    /// Runs until all published messages are done.
    pub(crate) async fn run_out(&self, consumer: Consumer) -> Arc<Tally> {
        self.run(consumer, |_| self.backlog() == 0).await
    }

    pub(crate) fn backlog(&self) -> usize {
        self.broker.backlog(TOPIC, NAME)
    }

    /// Takes the dead letters from their queue.
    pub(crate) async fn letters(&self) -> Vec<Message> {
        let queue = self.broker.subscribe(DEAD, "undertaker");
        let mut letters = Vec::new();
        for delivery in queue.pull(100, Duration::ZERO).await.unwrap() {
            letters.push(delivery.message);
            delivery.ticket.ack().await.unwrap();
        }
        letters
    }
}

impl Handler {
    pub(crate) fn script(&self, acts: &[Act]) {
        *self.acts.lock().unwrap() = acts.to_vec();
    }

    pub(crate) fn handle(
        &self,
    ) -> impl Fn(Job) -> std::pin::Pin<Box<dyn Future<Output = Result<Outcome, Failure>> + Send>>
    + Send
    + Sync
    + 'static
    + use<> {
        let handler = self.clone();
        move |job| {
            let handler = handler.clone();
            Box::pin(async move { handler.act(job).await })
        }
    }

    async fn act(self, job: Job) -> Result<Outcome, Failure> {
        let text = said(&job.message);
        self.calls.lock().unwrap().push(Call { job });
        let act = {
            let mut acts = self.acts.lock().unwrap();
            match acts.is_empty() {
                true => Act::Done,
                false => acts.remove(0),
            }
        };
        match act {
            Act::Done => {}
            Act::Slow(time) => sleep(time).await,
            Act::Retry => return Err(Failure::retry("try again")),
            Act::RetryAfter(delay) => return Err(Failure::retry_after(delay, "try later")),
            Act::Reject => return Err(Failure::reject("never")),
            Act::RetryWithoutEffect => return Err(Failure::retry("not sent").without_effect()),
            Act::RejectWithoutEffect => return Err(Failure::reject("not sent").without_effect()),
            Act::Panic => panic!("scripted"),
            Act::Hang => std::future::pending().await,
        }
        self.done.lock().unwrap().push(text);
        Ok(Outcome::new(0, "done"))
    }

    pub(crate) fn calls(&self) -> usize {
        self.calls.lock().unwrap().len()
    }

    /// The messages that were handled successfully, in order.
    pub(crate) fn done(&self) -> Vec<String> {
        self.done.lock().unwrap().clone()
    }
}

pub(crate) fn said(message: &Message) -> String {
    String::from_utf8_lossy(&message.payload).into_owned()
}

/// The text of a header, empty if it is absent.
pub(crate) fn header<'m>(message: &'m Message, name: &str) -> &'m str {
    let value = message.header(name).map(|value| &value[..]);
    std::str::from_utf8(value.unwrap_or_default()).unwrap()
}

/// Waits until the condition holds, for half an hour of runtime time; then panics.
#[track_caller]
pub(crate) fn until(is_so: impl Fn() -> bool) -> impl Future<Output = ()> {
    let place = std::panic::Location::caller();
    async move {
        for _ in 0..36_000 {
            if is_so() {
                return;
            }
            sleep(Duration::from_millis(50)).await;
        }
        panic!("timed out waiting for the condition at {place}");
    }
}
