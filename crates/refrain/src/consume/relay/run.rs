//! One run of a relay: takes, renews, marks and returns messages while lanes publish.

use std::sync::atomic::Ordering::Relaxed;

use tokio::time::{Instant, sleep_until, timeout};

use super::{
    OnRefusal, Relay,
    lane::{LaneEvent, RelayLanes},
    pause::{self, RelayPause},
};
use crate::{
    Error, Result,
    consume::{Entry, Fate, Return},
};

/// Attempts after which a message rests while the broker is unreachable; before that it is retried at once.
const FREE_ATTEMPTS: u32 = 3;

/// One run of a relay.
pub(super) struct RelayRun<'a> {
    relay: &'a Relay,
    /// Whether to end when nothing is left to take.
    is_once: bool,
    lanes: RelayLanes,
    /// Confirmed by the broker, but not marked yet.
    unmarked: Vec<i64>,
    /// Earliest time for the next mark, after the outbox was unreachable.
    mark_at: Instant,
    /// Time of the next lease renewal.
    renew_at: Instant,
    /// Earliest time for the next take, after broker or outbox was unreachable.
    take_at: Instant,
    /// Whether there may be messages to take.
    is_hungry: bool,
    /// Whether there may be messages to take after the confirmed ones are marked.
    has_freed: bool,
    broker: RelayPause,
    store: RelayPause,
    /// Error that ends a one-time run early.
    trouble: Option<Error>,
}

impl<'a> RelayRun<'a> {
    pub(super) fn new(relay: &'a Relay, is_once: bool) -> Self {
        let now = Instant::now();
        Self {
            relay,
            is_once,
            lanes: RelayLanes::new(relay.publisher.clone(), relay.options.timeout),
            unmarked: Vec::new(),
            mark_at: now,
            renew_at: now,
            take_at: now,
            is_hungry: true,
            has_freed: false,
            broker: RelayPause::default(),
            store: RelayPause::default(),
            trouble: None,
        }
    }

    pub(super) async fn run_until(
        mut self,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Result<()> {
        tokio::pin!(shutdown);
        while !self.is_over() {
            if self.do_what_is_due().await {
                continue;
            }
            let wakes_at = self.wakes_at();
            let may_wait = self.has_room() && !self.is_hungry && !self.is_once;
            let outbox = self.relay.outbox.clone();
            // Select only here, so that calls to the outbox run to completion.
            tokio::select! {
                biased;
                () = &mut shutdown => break,
                end = self.lanes.next() => self.settle(end).await,
                _ = outbox.wait(self.relay.options.poll), if may_wait => self.is_hungry = true,
                () = sleep_until(wakes_at) => {}
            }
        }
        self.wind_up().await;
        self.trouble.map_or(Ok(()), Err)
    }

    fn is_over(&self) -> bool {
        let is_idle = !self.is_hungry && self.lanes.is_empty() && self.unmarked.is_empty();
        self.trouble.is_some() || (self.is_once && is_idle)
    }

    /// Does one due task; returns whether to check for another at once.
    async fn do_what_is_due(&mut self) -> bool {
        let now = Instant::now();
        if !self.unmarked.is_empty() && now >= self.mark_at {
            self.mark().await;
        } else if self.lanes.held() > 0 && now >= self.renew_at {
            self.renew().await;
        } else if self.has_room() && self.is_hungry && now >= self.take_at {
            self.take().await;
            // Return to the select, so that a shutdown is noticed.
            return false;
        } else {
            return false;
        }
        true
    }

    fn has_room(&self) -> bool {
        self.lanes.held() + self.unmarked.len() <= self.relay.options.in_flight_max / 2
    }

    /// Time of the next scheduled task.
    fn wakes_at(&self) -> Instant {
        let mut at = Instant::now() + self.relay.options.poll;
        if self.lanes.held() > 0 {
            at = at.min(self.renew_at);
        }
        if self.has_room() && self.is_hungry {
            at = at.min(self.take_at);
        }
        if !self.unmarked.is_empty() {
            at = at.min(self.mark_at);
        }
        at
    }

    async fn take(&mut self) {
        let options = self.relay.options;
        let room = options.in_flight_max - self.lanes.held() - self.unmarked.len();
        // Measured from before the request, so that the lease lapses here no later than in the outbox.
        let lapses = Instant::now() + options.lease;
        match self.relay.outbox.take(room.max(1), options.lease).await {
            Ok(taken) => {
                self.store.end();
                self.is_hungry = taken.is_more;
                if taken.is_more && taken.entries.is_empty() {
                    // Another relay was faster.
                    self.take_at = Instant::now() + pause::A_MOMENT;
                }
                if self.lanes.held() == 0 {
                    self.renew_at = Instant::now() + options.lease / 3;
                }
                self.lanes.begin(taken.entries, lapses);
            }
            Err(error) => self.take_at = self.unreachable(error),
        }
    }

    async fn mark(&mut self) {
        let ids = std::mem::take(&mut self.unmarked);
        match self.relay.outbox.mark(&ids).await {
            Ok(()) => {
                self.store.end();
                self.is_hungry |= std::mem::take(&mut self.has_freed);
            }
            Err(error) => {
                // Keep the IDs until the mark succeeds: the messages stay published.
                self.unmarked.extend(ids);
                self.mark_at = self.unreachable(error);
            }
        }
    }

    async fn renew(&mut self) {
        let lease = self.relay.options.lease;
        let (ids, lapses) = (self.lanes.ids(), Instant::now() + lease);
        match self.relay.outbox.renew(&ids, lease).await {
            Ok(kept) => {
                self.lanes.renewed(&kept, lapses);
                self.renew_at = Instant::now() + lease / 3;
            }
            Err(error) => self.renew_at = self.unreachable(error),
        }
    }

    /// Handles an unreachable outbox; returns the time of the next attempt.
    fn unreachable(&mut self, error: Error) -> Instant {
        tracing::warn!(%error, "the outbox is unavailable; the relay retries");
        if self.is_once {
            self.trouble.get_or_insert(error);
        }
        self.store.next()
    }

    /// Handles an event of a lane.
    async fn settle(&mut self, end: LaneEvent) {
        match end {
            LaneEvent::Confirmed(id) => self.confirmed(id),
            // The next messages of its group are available only after all of these are marked.
            LaneEvent::Done => match self.unmarked.is_empty() {
                true => self.is_hungry = true,
                false => self.has_freed = true,
            },
            LaneEvent::Stopped(ids) => self.give_back(ids.into_iter().map(free).collect()).await,
            LaneEvent::Failed {
                entry,
                error,
                behind,
                since,
            } => {
                let fate = match error.is_retryable() {
                    true => self.failed(&entry, &error, since),
                    false => self.refused(&entry, &error),
                };
                let id = entry.id;
                let returns = std::iter::once(Return { id, fate });
                let behind = behind.into_iter().map(free);
                self.give_back(returns.chain(behind).collect()).await;
                if self.is_once && error.is_retryable() {
                    self.trouble.get_or_insert(error);
                }
            }
        }
    }

    fn confirmed(&mut self, id: i64) {
        self.relay.counters.0.published.fetch_add(1, Relaxed);
        self.broker.end();
        self.unmarked.push(id);
        // Also collect the messages confirmed meanwhile.
        while let Some(id) = self.lanes.confirmed() {
            self.relay.counters.0.published.fetch_add(1, Relaxed);
            self.unmarked.push(id);
        }
    }

    /// Handles a message that may or may not be published. If nothing gets through, the relay pauses instead of the
    /// message.
    fn failed(&mut self, entry: &Entry, error: &Error, since: Instant) -> Fate {
        self.relay.counters.0.failed.fetch_add(1, Relaxed);
        let destination = &entry.destination;
        crate::log_rarely!(warn, by = destination, %error, destination, id = entry.id, "cannot publish a message; it is retried");
        if !self.broker.has_ended_since(since) {
            self.take_at = self.broker.next();
            // After a few attempts the message rests anyway: it may be the cause, and must not delay the others
            // forever.
            if entry.attempt < FREE_ATTEMPTS {
                return Fate::Free;
            }
        }
        let delay = pause::delay_after(entry.attempt);
        let error = error.to_string();
        Fate::Rests { delay, error }
    }

    fn refused(&mut self, entry: &Entry, error: &Error) -> Fate {
        let counts = &self.relay.counters.0;
        counts.refused.fetch_add(1, Relaxed);
        // A refusal shows that the broker is reachable.
        self.broker.end();
        let (destination, id, error) = (&entry.destination, entry.id, error.to_string());
        let refusals = entry.refusals + 1;
        if refusals < self.relay.options.attempts {
            tracing::warn!(
                error,
                destination,
                id,
                refusals,
                "the broker refused a message; it is retried"
            );
            let delay = pause::delay_after(refusals);
            return Fate::Refused { delay, error };
        }
        counts.given_up.fetch_add(1, Relaxed);
        tracing::error!(
            error,
            destination,
            id,
            refusals,
            "the broker refused a message too often; it waits for an operator; see `refrain relay --refused`"
        );
        match (self.relay.options.on_refusal, &entry.message.group) {
            (OnRefusal::Hold, Some(_)) => Fate::Held { error },
            _ => Fate::Parked { error },
        }
    }

    async fn give_back(&mut self, returns: Vec<Return>) {
        if returns.is_empty() {
            return;
        }
        self.is_hungry = true;
        if let Err(error) = self.relay.outbox.give_back(&returns).await {
            crate::log_rarely!(warn, %error, "cannot return messages to the outbox; they are free again after their lease lapses");
        }
    }

    /// Finishes messages in progress, and reports them to the outbox within the drain time.
    async fn wind_up(&mut self) {
        self.lanes.stop();
        let ends = Instant::now() + self.relay.options.drain;
        let winding = async {
            while !self.lanes.is_empty() {
                let end = self.lanes.next().await;
                self.settle(end).await;
                if Instant::now() >= self.renew_at {
                    self.renew().await;
                }
            }
            while let Some(id) = self.lanes.confirmed() {
                self.confirmed(id);
            }
            while !self.unmarked.is_empty() {
                sleep_until(self.mark_at).await;
                self.mark().await;
            }
        };
        if timeout(ends - Instant::now(), winding).await.is_err() {
            tracing::warn!(
                "the relay stopped before all published messages were marked; some will be published again"
            );
        }
    }
}

fn free(id: i64) -> Return {
    let fate = Fate::Free;
    Return { id, fate }
}
