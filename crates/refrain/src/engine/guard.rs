//! The right to run: a [`Guard`] before the operation starts, [`Running`] after that.
//!
//! A dropped guard releases the key: nothing has run. A takeover under at-least-once is left to lapse instead,
//! because an earlier attempt may have run.
//! A dropped [`Running`] leaves the record indeterminate: the operation may have taken effect, and is never silently released.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Ended, EngineState, Flight, Intent, Live, SentMark, audit, without_query};
use crate::{
    Backoff, Guarantee, Outcome, Result,
    audit::{Entry, Event},
    engine::tally::Count,
    key::RecordId,
    policy::Terms,
    record::{Claim, Fence, Grant, Reason, Settled, Settlement, State},
    store::{Reading, Store},
};

/// Pause between attempts to store an end.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));

/// Pause between reads of a record whose late response is awaited.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// A granted claim whose operation has not started.
#[derive(Debug)]
#[must_use = "a dropped guard releases the key; a takeover is left to lapse"]
pub struct Guard {
    hold: Option<ClaimHold>,
}

/// A running operation. Its lease is renewed until this is dropped, settled or in doubt.
#[derive(Debug)]
#[must_use = "if dropped, the record becomes indeterminate"]
pub struct Running {
    hold: ClaimHold,
    state: AttemptState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AttemptState {
    Running,
    /// In doubt; a late outcome is still accepted.
    Doubted,
    Settled,
}

/// A claim that this engine holds.
#[derive(Debug, Clone)]
struct ClaimHold {
    inner: Arc<EngineState>,
    flight: Arc<Flight>,
    attempt: u16,
}

impl EngineState {
    /// Registers a granted claim. `asked` is a moment before the claim was sent: all times that the store measures
    /// for this claim begin later.
    pub(super) fn grant(
        self: &Arc<Self>,
        claim: &Claim,
        grant: Grant,
        terms: &Terms,
        audit: Option<&Arc<str>>,
        asked: Instant,
    ) -> Guard {
        let terms = Terms {
            guarantee: claim.guarantee,
            ..*terms
        };
        let audit = audit.filter(|_| self.audit.get().is_some()).cloned();
        let flight = self.flights.start(claim, grant, terms, audit, asked);
        // Not awaited: the entry shows attempts without an end, and no response depends on it.
        let granted = || Entry {
            attempt: Some(grant.attempt),
            ..Entry::new(Event::Granted)
        };
        if let Some(entry) = flight.entry(granted) {
            self.audit_note(entry);
        }
        Guard {
            hold: Some(ClaimHold {
                inner: self.clone(),
                flight,
                attempt: grant.attempt,
            }),
        }
    }
}

impl Guard {
    /// The attempt number: above 1 it is a takeover, and under at-least-once a possible duplicate.
    #[must_use]
    pub fn attempt(&self) -> u16 {
        self.hold.as_ref().map_or(0, |hold| hold.attempt)
    }

    /// Whether it may take effect a second time; under exactly-once a takeover cannot.
    pub(super) fn is_possible_duplicate(&self) -> bool {
        let may = |hold: &ClaimHold| hold.flight.terms.guarantee == Guarantee::AtLeastOnce;
        self.attempt() > 1 && self.hold.as_ref().is_some_and(may)
    }

    /// Sets the intent to probe with if the attempt ends in doubt.
    pub(super) fn probed_as(&self, intent: &Intent) {
        if let Some(hold) = &self.hold {
            hold.flight.probe_as(intent);
        }
    }

    /// Starts the operation: from here on it may take effect.
    pub fn start(mut self) -> Running {
        let hold = self
            .hold
            .take()
            .unwrap_or_else(|| unreachable!("a guard starts once"));
        Running {
            hold,
            state: AttemptState::Running,
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let Some(hold) = self.hold.take() else {
            return;
        };
        let guarantee = hold.flight.terms.guarantee;
        if guarantee == Guarantee::AtLeastOnce && hold.attempt > 1 {
            // Earlier attempts may have taken effect: if the key were released, it would run as a first attempt.
            let reason = Reason::Dropped;
            return hold.end_in_background(Settlement::Doubt { reason }, Ended::Unknown);
        }
        hold.end_in_background(Settlement::Release, Ended::Released(None));
    }
}

impl Running {
    /// The record's identity.
    #[must_use]
    pub fn id(&self) -> RecordId {
        self.hold.flight.id
    }

    /// The fence and the attempt number.
    #[must_use]
    pub fn grant(&self) -> Grant {
        Grant {
            fence: self.fence(),
            attempt: self.hold.attempt,
        }
    }

    /// The guarantee in force for this attempt: weaker than exactly-once if receipts are unreliable.
    #[must_use]
    pub fn guarantee(&self) -> Guarantee {
        self.hold.flight.terms.guarantee
    }

    /// The fence (fencing token), for the resource that the operation changes: it can reject holders that were overtaken.
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.hold.flight.fence
    }

    /// The time until which the operation may act: after that, the record may be resolved as "never happened".
    ///
    /// Moves forward with every renewal of the lease, and never back.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.hold.flight.acts_until()
    }

    /// Shows the response, while it is produced, to the duplicates in this process that [attend](super::Engine::attend) it
    /// and would otherwise wait for the end.
    pub fn show(&self, live: &Live) {
        self.hold.flight.show(live);
    }

    /// Stops showing the response: new duplicates wait for the end.
    pub fn hide(&self) {
        self.hold.flight.hide();
    }

    /// Completes the claim: stores the outcome, then wakes waiting duplicates. Accepted also after a [`doubt`](Self::doubt).
    ///
    /// [`Settled::Fenced`] means that another attempt took over meanwhile: this outcome does not count.
    ///
    /// # Errors
    /// When the store does not answer. The outcome is then held and stored as soon as possible, while the process lives.
    /// [`ErrorKind::Unaudited`](crate::ErrorKind::Unaudited) when the audit log cannot be written: the outcome is stored,
    /// and must not be returned to the client.
    ///
    /// # Cancellation
    /// Dropped, the outcome may be stored or not; if not, the record becomes indeterminate.
    pub async fn complete(self, outcome: Outcome) -> Result<Settled> {
        let outcome = outcome.sealed(self.id());
        self.complete_sealed(outcome).await
    }

    /// As [`complete`](Self::complete), with a sealed outcome.
    #[expect(
        clippy::manual_async_fn,
        reason = "the future of an async fn stores its arguments twice"
    )]
    pub(crate) fn complete_sealed(
        self,
        outcome: Outcome,
    ) -> impl Future<Output = Result<Settled>> + Send {
        async move {
            let hold = &self.hold;
            hold.flight.start_ending();
            let written = match &hold.flight.audit {
                // Boxed, so that unaudited attempts do not carry its size.
                Some(_) => {
                    let written = async { hold.write_down(&hold.completion(&outcome)).await };
                    Box::pin(written).await
                }
                None => Ok(()),
            };
            let settled = hold.settle(hold.completion(&outcome)).await;
            self.completed(settled, &outcome, written)
        }
    }

    /// Concludes a completion. If the audit log was not written, waiting duplicates do not get the outcome.
    fn completed(
        mut self,
        settled: Result<Settled>,
        outcome: &Outcome,
        written: Result<()>,
    ) -> Result<Settled> {
        let end = || self.hold.completion(outcome);
        let ended = match written {
            Ok(()) => Ended::Completed(outcome.clone()),
            Err(_) => Ended::Unknown,
        };
        let settled = self.hold.conclude(settled, end, ended);
        self.state = AttemptState::Settled;
        written.and(settled)
    }

    /// A mark for the request body of a forwarding service, which drops it once all of it was sent.
    pub(crate) fn sent_mark(&self) -> SentMark {
        SentMark(self.hold.flight.clone())
    }

    /// Whether a forwarding service has sent the whole request, so that dropping the call no longer stops it.
    pub(crate) fn is_sent(&self) -> bool {
        self.hold.flight.is_sent()
    }

    /// Waits until the record no longer belongs to this attempt, because it was settled otherwise or taken over.
    ///
    /// Returns at once if too many late responses are awaited.
    pub(crate) async fn settled_elsewhere(&self) {
        let ClaimHold { inner, flight, .. } = &self.hold;
        let Some(_listening) = inner.tally.listen() else {
            crate::log_rarely!(warn, record = %flight.id, "too many late responses are awaited: not waiting for this one");
            return;
        };
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let found = match inner.store.read(flight.id).await {
                Ok(found) => found,
                Err(error) if error.is_retryable() => continue,
                Err(_) => return,
            };
            let is_ours = |it: &Reading| {
                let (State::InFlight { hold, .. } | State::Indeterminate { hold, .. }) =
                    &it.record.state
                else {
                    return false;
                };
                hold.fence == flight.fence
            };
            if !found.as_ref().is_some_and(is_ours) {
                return;
            }
        }
    }

    /// Releases the key after a [`doubt`](Self::doubt), because the attempt reported that it had no effect.
    /// Waits until the store accepts that.
    ///
    /// # Errors
    /// When the store does not answer; then the record stays indeterminate.
    pub(crate) async fn release_late(self) -> Result<Settled> {
        let ClaimHold { inner, flight, .. } = &self.hold;
        let place = (flight.id, flight.fence);
        loop {
            let end = Settlement::NeverHappened;
            let settling = inner.settle_as(place, end, flight.audit.as_ref(), "late answer");
            match settling.await? {
                Settled::TooEarly { left } => tokio::time::sleep(left).await,
                Settled::Applied => {
                    inner.tally.count(Count::Resolved);
                    return Ok(Settled::Applied);
                }
                Settled::Fenced => return Ok(Settled::Fenced),
            }
        }
    }

    /// Releases the key, because the attempt provably had no effect. Waiting duplicates get `answer`, if there is one.
    /// Under exactly-once, earlier attempts may still take effect: then the record becomes indeterminate again.
    ///
    /// # Errors
    /// When the store does not answer; the release is retried while the process lives.
    pub async fn release(mut self, answer: Option<Outcome>) -> Result<Settled> {
        self.hold.inner.tally.count(Count::Released);
        let settled = self
            .hold
            .end(Settlement::Release, Ended::Released(answer))
            .await;
        self.state = AttemptState::Settled;
        settled
    }

    /// Marks the outcome as unknown. A later [`complete`](Self::complete) still settles it.
    ///
    /// # Errors
    /// When the store does not answer; then the lease lapses, with the same result.
    pub async fn doubt(&mut self, reason: Reason) -> Result<Settled> {
        self.state = AttemptState::Doubted;
        self.hold.inner.tally.count(Count::Doubted);
        self.hold.flight.stop_renewing();
        let end = Settlement::Doubt { reason };
        let written = self.hold.write_down(&end).await;
        let settled = self.hold.settle(end).await;
        self.hold.end_flight(Ended::Unknown);
        written.and(settled)
    }

    /// Ends a failed attempt under at-least-once: the next claim may run at once, as the next attempt.
    ///
    /// Unlike [`release`](Self::release) this keeps the record, which counts the attempts, and ends the lease now.
    ///
    /// # Errors
    /// When the store does not answer; then the lease lapses, with the same result.
    ///
    /// # Cancellation
    /// Dropped, the lease lapses later.
    pub(crate) async fn fail(mut self) -> Result<Settled> {
        debug_assert_eq!(self.guarantee(), Guarantee::AtLeastOnce);
        let hold = &self.hold;
        hold.inner.tally.count(Count::Released);
        hold.flight.start_ending();
        // First, because a later renewal would extend the lease again.
        hold.flight.stop_renewing();
        let written = hold.write_down(&Settlement::Release).await;
        let (id, fence) = (hold.flight.id, hold.flight.fence);
        let ended = hold.inner.store.renew(id, fence, Duration::ZERO).await;
        hold.end_flight(match (&written, &ended) {
            (Ok(()), Ok(Settled::Applied)) => Ended::Released(None),
            _ => Ended::Unknown,
        });
        self.state = AttemptState::Settled;
        written.and(ended)
    }

    /// Gives up the claim without an outcome. Under at-least-once it may be taken over after `pause` instead of after the
    /// lease, and attempts are still counted. Under any other guarantee the record is left in [`doubt`](Self::doubt).
    ///
    /// # Errors
    /// When the store does not answer; then the lease lapses, with a similar result.
    ///
    /// # Cancellation
    /// Dropped, the lease lapses later than `pause`.
    pub async fn give_up(mut self, reason: Reason, pause: Duration) -> Result<Settled> {
        // Stops renewals first, because a later renewal would extend the lease again.
        let settled = self.doubt(reason).await?;
        if settled != Settled::Applied || self.guarantee() != Guarantee::AtLeastOnce {
            return Ok(settled);
        }
        let (id, fence) = (self.id(), self.fence());
        // Rejected if no attempts are left: then the record is indeterminate.
        let _shortened = self.hold.inner.store.renew(id, fence, pause).await?;
        Ok(settled)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let reason = match std::thread::panicking() {
            true => Reason::Panicked,
            false => Reason::Dropped,
        };
        match self.state {
            AttemptState::Running => {
                self.hold.inner.tally.count(Count::Doubted);
                let hold = self.hold.clone();
                hold.end_in_background(Settlement::Doubt { reason }, Ended::Unknown);
            }
            // `doubt` may have been dropped before the doubt was stored.
            AttemptState::Doubted => self.hold.end_flight(Ended::Unknown),
            AttemptState::Settled => {}
        }
    }
}

impl ClaimHold {
    fn completion(&self, outcome: &Outcome) -> Settlement {
        Settlement::Complete {
            outcome: outcome.clone(),
            retention: self.flight.terms.retention,
            remember: self.flight.terms.remember,
        }
    }

    fn settle(&self, end: Settlement) -> impl Future<Output = Result<Settled>> + Send {
        let is_outcome = matches!(end, Settlement::Complete { .. });
        let doubt = match &end {
            Settlement::Doubt { reason } => Some(*reason),
            _ => None,
        };
        let (id, fence) = (self.flight.id, self.flight.fence);
        let store = &self.inner.store;
        let settling = store.settle_of(&self.flight.origin, id, fence, end);
        async move {
            let settled = self.record_if_late(settling.await, is_outcome);
            if let (Some(reason), Ok(Settled::Applied)) = (doubt, &settled) {
                self.warn_of_doubt(reason);
            }
            settled
        }
    }

    /// Logs an outcome that became unknown, unless the next claim executes the operation again.
    fn warn_of_doubt(&self, reason: Reason) {
        let Flight {
            id, terms, origin, ..
        } = &*self.flight;
        if terms.guarantee == Guarantee::AtLeastOnce && self.attempt < terms.attempts_max {
            return;
        }
        let (operation, target) = origin.names();
        let target = without_query(target);
        let upstream = self.inner.upstream.get().map(tracing::field::display);
        let reason = reason.name();
        tracing::warn!(
            record = %id, operation, target, reason, upstream,
            "the outcome is unknown: find out whether the operation took effect, then run `refrain records resolve {id}`"
        );
    }

    /// Writes the end to the audit log if the attempt is audited, and returns once the entry is durable.
    async fn write_down(&self, end: &Settlement) -> Result<()> {
        match self.flight.entry(|| Entry::ending(end)) {
            // Boxed, so that unaudited attempts do not carry its size.
            Some(entry) => Box::pin(self.inner.audit_write(entry)).await,
            None => Ok(()),
        }
    }

    /// Counts an outcome that came too late, and revokes its entry in the audit log.
    fn record_if_late(&self, settled: Result<Settled>, is_outcome: bool) -> Result<Settled> {
        if let (Some(name), Ok(Settled::Fenced | Settled::TooEarly { .. })) =
            (&self.flight.audit, &settled)
        {
            let Flight { id, fence, .. } = &*self.flight;
            self.inner
                .audit_note(audit::overtaken(*id, *fence, Some(name)));
        }
        if is_outcome && matches!(settled, Ok(Settled::Fenced)) {
            self.inner.tally.count(Count::Overtaken);
        }
        settled
    }

    /// Ends the flight and wakes waiting duplicates. If it ended in doubt, starts its background probe.
    fn end_flight(&self, ended: Ended) {
        if let Some(intent) = self.inner.flights.end(&self.flight, ended) {
            self.inner.start_probing(&self.flight, intent);
        }
    }

    /// Stores the end, then wakes waiting duplicates. An end that cannot be stored now is held and retried.
    async fn end(&self, end: Settlement, ended: Ended) -> Result<Settled> {
        self.flight.start_ending();
        let written = self.write_down(&end).await;
        let settled = self.settle(end.clone()).await;
        let ended = match written {
            Ok(()) => ended,
            Err(_) => Ended::Unknown,
        };
        let settled = self.conclude(settled, || end, ended);
        written.and(settled)
    }

    /// Wakes waiting duplicates if the end is stored; holds and retries it if the store did not answer.
    fn conclude(
        &self,
        settled: Result<Settled>,
        end: impl FnOnce() -> Settlement,
        ended: Ended,
    ) -> Result<Settled> {
        match settled {
            Ok(Settled::Applied) => {
                self.end_flight(ended);
                Ok(Settled::Applied)
            }
            Ok(refused) => {
                self.end_flight(Ended::Unknown);
                Ok(refused)
            }
            Err(error) => {
                match error.is_retryable() {
                    true => self.clone().retry_in_background(end(), ended),
                    false => self.end_flight(Ended::Unknown),
                }
                Err(error)
            }
        }
    }

    /// Ends the claim from a `drop`, which cannot wait. Without a runtime the lease lapses, with a similar result.
    fn end_in_background(self, end: Settlement, ended: Ended) {
        let inner = self.inner.clone();
        let mut landing = FlightGuard::of(self);
        inner.spawn(async move {
            let settled = landing.hold.end(end, ended).await;
            landing.is_over = true;
            if let Err(error) = settled {
                crate::log_rarely!(warn, record = %landing.hold.flight.id, %error, "cannot settle a dropped claim");
            }
        });
    }

    fn retry_in_background(self, end: Settlement, ended: Ended) {
        let Some(held) = self.inner.tally.hold_end() else {
            tracing::error!(record = %self.flight.id, "too many completed requests wait for the store: this outcome is not stored and becomes unknown");
            return self.end_flight(Ended::Unknown);
        };
        let inner = self.inner.clone();
        let landing = FlightGuard::of(self);
        inner.spawn(async move {
            let _held = held;
            landing.hold.retry(end, ended).await;
        });
    }

    /// Retries until the end is stored or rejected.
    async fn retry(&self, end: Settlement, ended: Ended) {
        let mut delays = BACKOFF.delays();
        loop {
            tokio::time::sleep(delays.after_failure()).await;
            match self.settle(end.clone()).await {
                Ok(Settled::Applied) => return self.end_flight(ended),
                Ok(_) => return,
                Err(error) if error.is_retryable() => {}
                Err(error) => {
                    tracing::error!(record = %self.flight.id, %error, "cannot store the result of a request");
                    return;
                }
            }
        }
    }
}

/// Ends a flight when it is dropped, however its task ends, so that no duplicate waits for it forever.
struct FlightGuard {
    hold: ClaimHold,
    /// The flight has ended, or another task ends it.
    is_over: bool,
}

impl FlightGuard {
    fn of(hold: ClaimHold) -> Self {
        Self {
            hold,
            is_over: false,
        }
    }
}

impl Drop for FlightGuard {
    fn drop(&mut self) {
        if !self.is_over {
            self.hold.end_flight(Ended::Unknown);
        }
    }
}
