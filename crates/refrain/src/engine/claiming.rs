//! One caller's claim: sent, and repeated until it is decided or the time to wait is over.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::{
    ClaimReply, Count, Ended, Engine, EngineState, Intent, News,
    lost::SentClaim,
    probe::{RecordProbe, resolve},
    receipts,
};
use crate::{
    Error, ErrorKind, Result,
    key::RecordId,
    receipts::Witness,
    record::{Claim, Claimant, Doubt, Fence, Reason, State, Verdict},
    store::{Store, Watch},
};

/// First pause between claims for a record that another process holds.
const POLL_FIRST: Duration = Duration::from_millis(2);
const POLL_MAX: Duration = Duration::from_millis(200);
/// Maximum pause if the store sends notifications of settlements; notifications may get lost.
const POLL_WATCHED_MAX: Duration = Duration::from_secs(1);
/// Upper bound of `wait`, so that a deadline can be represented.
const WAIT_MAX: Duration = Duration::from_hours(24);

/// Future of a claim that owns its intent, and returns it with the reply.
/// Ready at the first poll if the store replies at once and there is nothing to wait for.
pub(crate) struct ClaimFuture {
    engine: Engine,
    /// When the request began.
    since: Instant,
    /// `None` while `state` owns it, and after it was returned.
    intent: Option<Box<Intent>>,
    state: ClaimState,
}

/// The reply to a claim, and its intent.
type ClaimResult = (Result<ClaimReply>, Box<Intent>);

#[expect(
    clippy::large_enum_variant,
    reason = "most requests are in the large variant, which needs no allocation this way"
)]
enum ClaimState {
    /// Rejected before the claim was sent; `None` after the error was returned.
    Refused(Option<Error>),
    /// The first claim was sent to the store.
    Sent(SentClaim),
    /// The rare and large cases: waiting for a request in flight, probes, receipts.
    Repeating(Pin<Box<dyn Future<Output = ClaimResult> + Send>>),
}

impl Engine {
    /// Sends a claim. As [`Engine::attend`], as a future that owns its intent.
    /// `record` is the [`record_id`](Self::record_id) of the intent.
    pub(crate) fn send_claim(
        &self,
        intent: Box<Intent>,
        record: RecordId,
        since: Instant,
    ) -> ClaimFuture {
        let is_unread = |witness: &Arc<Witness>| witness.is_unread();
        let (intent, state) = if let Err(error) = self.inner.check_audit(&intent) {
            (Some(intent), ClaimState::Refused(Some(error)))
        } else if intent.receipts.as_ref().is_some_and(is_unread) {
            (
                None,
                ClaimState::Repeating(Box::pin(repeat(self.clone(), intent, since, None))),
            )
        } else {
            let state = self.send_first(&intent, record);
            (Some(intent), state)
        };
        ClaimFuture {
            engine: self.clone(),
            since,
            intent,
            state,
        }
    }

    fn send_first(&self, intent: &Intent, record: RecordId) -> ClaimState {
        self.inner.start_background();
        self.inner.refresh_standing(intent);
        match self.inner.check_lost() {
            Ok(()) => {
                let claim = claim_of(intent, record);
                ClaimState::Sent(SentClaim::new(&self.inner, claim, intent))
            }
            Err(error) => ClaimState::Refused(Some(error)),
        }
    }
}

/// Continues from the reply to the first claim, if it was sent.
async fn repeat(
    engine: Engine,
    intent: Box<Intent>,
    since: Instant,
    first: Option<(Claim, Result<Verdict>)>,
) -> ClaimResult {
    let replying = async {
        let (claim, reply) = match first {
            Some((claim, reply)) => (claim, Some(reply)),
            None => {
                engine.inner.start_background();
                engine.inner.know_standing(&intent).await?;
                (claim_of(&intent, engine.record_id(&intent)), None)
            }
        };
        let claims = ClaimLoop::with_claim(&engine, &intent, true, since, claim);
        claims.request_after(reply).await
    };
    let reply = replying.await;
    (reply, intent)
}

impl ClaimFuture {
    /// Returns the reply if the first verdict is final; otherwise changes to `ClaimState::Repeating`.
    fn decide(&mut self, claim: &Claim, reply: Result<Verdict>) -> Option<ClaimResult> {
        let intent = self.intent.take()?;
        let claims = ClaimLoop::with_claim(&self.engine, &intent, true, self.since, claim.clone());
        match reply {
            Ok(verdict) if claims.is_final(&verdict) => {
                let reply = claims.reply(verdict, self.since);
                Some((Ok(reply), intent))
            }
            reply => {
                let first = Some((claim.clone(), reply));
                let repeating = repeat(self.engine.clone(), intent, self.since, first);
                self.state = ClaimState::Repeating(Box::pin(repeating));
                None
            }
        }
    }
}

impl Future for ClaimFuture {
    type Output = ClaimResult;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (reply, intent) = loop {
            match &mut self.state {
                ClaimState::Refused(error) => match (error.take(), self.intent.take()) {
                    (Some(error), Some(intent)) => break (Err(error), intent),
                    _ => return Poll::Pending,
                },
                ClaimState::Sent(sent) => {
                    let reply = ready!(Pin::new(&mut *sent).poll(context));
                    let claim = sent.claim.clone();
                    if let Some(decided) = self.decide(&claim, reply) {
                        break decided;
                    }
                }
                ClaimState::Repeating(repeating) => break ready!(repeating.as_mut().poll(context)),
            }
        };
        if let Ok(reply) = &reply {
            self.engine.inner.tally.count_reply(reply);
        }
        Poll::Ready((reply, intent))
    }
}

/// The claim of an intent.
fn claim_of(intent: &Intent, record: RecordId) -> Claim {
    let terms = &intent.terms;
    Claim {
        id: record,
        fingerprint: intent.fingerprint,
        credential: intent.credential,
        claimant: Claimant::random(),
        guarantee: receipts::effective_guarantee(intent),
        attempts_max: terms.attempts_max,
        overtakes: None,
        lease: terms.lease,
        settle_after: terms.settle_after,
    }
}

/// One caller's claim, which is repeated until there is a final verdict or the time to wait is over.
pub(super) struct ClaimLoop<'a> {
    engine: &'a Engine,
    intent: &'a Intent,
    claim: Claim,
    /// When the request began; `wait` counts from here.
    since: Instant,
    /// Whether the caller can follow a streamed response.
    follows: bool,
}

/// Polls a record that another process holds.
struct Polling {
    pause: Duration,
    /// Kept between polls, so that no notification is missed.
    watch: Option<Watch>,
}

impl<'a> ClaimLoop<'a> {
    pub(super) fn new(
        engine: &'a Engine,
        intent: &'a Intent,
        follows: bool,
        since: Instant,
    ) -> Self {
        let claim = claim_of(intent, engine.record_id(intent));
        Self::with_claim(engine, intent, follows, since, claim)
    }

    fn with_claim(
        engine: &'a Engine,
        intent: &'a Intent,
        follows: bool,
        since: Instant,
        claim: Claim,
    ) -> Self {
        Self {
            engine,
            intent,
            claim,
            since,
            follows,
        }
    }

    /// End of the time to wait.
    fn deadline(&self) -> Instant {
        self.since + self.intent.terms.wait.min(WAIT_MAX)
    }

    /// Claims until there is a final verdict or the time to wait is over.
    pub(super) async fn request(&self) -> Result<ClaimReply> {
        self.request_after(None).await
    }

    /// As [`request`](Self::request), with the store's reply to a first claim that was already sent.
    async fn request_after(&self, mut first: Option<Result<Verdict>>) -> Result<ClaimReply> {
        let mut polling = Polling {
            pause: POLL_FIRST,
            watch: None,
        };
        let mut confirmed = None;
        loop {
            // The moment before the claim was sent.
            let asked = match first {
                Some(_) => self.since,
                None => tokio::time::Instant::now(),
            };
            let verdict = match first.take() {
                Some(reply) => self.repeat_if_lost(reply).await?,
                None => self.request_verdict().await?,
            };
            // The record may be held by a lost claim of this engine.
            if matches!(
                verdict,
                Verdict::InFlight { .. } | Verdict::Indeterminate(_)
            ) && self.inner().has_lost(self.claim.id)
                && Box::pin(self.inner().release_lost(self.claim.id)).await?
            {
                continue;
            }
            match verdict {
                Verdict::InFlight { lease_left } => {
                    let waiting = Box::pin(self.wait(&mut polling, lease_left));
                    if let Some(reply) = waiting.await {
                        return Ok(reply);
                    }
                }
                Verdict::Indeterminate(doubt) => {
                    if doubt.reason == Reason::Lapsed && confirmed != Some(doubt.fence) {
                        confirmed = Some(doubt.fence);
                        if Box::pin(self.is_outdated(doubt.fence)).await? {
                            continue;
                        }
                    }
                    if let Some(reply) = Box::pin(self.resolve(doubt)).await? {
                        return Ok(reply);
                    }
                }
                verdict if self.is_final(&verdict) => return Ok(self.reply(verdict, asked)),
                _ => {
                    return match self.as_earlier() {
                        Some(earlier) => Box::pin(earlier.request()).await,
                        None => Ok(ClaimReply::Verdict(Verdict::Mismatch)),
                    };
                }
            }
        }
    }

    /// Whether the record no longer belongs to the attempt with this fence.
    ///
    /// A lapsed claim may be a lost one, which a background task releases: nothing was dispatched for it, so no
    /// caller may get the verdict indeterminate.
    async fn is_outdated(&self, fence: Fence) -> Result<bool> {
        let found = self.inner().store.read(self.claim.id).await?;
        let is_open = |it: &State| {
            let (State::InFlight { hold, .. } | State::Indeterminate { hold, .. }) = it else {
                return false;
            };
            hold.fence == fence
        };
        Ok(!found.is_some_and(|it| is_open(&it.record.state)))
    }

    /// The same claim with the fingerprint of earlier versions, which the record may have.
    ///
    /// If the record has disappeared meanwhile, the new record gets the earlier fingerprint.
    fn as_earlier(&self) -> Option<Self> {
        let fingerprint = self.intent.earlier_fingerprint?;
        // Records that do not survive the process were written by this version.
        let is_kept = self.inner().store.guarantees().survives_process;
        (is_kept && self.claim.fingerprint != fingerprint).then(|| {
            let mut claim = self.claim.clone();
            claim.fingerprint = fingerprint;
            Self { claim, ..*self }
        })
    }

    /// Whether the verdict needs neither waiting nor another claim.
    fn is_final(&self, verdict: &Verdict) -> bool {
        match verdict {
            Verdict::InFlight { .. } | Verdict::Indeterminate(_) => false,
            Verdict::Mismatch => self.as_earlier().is_none(),
            _ => true,
        }
    }

    /// Converts a final verdict; a grant becomes a guard.
    fn reply(&self, verdict: Verdict, asked: Instant) -> ClaimReply {
        let grant = |grant| {
            let Intent { terms, audit, .. } = self.intent;
            let guard = self
                .inner()
                .grant(&self.claim, grant, terms, audit.as_ref(), asked);
            if self.intent.probe.is_some() || self.intent.receipts.is_some() {
                guard.probed_as(self.intent);
            }
            guard
        };
        ClaimReply::Verdict(verdict.map(grant))
    }

    fn inner(&self) -> &'a Arc<EngineState> {
        &self.engine.inner
    }

    async fn request_verdict(&self) -> Result<Verdict> {
        self.inner().check_lost()?;
        let reply = self.send().await;
        self.repeat_if_lost(reply).await
    }

    fn send(&self) -> SentClaim {
        SentClaim::new(self.inner(), self.claim.clone(), self.intent)
    }

    /// Sends the claim once more if the reply may have been lost: the same claimant is granted the same claim again.
    async fn repeat_if_lost(&self, reply: Result<Verdict>) -> Result<Verdict> {
        let first = match reply {
            Err(error) if error.kind() == ErrorKind::Unavailable => error,
            reply => return reply,
        };
        let second = self.send().await;
        if let Err(error) = &second
            && !(first.is_unapplied() && error.is_unapplied())
        {
            self.inner()
                .track_lost(self.claim.clone(), self.intent.audit.clone());
        }
        second
    }

    /// Waits for a request in flight. Returns `None` if the record has changed, or may have: claim again.
    async fn wait(&self, polling: &mut Polling, lease_left: Duration) -> Option<ClaimReply> {
        let in_flight = Some(ClaimReply::Verdict(Verdict::InFlight { lease_left }));
        let flight = self.inner().flights.find(&self.claim);
        // A caller that follows a stream does not wait.
        if self.follows
            && let Some(live) = flight.as_ref().and_then(|flight| flight.live())
        {
            return Some(ClaimReply::Live(live));
        }
        if tokio::time::Instant::now() >= self.deadline() {
            return in_flight;
        }
        let waiting_max = self.intent.terms.waiting_max;
        let Some(_place) = WaitingPlace::take(self.inner(), self.claim.id, waiting_max) else {
            self.inner().tally.count(Count::WaitRefused);
            return in_flight;
        };
        let _waiting = self.inner().tally.waiting();
        if let Some(flight) = flight {
            return match timeout_at(self.deadline(), flight.wait_for_news(self.follows)).await {
                Err(_) => in_flight,
                Ok(News::Live(live)) => Some(ClaimReply::Live(live)),
                Ok(News::Ended(Ended::Completed(outcome))) => {
                    Some(ClaimReply::Verdict(Verdict::Replay(outcome)))
                }
                Ok(News::Ended(Ended::Released(Some(answer)))) => Some(ClaimReply::Refused(answer)),
                Ok(News::Ended(Ended::Released(None) | Ended::Unknown)) => None,
            };
        }
        // Held by another process, or not yet registered here: poll soon, and no later than the lease lapses.
        let store = &self.inner().store;
        let watch = polling.watch.take().or_else(|| store.watch(self.claim.id));
        polling.watch = watch;
        let napping = polling.nap(lease_left.max(POLL_FIRST));
        let _ = timeout_at(self.deadline(), napping).await;
        None
    }

    /// Looks for the receipt of an indeterminate attempt; if there is none, tries to start another attempt,
    /// and otherwise runs the probe. Returns `None` if the record was settled or has changed: claim again.
    async fn resolve(&self, doubt: Doubt) -> Result<Option<ClaimReply>> {
        let Some(witness) = &self.intent.receipts else {
            return Ok(self.probe(doubt).await);
        };
        let place = (self.claim.id, doubt);
        let looking = self.inner().end_by_receipt(witness, place, self.intent);
        if looking.await? {
            return Ok(None);
        }
        let Some(claim) = receipts::replacement_claim(&self.claim, witness, doubt) else {
            return Ok(self.probe(doubt).await);
        };
        let asked = tokio::time::Instant::now();
        let standing_in = Self { claim, ..*self };
        match standing_in.request_verdict().await? {
            // No attempts are left, or the attempt may not be replaced.
            Verdict::Indeterminate(_) => Ok(self.probe(doubt).await),
            granted @ Verdict::Granted(_) => Ok(Some(standing_in.reply(granted, asked))),
            // Another caller was faster.
            _ => Ok(None),
        }
    }

    /// Runs the probe; `None` if the record was settled or has changed: claim again.
    async fn probe(&self, doubt: Doubt) -> Option<ClaimReply> {
        let unknown = Some(ClaimReply::Verdict(Verdict::Indeterminate(doubt)));
        if self.intent.probe.is_none() {
            return unknown;
        }
        // Until then the old attempt may still act.
        if !doubt.settle_left.is_zero() {
            return unknown;
        }
        // A second probe at the same time learns nothing more.
        let engine = Arc::downgrade(self.inner());
        let Some(probing) = RecordProbe::start(&engine, self.claim.id) else {
            return unknown;
        };
        // In a task of its own: its result is stored also if the caller has gone, and a panic stays in the task.
        let resolving = resolve(probing, self.intent.clone(), doubt);
        let Some(resolving) = self.inner().spawn(resolving) else {
            return unknown;
        };
        match resolving.await {
            Ok(true) => None,
            Ok(false) => unknown,
            Err(error) => {
                tracing::error!(record = %self.claim.id, %error, "the probe panicked");
                unknown
            }
        }
    }
}

impl Polling {
    /// Pauses; a notification of a settlement ends the pause.
    async fn nap(&mut self, at_most: Duration) {
        let nap = self.pause.min(at_most);
        match &mut self.watch {
            None => {
                self.pause = (self.pause * 2).min(POLL_MAX);
                sleep(nap).await;
            }
            Some(watch) => {
                // The first pause is short, to find a settlement from before the watch began.
                self.pause = POLL_WATCHED_MAX;
                let _ = timeout(nap, watch.settled()).await;
            }
        }
    }
}

/// A slot among the duplicates that wait for a record, released on drop.
struct WaitingPlace<'a> {
    inner: &'a EngineState,
    id: RecordId,
}

impl<'a> WaitingPlace<'a> {
    /// Returns `None` if all slots are taken.
    fn take(inner: &'a EngineState, id: RecordId, waiting_max: usize) -> Option<Self> {
        let is_taken = inner.flights.start_waiting(id, waiting_max);
        is_taken.then_some(Self { inner, id })
    }
}

impl Drop for WaitingPlace<'_> {
    fn drop(&mut self) {
        self.inner.flights.end_waiting(self.id);
    }
}
