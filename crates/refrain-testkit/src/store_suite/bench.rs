//! Test bench of a case: a new store, its clock, and helpers for claims and settlements.

use std::{
    any::Any,
    fmt::Debug,
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use futures_util::future::join_all;
use refrain::{
    Claim, Credential, Fence, Fingerprint, Guarantee, Outcome, RecordId, Settled, Settlement,
    Store, Verdict,
    record::{Grant, KeyDigest, Origin, OriginFields, Reason, Record, ScopeDigest},
};

use super::{Fixture, view};
use crate::ManualClock;

pub(super) const LEASE: Duration = Duration::from_secs(30);
pub(super) const SETTLE_AFTER: Duration = Duration::from_secs(90);
pub(super) const RETENTION: Duration = Duration::from_secs(3_600);
pub(super) const REMEMBER: Duration = Duration::from_secs(86_400);
pub(super) const MOMENT: Duration = Duration::from_millis(1);

/// Why a case failed.
#[derive(Debug)]
pub(super) struct Broken(pub(super) String);

pub(super) type Checked<T = ()> = Result<T, Broken>;

impl From<refrain::Error> for Broken {
    fn from(error: refrain::Error) -> Self {
        Self(format!("the store failed: {error}"))
    }
}

/// Turns a panic of the store into a failure of the case, so that the suite continues.
pub(super) async fn caught(case: impl Future<Output = Checked>) -> Checked {
    let mut case = pin!(case);
    poll_fn(|context| {
        let polled = catch_unwind(AssertUnwindSafe(|| case.as_mut().poll(context)));
        polled.unwrap_or_else(|panic| Poll::Ready(Err(Broken(panicked(&*panic)))))
    })
    .await
}

fn panicked(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(|text| &**text));
    format!(
        "the store panicked: {}",
        text.unwrap_or("without a message")
    )
}

/// Fails unless `got` equals `want`.
pub(super) fn expect<T: Debug + PartialEq>(what: &str, got: T, want: T) -> Checked {
    match got == want {
        true => Ok(()),
        false => {
            let (got, want) = (brief(&got), brief(&want));
            Err(Broken(format!("{what}: expected {want}, got {got}")))
        }
    }
}

/// Debug text cut to 700 characters, because outcomes can be long; differences show early, or in the length.
pub(super) fn brief(value: &impl Debug) -> String {
    let text = format!("{value:?}");
    match text.char_indices().nth(700) {
        Some((cut, _)) => format!("{}… ({} characters)", &text[..cut], text.len()),
        None => text,
    }
}

/// A new store with two handles on it.
pub(super) struct Bench<S> {
    pub(super) clock: ManualClock,
    pub(super) store: Arc<S>,
    /// The second handle on the same records.
    pub(super) twin: Arc<S>,
}

impl<S: Store> Bench<S> {
    pub(super) async fn open<F: Fixture<Store = S>>(fixture: &F) -> Checked<Self> {
        let clock = ManualClock::new();
        let store = Arc::new(fixture.open(clock.shared()).await?);
        let twin = fixture.another(&store).await?;
        Ok(Self { clock, store, twin })
    }

    /// Returns a handle for a racing task: the two handles alternate.
    pub(super) fn handle(&self, racer: usize) -> Arc<S> {
        match racer % 2 {
            0 => self.store.clone(),
            _ => self.twin.clone(),
        }
    }

    pub(super) async fn send_claim(&self, claim: &Claim) -> Checked<Verdict> {
        send_claim(&*self.store, claim).await
    }

    pub(super) async fn granted(&self, claim: &Claim) -> Checked<Grant> {
        match self.send_claim(claim).await? {
            Verdict::Granted(grant) => Ok(grant),
            other => Err(Broken(format!("expected a grant, got {}", brief(&other)))),
        }
    }

    /// Claims; expects this verdict and an unchanged record.
    pub(super) async fn refused(&self, what: &str, claim: &Claim, want: Verdict) -> Checked {
        let before = self.view(claim.id).await?;
        expect(what, self.send_claim(claim).await?, want)?;
        let after = self.view(claim.id).await?;
        expect(&format!("the record after: {what}"), after, before)
    }

    pub(super) async fn settle(
        &self,
        id: RecordId,
        fence: Fence,
        end: Settlement,
    ) -> Checked<Settled> {
        Ok(self.store.settle(id, fence, end).await?)
    }

    /// Settles; expects the settlement to be applied.
    pub(super) async fn end(&self, id: RecordId, fence: Fence, end: Settlement) -> Checked {
        let what = format!("settling with {}", brief(&end));
        expect(&what, self.settle(id, fence, end).await?, Settled::Applied)
    }

    pub(super) async fn renew(
        &self,
        id: RecordId,
        fence: Fence,
        lease: Duration,
    ) -> Checked<Settled> {
        Ok(self.store.renew(id, fence, lease).await?)
    }

    /// Reads the record through the second handle, in comparable form.
    pub(super) async fn view(&self, id: RecordId) -> Checked<Option<Record>> {
        let reading = self.twin.read(id).await?;
        if let Some(reading) = &reading {
            expect("the id of the record read", reading.id, id)?;
        }
        Ok(reading.and_then(view::of_reading))
    }
}

/// Sends a claim to a store.
pub(super) async fn send_claim(store: &impl Store, claim: &Claim) -> Checked<Verdict> {
    let verdict = store.claim(claim.clone()).await?;
    Ok(view::of_verdict(verdict, claim.id))
}

/// Sends claims concurrently; the verdicts have the same order.
pub(super) async fn send_claims(store: &impl Store, claims: &[Claim]) -> Checked<Vec<Verdict>> {
    let sent = claims.iter().map(|claim| send_claim(store, claim));
    join_all(sent).await.into_iter().collect()
}

/// Record identities whose order differs from that of their numbers.
pub(super) fn id(number: u64) -> RecordId {
    let mixed = u128::from(number.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(8));
    RecordId((mixed << 64 | u128::from(number)).to_be_bytes())
}

/// An at-most-once claim by a new claimant.
pub(super) fn claim(number: u64) -> Claim {
    Claim {
        credential: Some(Credential([1; 8])),
        lease: LEASE,
        settle_after: SETTLE_AFTER,
        origin: origin("node-1"),
        ..Claim::new(id(number), Fingerprint([1; 16]))
    }
}

pub(super) fn origin(node: &str) -> Origin {
    Origin::new(&OriginFields {
        operation: "payments",
        method: "POST",
        target: "/v1/payments",
        key_digest: KeyDigest([9; 8]),
        key: "order-7",
        host: "pay.example",
        scope_digest: ScopeDigest([7; 8]),
        node,
        trace_id: [7; 16],
    })
}

/// An at-least-once claim by a new claimant.
pub(super) fn repeatable(number: u64) -> Claim {
    Claim {
        guarantee: Guarantee::AtLeastOnce,
        ..claim(number)
    }
}

/// An exactly-once claim by a new claimant.
pub(super) fn receipted(number: u64) -> Claim {
    Claim {
        guarantee: Guarantee::ExactlyOnce,
        ..claim(number)
    }
}

/// The same claim, overtaking the attempt with this fence, which has no receipt.
pub(super) fn overtaking(claim: Claim, fence: Fence) -> Claim {
    Claim {
        overtakes: Some(fence),
        ..claim
    }
}

pub(super) fn outcome(id: RecordId) -> Outcome {
    Outcome::new(201, b"done \xff\0").sealed(id)
}

pub(super) fn completion(outcome: Outcome) -> Settlement {
    Settlement::Complete {
        outcome,
        retention: RETENTION,
        remember: REMEMBER,
    }
}

pub(super) const DOUBT: Settlement = Settlement::Doubt {
    reason: Reason::Timeout,
};
