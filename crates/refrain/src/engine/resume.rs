//! Resumes probes after a restart: finds the records in doubt that no task of this engine probes.
//!
//! A process that dies leaves records behind whose outcome is unknown, or becomes unknown when their lease lapses.
//! Their requests are gone, so a [`ProbeSource`] says how to look each of them up. Several processes that share a store
//! all find the same records: each waits a random time and reads the record again before it probes, and the fence
//! decides which result counts. Without a source they are only logged, because the process that knew of them is dead.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::time::sleep;

use super::{Engine, EngineState, Intent, probe::ProbeTask, without_query};
use crate::{
    Result,
    key::RecordId,
    record::{Fence, History, Reason, State},
    store::{LIST_MAX, Query, Reading, StateName, Store},
};

/// Interval between two passes over the records in doubt.
const PASS_EVERY: Duration = Duration::from_secs(30);
/// Pause between two pages of one pass.
const PAGE_EVERY: Duration = Duration::from_secs(1);
/// A store that lists slowly is listed less often: the pause is this many times the duration of the last list, because
/// each page may cost a scan of the store, and each process that shares the store lists it.
const PAUSE_PER_LIST: u32 = 100;
/// Longest pause between two lists.
const PAUSE_MAX: Duration = Duration::from_hours(1);
/// Longest random wait before the first list, and before each probe, if other processes share the store.
const SHARED_WAIT_MAX: Duration = Duration::from_secs(10);
/// Maximum number of records in doubt of dead processes that are logged one by one in each pass.
const LOGGED_PER_PASS: usize = 100;
/// Maximum number of records in doubt that are remembered as logged; above it, no more are logged.
const LOGGED_MAX: usize = 100_000;

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
    /// The scope has a header of the request, or is not known from the policy, and the probe may need it.
    ScopeNotKept,
    /// The path or the host of the request is not known completely.
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
            Self::ScopeNotKept => {
                "the probe may need the headers of the scope, which are not kept; \
                 resolve them with `refrain records resolve`"
            }
            Self::RequestNotKept => {
                "their path or their host is not known completely; \
                 resolve them with `refrain records resolve`"
            }
        })
    }
}

/// The sources of an engine. They are weak, because a source often holds the engine.
#[derive(Default)]
pub(super) struct ProbeSources {
    sources: Mutex<Vec<Weak<dyn ProbeSource>>>,
    /// Whether another process looks for records in doubt.
    is_stopped: AtomicBool,
}

impl ProbeSources {
    fn add(&self, source: Weak<dyn ProbeSource>) {
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        sources.retain(|it| it.strong_count() > 0);
        if !sources.iter().any(|it| Weak::ptr_eq(it, &source)) {
            sources.push(source);
        }
    }

    fn remove(&self, source: &Weak<dyn ProbeSource>) {
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        sources.retain(|it| !Weak::ptr_eq(it, source));
    }

    fn alive(&self) -> Vec<Arc<dyn ProbeSource>> {
        let sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        sources.iter().filter_map(Weak::upgrade).collect()
    }
}

impl fmt::Debug for ProbeSources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProbeSources")
    }
}

impl Engine {
    /// Starts the background task before the first claim, if called inside a runtime.
    #[cfg(feature = "http")]
    pub(crate) fn start_background(&self) {
        self.inner.start_background();
    }

    /// Looks up, in the background, the records in doubt that no task of this engine probes, such as those of processes
    /// that have died.
    ///
    /// Begins at once if called inside a runtime, else with the first claim, and ends when the source is dropped.
    /// A record is looked up for an hour, with growing pauses, and never before its old attempt can no longer act;
    /// what the engine has given up is looked up again only by another process.
    /// What cannot be looked up is logged once for each operation and reason.
    pub fn resume_probes(&self, source: Weak<dyn ProbeSource>) {
        self.inner.sources.add(source);
        self.inner.start_background();
    }

    /// Looks for no more records in doubt, because another process does so from now on.
    pub fn stop_resuming(&self) {
        self.inner.sources.is_stopped.store(true, Ordering::Relaxed);
    }

    /// Starts no more look-ups for this source. Those that run continue.
    pub fn stop_probes(&self, source: &Weak<dyn ProbeSource>) {
        self.inner.sources.remove(source);
    }
}

/// Lists the records in doubt page by page, again and again, until the engine is dropped.
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
        if inner.sources.is_stopped.load(Ordering::Relaxed) {
            return;
        }
        let started = tokio::time::Instant::now();
        if let Err(error) = resumption.next_page(&inner).await {
            tracing::warn!(%error, "cannot list the unknown outcomes of earlier processes; retrying");
        }
        drop(inner);
        sleep(resumption.pause_after(started.elapsed())).await;
    }
}

/// The pass over the records in doubt, and the attempts and warnings of earlier passes.
#[derive(Debug, Default)]
struct Resumption {
    /// The last record of the page before; `None` at the start of a pass.
    after: Option<RecordId>,
    /// The counts of this pass.
    pass: PassResult,
    /// Attempts of dead processes that were logged.
    logged: HashMap<RecordId, Fence>,
    /// Operations and reasons of records that cannot be looked up, each logged once.
    logged_unprobed: HashSet<(String, Unprobed)>,
    /// Whether the last pass met the limit of concurrent probes, which is logged once.
    is_full: bool,
}

/// The counts of one pass.
#[derive(Debug, Default)]
struct PassResult {
    /// The records that are still in doubt, of those that were logged or given up.
    in_doubt: HashSet<RecordId>,
    /// The number of probes started.
    started: usize,
    /// The number of records that wait for others to be probed.
    delayed: usize,
    /// The number of records of dead processes that were found first in this pass.
    found: usize,
    /// The number of records that cannot be looked up.
    unprobed: HashMap<(String, Unprobed), usize>,
}

impl Resumption {
    /// Lists the next records in doubt, and starts a task for each one that can be looked up and has none.
    /// After an error, continues with the same page.
    async fn next_page(&mut self, inner: &Arc<EngineState>) -> Result<()> {
        let sources = inner.sources.alive();
        let guarantees = inner.store.guarantees();
        let keeps_records = guarantees.shared || guarantees.survives_process;
        if sources.is_empty() && !keeps_records {
            return Ok(());
        }
        let query = Query {
            state: Some(StateName::Indeterminate),
            after: self.after,
            limit: LIST_MAX,
            ..Query::default()
        };
        let page = inner.store.list(&query).await.inspect_err(|_| self.log())?;
        for reading in &page.readings {
            self.visit(inner, &sources, reading);
        }
        self.after = page.next;
        if self.after.is_none() {
            self.end_pass(inner);
        }
        Ok(())
    }

    fn pause_after(&self, listed: Duration) -> Duration {
        let least = match self.after {
            Some(_) => PAGE_EVERY,
            None => PASS_EVERY,
        };
        let pause = least.max((listed * PAUSE_PER_LIST).min(PAUSE_MAX));
        pause.mul_f64(rand::random_range(0.75..=1.25))
    }

    fn visit(
        &mut self,
        inner: &Arc<EngineState>,
        sources: &[Arc<dyn ProbeSource>],
        reading: &Reading,
    ) {
        let State::Indeterminate { hold, reason } = &reading.record.state else {
            return;
        };
        let (id, fence) = (reading.id, hold.fence);
        let history = reading.record.trace.read();
        if *reason == Reason::Lapsed && !inner.flights.holds(id) {
            self.report(id, fence, history.as_ref());
        }
        if inner.flights.has_background_probe(id, fence) {
            self.pass.in_doubt.insert(id);
            return;
        }
        let Some(history) = history else {
            return;
        };
        match intent_of(sources, reading, &history) {
            Some(Ok(intent)) => match inner.resume_probing(id, fence, intent) {
                true => {
                    self.pass.in_doubt.insert(id);
                    self.pass.started += 1;
                }
                false => self.pass.delayed += 1,
            },
            Some(Err(why)) => {
                *self
                    .pass
                    .unprobed
                    .entry((history.operation, why))
                    .or_default() += 1;
            }
            None => {}
        }
    }

    /// Logs a record in doubt of a process that died, once: nobody else did.
    fn report(&mut self, id: RecordId, fence: Fence, history: Option<&History>) {
        let is_logged = self.logged.get(&id) == Some(&fence);
        if !is_logged && self.logged.len() >= LOGGED_MAX {
            return;
        }
        self.pass.in_doubt.insert(id);
        if is_logged {
            return;
        }
        self.logged.insert(id, fence);
        self.pass.found += 1;
        if self.pass.found > LOGGED_PER_PASS {
            return;
        }
        let operation = history.map(|it| it.operation.as_str());
        let target = history.map(|it| without_query(&it.target));
        let reason = Reason::Lapsed.name();
        tracing::warn!(
            record = %id, operation, target, reason,
            "the outcome is unknown, because the process of the request died: find out whether the operation took effect, \
             then run `refrain records resolve {id}`"
        );
    }

    fn end_pass(&mut self, inner: &EngineState) {
        self.log();
        let pass = std::mem::take(&mut self.pass);
        self.logged.retain(|id, _| pass.in_doubt.contains(id));
        let is_in_doubt = |id| pass.in_doubt.contains(&id);
        inner.flights.forget_given_up(is_in_doubt);
        self.is_full = pass.delayed > 0;
    }

    /// Logs the probes that were started, and what cannot be looked up, or not yet. Nothing is logged twice.
    fn log(&mut self) {
        let records = std::mem::take(&mut self.pass.started);
        if records > 0 {
            tracing::info!(
                records,
                "looking up unknown outcomes that earlier processes left behind"
            );
        }
        let records = self.pass.found.saturating_sub(LOGGED_PER_PASS);
        if records > 0 {
            // What is above the limit was counted, and the next page starts at the limit.
            self.pass.found = LOGGED_PER_PASS;
            tracing::warn!(
                records,
                "more outcomes are unknown, because the processes of their requests died; \
                 list them with `refrain records list --state indeterminate`"
            );
        }
        if self.pass.delayed > 0 && !self.is_full {
            self.is_full = true;
            tracing::warn!(
                records = self.pass.delayed,
                "too many unknown outcomes to look up at the same time: these wait until others are settled or given up"
            );
        }
        for ((operation, why), records) in &self.pass.unprobed {
            if self.logged_unprobed.insert((operation.clone(), *why)) {
                tracing::warn!(
                    operation,
                    records,
                    "unknown outcomes are looked up only when a client retries: {why}"
                );
            }
        }
    }
}

/// The intent of the first source that can look up the record; otherwise why one of them cannot.
fn intent_of(
    sources: &[Arc<dyn ProbeSource>],
    reading: &Reading,
    history: &History,
) -> Option<Result<Intent, Unprobed>> {
    let mut intents = sources.iter().filter_map(|it| it.intent(reading, history));
    let first = intents.next()?;
    match first {
        Err(why) => Some(intents.find(Result::is_ok).unwrap_or(Err(why))),
        ok => Some(ok),
    }
}

impl EngineState {
    /// Starts the task that probes a record of another process. Returns whether there was room for it.
    fn resume_probing(self: &Arc<Self>, id: RecordId, fence: Fence, intent: Intent) -> bool {
        let Some(place) = self.tally.resumed_probe() else {
            return false;
        };
        let turns = self.resumed_probes.clone();
        let task = ProbeTask::new(self, (id, fence), Box::new(intent), (place, turns));
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
