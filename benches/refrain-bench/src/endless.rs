//! A broker without cost: it generates messages, each key once and then each again.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use refrain::{
    Engine, Outcome,
    consume::{Answer, Broker, Consumer, Count, Delivery, Guarantees, Message, Publisher, Ticket},
    store::{AnyStore, embedded::Options},
};

use crate::{
    child, harness,
    messages::{self, IN_FLIGHT},
};

/// Number of memory readings per pass over the keys.
const STEPS: u64 = 4;

/// Consumes twice as many messages as there are keys, and prints the memory.
pub(crate) fn consume(folder: &Path, keys: u64) -> Result<()> {
    harness::runtime()?.block_on(async {
        let store = AnyStore::open_with(&messages::address(folder), Options::default()).await?;
        let broker = Arc::new(Endless {
            keys,
            next: AtomicU64::new(0),
        });
        let consumer =
            Consumer::new(broker, Engine::new(store), "bench").with_in_flight_max(IN_FLIGHT * 4);
        let tally = consumer.tally();
        let watching = async move {
            for step in 0..=STEPS * 2 {
                let seen = keys * step / STEPS;
                while tally.get(Count::Completed) + tally.get(Count::Duplicate) < seen {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                match child::resident_bytes() {
                    Ok(bytes) => println!("{seen} {bytes}"),
                    Err(error) => eprintln!("{error}"),
                }
            }
        };
        let handler = |_| std::future::ready(Ok(Outcome::new(0, "done")));
        consumer.run(handler, watching).await?;
        Ok(())
    })
}

#[derive(Debug)]
struct Endless {
    keys: u64,
    next: AtomicU64,
}

impl Publisher for Endless {
    fn publish<'a>(&'a self, _: &'a str, _: &'a Message) -> Answer<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }
}

impl Broker for Endless {
    fn pull(&self, at_most: usize, wait: Duration) -> Answer<'_, Vec<Delivery>> {
        Box::pin(async move {
            let first = self.next.fetch_add(at_most as u64, Ordering::Relaxed);
            let last = (first + at_most as u64).min(self.keys * 2);
            if first >= last {
                tokio::time::sleep(wait).await;
            }
            let numbers = (first..last).map(|number| Delivery {
                message: messages::message(number % self.keys),
                attempt: 1,
                ticket: Box::new(Nothing),
            });
            Ok(numbers.collect())
        })
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees {
            is_ordered: false,
            counts_attempts: true,
            ack_wait: None,
            age_max: None,
        }
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }
}

struct Nothing;

impl Ticket for Nothing {
    fn ack(self: Box<Self>) -> Answer<'static, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn nack(self: Box<Self>, _: Duration) -> Answer<'static, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn extend(&self) -> Answer<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }
}
