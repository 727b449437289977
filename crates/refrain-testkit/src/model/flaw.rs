//! Bugs that a store can have. Each was found in a real store, or is an easy mistake.

use std::time::Duration;

use refrain::{
    Fence, Guarantee, Outcome, Settled, Settlement, Verdict,
    clock::Timestamp,
    outcome::Packer,
    record::{
        Change, Claimant, Command, Erased, Hold, Reason, Record, Reply, State, Stepped, step,
    },
};

macro_rules! flaws {
    ($($(#[$doc:meta])* $flaw:ident,)*) => {
        /// A deliberate bug in a [`Model`](crate::Model).
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Flaw { $($(#[$doc])* $flaw,)* }

        impl Flaw {
            /// Every flaw.
            pub const ALL: &[Self] = &[$(Self::$flaw,)*];
        }
    };
}

flaws! {
    /// Stores outcomes but no claims.
    KeepsNoClaims,
    /// Accepts any fence in settle and renew.
    ForgetsFence,
    /// Never compares fingerprints.
    NoFingerprintCheck,
    /// Never compares credentials.
    NoCredentialCheck,
    /// Compares the fingerprint before the credential.
    FingerprintFirst,
    /// Answers "in flight" before it compares credential and fingerprint.
    InFlightFirst,
    /// Treats a lapsed claim as absent.
    LapsedIsAbsent,
    /// Leases never lapse.
    NeverLapses,
    /// Takes over a lapsed claim under every guarantee, also where the request may have executed.
    TakesOverAnything,
    /// Takes over without a limit on attempts.
    NoAttemptsLimit,
    /// Never lets an exactly-once claim overtake an indeterminate attempt, even when that attempt has no receipt.
    NeverOvertakes,
    /// Overtakes the last attempt although the receipt lookup was for an earlier one.
    OvertakesAnyFence,
    /// Overtakes an attempt that can still act with a claim that writes no receipt.
    OvertakesWithoutReceipt,
    /// Overtakes an attempt that never writes a receipt.
    OvertakesTheUnreceipted,
    /// Overtakes indeterminate attempts without a limit on attempts.
    OvertakesWithoutLimit,
    /// A release of one attempt frees the key although earlier attempts may have executed.
    ReleasesEarlierAttempts,
    /// Rejects a completion or renewal after the lease lapsed, although no other claim took over.
    RefusesLateTruth,
    /// A second completion overwrites the first.
    OutcomeChanges,
    /// Acknowledges a release without freeing the key.
    KeepsReleased,
    /// Settling with doubt frees the key.
    DoubtFrees,
    /// Settling an at-least-once claim with doubt prevents the takeover by the next retry.
    DoubtIsFinal,
    /// Accepts "it never happened" while the attempt can still act.
    SettlesTooEarly,
    /// Frees the key when retention ends, instead of leaving a tombstone.
    NoTombstone,
    /// Replays outcomes for ever.
    NoRetention,
    /// A lease of zero never lapses.
    ZeroLeaseIsEndless,
    /// Divides leases by 1,000, as if milliseconds were seconds.
    WrongUnits,
    /// Answers a repeated claim of the same claimant with "in flight".
    ForgetsClaimant,
    /// Converts bodies to UTF-8 text, so binary bodies change.
    TextBodies,
    /// Drops trailers.
    LosesTrailers,
    /// Issues the same fence more than once.
    RepeatsFences,
    /// Stores several records under one map key, so only one is kept.
    MixesUpRecords,
    /// Decides all claims that are sent at once, as one group, against the state before the group.
    GroupIsBlind,
    /// Reads the record first and writes the claim 1 ms later, so claims race. Needs a runtime with timers.
    LooksThenActs,
    /// Uses the wall clock as store time.
    TrustsWallClock,
    /// A sweep removes indeterminate records.
    SweepsDoubt,
    /// A sweep removes every outcome.
    SweepsOutcomes,
    /// A sweep always reports that it removed as many records as it may.
    SweepsWithoutEnd,
    /// Lists records in reverse order.
    ListsOutOfOrder,
    /// Lists ignore the requested state.
    ListsEveryState,
    /// Loses all records on restart.
    ForgetsOnReopen,
    /// Acknowledges an erase without erasing the record.
    KeepsErased,
    /// Erases in-flight and indeterminate records, too.
    ErasesAnything,
    /// Counts records by their stored state, without applying lapsed leases and ended retention.
    CountsWithoutTime,
    /// Hands out watches but never notifies them of settlements.
    SettlesInSilence,
    /// Restores erased records on restart.
    ForgetsErasedOnReopen,
    /// Replaces the data key of a scope although it is not the expected one.
    OverwritesScopeKeys,
    /// Lists the data keys of half of the scopes only.
    ListsHalfOfTheScopeKeys,
    /// Loses the data keys of scopes on restart.
    ForgetsScopeKeysOnReopen,
    /// Restarts the fence counter on restart.
    RepeatsFencesOnReopen,
}

const AGES: Duration = Duration::from_secs(10 * 365 * 86_400);

impl Flaw {
    /// [`step`] with this flaw.
    pub(super) fn step(self, record: Option<Record>, command: Command, now: Timestamp) -> Stepped {
        let record = self.bend_record(record, &command, now);
        let command = self.bend_command(command, record.as_ref());
        match self.overrule(record.as_ref(), &command, now) {
            Some(reply) => unchanged(record, reply),
            None => self.forget(step(record, command, now)),
        }
    }

    fn forget(self, mut stepped: Stepped) -> Stepped {
        let granted = matches!(stepped.reply, Reply::Verdict(Verdict::Granted(_)));
        if self == Self::KeepsNoClaims && granted {
            stepped.record = None;
        }
        let refused = [Erased::InFlight, Erased::Indeterminate].map(Reply::Erased);
        if self == Self::ErasesAnything && refused.contains(&stepped.reply) {
            stepped.record = None;
            stepped.reply = Reply::Erased(Erased::Gone);
        }
        stepped
    }

    /// Whether a sweep wrongly removes this record.
    pub(super) fn sweeps(self, record: &Record) -> bool {
        match &record.state {
            State::Indeterminate { .. } => self == Self::SweepsDoubt,
            State::Completed { .. } => self == Self::SweepsOutcomes,
            _ => false,
        }
    }

    /// Alters the record before [`step`] sees it.
    fn bend_record(
        self,
        record: Option<Record>,
        command: &Command,
        now: Timestamp,
    ) -> Option<Record> {
        let mut record = record?;
        let soon = now + Duration::from_millis(1);
        match (&mut record.state, self) {
            (State::InFlight { lease_ends, .. }, Self::LapsedIsAbsent) if *lease_ends <= now => {
                return None;
            }
            (State::InFlight { lease_ends, .. }, Self::NeverLapses) if *lease_ends <= now => {
                *lease_ends = soon;
            }
            (State::InFlight { hold, .. }, Self::TakesOverAnything) => {
                hold.guarantee = Guarantee::AtLeastOnce;
            }
            (State::InFlight { hold, .. }, Self::NoAttemptsLimit) => hold.attempts_max = u16::MAX,
            (State::InFlight { hold, .. }, Self::DoubtIsFinal) if is_doubt(command) => {
                hold.guarantee = Guarantee::AtMostOnce;
            }
            (State::Indeterminate { hold, .. }, Self::SettlesTooEarly) => {
                hold.settles = Timestamp(0);
            }
            (State::Indeterminate { hold, .. }, Self::OvertakesTheUnreceipted) => {
                hold.guarantee = Guarantee::ExactlyOnce;
            }
            (State::Indeterminate { hold, .. }, Self::OvertakesWithoutLimit) => {
                hold.attempts_max = u16::MAX;
            }
            (State::InFlight { hold, .. }, Self::ReleasesEarlierAttempts)
                if is_release(command) =>
            {
                hold.attempts = 1;
            }
            (State::Completed { fence, .. }, Self::OutcomeChanges)
                if completes(command, *fence) =>
            {
                record.state = reopened(*fence);
            }
            (State::Completed { retention_ends, .. }, Self::NoTombstone)
                if *retention_ends <= now =>
            {
                return None;
            }
            (
                State::Completed {
                    retention_ends,
                    remember_ends,
                    ..
                },
                Self::NoRetention,
            ) => {
                *retention_ends = now + AGES;
                *remember_ends = now + AGES;
            }
            _ => (),
        }
        Some(record)
    }

    /// Alters the command before [`step`] sees it.
    fn bend_command(self, command: Command, record: Option<&Record>) -> Command {
        let current = record.and_then(Record::fence);
        match (command, self) {
            (Command::Claim(mut claim, fence), _) => {
                self.bend_claim(&mut claim, record);
                Command::Claim(claim, fence)
            }
            (Command::Renew(_, lease), Self::ForgetsFence) => {
                Command::Renew(current.unwrap_or(NO_FENCE), lease)
            }
            (Command::Renew(fence, lease), Self::WrongUnits) => Command::Renew(fence, lease / 1000),
            (Command::Settle(_, end), Self::ForgetsFence) => {
                Command::Settle(current.unwrap_or(NO_FENCE), end)
            }
            (Command::Settle(fence, end), _) => Command::Settle(fence, self.bend_end(end)),
            (other, _) => other,
        }
    }

    fn bend_claim(self, claim: &mut refrain::Claim, record: Option<&Record>) {
        match (self, record) {
            (Self::NoFingerprintCheck, Some(record)) => claim.fingerprint = record.fingerprint,
            (Self::NoCredentialCheck, Some(_)) => claim.credential = None,
            (Self::ForgetsClaimant, Some(_)) => claim.claimant = Claimant::random(),
            (Self::NeverOvertakes, _) => claim.overtakes = None,
            (Self::OvertakesAnyFence, Some(record)) if claim.overtakes.is_some() => {
                claim.overtakes = record.fence();
            }
            (Self::OvertakesWithoutReceipt, _) if claim.overtakes.is_some() => {
                claim.guarantee = Guarantee::ExactlyOnce;
            }
            (Self::ZeroLeaseIsEndless, _) if claim.lease.is_zero() => claim.lease = AGES,
            (Self::WrongUnits, _) => claim.lease /= 1000,
            _ => (),
        }
    }

    fn bend_end(self, end: Settlement) -> Settlement {
        match (end, self) {
            (Settlement::Doubt { .. }, Self::DoubtFrees) => Settlement::Release,
            (
                Settlement::Complete {
                    outcome,
                    retention,
                    remember,
                },
                _,
            ) => Settlement::Complete {
                outcome: self.bend_outcome(outcome),
                retention,
                remember,
            },
            (other, _) => other,
        }
    }

    fn bend_outcome(self, outcome: Outcome) -> Outcome {
        match self {
            Self::TextBodies => {
                let text = String::from_utf8_lossy(&outcome.body()).into_owned();
                repacked(&outcome, text.as_bytes(), true)
            }
            Self::LosesTrailers => repacked(&outcome, &outcome.body(), false),
            _ => outcome,
        }
    }

    /// Replies without calling [`step`]; the record does not change.
    fn overrule(self, record: Option<&Record>, command: &Command, now: Timestamp) -> Option<Reply> {
        let record = record?;
        let lapses = match record.state {
            State::InFlight { lease_ends, .. } => Some(lease_ends),
            _ => None,
        };
        let lapsed = lapses.is_some_and(|ends| ends <= now);
        match (self, command) {
            (Self::FingerprintFirst, Command::Claim(claim, _))
                if claim.fingerprint != record.fingerprint =>
            {
                Some(Reply::Verdict(Verdict::Mismatch))
            }
            (Self::InFlightFirst, Command::Claim(..)) if !lapsed => {
                let lease_left = lapses?.left(now);
                Some(Reply::Verdict(Verdict::InFlight { lease_left }))
            }
            (Self::RefusesLateTruth, Command::Settle(..) | Command::Renew(..)) if lapsed => {
                Some(Reply::Settled(Settled::Fenced))
            }
            (Self::KeepsErased, Command::Erase) if has_ended(record, now) => {
                Some(Reply::Erased(Erased::Gone))
            }
            (Self::KeepsReleased, Command::Settle(fence, Settlement::Release))
                if record.fence() == Some(*fence) =>
            {
                Some(Reply::Settled(Settled::Applied))
            }
            _ => None,
        }
    }
}

/// Whether the record may be erased: completed or a tombstone.
fn has_ended(record: &Record, now: Timestamp) -> bool {
    let aged = step(Some(record.clone()), Command::Age, now).record;
    matches!(
        aged.map(|record| record.state),
        Some(State::Completed { .. } | State::Tombstone { .. })
    )
}

/// A fence that is never granted.
const NO_FENCE: Fence = Fence {
    epoch: 0,
    counter: 0,
    nonce: 0,
};

fn is_doubt(command: &Command) -> bool {
    matches!(command, Command::Settle(_, Settlement::Doubt { .. }))
}

fn is_release(command: &Command) -> bool {
    matches!(command, Command::Settle(_, Settlement::Release))
}

fn completes(command: &Command, fence: Fence) -> bool {
    matches!(command, Command::Settle(shown, Settlement::Complete { .. }) if *shown == fence)
}

/// Returns the in-flight state from which a completed record can be completed again.
fn reopened(fence: Fence) -> State {
    let hold = Hold {
        fence,
        claimant: Claimant::default(),
        guarantee: Guarantee::AtMostOnce,
        attempts: 1,
        attempts_max: 1,
        settle_after: Duration::ZERO,
        settles: Timestamp(0),
    };
    let reason = Reason::Failed;
    State::Indeterminate { hold, reason }
}

fn unchanged(record: Option<Record>, reply: Reply) -> Stepped {
    Stepped {
        record,
        reply,
        change: Change::Nothing,
    }
}

fn repacked(outcome: &Outcome, body: &[u8], with_trailers: bool) -> Outcome {
    let headers: Vec<_> = outcome.headers().collect();
    let trailers: Vec<_> = outcome.trailers().filter(|_| with_trailers).collect();
    let mut packer = Packer::new(
        outcome.status(),
        headers.iter().map(|(name, value)| (*name, &value[..])),
    );
    packer.push(body);
    packer.finish(trailers.iter().map(|(name, value)| (*name, &value[..])))
}
