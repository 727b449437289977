//! A suite that misses a bug certifies a broken broker: the in-memory broker of the library passes the suite, and the
//! suite detects each deliberate flaw in that broker.

use std::{sync::Arc, time::Duration};

use refrain::{
    Result,
    consume::{
        Answer, Broker, Delivery, Guarantees, Lag, Memory, MemoryQueue, Message, Publisher, Ticket,
    },
};
use refrain_testkit::broker_suite::{self, Fixture};

struct InProcess(Memory);

impl Fixture for InProcess {
    async fn connect(
        &self,
        queue: &str,
        consumer: &str,
        ack_wait: Duration,
    ) -> Result<Arc<dyn Broker>> {
        let memory = self.0.clone().with_ack_wait(ack_wait);
        Ok(Arc::new(memory.subscribe(queue, consumer)))
    }

    fn ack_wait(&self) -> Duration {
        Duration::from_millis(300)
    }

    fn fans_out(&self) -> bool {
        true
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory() {
    broker_suite::run(InProcess(Memory::new())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_in_order() {
    broker_suite::run(InProcess(Memory::new().with_order())).await;
}

/// A deliberate bug in a broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    LosesHeaders,
    LosesIds,
    IgnoresDelays,
    IgnoresAcknowledgements,
    IgnoresExtensions,
    AcknowledgesWhenDropped,
    CountsFromOne,
    MixesGroups,
    ForgetsHeldMessages,
}

#[derive(Debug, Clone)]
struct Flawed {
    memory: Memory,
    flaw: Flaw,
}

impl Fixture for Flawed {
    async fn connect(
        &self,
        queue: &str,
        consumer: &str,
        ack_wait: Duration,
    ) -> Result<Arc<dyn Broker>> {
        let memory = self.memory.clone().with_ack_wait(ack_wait);
        Ok(Arc::new(FlawedQueue {
            queue: memory.subscribe(queue, consumer),
            flaw: self.flaw,
        }))
    }

    fn ack_wait(&self) -> Duration {
        Duration::from_millis(300)
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(6)
    }
}

#[derive(Debug)]
struct FlawedQueue {
    queue: MemoryQueue,
    flaw: Flaw,
}

impl Publisher for FlawedQueue {
    fn publish<'a>(&'a self, destination: &'a str, message: &'a Message) -> Answer<'a, ()> {
        self.queue.publish(destination, message)
    }
}

impl Broker for FlawedQueue {
    fn pull(&self, at_most: usize, wait: Duration) -> Answer<'_, Vec<Delivery>> {
        Box::pin(async move {
            let mut pulled = self.queue.pull(at_most, wait).await?;
            if self.flaw == Flaw::MixesGroups {
                pulled.reverse();
            }
            Ok(pulled.into_iter().map(|it| self.spoil(it)).collect())
        })
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees {
            is_ordered: self.flaw == Flaw::MixesGroups,
            ..self.queue.guarantees()
        }
    }

    fn lag(&self) -> Answer<'_, Lag> {
        Box::pin(async {
            let lag = self.queue.lag().await?;
            Ok(match self.flaw {
                Flaw::ForgetsHeldMessages => lag.with_unacknowledged(0),
                _ => lag,
            })
        })
    }

    fn close(&self) -> Answer<'_, ()> {
        self.queue.close()
    }
}

impl FlawedQueue {
    fn spoil(&self, mut delivery: Delivery) -> Delivery {
        match self.flaw {
            Flaw::LosesHeaders => delivery.message.headers.clear(),
            Flaw::LosesIds => delivery.message.id = None,
            Flaw::CountsFromOne => delivery.attempt = 1,
            _ => {}
        }
        delivery.ticket = Box::new(FlawedTicket {
            ticket: Some(delivery.ticket),
            flaw: self.flaw,
        });
        delivery
    }
}

struct FlawedTicket {
    ticket: Option<Box<dyn Ticket>>,
    flaw: Flaw,
}

impl Ticket for FlawedTicket {
    fn ack(mut self: Box<Self>) -> Answer<'static, ()> {
        let ticket = self.ticket.take().unwrap();
        match self.flaw {
            Flaw::IgnoresAcknowledgements => Box::pin(async { Ok(()) }),
            _ => ticket.ack(),
        }
    }

    fn nack(mut self: Box<Self>, delay: Duration) -> Answer<'static, ()> {
        let ticket = self.ticket.take().unwrap();
        match self.flaw {
            Flaw::IgnoresDelays => ticket.nack(Duration::ZERO),
            _ => ticket.nack(delay),
        }
    }

    fn extend(&self) -> Answer<'_, ()> {
        match self.flaw {
            Flaw::IgnoresExtensions => Box::pin(async { Ok(()) }),
            _ => self.ticket.as_ref().unwrap().extend(),
        }
    }
}

impl Drop for FlawedTicket {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take()
            && self.flaw == Flaw::AcknowledgesWhenDropped
        {
            // Takes effect when called, without polling the future: the queue is in memory.
            drop(ticket.ack());
        }
    }
}

#[test]
fn flaws_are_found() {
    let found_by = [
        (Flaw::LosesHeaders, "a_message_comes_as_it_was_published"),
        (Flaw::LosesIds, "duplicate_producers_have_one_effect"),
        (
            Flaw::IgnoresDelays,
            "a_message_given_back_waits_for_its_delay",
        ),
        (
            Flaw::IgnoresAcknowledgements,
            "an_acknowledged_message_does_not_come_again",
        ),
        (
            Flaw::IgnoresExtensions,
            "a_message_that_is_held_longer_does_not_come_again",
        ),
        (
            Flaw::AcknowledgesWhenDropped,
            "a_crash_before_the_acknowledgement_delivers_again",
        ),
        (
            Flaw::AcknowledgesWhenDropped,
            "a_worker_that_dies_loses_nothing",
        ),
        (Flaw::CountsFromOne, "attempts_are_counted"),
        (Flaw::MixesGroups, "groups_stay_in_order"),
        (
            Flaw::ForgetsHeldMessages,
            "lag_counts_messages_that_are_not_finished",
        ),
    ];
    // In parallel, because the suite spends most of its time waiting.
    std::thread::scope(|scope| {
        for (flaw, case) in found_by {
            scope.spawn(move || check(flaw, case));
        }
    });
}

#[tokio::main(flavor = "multi_thread", worker_threads = 1)]
async fn check(flaw: Flaw, case: &str) {
    let memory = match flaw {
        Flaw::MixesGroups => Memory::new().with_order(),
        _ => Memory::new(),
    };
    let report = broker_suite::check(&Flawed { memory, flaw }).await;
    let is_found = report.failures.iter().any(|failure| failure.case == case);
    assert!(is_found, "{case} does not detect {flaw:?}: {report}");
}
