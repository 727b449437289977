//! Resumes probes after a restart: finds the records in doubt that no task of this engine probes.
//!
//! A process that dies leaves records behind whose outcome is unknown, or becomes unknown when their lease lapses.
//! Their requests are gone, so a [`ProbeSource`] says how to look each of them up. Several processes that share a store
//! all find the same records: each waits a random time and reads the record again before it probes, and the fence
//! decides which result counts.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use tokio::time::{Instant, sleep};

use super::{Engine, EngineState, Intent, probe::ProbeTask};
use crate::{
    Result,
    key::RecordId,
    record::{Fence, History, State},
    store::{LIST_MAX, Query, Reading, StateName, Store},
};

/// Interval between two rounds.
const ROUND_EVERY: Duration = Duration::from_secs(30);
/// A store that lists slowly is listed less often: the next round starts after this many times the last one's duration.
const PAUSE_PER_ROUND: u32 = 20;
/// Longest random wait before the first round, and before each probe, if other processes share the store.
const SHARED_WAIT_MAX: Duration = Duration::from_secs(10);
/// Maximum number of records that one process resumes, as long as they stay in doubt.
const RESUMED_MAX: usize = 10_000;

/// Says how to look up records that an earlier process left in doubt.
///
/// See [`Engine::resume_probes`].
pub trait ProbeSource: Send + Sync + 'static {
    /// The intent whose probe or receipts can resolve the record; only these, the terms and `audit` are used.
    ///
    /// `None` if the record does not belong to this source.
    ///
    /// # Errors
    /// Why a record of this source cannot be looked up.
    fn intent(&self, reading: &Reading, history: &History) -> Option<Result<Intent, Unprobed>>;
}

/// Why a record in doubt cannot be looked up without a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Unprobed {
    /// The probe needs the key, and only its digest is kept.
    KeyNotKept,
    /// The probe may need the credential of the client, which is never kept.
    CredentialNotKept,
    /// The path of the request is not known completely.
    RequestNotKept,
}

impl fmt::Display for Unprobed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::KeyNotKept => {
                "the probe names {key}, and only the digest of the key is kept; \
                 write {record} in the probe instead, or set records_keys = \"clear\""
            }
            Self::CredentialNotKept => {
                "the probe may need the credential of the client, which is not kept; \
                 give it one of its own with probe_authorization"
            }
            Self::RequestNotKept => {
                "their path is not known completely; resolve them with `refrain records resolve`"
            }
        })
    }
}

/// The sources of an engine. They are weak, because a source often holds the engine.
#[derive(Default)]
pub(super) struct ProbeSources(Mutex<Vec<Weak<dyn ProbeSource>>>);

impl ProbeSources {
    fn add(&self, source: Weak<dyn ProbeSource>) {
        let mut sources = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sources.retain(|it| it.strong_count() > 0);
        if !sources.iter().any(|it| Weak::ptr_eq(it, &source)) {
            sources.push(source);
        }
    }

    fn remove(&self, source: &Weak<dyn ProbeSource>) {
        let mut sources = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sources.retain(|it| !Weak::ptr_eq(it, source));
    }

    pub(super) fn is_empty(&self) -> bool {
        let sources = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sources.is_empty()
    }

    fn alive(&self) -> Vec<Arc<dyn ProbeSource>> {
        let sources = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sources.iter().filter_map(Weak::upgrade).collect()
    }
}

impl fmt::Debug for ProbeSources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProbeSources")
    }
}

impl Engine {
    /// Looks up, in the background, the records in doubt that no task of this engine probes:
    /// those of processes that have died, and those that the engine gave up.
    ///
    /// Begins at once if called inside a runtime, else with the first claim, and ends when the source is dropped.
    /// A record is looked up for an hour, with growing pauses, and never before its old attempt can no longer act.
    /// What cannot be looked up is logged once for each operation and reason.
    pub fn resume_probes(&self, source: Weak<dyn ProbeSource>) {
        self.inner.sources.add(source);
        self.inner.start_background();
    }

    /// Starts no more look-ups for this source. Those that run continue.
    pub fn stop_probes(&self, source: &Weak<dyn ProbeSource>) {
        self.inner.sources.remove(source);
    }
}

/// Runs rounds until the engine is dropped.
pub(super) async fn run(engine: Weak<EngineState>) {
    let mut resumption = Resumption::default();
    let Some(is_shared) = engine.upgrade().map(|it| it.store.guarantees().shared) else {
        return;
    };
    if is_shared {
        sleep(SHARED_WAIT_MAX.mul_f64(rand::random_range(0.0..=1.0))).await;
    }
    loop {
        let Some(inner) = engine.upgrade() else {
            return;
        };
        let started = tokio::time::Instant::now();
        if let Err(error) = resumption.round(&inner).await {
            tracing::warn!(%error, "cannot list the unknown outcomes of earlier processes; retrying");
        }
        drop(inner);
        sleep(pause_after(started)).await;
    }
}

fn pause_after(started: Instant) -> Duration {
    let pause = ROUND_EVERY.max(started.elapsed() * PAUSE_PER_ROUND);
    pause.mul_f64(rand::random_range(0.75..=1.25))
}

/// What the rounds of one engine remember.
#[derive(Debug, Default)]
struct Resumption {
    /// The attempts whose probes were resumed: not again, also after the engine gave them up.
    resumed: HashMap<RecordId, Fence>,
    /// What was logged.
    logged: HashSet<(String, Unprobed)>,
}

/// What one round found.
#[derive(Debug, Default)]
struct RoundResult {
    /// Attempts of earlier rounds that are still in doubt, and those of this round.
    resumed: HashMap<RecordId, Fence>,
    /// The number of probes started.
    started: usize,
    /// The number of records that cannot be looked up.
    unprobed: HashMap<(String, Unprobed), usize>,
}

impl Resumption {
    /// Lists all records in doubt, and starts a task for each one that can be looked up and has none.
    async fn round(&mut self, inner: &Arc<EngineState>) -> Result<()> {
        let sources = inner.sources.alive();
        if sources.is_empty() {
            return Ok(());
        }
        let mut query = Query {
            state: Some(StateName::Indeterminate),
            limit: LIST_MAX,
            ..Query::default()
        };
        let mut result = RoundResult::default();
        loop {
            let page = inner.store.list(&query).await?;
            for reading in page.readings {
                self.visit(inner, &sources, &reading, &mut result);
            }
            if page.next.is_none() {
                break;
            }
            query.after = page.next;
        }
        self.log(&result);
        self.resumed = result.resumed;
        Ok(())
    }

    fn visit(
        &self,
        inner: &Arc<EngineState>,
        sources: &[Arc<dyn ProbeSource>],
        reading: &Reading,
        result: &mut RoundResult,
    ) {
        let State::Indeterminate { hold, .. } = &reading.record.state else {
            return;
        };
        let (id, fence) = (reading.id, hold.fence);
        if self.resumed.get(&id) == Some(&fence) {
            result.resumed.insert(id, fence);
            return;
        }
        if inner.flights.is_cared(id) || result.resumed.len() >= RESUMED_MAX {
            return;
        }
        let Some(history) = reading.record.trace.read() else {
            return;
        };
        let mut intents = sources.iter();
        match intents.find_map(|source| source.intent(reading, &history)) {
            Some(Ok(intent)) => {
                let is_started = inner.resume_probing(id, fence, intent);
                result.resumed.extend(is_started.then_some((id, fence)));
                result.started += usize::from(is_started);
            }
            Some(Err(why)) => *result.unprobed.entry((history.operation, why)).or_default() += 1,
            None => {}
        }
    }

    /// Logs the probes that were started, and once for each operation and reason what cannot be looked up.
    fn log(&mut self, result: &RoundResult) {
        if result.started > 0 {
            let records = result.started;
            tracing::info!(
                records,
                "looking up unknown outcomes that earlier processes left behind"
            );
        }
        for ((operation, why), records) in &result.unprobed {
            if self.logged.insert((operation.clone(), *why)) {
                tracing::warn!(
                    operation,
                    records,
                    "unknown outcomes are looked up only when a client retries: {why}"
                );
            }
        }
    }
}

impl EngineState {
    /// Starts the task that probes a record of another process. Returns whether there was room for it.
    fn resume_probing(self: &Arc<Self>, id: RecordId, fence: Fence, intent: Intent) -> bool {
        let Some(task) = ProbeTask::new(self, id, fence, Box::new(intent)) else {
            return false;
        };
        let wait = match self.store.guarantees().shared {
            true => SHARED_WAIT_MAX.mul_f64(rand::random_range(0.0..=1.0)),
            false => Duration::ZERO,
        };
        let waiting = async move {
            sleep(wait).await;
            task.run().await;
        };
        self.spawn(waiting).is_some()
    }
}
