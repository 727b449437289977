//! Unknown outcomes that are not resolved yet: the age of the oldest, and their number by operation.
//!
//! The store counts them exactly; only their age and operation have to be read, from a limited number of records,
//! and not at every scrape.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use refrain::{
    Policy, Store as _,
    store::{AnyStore, Census, LIST_MAX, Page, Query, StateName},
};
use tokio::{
    sync::Mutex,
    time::{Instant, timeout_at},
};

/// Most records that are read. Records of unknown outcomes are small, because they have no outcome.
pub(crate) const READ_MAX: u32 = LIST_MAX;
/// How long a sample is reused at least.
const REUSED_MIN: Duration = Duration::from_secs(5);
/// A slow store is read for at most this part of the time: a sample is reused this many times as long as it took.
const REUSED_TIMES: u32 = 10;
/// Name for records whose operation is not in the policy.
const OTHER: &str = "other";

/// The unresolved records with an unknown outcome.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct UnknownOutcomes {
    /// Time since the oldest of the records was first seen; zero if there is none.
    pub(crate) oldest: Duration,
    /// Number of records by operation of the policy.
    pub(crate) by_operation: BTreeMap<String, u64>,
}

/// The last sample, which scrapes share.
#[derive(Debug, Default)]
pub(super) struct UnknownCache(Mutex<Option<Sample>>);

#[derive(Debug)]
struct Sample {
    at: Instant,
    reused_for: Duration,
    /// `None` if the store could not be read.
    read: Option<Arc<UnknownOutcomes>>,
}

impl UnknownCache {
    /// The unknown outcomes, read again if the last sample is too old; `None` if the store cannot be read before `deadline`.
    ///
    /// # Cancellation
    /// The next caller reads again.
    pub(super) async fn get(
        &self,
        store: &AnyStore,
        policy: &Policy,
        census: &Census,
        deadline: Instant,
    ) -> Option<Arc<UnknownOutcomes>> {
        if census.indeterminate == 0 {
            return Some(Arc::new(UnknownOutcomes::none(policy)));
        }
        let mut last = timeout_at(deadline, self.0.lock()).await.ok()?;
        if let Some(sample) = &*last
            && sample.at.elapsed() < sample.reused_for
        {
            return sample.read.clone();
        }
        let start = Instant::now();
        let read = read(store, policy, deadline).await.map(Arc::new);
        let sample = Sample {
            at: start,
            reused_for: REUSED_MIN.max(start.elapsed() * REUSED_TIMES),
            read,
        };
        last.insert(sample).read.clone()
    }
}

async fn read(store: &AnyStore, policy: &Policy, deadline: Instant) -> Option<UnknownOutcomes> {
    let query = Query {
        state: Some(StateName::Indeterminate),
        limit: READ_MAX,
        ..Query::default()
    };
    match timeout_at(deadline, store.list(&query)).await {
        Ok(Ok(page)) => Some(UnknownOutcomes::of(&page, policy)),
        Ok(Err(error)) => {
            tracing::warn!(%error, "cannot list the unknown outcomes of the store");
            None
        }
        Err(_) => None,
    }
}

impl UnknownOutcomes {
    /// No unknown outcome, with a count of zero for each operation.
    fn none(policy: &Policy) -> Self {
        let guarded = policy.operations().filter(|it| it.guarded);
        let names = guarded.map(|it| it.name.clone());
        let names = names.chain([OTHER.to_owned()]);
        Self {
            oldest: Duration::ZERO,
            by_operation: names.map(|name| (name, 0)).collect(),
        }
    }

    fn of(page: &Page, policy: &Policy) -> Self {
        let mut found = Self::none(policy);
        for reading in &page.readings {
            let history = reading.record.trace.read().unwrap_or_default();
            let first_seen = history.first_seen();
            let age = first_seen.map_or(Duration::ZERO, |first| reading.now.left(first));
            found.oldest = found.oldest.max(age);
            let is_known = found.by_operation.contains_key(&history.operation);
            let name = if is_known { &history.operation } else { OTHER };
            *found.by_operation.entry(name.to_owned()).or_default() += 1;
        }
        found
    }
}
