//! A running consumer: pulls as many messages as it has capacity for, and drains at shutdown.
//! Messages of one group are handled one after another, different groups concurrently.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::{
    sync::{oneshot, watch},
    task::JoinSet,
    time::{sleep, sleep_until, timeout},
};

use super::{Count, Delivery, attend::AttendedDelivery, shared::ConsumerState};
use crate::{Error, Result};

/// Maximum time that a pull waits for the first message.
const PULL_WAIT: Duration = Duration::from_secs(1);
/// Additional time for a pull that exceeds its wait at shutdown.
const PULL_GRACE: Duration = Duration::from_secs(1);
/// With an ordering broker, ratio of held deliveries to running handlers,
/// so that a blocked group leaves capacity for other groups.
const WAITING_PER_RUNNING: usize = 8;

/// A running consumer.
pub(super) struct Consuming {
    shared: Arc<ConsumerState>,
    /// Maximum number of deliveries held at a time.
    held_max: usize,
    lanes: GroupLanes,
    /// One task for each held delivery.
    tasks: JoinSet<()>,
}

impl Consuming {
    pub(super) fn new(shared: Arc<ConsumerState>) -> Self {
        Self {
            held_max: held_max(&shared),
            shared,
            lanes: GroupLanes::default(),
            tasks: JoinSet::new(),
        }
    }

    /// Pulls until shutdown, then signals all tasks to stop.
    pub(super) async fn pull_until(
        &mut self,
        shutdown: impl Future<Output = ()>,
        stop: &watch::Sender<bool>,
    ) -> Result<()> {
        let stopping = async {
            shutdown.await;
            stop.send_replace(true);
            // The pull loop sees the flag and ends by itself.
            std::future::pending::<()>().await;
        };
        let pulled = tokio::select! {
            pulled = self.pull() => pulled,
            () = stopping => Ok(()),
        };
        stop.send_replace(true);
        pulled
    }

    async fn pull(&mut self) -> Result<()> {
        let mut failures = 0;
        while !self.shared.is_stopping() {
            self.make_room().await;
            let Some(pulled) = self.pull_once().await else {
                return Ok(());
            };
            match pulled {
                Ok(deliveries) => {
                    failures = 0;
                    self.note_trouble();
                    deliveries.into_iter().for_each(|it| self.take(it));
                    self.wait_for_store().await;
                }
                Err(error) if error.is_retryable() => {
                    self.shared.tally.set_broker_trouble(Some(&error));
                    // If only some messages are unavailable, the others must not wait for a growing backoff.
                    failures = match self.shared.broker.trouble() {
                        Some(_) => 1,
                        None => failures + 1,
                    };
                    self.wait_for_broker(&error, failures).await;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Records that the broker cannot deliver messages, although the pull succeeded.
    fn note_trouble(&self) {
        let shared = &self.shared;
        let trouble = shared.broker.trouble();
        let is_news = shared.tally.set_broker_trouble(trouble.as_ref());
        if let Some(error) = trouble.filter(|_| is_news) {
            tracing::error!(consumer = &*shared.settings.name, %error, "the broker cannot deliver messages");
        }
    }

    /// Waits for capacity for one more delivery, and for the end of a pause because of the store.
    async fn make_room(&mut self) {
        while self.tasks.try_join_next().is_some() {}
        let stopping = self.shared.clone();
        if let Some(until) = self.shared.pause.until() {
            tokio::select! {
                () = stopping.stopping() => return,
                () = sleep_until(until) => {}
            }
        }
        while self.tasks.len() >= self.held_max {
            tokio::select! {
                () = stopping.stopping() => return,
                _ = self.tasks.join_next() => {}
            }
        }
    }

    /// Makes one pull; `None` if the consumer stops. A pull in progress is awaited even then,
    /// because its messages would be redelivered only after the acknowledgement timeout.
    async fn pull_once(&self) -> Option<Result<Vec<Delivery>>> {
        if self.shared.is_stopping() {
            return None;
        }
        let room = match self.shared.pause.is_on() {
            // One message is enough to test whether the store is available again.
            true => 1,
            false => self.held_max - self.tasks.len(),
        };
        let mut pulling = self.shared.broker.pull(room, PULL_WAIT);
        tokio::select! {
            pulled = &mut pulling => Some(pulled),
            () = self.shared.stopping() => timeout(PULL_WAIT + PULL_GRACE, pulling).await.ok(),
        }
    }

    /// While the store is unavailable, waits for the last delivery to show whether it is available again.
    async fn wait_for_store(&mut self) {
        let shared = self.shared.clone();
        if shared.pause.is_on() && !self.tasks.is_empty() {
            tokio::select! {
                () = shared.stopping() => {}
                () = sleep(shared.settings.backoff.first) => {}
                _ = self.tasks.join_next() => {}
            }
        }
    }

    async fn wait_for_broker(&self, error: &Error, failures: u32) {
        let shared = &self.shared;
        tracing::warn!(consumer = &*shared.settings.name, %error, "cannot pull messages; retrying");
        tokio::select! {
            () = shared.stopping() => {}
            () = sleep(shared.settings.backoff.pause(failures)) => {}
        }
    }

    /// Spawns a task for a delivery. Its place in its group is taken here, in the order of delivery.
    fn take(&mut self, delivery: Delivery) {
        let group = delivery.message.group.as_deref();
        let group = group.filter(|_| self.shared.guarantees.is_ordered);
        let turn = group.map(|group| self.lanes.enter(group));
        let attended = AttendedDelivery::new(self.shared.clone(), delivery);
        self.tasks.spawn(attended.attend(turn));
    }

    /// Waits for running tasks up to the drain time, then abandons them.
    pub(super) async fn drain(&mut self) {
        let draining = async { while self.tasks.join_next().await.is_some() {} };
        if timeout(self.shared.settings.drain, draining).await.is_ok() {
            return;
        }
        let left = self.tasks.len();
        let shared = &self.shared;
        tracing::warn!(
            consumer = &*shared.settings.name,
            left,
            "messages are still being handled at the end of the drain time: they are abandoned"
        );
        shared.tally.add(Count::Left, left as u64);
        self.tasks.shutdown().await;
    }
}

fn held_max(shared: &ConsumerState) -> usize {
    match shared.guarantees.is_ordered {
        true => shared.settings.in_flight_max * WAITING_PER_RUNNING,
        false => shared.settings.in_flight_max,
    }
}

/// Tail of each group's queue. A delivery waits only for its predecessor in the group.
#[derive(Debug, Default)]
pub(super) struct GroupLanes {
    last: HashMap<String, oneshot::Receiver<()>>,
    /// Number of groups at which empty ones are removed.
    pruned_at: usize,
}

/// Position in a group's queue. Dropping it lets the next delivery proceed.
#[derive(Debug)]
pub(super) struct LanePosition {
    before: Option<oneshot::Receiver<()>>,
    _after: oneshot::Sender<()>,
}

const LANES_FEW: usize = 1_024;

impl GroupLanes {
    /// Adds a position at the end of the group's queue.
    pub(super) fn enter(&mut self, group: &str) -> LanePosition {
        self.prune();
        let (after, behind) = oneshot::channel();
        let before = self.last.insert(group.into(), behind);
        LanePosition {
            before,
            _after: after,
        }
    }

    fn prune(&mut self) {
        if self.last.len() >= self.pruned_at.max(LANES_FEW) {
            self.last.retain(|_, last| !is_over(last));
            self.pruned_at = self.last.len() * 2;
        }
    }
}

fn is_over(last: &mut oneshot::Receiver<()>) -> bool {
    matches!(last.try_recv(), Err(oneshot::error::TryRecvError::Closed))
}

impl LanePosition {
    /// Waits until the predecessor has finished.
    pub(super) async fn wait_turn(&mut self) {
        if let Some(before) = &mut self.before {
            // Nothing is ever sent: the predecessor drops its sender when it finishes.
            let _ = before.await;
            self.before = None;
        }
    }
}
