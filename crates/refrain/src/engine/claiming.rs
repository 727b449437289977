//! One caller's claim: sent, and repeated until it is decided or the time to wait is over.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::{ClaimReply, Count, Engine, EngineState, Intent};
use crate::{
    Error, ErrorKind, Guarantee, Result,
    key::RecordId,
    policy::Terms,
    record::{Claim, Claimant, Fence, Reason, State, Verdict},
    store::{BoxedReply, Store, Watch},
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
    /// Set when the caller starts to wait for another one; `None` before the first reply.
    has_waited: Option<Arc<AtomicBool>>,
}

/// The reply to a claim, and its intent.
pub(crate) struct ClaimResult {
    pub(crate) reply: Result<ClaimReply>,
    pub(crate) intent: Box<Intent>,
}

impl ClaimResult {
    fn at_once(reply: Result<ClaimReply>, intent: Box<Intent>) -> Self {
        Self { reply, intent }
    }
}

#[expect(
    clippy::large_enum_variant,
    reason = "most requests are in the large variant, which needs no allocation this way"
)]
enum ClaimState {
    /// The first claim was sent to the store.
    Sent(SentClaim),
    /// The rare and large cases: waiting for a request in flight, probes, receipts, and claims that are rejected unsent.
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
        let mut has_waited = None::<Arc<AtomicBool>>;
        let (intent, state) = match self.send_first(&intent, record) {
            Ok(Some(sent)) => (Some(intent), ClaimState::Sent(sent)),
            Ok(None) => {
                let noted = has_waited.insert(Arc::default()).clone();
                let repeating = repeat(self.clone(), intent, since, None, noted);
                (None, ClaimState::Repeating(Box::pin(repeating)))
            }
            Err(error) => {
                let refused = std::future::ready(ClaimResult::at_once(Err(error), intent));
                (None, ClaimState::Repeating(Box::pin(refused)))
            }
        };
        ClaimFuture {
            engine: self.clone(),
            since,
            intent,
            state,
            has_waited,
        }
    }

    /// Sends the first claim; `None` if the stored facts about receipts have to be read before.
    fn send_first(&self, intent: &Intent, record: RecordId) -> Result<Option<SentClaim>> {
        if intent.audit.is_some() {
            self.inner.check_audit()?;
        }
        self.inner.start_background();
        if let Some(witness) = &intent.receipts {
            if witness.is_unread() {
                return Ok(None);
            }
            self.inner.refresh_standing(witness);
        }
        self.inner.check_lost()?;
        let claim = self.inner.claim_of(intent, record);
        Ok(Some(SentClaim::new(&self.inner, claim, intent)))
    }
}

/// Continues from the reply to the first claim, if it was sent.
async fn repeat(
    engine: Engine,
    intent: Box<Intent>,
    since: Instant,
    first: Option<(Claim, Result<Verdict>)>,
    has_waited: Arc<AtomicBool>,
) -> ClaimResult {
    let replying = async {
        let (claim, reply) = match first {
            Some((claim, reply)) => (claim, Some(reply)),
            None => {
                if let Some(witness) = &intent.receipts {
                    engine.inner.know_standing(witness).await?;
                }
                (
                    engine.inner.claim_of(&intent, engine.record_id(&intent)),
                    None,
                )
            }
        };
        let mut claims = ClaimLoop::new(&engine, &intent, true, since, claim);
        claims.has_waited = Some(&has_waited);
        claims.request(reply).await
    };
    let reply = replying.await;
    ClaimResult::at_once(reply, intent)
}

impl ClaimFuture {
    /// Whether the caller waits for another one, or has done so.
    pub(crate) fn has_waited(&self) -> bool {
        let noted = self.has_waited.as_ref();
        noted.is_some_and(|noted| noted.load(Relaxed))
    }

    /// Returns the reply if the first verdict is final; otherwise changes to `ClaimState::Repeating`.
    fn decide(&mut self, claim: Claim, reply: Result<Verdict>) -> Option<ClaimResult> {
        let intent = self.intent.take()?;
        let claims = ClaimLoop::new(&self.engine, &intent, true, self.since, claim);
        match reply {
            Ok(verdict) if claims.is_final(&verdict) => {
                let reply = claims.reply(verdict, self.since);
                Some(ClaimResult::at_once(Ok(reply), intent))
            }
            reply => {
                let first = Some((claims.claim, reply));
                let noted = self.has_waited.insert(Arc::default()).clone();
                let repeating = repeat(self.engine.clone(), intent, self.since, first, noted);
                self.state = ClaimState::Repeating(Box::pin(repeating));
                None
            }
        }
    }
}

impl Future for ClaimFuture {
    type Output = ClaimResult;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let result = loop {
            match &mut self.state {
                ClaimState::Sent(sent) => {
                    let (claim, reply) = ready!(sent.poll_reply(context));
                    if let Some(decided) = self.decide(claim, reply) {
                        break decided;
                    }
                }
                ClaimState::Repeating(repeating) => break ready!(repeating.as_mut().poll(context)),
            }
        };
        if let Ok(reply) = &result.reply {
            self.engine.inner.tally.count_reply(reply);
        }
        Poll::Ready(result)
    }
}

impl EngineState {
    /// The claim of an intent.
    pub(super) fn claim_of(&self, intent: &Intent, record: RecordId) -> Claim {
        let terms = &intent.terms;
        Claim {
            id: record,
            fingerprint: intent.fingerprint,
            credential: intent.credential,
            claimant: Claimant::random(),
            guarantee: effective_guarantee(intent),
            attempts_max: terms.attempts_max,
            overtakes: None,
            lease: terms.lease,
            settle_after: terms.settle_after,
            origin: intent.origin(self.store.secret(), self.node()),
        }
    }
}

/// The guarantee in force for a claim: exactly-once needs reliable receipts.
fn effective_guarantee(intent: &Intent) -> Guarantee {
    match (intent.terms.guarantee, &intent.receipts) {
        (Guarantee::ExactlyOnce, Some(witness)) => witness.guarantee(),
        (Guarantee::ExactlyOnce, None) => Guarantee::AtMostOnce,
        (other, _) => other,
    }
}

/// One caller's claim, which is repeated until there is a final verdict or the time to wait is over.
pub(super) struct ClaimLoop<'a> {
    engine: &'a Engine,
    pub(super) intent: &'a Intent,
    pub(super) claim: Claim,
    /// When the request began; `wait` counts from here.
    since: Instant,
    /// Whether the caller can follow a streamed response.
    follows: bool,
    /// Set when the caller starts to wait for another one.
    has_waited: Option<&'a AtomicBool>,
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
        claim: Claim,
    ) -> Self {
        Self {
            engine,
            intent,
            claim,
            since,
            follows,
            has_waited: None,
        }
    }

    /// The same request with another claim.
    pub(super) fn with_claim(&self, claim: Claim) -> Self {
        Self { claim, ..*self }
    }

    /// End of the time to wait.
    fn deadline(&self) -> Instant {
        self.since + self.intent.terms.wait.min(WAIT_MAX)
    }

    /// Claims until there is a final verdict or the time to wait is over.
    /// `first` is the store's reply to a claim that was already sent.
    pub(super) async fn request(&self, mut first: Option<Result<Verdict>>) -> Result<ClaimReply> {
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
                        Some(earlier) => Box::pin(earlier.request(None)).await,
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
            self.with_claim(claim)
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
    pub(super) fn reply(&self, verdict: Verdict, asked: Instant) -> ClaimReply {
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

    pub(super) fn inner(&self) -> &'a Arc<EngineState> {
        &self.engine.inner
    }

    pub(super) async fn request_verdict(&self) -> Result<Verdict> {
        self.inner().check_lost()?;
        let reply = self.send().reply().await;
        self.repeat_if_lost(reply).await
    }

    fn send(&self) -> SentClaim {
        SentClaim::new(self.inner(), self.claim.clone(), self.intent)
    }

    /// Sends the claim once more if the reply may have been lost: the same claimant is granted the same claim again.
    async fn repeat_if_lost(&self, reply: Result<Verdict>) -> Result<Verdict> {
        let first = match reply {
            Err(error) if error.kind() == ErrorKind::Unavailable => error,
            Err(error) => {
                self.inner().note_refused(&error);
                return Err(error);
            }
            Ok(verdict) => return Ok(verdict),
        };
        let second = self.send().reply().await;
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
        let Some(_place) = self.inner().flights.take_place(self.claim.id, waiting_max) else {
            self.inner().tally.count(Count::WaitRefused);
            return in_flight;
        };
        let _waiting = self.inner().tally.waiting();
        if let Some(has_waited) = self.has_waited {
            has_waited.store(true, Relaxed);
        }
        if let Some(flight) = flight {
            let waiting = timeout_at(self.deadline(), flight.wait_for_news(self.follows));
            return waiting.await.unwrap_or(in_flight);
        }
        // Held by another process, or not yet registered here: poll soon, and no later than the lease lapses.
        let store = &self.inner().store;
        let watch = polling.watch.take().or_else(|| store.watch(self.claim.id));
        polling.watch = watch;
        let napping = polling.nap(lease_left.max(POLL_FIRST));
        let _ = timeout_at(self.deadline(), napping).await;
        None
    }
}

impl EngineState {
    /// Notes that the store is full.
    fn note_refused(&self, error: &Error) {
        if error.kind() == ErrorKind::Full {
            let refused = Some((Instant::now(), error.to_string()));
            *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = refused;
        }
    }

    /// Checks that another claim may be sent: each claim may get lost, and all lost claims are kept.
    fn check_lost(&self) -> Result<()> {
        if self.tally.has_room_for_lost() {
            return Ok(());
        }
        let message = "too many claims have no known result, because replies of the store were lost; \
                       no more claims are sent until the store responds";
        Err(Error::new(ErrorKind::Unavailable, message).unapplied())
    }
}

/// A claim that was sent to the store, as a future of the reply.
///
/// If it is dropped before the reply, it continues in the background, and releases the claim if it is granted.
struct SentClaim {
    inner: Arc<EngineState>,
    /// `None` after the store has replied.
    claim: Option<Claim>,
    terms: Terms,
    audit: Option<Arc<str>>,
    /// `None` after the store has replied.
    reply: Option<BoxedReply<'static, Verdict>>,
}

impl SentClaim {
    fn new(inner: &Arc<EngineState>, claim: Claim, intent: &Intent) -> Self {
        Self {
            reply: Some(inner.store.send_claim(claim.clone())),
            inner: inner.clone(),
            claim: Some(claim),
            terms: intent.terms,
            audit: intent.audit.clone(),
        }
    }
}

impl SentClaim {
    /// The store's reply, and the claim.
    fn poll_reply(&mut self, context: &mut Context<'_>) -> Poll<(Claim, Result<Verdict>)> {
        let Some(replying) = &mut self.reply else {
            return Poll::Pending;
        };
        let reply = ready!(replying.as_mut().poll(context));
        self.reply = None;
        match self.claim.take() {
            Some(claim) => Poll::Ready((claim, reply)),
            None => Poll::Pending,
        }
    }

    async fn reply(mut self) -> Result<Verdict> {
        let (_, reply) = poll_fn(|context| self.poll_reply(context)).await;
        reply
    }
}

impl Drop for SentClaim {
    fn drop(&mut self) {
        if let (Some(reply), Some(claim)) = (self.reply.take(), self.claim.take()) {
            let inner = self.inner.clone();
            let (terms, audit) = (self.terms, self.audit.take());
            self.inner.spawn(async move {
                match reply.await {
                    Ok(Verdict::Granted(grant)) => {
                        let now = tokio::time::Instant::now();
                        // Dropping the guard releases the claim.
                        drop(inner.grant(&claim, grant, &terms, audit.as_ref(), now));
                    }
                    Err(error) if !error.is_unapplied() => inner.track_lost(claim, audit),
                    Ok(_) | Err(_) => {}
                }
            });
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
