//! The right to run, first as a [`Guard`], then, once the operation has started, as [`Running`].
//!
//! A guard that is dropped releases the key: nothing has run. A takeover under at-least-once is left to lapse instead,
//! for what was taken over may have run.
//! A running operation that is dropped leaves doubt: it may have taken effect, and is never silently released.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Ended, Flight, Inner, Intent, Live, SentMark, audit};
use crate::{
    Backoff, Guarantee, Outcome, Result,
    audit::{Entry, Event},
    engine::tally::Count,
    key::RecordId,
    policy::Terms,
    record::{Claim, Fence, Grant, Reason, Settled, Settlement, State},
    store::{Reading, Store},
};

/// Between attempts to store an end.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));

/// Between looks at a record whose late response is awaited.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// A granted claim whose operation has not started.
#[derive(Debug)]
#[must_use = "dropped, it releases the key, or is left to lapse if it is a takeover"]
pub struct Guard {
    hold: Option<Hold>,
}

/// An operation that is running. Its lease is renewed as long as this lives.
#[derive(Debug)]
#[must_use = "dropped, it leaves its record indeterminate"]
pub struct Running {
    hold: Hold,
    state: RunState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RunState {
    Running,
    /// In doubt for now; the truth may still come.
    Doubted,
    Settled,
}

/// A claim that this engine holds.
#[derive(Debug, Clone)]
struct Hold {
    inner: Arc<Inner>,
    flight: Arc<Flight>,
    attempt: u16,
}

impl Inner {
    /// `asked` is the moment before the store was asked: every time that the store counts for this claim begins later.
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
        // Not waited for: an attempt without an end is to be seen, and is not yet anybody's answer.
        let granted = || Entry {
            attempt: Some(grant.attempt),
            ..Entry::new(Event::Granted)
        };
        if let Some(entry) = flight.entry(granted) {
            self.audit_note(entry);
        }
        Guard {
            hold: Some(Hold {
                inner: self.clone(),
                flight,
                attempt: grant.attempt,
            }),
        }
    }
}

impl Guard {
    /// 1 for the first grant; above 1 it is a takeover, and under at-least-once a possible duplicate.
    #[must_use]
    pub fn attempt(&self) -> u16 {
        self.hold.as_ref().map_or(0, |hold| hold.attempt)
    }

    /// Whether it may take effect a second time: under exactly-once, what is taken over cannot.
    pub(super) fn is_possible_duplicate(&self) -> bool {
        let may = |hold: &Hold| hold.flight.terms.guarantee == Guarantee::AtLeastOnce;
        self.attempt() > 1 && self.hold.as_ref().is_some_and(may)
    }

    /// Should it end in doubt, this intent's probe is asked.
    pub(super) fn probed_as(&self, intent: &Intent) {
        if let Some(hold) = &self.hold {
            hold.flight.probe_as(intent);
        }
    }

    /// From here on the operation may take effect.
    pub fn start(mut self) -> Running {
        let hold = self
            .hold
            .take()
            .unwrap_or_else(|| unreachable!("a guard starts once"));
        Running {
            hold,
            state: RunState::Running,
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
            // The attempts before may have taken effect: free, the key would run again as if it were the first time.
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

    /// What was granted.
    #[must_use]
    pub fn grant(&self) -> Grant {
        Grant {
            fence: self.fence(),
            attempt: self.hold.attempt,
        }
    }

    /// What is promised for this attempt: under exactly-once less than the intent asks for, where receipts cannot be relied on.
    #[must_use]
    pub fn guarantee(&self) -> Guarantee {
        self.hold.flight.terms.guarantee
    }

    /// To be handed to the resource that the operation changes, which can then refuse holders that were overtaken.
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.hold.flight.fence
    }

    /// Until when it may act: behind that, somebody may have been told that it never happened.
    ///
    /// Moves on with every renewal of the lease, and never back.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.hold.flight.acts_until()
    }

    /// Shows its answer, as it comes, to the duplicates in this process that [attend](super::Engine::attend) it
    /// and would otherwise wait for its end.
    pub fn show(&self, live: &Live) {
        self.hold.flight.show(live);
    }

    /// Shows nothing any more: duplicates that come wait for the end.
    pub fn hide(&self) {
        self.hold.flight.hide();
    }

    /// It ended: stores the outcome, then wakes those who wait. Welcome also after a [`doubt`](Self::doubt).
    ///
    /// [`Settled::Fenced`] means that somebody took over meanwhile: this outcome does not count.
    ///
    /// # Errors
    /// When the store does not answer. The outcome is then held and stored as soon as it can be, while the process lives.
    /// [`ErrorKind::Unaudited`](crate::ErrorKind::Unaudited) when it could not be written down: it is stored, and must not be shown.
    ///
    /// # Cancellation
    /// Dropped, the outcome may be stored or not; if not, the record becomes indeterminate.
    pub async fn complete(self, outcome: Outcome) -> Result<Settled> {
        let outcome = outcome.sealed(self.id());
        self.complete_sealed(outcome).await
    }

    /// As [`complete`](Self::complete), with an outcome that is sealed.
    #[expect(
        clippy::manual_async_fn,
        reason = "an async fn holds its arguments twice"
    )]
    pub(crate) fn complete_sealed(
        self,
        outcome: Outcome,
    ) -> impl Future<Output = Result<Settled>> + Send {
        async move {
            let hold = &self.hold;
            hold.flight.start_ending();
            let written = match &hold.flight.audit {
                // Apart: what is not audited has no use for the room.
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

    /// What is not written down is stored, and shown to nobody here.
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
        self.state = RunState::Settled;
        written.and(settled)
    }

    /// For the body of the request that a forwarding service sends: dropped once all of it was sent.
    pub(crate) fn sent_mark(&self) -> SentMark {
        SentMark(self.hold.flight.clone())
    }

    /// Whether a forwarding service has sent the whole request, so that ending the attempt here no longer stops it.
    pub(crate) fn is_sent(&self) -> bool {
        self.hold.flight.is_sent()
    }

    /// Waits until the record no longer belongs to this attempt, because somebody else settled it or took over.
    ///
    /// Returns at once if too many attempts are awaited.
    pub(crate) async fn settled_elsewhere(&self) {
        let Hold { inner, flight, .. } = &self.hold;
        let Some(_listening) = inner.tally.listen() else {
            tracing::warn!(record = %flight.id, "too many late responses are awaited: this one is not");
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

    /// The attempt reported, after a [`doubt`](Self::doubt), that it had no effect: the key is free again
    /// as soon as that counts.
    ///
    /// # Errors
    /// When the store does not answer; the record stays indeterminate then.
    pub(crate) async fn release_late(self) -> Result<Settled> {
        let Hold { inner, flight, .. } = &self.hold;
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

    /// It provably had no effect: the key is free again. Those who wait here get `answer`, if there is one.
    /// Under exactly-once, attempts before this one may still have theirs: then the record is in doubt again.
    ///
    /// # Errors
    /// When the store does not answer; it is tried again while the process lives.
    pub async fn release(mut self, answer: Option<Outcome>) -> Result<Settled> {
        self.hold.inner.tally.count(Count::Released);
        let settled = self
            .hold
            .end(Settlement::Release, Ended::Released(answer))
            .await;
        self.state = RunState::Settled;
        settled
    }

    /// Whether it took effect is not known, for now. The truth may still come: [`complete`](Self::complete) settles it then.
    ///
    /// # Errors
    /// When the store does not answer; the lease lapses then, with the same result.
    pub async fn doubt(&mut self, reason: Reason) -> Result<Settled> {
        self.state = RunState::Doubted;
        self.hold.inner.tally.count(Count::Doubted);
        self.hold.flight.stop_renewing();
        let end = Settlement::Doubt { reason };
        let written = self.hold.write_down(&end).await;
        let settled = self.hold.settle(end).await;
        self.hold.land(Ended::Unknown);
        written.and(settled)
    }

    /// The attempt failed under at-least-once: the next claim may run it again at once, and is the next attempt.
    ///
    /// Unlike [`release`](Self::release) this keeps the record, which is where attempts are counted: the lease ends now.
    ///
    /// # Errors
    /// When the store does not answer; the lease lapses then, with the same result.
    ///
    /// # Cancellation
    /// Dropped, the lease lapses later.
    pub(crate) async fn fail(mut self) -> Result<Settled> {
        debug_assert_eq!(self.guarantee(), Guarantee::AtLeastOnce);
        let hold = &self.hold;
        hold.inner.tally.count(Count::Released);
        hold.flight.start_ending();
        // First: a renewal that came later would make the lease long again.
        hold.flight.stop_renewing();
        let written = hold.write_down(&Settlement::Release).await;
        let (id, fence) = (hold.flight.id, hold.flight.fence);
        let ended = hold.inner.store.renew(id, fence, Duration::ZERO).await;
        hold.land(match (&written, &ended) {
            (Ok(()), Ok(Settled::Applied)) => Ended::Released(None),
            _ => Ended::Unknown,
        });
        self.state = RunState::Settled;
        written.and(ended)
    }

    /// Gives the claim up without an end. What may be run again may be taken over once `pause` is over, and need not wait
    /// until the lease would have lapsed; attempts go on being counted. Anything else is left in [`doubt`](Self::doubt).
    ///
    /// # Errors
    /// When the store does not answer; the lease lapses then, with a like result.
    ///
    /// # Cancellation
    /// Dropped, the lease lapses later than asked for.
    pub async fn give_up(mut self, reason: Reason, pause: Duration) -> Result<Settled> {
        // Ends the renewals first: one that came behind would make the lease long again.
        let settled = self.doubt(reason).await?;
        if settled != Settled::Applied || self.guarantee() != Guarantee::AtLeastOnce {
            return Ok(settled);
        }
        let (id, fence) = (self.id(), self.fence());
        // Refused where no attempts are left: then it is in doubt.
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
            RunState::Running => {
                self.hold.inner.tally.count(Count::Doubted);
                let hold = self.hold.clone();
                hold.end_in_background(Settlement::Doubt { reason }, Ended::Unknown);
            }
            // The doubt may have been cut off before it was stored.
            RunState::Doubted => self.hold.land(Ended::Unknown),
            RunState::Settled => {}
        }
    }
}

impl Hold {
    fn completion(&self, outcome: &Outcome) -> Settlement {
        Settlement::Complete {
            outcome: outcome.clone(),
            retention: self.flight.terms.retention,
            remember: self.flight.terms.remember,
        }
    }

    fn settle(&self, end: Settlement) -> impl Future<Output = Result<Settled>> + Send {
        let is_outcome = matches!(end, Settlement::Complete { .. });
        let (id, fence) = (self.flight.id, self.flight.fence);
        let settling = self.inner.store.settle(id, fence, end);
        async move { self.noted(settling.await, is_outcome) }
    }

    /// Writes its end down where it is audited, and answers once that is durable.
    async fn write_down(&self, end: &Settlement) -> Result<()> {
        match self.flight.entry(|| Entry::ending(end)) {
            // Apart: what is not audited has no use for the room.
            Some(entry) => Box::pin(self.inner.audit_write(entry)).await,
            None => Ok(()),
        }
    }

    /// Counts an outcome that came too late to stand, and takes back what was written down.
    fn noted(&self, settled: Result<Settled>, is_outcome: bool) -> Result<Settled> {
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

    /// Takes it off the list and wakes who waits. What ends in doubt is looked after.
    fn land(&self, ended: Ended) {
        if let Some(intent) = self.inner.flights.end(&self.flight, ended) {
            self.inner.care_for(&self.flight, intent);
        }
    }

    /// Stores the end, then wakes who waits. What cannot be stored now is held and tried again.
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

    /// Wakes who waits, if the end is stored; if it could not be, it is held and tried again.
    fn conclude(
        &self,
        settled: Result<Settled>,
        end: impl FnOnce() -> Settlement,
        ended: Ended,
    ) -> Result<Settled> {
        match settled {
            Ok(Settled::Applied) => {
                self.land(ended);
                Ok(Settled::Applied)
            }
            Ok(refused) => {
                self.land(Ended::Unknown);
                Ok(refused)
            }
            Err(error) => {
                match error.is_retryable() {
                    true => self.clone().retry_in_background(end(), ended),
                    false => self.land(Ended::Unknown),
                }
                Err(error)
            }
        }
    }

    /// For drops, which cannot wait. Where no runtime is left the lease lapses, with a like result.
    fn end_in_background(self, end: Settlement, ended: Ended) {
        let inner = self.inner.clone();
        let mut landing = Landing::of(self);
        inner.spawn(async move {
            let settled = landing.hold.end(end, ended).await;
            landing.is_over = true;
            if let Err(error) = settled {
                tracing::warn!(record = %landing.hold.flight.id, %error, "a dropped claim could not be settled");
            }
        });
    }

    fn retry_in_background(self, end: Settlement, ended: Ended) {
        let Some(held) = self.inner.tally.hold_end() else {
            tracing::error!(record = %self.flight.id, "too many ends wait for the store: this one is given up");
            return self.land(Ended::Unknown);
        };
        let inner = self.inner.clone();
        let landing = Landing::of(self);
        inner.spawn(async move {
            let _held = held;
            landing.hold.retry(end, ended).await;
        });
    }

    /// Tries until the end is stored or never will be.
    async fn retry(&self, end: Settlement, ended: Ended) {
        let mut delays = BACKOFF.delays();
        loop {
            tokio::time::sleep(delays.after_failure()).await;
            match self.settle(end.clone()).await {
                Ok(Settled::Applied) => return self.land(ended),
                Ok(_) => return,
                Err(error) if error.is_retryable() => {}
                Err(error) => {
                    tracing::error!(record = %self.flight.id, %error, "an end could not be stored");
                    return;
                }
            }
        }
    }
}

/// Lands a flight when it goes, however its task ends: nobody waits for one that nobody flies.
struct Landing {
    hold: Hold,
    /// It has landed, or somebody else sees to it.
    is_over: bool,
}

impl Landing {
    fn of(hold: Hold) -> Self {
        Self {
            hold,
            is_over: false,
        }
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        if !self.is_over {
            self.hold.land(Ended::Unknown);
        }
    }
}
