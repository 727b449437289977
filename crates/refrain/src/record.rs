//! What a store holds for one scope and key, and the one function that changes it.
//!
//! [`step`] is pure: it does no I/O and reads no clock.
//! Every store decides through it, or is checked against it.
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

/// What is promised about how often an operation takes effect.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    Hash,
    serde::Deserialize,
    serde::Serialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Guarantee {
    /// What may have taken effect is never run again by itself.
    #[default]
    AtMostOnce,
    /// What did not demonstrably succeed is run again on the next retry.
    AtLeastOnce,
    /// Effect and receipt commit together in the user's own transaction.
    ExactlyOnce,
}

/// Granted with a claim and presented by every later write. Never issued twice.
///
/// Fences of one record grow, so that a resource can refuse a holder that was overtaken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence {
    /// Counts how often the store was opened or failed over.
    pub epoch: u32,
    /// Counts grants.
    pub counter: u64,
    /// Random: tells apart two grants with the same numbers, after a failover that lost some.
    pub nonce: u32,
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{:08x}", self.epoch, self.counter, self.nonce)
    }
}

impl FromStr for Fence {
    type Err = Error;

    /// Reads what [`Display`](fmt::Display) writes.
    fn from_str(text: &str) -> Result<Self> {
        let read = || {
            let mut parts = text.split('.');
            let fence = Self {
                epoch: parts.next()?.parse().ok()?,
                counter: parts.next()?.parse().ok()?,
                nonce: u32::from_str_radix(parts.next()?, 16).ok()?,
            };
            // One text for one fence: no signs, no zeros in front, nothing behind.
            (fence.to_string() == text).then_some(fence)
        };
        read().ok_or_else(|| {
            let message = format!("`{text}` is no fence; one looks like 1.42.0000002a");
            Error::new(ErrorKind::Invalid, message)
        })
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fence({self})")
    }
}

/// Who asks: a nonce, so that a claim whose answer was lost can be asked again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Claimant(pub u64);

impl Claimant {
    /// A claimant that nobody else is.
    #[must_use]
    pub fn random() -> Self {
        Self(rand::random())
    }
}

/// Asks for the right to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Which record.
    pub id: RecordId,
    /// What is asked to run.
    pub fingerprint: Fingerprint,
    /// Who may see the outcome; `None` where the scope alone decides.
    pub credential: Option<Credential>,
    /// Who asks.
    pub claimant: Claimant,
    /// What is promised.
    pub guarantee: Guarantee,
    /// How often a lapsed claim may be granted in all.
    pub attempts_max: u16,
    /// The attempt under exactly-once that this claim stands in for, where it is in doubt:
    /// its receipt was looked for, and is not there.
    pub overtakes: Option<Fence>,
    /// How long the claim stands unrenewed.
    pub lease: Duration,
    /// How long after its dispatch, or its last renewal, an attempt may still act.
    pub settle_after: Duration,
}

impl Claim {
    /// A claim with a new claimant and default terms.
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
        }
    }
}

/// The answer to a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Verdict<G = Grant, O = Outcome> {
    /// Run it.
    Granted(G),
    /// It has run: this came of it.
    Replay(O),
    /// Somebody is running it, and stands for it that much longer unless renewed.
    InFlight {
        /// What is left of the holder's lease.
        lease_left: Duration,
    },
    /// The record belongs to another credential.
    OtherCredential,
    /// The key was used for another request.
    Mismatch,
    /// It may or may not have taken effect.
    Indeterminate(Doubt),
    /// Its outcome is past retention, and the key is still remembered.
    Expired,
}

/// The right to run, as a store grants it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// To be presented by every later write.
    pub fence: Fence,
    /// 1 for the first grant; above 1 the grant is a takeover and a possible duplicate.
    pub attempt: u16,
}

/// What is known of an indeterminate record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Doubt {
    /// The fence under which it was dispatched, to resolve it with.
    pub fence: Fence,
    /// Why the outcome is not known.
    pub reason: Reason,
    /// How long until "it never happened" counts.
    pub settle_left: Duration,
}

/// Why an outcome is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
#[non_exhaustive]
pub enum Reason {
    /// The lease lapsed: the holder died or was cut off.
    Lapsed = 1,
    /// No answer came in time.
    Timeout = 2,
    /// The connection broke after the request was sent.
    Reset = 3,
    /// The answer was cut in the middle.
    Truncated = 4,
    /// The handler panicked.
    Panicked = 5,
    /// The running operation was dropped before it ended.
    Dropped = 6,
    /// The handler failed without saying whether it took effect.
    Failed = 7,
}

impl Reason {
    /// The reason with this number, as stores keep it.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        use Reason::{Dropped, Failed, Lapsed, Panicked, Reset, Timeout, Truncated};
        [Lapsed, Timeout, Reset, Truncated, Panicked, Dropped, Failed]
            .into_iter()
            .find(|reason| *reason as u8 == code)
    }
}

/// How a claim ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settlement<O = Outcome> {
    /// It ended with this outcome, which is replayed from now on.
    Complete {
        /// What came of it.
        outcome: O,
        /// How long the outcome is kept.
        retention: Duration,
        /// How long after that the key is refused instead of run again.
        remember: Duration,
    },
    /// This attempt provably had no effect: the key is free again.
    /// Under exactly-once an attempt before it may still have one: then the record is in doubt again, and this attempt is not counted.
    Release,
    /// Whether it took effect could not be learnt.
    Doubt {
        /// Why.
        reason: Reason,
    },
    /// An indeterminate record provably never took effect: the key is free again.
    NeverHappened,
}

/// What became of a settlement or a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Settled {
    /// It stands.
    Applied,
    /// The fence is not current, or the record can no longer end that way: nothing was changed.
    Fenced,
    /// The attempt may still act for that long: nothing was changed.
    TooEarly {
        /// How long.
        left: Duration,
    },
}

/// What became of erasing a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Erased {
    /// It was there, and is gone: the key is free again.
    Gone,
    /// There was none.
    Absent,
    /// Refused: it is in flight, and its holder would be cut off. Nothing was changed.
    InFlight,
    /// Refused: it may have taken effect, so it has to be resolved instead. Nothing was changed.
    Indeterminate,
}

/// What a store holds for one scope and key; `O` is how it holds outcomes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record<O = Outcome> {
    /// What was asked to run.
    pub fingerprint: Fingerprint,
    /// Who may see the outcome.
    pub credential: Option<Credential>,
    /// Where it stands.
    pub state: State<O>,
}

/// Where a record stands. No record at all is "absent".
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State<O = Outcome> {
    /// Claimed, its end not known yet.
    InFlight {
        /// The claim that stands.
        hold: Hold,
        /// When it lapses.
        lease_ends: Timestamp,
    },
    /// Ended, and its outcome kept.
    Completed {
        /// The fence under which it ended.
        fence: Fence,
        /// What came of it.
        outcome: O,
        /// When only a tombstone is left.
        retention_ends: Timestamp,
        /// When the tombstone goes.
        remember_ends: Timestamp,
    },
    /// It may or may not have taken effect.
    Indeterminate {
        /// The claim under which it was dispatched.
        hold: Hold,
        /// Why it is not known.
        reason: Reason,
    },
    /// Past retention: the key is refused.
    Tombstone {
        /// When the tombstone goes.
        remember_ends: Timestamp,
    },
}

/// A claim that was granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hold {
    /// The fence that is current.
    pub fence: Fence,
    /// Who holds it.
    pub claimant: Claimant,
    /// What is promised.
    pub guarantee: Guarantee,
    /// How often it was granted.
    pub attempts: u16,
    /// How often it may be granted.
    pub attempts_max: u16,
    /// How long after its dispatch, or its last renewal, the attempt may still act.
    pub settle_after: Duration,
    /// From when on the attempt can no longer act.
    pub settles: Timestamp,
}

/// What can be asked of a record.
#[derive(Debug, Clone)]
pub enum Command<O = Outcome> {
    /// Ask for the right to run; this fence is granted if it is free.
    Claim(Claim, Fence),
    /// Stand for it longer.
    Renew(Fence, Duration),
    /// End it.
    Settle(Fence, Settlement<O>),
    /// Take it away on purpose, if its end is known.
    Erase,
    /// Let time do its work, and nothing else.
    Age,
}

/// What [`step`] answers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct Stepped<O = Outcome> {
    /// The record as it is from now on; `None` is absent.
    pub record: Option<Record<O>>,
    /// The answer to the command.
    pub reply: Reply<O>,
    /// What a store must write before it answers.
    pub change: Change,
}

/// The answer to a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply<O = Outcome> {
    /// To a claim.
    Verdict(Verdict<Grant, O>),
    /// To a settlement or a renewal.
    Settled(Settled),
    /// To [`Command::Erase`].
    Erased(Erased),
    /// To [`Command::Age`].
    Aged,
}

/// What of a record the command changed. What time alone changes is not counted: anybody can work that out again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Nothing.
    Nothing,
    /// The lease alone, which a store that knows its holders to be gone when it restarts need not keep.
    Lease,
    /// The record: durable before the answer.
    Record,
}

impl<O> Record<O> {
    /// The fence that is current, if the record still knows one.
    #[must_use]
    pub fn fence(&self) -> Option<Fence> {
        match &self.state {
            State::InFlight { hold, .. } | State::Indeterminate { hold, .. } => Some(hold.fence),
            State::Completed { fence, .. } => Some(*fence),
            State::Tombstone { .. } => None,
        }
    }

    /// The same record, of which the outcome is only looked at.
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
        }
    }

    /// The same record with its outcome held another way.
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
        }
    }
}

impl<G, O> Verdict<G, O> {
    /// The same verdict with another thing granted, or its outcome held another way.
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
