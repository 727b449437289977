//! `messages`: a consumer with deduplication against the same consumer without it, in turns, and the memory
//! for a million keys.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use refrain::{
    Engine, Outcome,
    consume::{Broker, Consumer, Count, Job, Message, Source, Task, Worked, Worker},
    store::{AnyStore, embedded::Options},
};
use refrain_testkit::servers::{PrivateNats, PrivateRedis};
use tokio::{sync::Notify, task::JoinSet};

use crate::{
    Setup, child,
    clock::now,
    folder, harness,
    report::{Need, Report},
};

const RATIO_MIN: f64 = 0.6;
/// Messages per round; all are in the stream before it starts.
const MESSAGES: u64 = 20_000;
const PUBLISHERS: u64 = 128;
pub(crate) const IN_FLIGHT: usize = 256;
const PAYLOAD_BYTES: usize = 256;
const ROUND_MAX: Duration = Duration::from_secs(120);
const NAME: &str = "bench";

/// Limit for memory per key that the second pass, duplicates only, may add: allocator noise.
const DUPLICATES_BYTES_MAX: f64 = 16.0;
/// Limit for memory per key during the first pass: the store's memory per record, and tables that are half full.
const KEY_BYTES_MAX: f64 = 200.0;

/// Measures both brokers, and then the memory.
pub(crate) fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    let nats = PrivateNats::start_beneath(&setup.root, &[])?;
    compare(setup, report, "NATS JetStream", &nats.url())?;
    drop(nats);
    let redis = PrivateRedis::start_beneath(&setup.root, &[("appendfsync", "everysec")])?;
    compare(setup, report, "Redis Streams", &redis.url())?;
    drop(redis);
    memory(setup, report)
}

fn compare(setup: &Setup, report: &mut Report, name: &str, url: &str) -> Result<()> {
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for round in 0..setup.options.rounds {
        for (kind, rates) in [("without", &mut without), ("with", &mut with)] {
            folder::settle(&setup.root)?;
            let queue = format!("{kind}-{round}");
            let store = folder::fresh(&setup.root)?;
            let dedupes = kind == "with";
            let measured = measure(url, &queue, dedupes.then(|| store.path()));
            let runtime = harness::network_runtime()?;
            let limited = async { tokio::time::timeout(ROUND_MAX, measured).await };
            let rate = runtime.block_on(limited);
            rates.push(rate.with_context(|| format!("{name}, {kind}: too slow"))??);
        }
    }
    report.figure(format!("{name}, without"), "messages/s", &without);
    report.figure(format!("{name}, with deduplication"), "messages/s", &with);
    let pairs = with.iter().zip(&without);
    let ratios: Vec<_> = pairs.map(|(with, without)| with / without).collect();
    let what = format!("with / without, {name}");
    report.figure(&what, "×", &ratios);
    report.target(what, &ratios, Need::AtLeast(RATIO_MIN));
    Ok(())
}

/// Messages per second through one consumer; all of them are in the stream when the clock starts.
async fn measure(url: &str, queue: &str, store: Option<&std::path::Path>) -> Result<f64> {
    let broker = refrain_brokers::open(&Source::new(url, queue, NAME)).await?;
    fill(broker.clone(), queue).await?;
    let handled = Arc::new(Handled::default());
    let engine = match store {
        Some(folder) => AnyStore::open_with(&address(folder), Options::default()).await?,
        None => AnyStore::open("memory:").await?,
    };
    let consumer =
        Consumer::new(broker.clone(), Engine::new(engine), NAME).with_in_flight_max(IN_FLIGHT);
    let done = handled.clone();
    let start = now();
    let stop = async move { done.reach(MESSAGES).await };
    let tally = match store {
        Some(_) => consumer.run(handled.handler(), stop).await?,
        None => consumer.run_with(Without(handled), stop).await?,
    };
    let seconds = start.elapsed().as_secs_f64();
    ensure!(
        tally.get(Count::Completed) >= MESSAGES,
        "not all messages were handled"
    );
    broker.close().await?;
    Ok(MESSAGES as f64 / seconds)
}

pub(crate) fn address(folder: &std::path::Path) -> String {
    format!("file:{}", folder.display())
}

async fn fill(broker: Arc<dyn Broker>, queue: &str) -> Result<()> {
    let mut publishing = JoinSet::<refrain::Result<()>>::new();
    for publisher in 0..PUBLISHERS {
        let (broker, queue) = (broker.clone(), queue.to_owned());
        publishing.spawn(async move {
            for number in (publisher..MESSAGES).step_by(PUBLISHERS as usize) {
                let message = message(number);
                broker.publish(&queue, &message).await?;
            }
            Ok(())
        });
    }
    while let Some(published) = publishing.join_next().await {
        published??;
    }
    Ok(())
}

pub(crate) fn message(number: u64) -> Message {
    Message::new(vec![b'x'; PAYLOAD_BYTES]).with_id(format!("message-{number}"))
}

/// Counts handled messages.
#[derive(Debug, Default)]
pub(crate) struct Handled {
    count: AtomicU64,
    reached: Notify,
}

impl Handled {
    pub(crate) fn add(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.reached.notify_one();
    }

    pub(crate) async fn reach(&self, count: u64) {
        while self.count.load(Ordering::Relaxed) < count {
            self.reached.notified().await;
        }
    }

    fn handler(
        self: &Arc<Self>,
    ) -> impl Fn(Job) -> std::future::Ready<Result<Outcome, refrain::consume::Failure>>
    + Send
    + Sync
    + 'static {
        let handled = self.clone();
        move |_| {
            handled.add();
            std::future::ready(Ok(Outcome::new(0, "done")))
        }
    }
}

/// The same consumer without claims and settlements.
struct Without(Arc<Handled>);

impl Worker for Without {
    fn work<'a>(&'a self, _: &'a Task) -> Pin<Box<dyn Future<Output = Worked> + Send + 'a>> {
        self.0.add();
        Box::pin(std::future::ready(Worked::Done(Count::Completed)))
    }
}

/// Measures memory in a child process: each key once, then each again.
fn memory(setup: &Setup, report: &mut Report) -> Result<()> {
    let folder = folder::fresh(&setup.root)?;
    let records = setup.options.records;
    let steps = child::consume(folder.path(), records)?;
    for (seen, bytes) in &steps {
        let what = format!("memory after {seen:.0} messages");
        report.figure(what, "MiB", &[bytes / f64::from(1 << 20)]);
    }
    let at = |seen: f64| {
        let step = steps.iter().find(|(at, _)| *at >= seen);
        step.map(|(_, bytes)| *bytes).context("a step is missing")
    };
    let keys = records as f64;
    let grown = (at(keys)? - at(0.0)?) / keys;
    let what = "bytes of memory per key, including the embedded store";
    report.target(what, &[grown], Need::AtMost(KEY_BYTES_MAX));
    let again = (at(keys * 2.0)? - at(keys)?) / keys;
    let what = "bytes of memory per further message with a known key";
    report.target(what, &[again], Need::AtMost(DUPLICATES_BYTES_MAX));
    Ok(())
}
