//! The running workers, as the admin listener sees them: counts, lag, dead letters, redrives.

use std::{sync::Arc, time::Duration};

use refrain::{
    Engine, Error, ErrorKind, Result,
    consume::{Broker, Count, DeadLetter, Lag, Tally},
    engine::OperatorAction,
    policy::WorkerSettings,
};
use refrain_proxy::admin::{RedriveStatus, WorkerStatus, Workers, WorkersFuture};
use tokio::time::{Instant, timeout};

use super::{
    dead_source,
    redrive::redrive_worker,
    redrive_state::{RedriveState, RunningRedrive},
};

/// How long a lag that was read is reported again, so that each reader does not ask the broker.
const LAG_AGE_MAX: Duration = Duration::from_secs(5);
/// The same for the number of dead letters, which takes a new connection.
const LETTERS_AGE_MAX: Duration = Duration::from_secs(10);
/// Timeout of the broker for its counts; they are reported as unknown then.
const LAG_WAIT_MAX: Duration = Duration::from_secs(2);
/// How long a caller waits for the end of a redrive, which continues after that.
const REDRIVE_WAIT_MAX: Duration = Duration::from_secs(20);

/// The workers of this process.
#[derive(Debug)]
pub(super) struct RunningWorkers {
    settings: Vec<WorkerSettings>,
    /// In the order of the settings.
    workers: Vec<Arc<RunningWorker>>,
    engine: Engine,
}

/// A worker that runs.
#[derive(Debug)]
pub(super) struct RunningWorker {
    broker: Arc<dyn Broker>,
    tally: Arc<Tally>,
    lag: CachedLag,
    /// The lag of the dead-letter queue.
    dead: CachedLag,
    /// The redrive that runs, or the last one.
    redrive: RedriveState,
}

/// The last lag that was read, and when.
#[derive(Debug, Default)]
struct CachedLag(tokio::sync::Mutex<Option<(Instant, Lag)>>);

impl CachedLag {
    /// The lag, read at most once in this time; unknown if the broker does not answer.
    async fn get(&self, age_max: Duration, reading: impl Future<Output = Result<Lag>>) -> Lag {
        let mut last = self.0.lock().await;
        if let Some((read, lag)) = *last
            && read.elapsed() < age_max
        {
            return lag;
        }
        let lag = match timeout(LAG_WAIT_MAX, reading).await {
            Ok(Ok(lag)) => lag,
            Ok(Err(error)) => {
                tracing::debug!(%error, "cannot count the messages of a queue");
                Lag::default()
            }
            Err(_) => Lag::default(),
        };
        *last = Some((Instant::now(), lag));
        lag
    }

    async fn forget(&self) {
        *self.0.lock().await = None;
    }
}

impl RunningWorkers {
    pub(super) fn new(engine: Engine) -> Self {
        Self {
            settings: Vec::new(),
            workers: Vec::new(),
            engine,
        }
    }

    pub(super) fn add(
        &mut self,
        settings: &WorkerSettings,
        broker: Arc<dyn Broker>,
        tally: Arc<Tally>,
    ) {
        self.settings.push(settings.clone());
        self.workers.push(Arc::new(RunningWorker {
            broker,
            tally,
            lag: CachedLag::default(),
            dead: CachedLag::default(),
            redrive: RedriveState::default(),
        }));
    }

    /// The name and the counters of each worker.
    pub(super) fn tallies(&self) -> impl Iterator<Item = (&str, &Tally)> {
        let workers = self.settings.iter().zip(&self.workers);
        workers.map(|(settings, worker)| (&*settings.name, &*worker.tally))
    }

    fn find(&self, name: &str) -> Option<(&WorkerSettings, &Arc<RunningWorker>)> {
        let mut workers = self.settings.iter().zip(&self.workers);
        workers.find(|(settings, _)| settings.name == name)
    }

    async fn statuses(&self) -> Vec<WorkerStatus> {
        // At the same time, because a broker that does not answer takes all of its timeout.
        let workers = self.settings.iter().zip(&self.workers);
        let reading: Vec<_> = workers
            .map(|(settings, worker)| tokio::spawn(worker.clone().status(settings.clone())))
            .collect();
        let mut statuses = Vec::new();
        for status in reading {
            statuses.extend(status.await);
        }
        statuses
    }

    async fn redrive(
        &self,
        name: &str,
        at_most: u32,
        action: OperatorAction<'_>,
    ) -> Option<Result<RedriveStatus>> {
        let (settings, worker) = self.find(name)?;
        let order = RedriveOrder {
            settings: settings.clone(),
            engine: self.engine.clone(),
            at_most: at_most.into(),
            actor: action.actor,
            by: action.by.map(Into::into),
            reason: action.reason.into(),
        };
        let running = match worker.redrive.begin() {
            Ok(running) => running,
            Err(error) => return Some(Err(error)),
        };
        // A task of its own: if the caller no longer waits, the redrive ends in order anyway.
        let running = tokio::spawn(worker.clone().run_redrive(running, order));
        let ended = timeout(REDRIVE_WAIT_MAX, running).await;
        Some(match ended {
            Ok(Ok(redriven)) => redriven,
            Ok(Err(_)) => Err(Error::new(ErrorKind::Unavailable, "the redrive panicked")),
            Err(_) => Ok(worker.redrive.status().unwrap_or_default()),
        })
    }
}

/// Redrive of one worker, as an operator ordered it.
struct RedriveOrder {
    settings: WorkerSettings,
    engine: Engine,
    at_most: u64,
    actor: &'static str,
    by: Option<String>,
    reason: String,
}

impl RedriveOrder {
    async fn run(&self) -> Result<RedriveStatus> {
        let dead_letter = dead_letter(&self.settings)?;
        let action = OperatorAction {
            reason: &self.reason,
            actor: self.actor,
            by: self.by.as_deref(),
        };
        let at_most = Some(self.at_most);
        let redriven = redrive_worker(
            &self.settings,
            dead_letter,
            &self.engine,
            at_most,
            Some(action),
        );
        let redriven = redriven.await?;
        Ok(RedriveStatus {
            sent: redriven.sent,
            skipped: redriven.skipped,
            left: redriven.left,
            ..RedriveStatus::default()
        })
    }
}

impl RunningWorker {
    async fn status(self: Arc<Self>, settings: WorkerSettings) -> WorkerStatus {
        let lag = self.lag.get(LAG_AGE_MAX, self.broker.lag());
        let (lag, dead_letters) = tokio::join!(lag, self.dead_letters(&settings));
        let counts = Count::ALL.map(|count| (count.name(), self.tally.get(count)));
        let guarantee = serde_json::to_value(settings.terms.guarantee).unwrap_or_default();
        WorkerStatus {
            name: settings.name.clone(),
            source: settings.source.to_string(),
            queue: settings.queue.clone(),
            deliver: settings.deliver.to_string(),
            guarantee: guarantee.as_str().unwrap_or_default().into(),
            dead_letter: settings.dead_letter.clone(),
            counts: counts.into(),
            in_flight: self.tally.in_flight_now() as u64,
            redrive: self.redrive.status(),
            trouble: self.tally.broker_trouble(),
            dead_letters,
            ..WorkerStatus::default()
        }
        .with_lag(lag)
    }

    /// The number of dead letters; unknown without a queue for them, or if the broker does not answer.
    async fn dead_letters(&self, settings: &WorkerSettings) -> Option<u64> {
        let source = dead_source(settings, settings.dead_letter.as_deref()?);
        let reading = refrain_brokers::lag(&source);
        let lag = self.dead.get(LETTERS_AGE_MAX, reading).await;
        Some(lag.waiting? + lag.unacknowledged.unwrap_or(0))
    }

    async fn run_redrive(
        self: Arc<Self>,
        running: RunningRedrive,
        order: RedriveOrder,
    ) -> Result<RedriveStatus> {
        let redriven = order.run().await;
        self.dead.forget().await;
        running.end(&redriven);
        redriven
    }
}

/// The dead-letter queue of a worker.
fn dead_letter(settings: &WorkerSettings) -> Result<&str> {
    settings.dead_letter.as_deref().ok_or_else(|| {
        let message = format!(
            "worker {} has no dead-letter queue; set `dead_letter`",
            settings.name
        );
        Error::new(ErrorKind::Invalid, message)
    })
}

impl Workers for RunningWorkers {
    fn settings(&self) -> &[WorkerSettings] {
        &self.settings
    }

    fn troubles(&self) -> Vec<String> {
        let troubles = self.tallies();
        let troubles = troubles.filter_map(|(name, tally)| Some((name, tally.broker_trouble()?)));
        troubles
            .map(|(name, why)| format!("worker {name}: {why}"))
            .collect()
    }

    fn list(&self) -> WorkersFuture<'_, Vec<WorkerStatus>> {
        Box::pin(self.statuses())
    }

    fn dead_letters<'a>(
        &'a self,
        worker: &'a str,
        at_most: u32,
    ) -> WorkersFuture<'a, Option<Result<Vec<DeadLetter>>>> {
        Box::pin(async move {
            let (settings, _) = self.find(worker)?;
            let queue = match dead_letter(settings) {
                Ok(queue) => queue,
                Err(error) => return Some(Err(error)),
            };
            let source = dead_source(settings, queue);
            Some(refrain_brokers::dead_letters(&source, at_most as usize).await)
        })
    }

    fn redrive<'a>(
        &'a self,
        worker: &'a str,
        at_most: u32,
        action: OperatorAction<'a>,
    ) -> WorkersFuture<'a, Option<Result<RedriveStatus>>> {
        Box::pin(self.redrive(worker, at_most, action))
    }
}
