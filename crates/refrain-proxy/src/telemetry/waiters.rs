//! Requests that waited for another one with the same key, by record: for the page of the record.
//!
//! Nothing is sampled: a request that waited was slow, so what it costs to note it does not count.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use refrain::{
    RecordId,
    clock::{Clock as _, SystemClock, Timestamp},
    http::DecidedRequest,
};

use super::RequestOutcome;

/// Records whose waiters are kept; a further one replaces the one that got its first waiter the longest time ago.
pub(crate) const RECORDS_MAX: usize = 1_000;
/// Waiters that are kept for each record.
pub(crate) const WAITERS_MAX: usize = 20;

/// A request that waited.
#[derive(Debug, Clone)]
pub(crate) struct Waiter {
    /// When it got its response.
    pub(crate) at: Timestamp,
    /// Time from the request to the response.
    pub(crate) took: Duration,
    pub(crate) outcome: RequestOutcome,
    /// The code of the problem, if it was refused.
    pub(crate) code: Option<&'static str>,
    pub(crate) trace_id: Option<[u8; 16]>,
}

impl Waiter {
    fn of(request: &DecidedRequest<'_>) -> Self {
        let outcome = RequestOutcome::of(request);
        Self {
            at: SystemClock.wall(),
            took: request.took,
            outcome,
            code: (outcome == RequestOutcome::Refused).then(|| request.decision.label()),
            trace_id: request.trace_id(),
        }
    }
}

/// The waiters of one record.
#[derive(Debug, Clone, Default)]
pub(crate) struct RecordWaiters {
    /// The latest ones, oldest first.
    pub(crate) kept: VecDeque<Waiter>,
    /// Number of earlier ones.
    pub(crate) left_out: u64,
}

/// The requests that waited in this process.
#[derive(Debug, Default)]
pub(crate) struct Waiters(Mutex<Lists>);

#[derive(Debug, Default)]
struct Lists {
    of: HashMap<RecordId, RecordWaiters>,
    /// In the order of their first waiters.
    order: VecDeque<RecordId>,
}

impl Waiters {
    /// Notes a request that waited and has a record.
    pub(super) fn note(&self, request: &DecidedRequest<'_>) {
        if let Some(record) = request.record().and_then(|id| id.parse().ok()) {
            self.add(record, Waiter::of(request));
        }
    }

    fn add(&self, record: RecordId, waiter: Waiter) {
        let mut lists = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !lists.of.contains_key(&record) {
            if lists.order.len() >= RECORDS_MAX
                && let Some(oldest) = lists.order.pop_front()
            {
                lists.of.remove(&oldest);
            }
            lists.order.push_back(record);
        }
        let list = lists.of.entry(record).or_default();
        if list.kept.len() >= WAITERS_MAX {
            list.kept.pop_front();
            list.left_out += 1;
        }
        list.kept.push_back(waiter);
    }

    /// The requests that waited for this record.
    pub(crate) fn of(&self, record: RecordId) -> RecordWaiters {
        let lists = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lists.of.get(&record).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_waiters_of_the_latest_records_are_kept() {
        let waiters = Waiters::default();
        let record = |number: usize| {
            let mut id = [0; 16];
            id[..8].copy_from_slice(&number.to_be_bytes());
            RecordId(id)
        };
        let waiter = |at| Waiter {
            at: Timestamp(at),
            took: Duration::ZERO,
            outcome: RequestOutcome::Waited,
            code: None,
            trace_id: None,
        };
        for at in 0..30 {
            waiters.add(record(0), waiter(at));
        }
        let found = waiters.of(record(0));
        assert_eq!((found.kept.len(), found.left_out), (WAITERS_MAX, 10));
        assert_eq!(found.kept[0].at, Timestamp(10), "the oldest are dropped");
        for number in 1..=RECORDS_MAX {
            waiters.add(record(number), waiter(0));
        }
        assert!(waiters.of(record(0)).kept.is_empty());
        assert_eq!(waiters.of(record(1)).kept.len(), 1);
        let lists = waiters.0.lock().unwrap();
        assert_eq!(
            (lists.of.len(), lists.order.len()),
            (RECORDS_MAX, RECORDS_MAX)
        );
    }
}
