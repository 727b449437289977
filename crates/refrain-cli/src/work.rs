//! `refrain work`: consumes messages from brokers and delivers each once to an HTTP service.

use std::{
    net::SocketAddr,
    path::PathBuf,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use refrain::{
    Engine, Guarantee, Operation,
    consume::{Backoff, Broker, Consumer, Count, Source, Tally},
    fingerprint::Part,
    policy::{Address, Policy, Secrets, Settings, WorkerSettings, redacted, units::Span},
    receipts::{AnyReceipts, Witness},
    store::{AnyStore, Store as _},
};
use refrain_proxy::admin::Metrics;
use serde_json::{Value, json};
use tokio::{sync::watch, task::JoinSet, time::timeout};

use crate::{
    output::say,
    proxy::{
        Failure, Signals, admin_tokens, audit_log, log_to_stderr, open_store, raise_file_limit,
    },
    settings::{self, Flags, Supports},
};

mod admin;
mod deliver;
mod letters;
mod redrive;
mod redrive_state;
mod workers;

use deliver::Delivery;
use redrive::redrive;
use workers::RunningWorkers;

/// Timeout for closing a broker.
const CLOSE_MAX: Duration = Duration::from_secs(5);

/// Deduplicate messages from brokers, and deliver them to services
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("letters").args(["redrive", "dead_letters"]))]
#[command(after_help = "Examples:
  refrain work --config refrain.toml              run every [[worker]] of the file
  refrain work --worker billing                   run one worker
  refrain work --dead-letters --worker billing    list its dead letters without consuming them
  refrain work --redrive --worker billing         redrive its dead letters, and exit;
                                                  each one is written to the audit log, folder `redrive`

A worker in refrain.toml:
  [[worker]]
  name        = \"billing\"
  source      = \"redis://127.0.0.1:6379\"
  queue       = \"orders\"
  deliver     = \"http://127.0.0.1:3000/events/orders\"
  dead_letter = \"orders.dead\"

Each message is sent as a POST with Idempotency-Key, Refrain-Attempt, Refrain-Record and Refrain-Fence.
2xx: handled. 4xx: dead letter at once. 408, 425, 429, 5xx, timeout or lost response: retried, not before Retry-After.

Flags override the environment (REFRAIN_STORE, REFRAIN_AUDIT_LOG, REFRAIN_ADMIN, REFRAIN_LOG; append _FILE to name
a file that holds the value), which overrides the file; `admin` in the file is only for the proxy.
If the admin address is not a loopback address, REFRAIN_ADMIN_TOKEN is required; REFRAIN_ADMIN_READER_TOKEN may only read.
Only the secrets of the selected workers and of the store are read.

Exit codes: 0 stopped by a signal, 2 wrong usage, 64 bad configuration, 69 broker or store unreachable;
with --redrive, 0 also if there are no dead letters, and 69 if they cannot be read or another redrive holds them.")]
pub(crate) struct Args {
    /// Configuration file with at least one [[worker]]
    #[arg(long, value_name = "FILE", default_value = "refrain.toml")]
    config: PathBuf,
    /// Run only this worker; may be given several times
    #[arg(long = "worker", value_name = "NAME")]
    workers: Vec<String>,
    /// Redrive dead letters (put them back into their queue), and exit
    #[arg(long)]
    redrive: bool,
    /// List dead letters without consuming them, and exit
    #[arg(long)]
    dead_letters: bool,
    /// Maximum number of dead letters of each worker [default: 100 for a list, all for a redrive]
    #[arg(long, value_name = "COUNT", requires = "letters")]
    at_most: Option<u64>,
    /// Store of the records, instead of that of the file; redis://…,STORE puts Redis in front of STORE
    #[arg(long, value_name = "STORE")]
    store: Option<String>,
    /// Folder of the audit log, instead of that of the file
    #[arg(long, value_name = "DIR")]
    audit_log: Option<String>,
    /// Address of health checks, metrics, records and dead letters [default: not served]
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["redrive", "dead_letters"])]
    admin: Option<SocketAddr>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Log level on standard error: error, warn, info, debug or trace [default: warn]
    #[arg(long, value_name = "LEVEL")]
    log: Option<String>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let done = match (args.dead_letters, args.redrive) {
        (true, _) => runtime.block_on(letters::list(args)),
        (_, true) => runtime.block_on(redrive(args)),
        _ => runtime.block_on(work(args)),
    };
    // The tasks that still run were told to stop and had their time.
    runtime.shutdown_background();
    match done {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(failure) => {
            crate::output::complain(&failure);
            Ok(failure.code())
        }
    }
}

/// The file's settings, and its workers that the flags select.
fn chosen(args: &Args) -> Result<(Settings, Vec<WorkerSettings>), Failure> {
    chosen_from(args, refrain_brokers::check_support)
}

fn chosen_from(
    args: &Args,
    supports: Supports,
) -> Result<(Settings, Vec<WorkerSettings>), Failure> {
    let flags = Flags {
        store: args.store.as_deref(),
        audit_log: args.audit_log.as_deref(),
        ..Flags::default()
    };
    let secrets = Secrets::Workers(&args.workers);
    let settings = settings::load(Some(&args.config), secrets, &flags)?.settings;
    let file = args.config.display();
    if settings.workers.is_empty() {
        return Err(Failure::Configuration(format!(
            "refrain: {file} has no [[worker]]; `refrain work --help` shows an example"
        )));
    }
    let names = || settings.workers.iter().map(|worker| worker.name.as_str());
    if let Some(unknown) = args
        .workers
        .iter()
        .find(|name| !names().any(|it| it == *name))
    {
        let names: Vec<_> = names().collect();
        return Err(Failure::Configuration(format!(
            "refrain: {file} has no worker `{unknown}`; it has {}",
            names.join(", ")
        )));
    }
    let is_meant =
        |worker: &&WorkerSettings| args.workers.is_empty() || args.workers.contains(&worker.name);
    let workers: Vec<_> = settings.workers.iter().filter(is_meant).cloned().collect();
    for worker in &workers {
        supports(&worker.source)?;
    }
    Ok((settings, workers))
}

/// The admin address, if one is set. The file's `admin` is the proxy's, which may run on the same machine.
fn admin_address(args: &Args) -> Result<Option<SocketAddr>, Failure> {
    let text = match args.admin {
        Some(address) => return Ok(Some(address)),
        None => settings::value("admin", None)?,
    };
    let parsed = text.map(|text| {
        text.trim().parse().map_err(|_| {
            Failure::Configuration(format!(
                "refrain: REFRAIN_ADMIN `{}` is not a listen address; \
                 use an IP address and a port, such as 127.0.0.1:9090",
                redacted(&text)
            ))
        })
    });
    parsed.transpose()
}

/// Rejects at-most-once workers on a store that may lose claims.
fn check_store(store: &AnyStore, workers: &[WorkerSettings]) -> Result<(), Failure> {
    match workers.iter().find(|worker| worker.needs_every_claim()) {
        Some(worker) if store.guarantees().lossy_failover => Err(Failure::Configuration(format!(
            "refrain: worker `{}` is at-most-once, but the store may lose granted claims ({}); \
                 make the store durable, set guarantee = \"at-least-once\", \
                 or accept the risk with accept_lossy_claims = true",
            worker.name,
            store.losses()
        ))),
        _ => Ok(()),
    }
}

async fn work(args: &Args) -> Result<(), Failure> {
    let (settings, workers) = chosen(args)?;
    let admin = admin_address(args)?;
    let tokens = admin
        .map(|it| admin_tokens(it, &settings.admin_hosts))
        .transpose()?
        .unwrap_or_default();
    log_to_stderr(&settings::value("log", args.log.as_deref())?)?;
    raise_file_limit();
    let (mut signals, mut told) = (Signals::new()?, Signals::new()?);
    let store = open_store(&settings).await?;
    check_store(&store, &workers)?;
    say(format!("store {}", settings::stores(&settings)));
    let is_audited = workers.iter().any(|worker| worker.audit);
    // Claims are kept in the last store named.
    let truth = settings.store.last().map_or("", Address::as_str);
    let metrics = Metrics::new(&Policy::new(Vec::new())?, truth);
    let engine = Engine::new(store.with_meter(metrics.clone()));
    let engine = engine.with_audit(audit_log(&settings, is_audited)?);
    let (stop, stopping) = watch::channel(false);
    let mut running = JoinSet::new();
    let mut consumers = RunningWorkers::new(engine.clone());
    for worker in &workers {
        let broker = open_broker(&worker.source()).await?;
        let delivery = Delivery::new(&settings, worker, &metrics)?;
        let consumer = prepared(&settings, worker, &engine, broker.clone()).await?;
        let name = worker.name.clone();
        consumers.add(worker, broker.clone(), consumer.tally());
        let mut stopping = stopping.clone();
        running.spawn(async move {
            let stop = async move {
                // An error means that the sender was dropped, which is a stop, too.
                let _ = stopping.wait_for(|stop| *stop).await;
            };
            let handler = move |job| {
                let delivery = delivery.clone();
                async move { delivery.deliver(job).await }
            };
            let done = consumer.run(handler, stop).await;
            close(&*broker).await;
            (name, done)
        });
        greet(worker);
        if worker.audit {
            let folder = settings.audit_folder();
            say(format!("  audit log {}", folder.display()));
        }
    }
    let consumers = Arc::new(consumers);
    let is_stopping = Arc::new(AtomicBool::new(false));
    let admin = match admin {
        Some(address) => {
            let state = admin::ProcessState {
                settings: &settings,
                engine: engine.clone(),
                metrics,
                is_stopping: is_stopping.clone(),
            };
            Some(admin::serve(address, tokens, state, consumers.clone()).await?)
        }
        None => None,
    };
    let stop_all = || {
        is_stopping.store(true, Ordering::Release);
        stop.send_replace(true);
    };
    let ended = async {
        let mut failed = None;
        while let Some(Ok((name, done))) = running.join_next().await {
            if let Err(error) = done {
                // Stop the other workers, too, so that a supervisor can restart all of them.
                failed.get_or_insert(format!("worker `{name}` ended: {error}"));
                stop_all();
            }
        }
        // Results that the store has not taken yet, and claims that it may have granted unknown to the workers.
        let _ = timeout(settings.proxy.drain, engine.settled()).await;
        failed
    };
    let stopped = async {
        signals.next().await;
        say("stopping: no new messages; running messages finish");
        stop_all();
        std::future::pending::<()>().await;
    };
    let insisted = async {
        told.next().await;
        told.next().await;
    };
    let failed = tokio::select! {
        failed = ended => failed,
        () = stopped => None,
        () = insisted => {
            say("stopped at once; running messages will be delivered again");
            return Ok(());
        }
    };
    drop(admin);
    report(&consumers, args.json);
    match failed {
        Some(why) => Err(Failure::Unavailable(why)),
        None => Ok(()),
    }
}

async fn prepared(
    settings: &Settings,
    worker: &WorkerSettings,
    engine: &Engine,
    broker: Arc<dyn Broker>,
) -> Result<Consumer, Failure> {
    let mut consumer = Consumer::new(broker, engine.clone(), worker.name.as_str())
        .with_key(worker.key.iter().cloned())
        .with_terms(worker.terms)
        .with_in_flight_max(worker.concurrency)
        .with_backoff(Backoff::new(worker.backoff, worker.backoff_max))
        .with_drain(settings.proxy.drain);
    if worker.audit {
        consumer = consumer.with_audit();
    }
    if worker.accept_lossy_claims {
        consumer = consumer.with_lossy_claims_accepted();
    }
    if !worker.compare {
        consumer = consumer.with_fingerprint([Part::Path]);
    }
    if let Some(sequence) = &worker.sequence {
        consumer = consumer.with_sequence(sequence.clone());
    }
    if let Some(destination) = &worker.dead_letter {
        consumer = consumer.with_dead_letter(destination);
    }
    if let (Guarantee::ExactlyOnce, Some(address)) = (worker.terms.guarantee, &worker.receipts) {
        let receipts = refrain_stores::receipts::open(address).await?;
        let operation = Operation::new(&format!("POST /{}", worker.name))?;
        let operation = operation.with_terms(worker.terms);
        let witness = Witness::new(&operation, AnyReceipts::new(receipts));
        consumer = consumer.with_receipts(Arc::new(witness));
    }
    Ok(consumer)
}

async fn open_broker(source: &Source) -> Result<Arc<dyn Broker>, Failure> {
    Ok(refrain_brokers::open(source).await?)
}

/// Closes a broker, which returns messages that were fetched and not started. A broker that does not answer redelivers them later.
async fn close(broker: &dyn Broker) {
    match timeout(CLOSE_MAX, broker.close()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "cannot close the broker connection"),
        Err(_) => tracing::debug!("closing the broker connection timed out"),
    }
}

fn greet(worker: &WorkerSettings) {
    let keys: Vec<_> = worker.key.iter().map(ToString::to_string).collect();
    let guarantee = serde_json::to_value(worker.terms.guarantee).unwrap_or_default();
    let dead = worker.dead_letter.as_deref();
    say(format!(
        "worker {}: {} at {} to {}\n  {}, key from {}, {} attempts, dead letters {}, duplicates detected for {}",
        worker.name,
        worker.queue,
        worker.source,
        worker.deliver,
        guarantee.as_str().unwrap_or_default(),
        keys.join(" or "),
        worker.attempts,
        dead.map_or("stay in the queue (no `dead_letter` set)".into(), |queue| {
            format!("to {queue}")
        }),
        Span(worker.terms.retention + worker.terms.remember),
    ));
}

fn report(workers: &RunningWorkers, is_json: bool) {
    let counted = |tally: &Tally| {
        Count::ALL
            .into_iter()
            .map(|count| (count.name(), tally.get(count)))
            .filter(|(_, number)| *number > 0)
            .collect::<Vec<_>>()
    };
    if is_json {
        let workers = workers.tallies().map(|(name, tally)| {
            let counts = counted(tally).into_iter();
            let counts = counts.map(|(name, number)| (name.to_owned(), number.into()));
            (name.to_owned(), Value::Object(counts.collect()))
        });
        return say(json!({ "workers": Value::Object(workers.collect()) }));
    }
    for (name, tally) in workers.tallies() {
        let counts = counted(tally).into_iter();
        let counts: Vec<_> = counts
            .map(|(name, number)| format!("{number} {name}"))
            .collect();
        let said = match counts.is_empty() {
            true => "no messages".into(),
            false => counts.join(", "),
        };
        say(format!("stopped; worker {name}: {said}"));
    }
}

/// The queue of a worker's dead letters, with its own consumer name.
fn dead_source(worker: &WorkerSettings, dead_letter: &str) -> Source {
    Source {
        queue: dead_letter.into(),
        consumer: format!("{}-redrive", worker.name),
        ..worker.source()
    }
}

#[cfg(test)]
mod tests {
    //! A worker on a build without its broker must not start: it would fail at its first message.

    use refrain::{Error, ErrorKind, policy::Address};

    use super::*;

    #[derive(clap::Parser)]
    struct Alone {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn a_worker_whose_broker_the_build_lacks_is_bad_configuration() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("refrain.toml");
        let worker = "[[worker]]\nname = \"a\"\nqueue = \"q\"\nsource = \"kafka://h\"\ndeliver = \"http://h/\"\n";
        std::fs::write(&file, worker).unwrap();
        let words = ["work", "--config", file.to_str().unwrap()];
        let args = <Alone as clap::Parser>::parse_from(words).args;
        let lacks = |_: &Address| Err(Error::new(ErrorKind::Unsupported, "built without Kafka"));
        let failure = chosen_from(&args, lacks).unwrap_err();
        assert_eq!(failure.to_string(), "refrain: built without Kafka");
        assert_eq!(
            format!("{:?}", failure.code()),
            format!("{:?}", ExitCode::from(64))
        );
        assert!(chosen_from(&args, |_| Ok(())).is_ok());
    }
}
