//! [`Engine::attend`] as a future that owns its intent.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::time::Instant;

use super::{
    ClaimReply, Engine, Intent,
    asking::{Asking, claim_of},
    lost::SentClaim,
};
use crate::{
    Error, Result,
    receipts::Witness,
    record::{Claim, Verdict},
};

/// Future of a claim that owns its intent, and returns it with the reply.
/// Ready at the first poll if the store replies at once and there is nothing to wait for.
pub(crate) struct Attending {
    engine: Engine,
    /// When the request began.
    since: Instant,
    /// `None` while `state` owns it, and after it was returned.
    intent: Option<Box<Intent>>,
    state: AttendingState,
}

/// The reply to a claim, and its intent.
type AttendedClaim = (Result<ClaimReply>, Box<Intent>);

#[expect(
    clippy::large_enum_variant,
    reason = "most requests are in the large variant, which needs no allocation this way"
)]
enum AttendingState {
    /// Rejected before the claim was sent; `None` after the error was returned.
    Refused(Option<Error>),
    /// The first claim was sent to the store.
    Claiming(SentClaim),
    /// The rare and large cases: waiting for another run, probes, receipts.
    Waiting(Pin<Box<dyn Future<Output = AttendedClaim> + Send>>),
}

impl Engine {
    pub(crate) fn attending(&self, intent: Box<Intent>, since: Instant) -> Attending {
        let is_unread = |witness: &Arc<Witness>| witness.is_unread();
        let (intent, state) = if let Err(error) = self.inner.check_audit(&intent) {
            (Some(intent), AttendingState::Refused(Some(error)))
        } else if intent.receipts.as_ref().is_some_and(is_unread) {
            (
                None,
                AttendingState::Waiting(Box::pin(wait(self.clone(), intent, since, None))),
            )
        } else {
            let state = self.send_first(&intent);
            (Some(intent), state)
        };
        Attending {
            engine: self.clone(),
            since,
            intent,
            state,
        }
    }

    fn send_first(&self, intent: &Intent) -> AttendingState {
        self.inner.keep();
        self.inner.refresh_standing(intent);
        match self.inner.check_lost() {
            Ok(()) => {
                let claim = claim_of(self, intent);
                AttendingState::Claiming(SentClaim::new(&self.inner, claim, intent))
            }
            Err(error) => AttendingState::Refused(Some(error)),
        }
    }
}

/// Continues from the reply to the first claim, if it was sent.
async fn wait(
    engine: Engine,
    intent: Box<Intent>,
    since: Instant,
    first: Option<(Claim, Result<Verdict>)>,
) -> AttendedClaim {
    let asking = async {
        let (claim, reply) = match first {
            Some((claim, reply)) => (claim, Some(reply)),
            None => {
                engine.inner.keep();
                engine.inner.know_standing(&intent).await?;
                (claim_of(&engine, &intent), None)
            }
        };
        let asking = Asking::with_claim(&engine, &intent, true, since, claim);
        asking.ask_after(reply).await
    };
    let turn = asking.await;
    (turn, intent)
}

impl Attending {
    /// Returns the reply if the first verdict is final; otherwise changes to `AttendingState::Waiting`.
    fn decide(&mut self, claim: &Claim, reply: Result<Verdict>) -> Option<AttendedClaim> {
        let intent = self.intent.take()?;
        let asking = Asking::with_claim(&self.engine, &intent, true, self.since, claim.clone());
        match reply {
            Ok(verdict) if asking.is_final(&verdict) => {
                let turn = asking.turn(verdict, self.since);
                Some((Ok(turn), intent))
            }
            reply => {
                let first = Some((claim.clone(), reply));
                let waiting = wait(self.engine.clone(), intent, self.since, first);
                self.state = AttendingState::Waiting(Box::pin(waiting));
                None
            }
        }
    }
}

impl Future for Attending {
    type Output = AttendedClaim;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (turn, intent) = loop {
            match &mut self.state {
                AttendingState::Refused(error) => match (error.take(), self.intent.take()) {
                    (Some(error), Some(intent)) => break (Err(error), intent),
                    _ => return Poll::Pending,
                },
                AttendingState::Claiming(sent) => {
                    let reply = ready!(Pin::new(&mut *sent).poll(context));
                    let claim = sent.claim.clone();
                    if let Some(decided) = self.decide(&claim, reply) {
                        break decided;
                    }
                }
                AttendingState::Waiting(waiting) => break ready!(waiting.as_mut().poll(context)),
            }
        };
        if let Ok(turn) = &turn {
            self.engine.inner.tally.turn(turn);
        }
        Poll::Ready((turn, intent))
    }
}
