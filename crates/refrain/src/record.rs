//! Records, and the state machine that changes them. A store holds one record for each scope and key.
//!
//! [`step`] is the state machine: a pure function without I/O and without a clock.
//! Every store calls it, or is tested against it.
//!
//! ```
//! use std::time::Duration;
//! use refrain::{Outcome, clock::Timestamp, record::*};
//!
//! let claim = Claim::new(Default::default(), Default::default());
//! let fence = Fence { epoch: 1, counter: 1, nonce: 7 };
//! let first = step::<Outcome>(None, Command::Claim(claim.clone(), fence), Timestamp(0));
//! assert!(matches!(first.reply, Reply::Verdict(Verdict::Granted(_))));
//!
//! let again = Claim { claimant: Claimant::random(), ..claim };
//! let next = Fence { counter: 2, ..fence };
//! let second = step(first.record, Command::Claim(again, next), Timestamp(1));
//! assert!(matches!(second.reply, Reply::Verdict(Verdict::InFlight { .. })));
//! ```

use std::{fmt, str::FromStr, time::Duration};

use crate::{
    Error, ErrorKind, Fingerprint, Outcome, RecordId, Result, clock::Timestamp, key::Credential,
};

mod step;
pub use step::step;

mod trace;
pub(crate) use trace::scope_digest;
pub use trace::{Attempt, End, History, KeyDigest, Origin, OriginFields, ScopeDigest, Trace};

/// How often an operation may take effect.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Hash, serde::Deserialize, serde::Serialize,
)]
#[cfg_attr(feature = "policy-file", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Guarantee {
    /// A request that may have executed is never executed again automatically.
    #[default]
    AtMostOnce,
    /// A request that did not provably succeed is executed again on the next retry.
    AtLeastOnce,
    /// Effect and receipt commit together in the user's own transaction.
    ExactlyOnce,
}

/// Fence (fencing token): granted with a claim, presented by every later write, never issued twice.
///
/// The fences of one record grow, so that a resource can reject a holder whose claim was taken over.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence {
    /// Number of times the store was opened or failed over.
    pub epoch: u32,
    /// Number of grants.
    pub counter: u64,
    /// Random. Tells apart two grants with the same numbers, after a failover that lost writes.
    pub nonce: u32,
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{:08x}", self.epoch, self.counter, self.nonce)
    }
}

impl FromStr for Fence {
    type Err = Error;

    /// Parses the format of [`Display`](fmt::Display).
    fn from_str(text: &str) -> Result<Self> {
        let read = || {
            let mut parts = text.split('.');
            let fence = Self {
                epoch: parts.next()?.parse().ok()?,
                counter: parts.next()?.parse().ok()?,
                nonce: u32::from_str_radix(parts.next()?, 16).ok()?,
            };
            // Each fence has exactly one text: reject signs, leading zeros and trailing text.
            (fence.to_string() == text).then_some(fence)
        };
        read().ok_or_else(|| {
            let message = format!("invalid fence `{text}`; a fence looks like 1.42.0000002a");
            Error::new(ErrorKind::Invalid, message)
        })
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fence({self})")
    }
}

/// Nonce that identifies the caller of a claim, so that a claim whose response was lost can be repeated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Claimant(pub u64);

impl Claimant {
    /// Creates a random claimant.
    #[must_use]
    pub fn random() -> Self {
        Self(rand::random())
    }
}

/// Request for the right to execute an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The record to claim.
    pub id: RecordId,
    /// The fingerprint of the request.
    pub fingerprint: Fingerprint,
    /// The credential that may see the outcome; `None` if the scope alone decides.
    pub credential: Option<Credential>,
    /// The caller of this claim.
    pub claimant: Claimant,
    /// The guarantee of the operation.
    pub guarantee: Guarantee,
    /// The maximum number of grants of one record, takeovers included.
    pub attempts_max: u16,
    /// Exactly-once only: the fence of the indeterminate attempt that this claim replaces.
    /// The caller has looked for the receipt of that attempt and found none.
    pub overtakes: Option<Fence>,
    /// How long the claim is valid without renewal.
    pub lease: Duration,
    /// How long after its dispatch, or its last renewal, an attempt may still act.
    pub settle_after: Duration,
    /// Where the claim comes from, for operators.
    pub origin: Origin,
}

impl Claim {
    /// Creates a claim with a new claimant and default terms.
    #[must_use]
    pub fn new(id: RecordId, fingerprint: Fingerprint) -> Self {
        Self {
            id,
            fingerprint,
            credential: None,
            claimant: Claimant::random(),
            guarantee: Guarantee::default(),
            attempts_max: 10,
            overtakes: None,
            lease: Duration::from_secs(30),
            settle_after: Duration::from_secs(90),
            origin: Origin::default(),
        }
    }

    /// A cheap copy, for a decision that grants nothing.
    pub(crate) fn without_origin(&self) -> Self {
        Self {
            origin: Origin::default(),
            ..*self
        }
    }
}

/// The reply to a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Verdict<G = Grant, O = Outcome> {
    /// The caller may execute the operation.
    Granted(G),
    /// The operation has completed; this is its outcome.
    Replay(O),
    /// Another claim is executing the operation.
    InFlight {
        /// Time until the holder's lease lapses, unless it is renewed.
        lease_left: Duration,
    },
    /// The record belongs to another credential.
    OtherCredential,
    /// The key was used for another request.
    Mismatch,
    /// The outcome is unknown: the operation may or may not have taken effect.
    Indeterminate(Doubt),
    /// The outcome is past retention, and a tombstone still blocks the key.
    Expired,
}

/// The right to execute, as granted by a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// The fence to present with every later write.
    pub fence: Fence,
    /// Attempt number: 1 for the first grant. Above 1, the grant is a takeover and a possible duplicate.
    pub attempt: u16,
}

/// Details of an indeterminate record (unknown outcome).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Doubt {
    /// The fence of the attempt, needed to resolve the record.
    pub fence: Fence,
    /// Why the outcome is unknown.
    pub reason: Reason,
    /// Time until [`Settlement::NeverHappened`] is accepted.
    pub settle_left: Duration,
}

/// Why an outcome is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
#[non_exhaustive]
pub enum Reason {
    /// The lease lapsed: the holder died or lost its connection to the store.
    Lapsed = 1,
    /// The response did not arrive in time.
    Timeout = 2,
    /// The connection broke after the request was sent.
    Reset = 3,
    /// The response was cut off in the middle.
    Truncated = 4,
    /// The handler panicked.
    Panicked = 5,
    /// The running operation was dropped before it ended.
    Dropped = 6,
    /// The handler failed without reporting whether the operation took effect.
    Failed = 7,
}

impl Reason {
    /// The name of the reason, as in JSON and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Lapsed => "lapsed",
            Self::Timeout => "timeout",
            Self::Reset => "reset",
            Self::Truncated => "truncated",
            Self::Panicked => "panicked",
            Self::Dropped => "dropped",
            Self::Failed => "failed",
        }
    }

    /// Decodes a reason from the number that stores persist.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        use Reason::{Dropped, Failed, Lapsed, Panicked, Reset, Timeout, Truncated};
        [Lapsed, Timeout, Reset, Truncated, Panicked, Dropped, Failed]
            .into_iter()
            .find(|reason| *reason as u8 == code)
    }
}

/// How a claim ends (settles).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settlement<O = Outcome> {
    /// The operation completed with this outcome, which is replayed from now on.
    Complete {
        /// The result of the operation.
        outcome: O,
        /// How long the outcome is kept.
        retention: Duration,
        /// How long after retention the key is refused, instead of executed again.
        remember: Duration,
    },
    /// This attempt provably had no effect: the key is free again.
    ///
    /// Under exactly-once, an earlier attempt may still commit.
    /// In that case the record becomes indeterminate again, and this attempt is not counted.
    Release,
    /// The outcome is unknown.
    Doubt {
        /// Why the outcome is unknown.
        reason: Reason,
    },
    /// An indeterminate record provably never took effect: the key is free again.
    NeverHappened,
}

/// The result of a settlement or a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Settled {
    /// The settlement or renewal was applied.
    Applied,
    /// Nothing was changed: the fence is not current, or the record's state does not allow this settlement.
    Fenced,
    /// Nothing was changed: the attempt may still act.
    TooEarly {
        /// Time until the attempt can no longer act.
        left: Duration,
    },
}

/// The result of erasing a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Erased {
    /// The record was erased: the key is free again.
    Gone,
    /// There was no such record.
    Absent,
    /// Refused, nothing was changed: the record is in flight, and its holder would lose its claim.
    InFlight,
    /// Refused, nothing was changed: the operation may have taken effect. Resolve the record instead.
    Indeterminate,
}

/// The state of one scope and key in a store. `O` is the store's representation of outcomes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record<O = Outcome> {
    /// The fingerprint of the first request.
    pub fingerprint: Fingerprint,
    /// The credential that may see the outcome.
    pub credential: Option<Credential>,
    /// The state of the record.
    pub state: State<O>,
    /// Where the operation came from, and what happened to it.
    pub trace: Trace,
}

/// The states of a record. The state "absent" has no record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State<O = Outcome> {
    /// Claimed; the outcome is not known yet.
    InFlight {
        /// The current claim.
        hold: Hold,
        /// When the lease lapses.
        lease_ends: Timestamp,
    },
    /// The operation ended, and its outcome is stored.
    Completed {
        /// The fence of the attempt that completed.
        fence: Fence,
        /// The stored result.
        outcome: O,
        /// When retention ends, and the record becomes a tombstone.
        retention_ends: Timestamp,
        /// When the tombstone is removed.
        remember_ends: Timestamp,
    },
    /// The outcome is unknown: the operation may or may not have taken effect.
    Indeterminate {
        /// The claim of the last attempt.
        hold: Hold,
        /// Why the outcome is unknown.
        reason: Reason,
    },
    /// Past retention: the key is refused.
    Tombstone {
        /// When the tombstone is removed.
        remember_ends: Timestamp,
    },
}

/// A granted claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hold {
    /// The current fence.
    pub fence: Fence,
    /// The caller that holds the claim.
    pub claimant: Claimant,
    /// The guarantee of the operation.
    pub guarantee: Guarantee,
    /// The number of grants so far.
    pub attempts: u16,
    /// The maximum number of grants.
    pub attempts_max: u16,
    /// How long after its dispatch, or its last renewal, the attempt may still act.
    pub settle_after: Duration,
    /// The time from which the attempt can no longer act.
    pub settles: Timestamp,
}

/// The commands that [`step`] applies to a record.
#[derive(Debug, Clone)]
pub enum Command<O = Outcome> {
    /// Claim the record. The fence is granted if the record is free.
    Claim(Claim, Fence),
    /// Renew the lease.
    Renew(Fence, Duration),
    /// Settle the claim.
    Settle(Fence, Settlement<O>),
    /// Delete the record, if it is completed or a tombstone.
    Erase,
    /// Apply only the passage of time.
    Age,
}

/// The result of [`step`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct Stepped<O = Outcome> {
    /// The new record; `None` is absent.
    pub record: Option<Record<O>>,
    /// The reply to the command.
    pub reply: Reply<O>,
    /// The change that a store must persist before it replies.
    pub change: Change,
}

/// The reply to a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply<O = Outcome> {
    /// Reply to a claim.
    Verdict(Verdict<Grant, O>),
    /// Reply to a settlement or a renewal.
    Settled(Settled),
    /// Reply to [`Command::Erase`].
    Erased(Erased),
    /// Reply to [`Command::Age`].
    Aged,
}

/// The part of a record that the command changed.
///
/// Changes by time alone are not counted, because they can be computed again from the record and the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// No change.
    Nothing,
    /// Only the lease changed. A store whose holders cannot outlive a restart of the store need not persist it.
    Lease,
    /// The record changed: it must be durable before the reply.
    Record,
}

impl<O> Record<O> {
    /// The current fence; `None` for a tombstone.
    #[must_use]
    pub fn fence(&self) -> Option<Fence> {
        match &self.state {
            State::InFlight { hold, .. } | State::Indeterminate { hold, .. } => Some(hold.fence),
            State::Completed { fence, .. } => Some(*fence),
            State::Tombstone { .. } => None,
        }
    }

    /// Borrows the outcome of the record.
    pub(crate) fn by_ref(&self) -> Record<&O> {
        let state = match self.state {
            State::InFlight { hold, lease_ends } => State::InFlight { hold, lease_ends },
            State::Indeterminate { hold, reason } => State::Indeterminate { hold, reason },
            State::Tombstone { remember_ends } => State::Tombstone { remember_ends },
            State::Completed {
                fence,
                ref outcome,
                retention_ends,
                remember_ends,
            } => State::Completed {
                fence,
                outcome,
                retention_ends,
                remember_ends,
            },
        };
        Record {
            fingerprint: self.fingerprint,
            credential: self.credential,
            state,
            trace: self.trace.clone(),
        }
    }

    /// Converts the outcome of the record.
    pub fn map<P>(self, convert: impl FnOnce(O) -> P) -> Record<P> {
        let state = match self.state {
            State::InFlight { hold, lease_ends } => State::InFlight { hold, lease_ends },
            State::Indeterminate { hold, reason } => State::Indeterminate { hold, reason },
            State::Tombstone { remember_ends } => State::Tombstone { remember_ends },
            State::Completed {
                fence,
                outcome,
                retention_ends,
                remember_ends,
            } => State::Completed {
                fence,
                outcome: convert(outcome),
                retention_ends,
                remember_ends,
            },
        };
        Record {
            fingerprint: self.fingerprint,
            credential: self.credential,
            state,
            trace: self.trace,
        }
    }
}

impl Settlement {
    /// Writes the identity of the record into the outcome of the settlement.
    #[must_use]
    pub fn sealed(self, id: RecordId) -> Self {
        match self {
            Self::Complete {
                outcome,
                retention,
                remember,
            } => Self::Complete {
                outcome: outcome.sealed(id),
                retention,
                remember,
            },
            other => other,
        }
    }
}

impl<G, O> Verdict<G, O> {
    /// Converts the grant and the outcome of the verdict.
    pub(crate) fn convert<H, P>(
        self,
        grant: impl FnOnce(G) -> H,
        replay: impl FnOnce(O) -> P,
    ) -> Verdict<H, P> {
        match self {
            Self::Granted(granted) => Verdict::Granted(grant(granted)),
            Self::Replay(outcome) => Verdict::Replay(replay(outcome)),
            Self::InFlight { lease_left } => Verdict::InFlight { lease_left },
            Self::OtherCredential => Verdict::OtherCredential,
            Self::Mismatch => Verdict::Mismatch,
            Self::Indeterminate(doubt) => Verdict::Indeterminate(doubt),
            Self::Expired => Verdict::Expired,
        }
    }
}
