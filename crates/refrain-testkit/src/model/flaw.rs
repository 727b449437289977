//! What a store can get wrong. Each flaw is one that was met in the wild, or is one slip away.

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
        /// Something wrong with a [`Model`](crate::Model), on purpose.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Flaw { $($(#[$doc])* $flaw,)* }

        impl Flaw {
            /// Every flaw there is.
            pub const ALL: &[Self] = &[$(Self::$flaw,)*];
        }
    };
}

flaws! {
    /// Keeps outcomes and no claims.
    KeepsNoClaims,
    /// Settles and renews whatever fence is shown.
    ForgetsFence,
    /// Never compares fingerprints.
    NoFingerprintCheck,
    /// Never compares credentials.
    NoCredentialCheck,
    /// Compares the fingerprint before the credential.
    FingerprintFirst,
    /// Says "in flight" before it compares anything.
    InFlightFirst,
    /// Takes a lapsed claim for no claim at all.
    LapsedIsAbsent,
    /// Claims stand for ever.
    NeverLapses,
    /// Runs anew what may have taken effect, whatever was promised.
    TakesOverAnything,
    /// Takes over as often as anybody asks.
    NoAttemptsLimit,
    /// Never runs anew what is in doubt, receipt or not.
    NeverOvertakes,
    /// Takes the word of who looked for the receipt of any attempt for the last one's.
    OvertakesAnyFence,
    /// Stands in for an attempt that can still act with one that writes no receipt.
    OvertakesWithoutReceipt,
    /// Stands in for an attempt that never wrote a receipt.
    OvertakesTheUnreceipted,
    /// Stands in for attempts in doubt as often as anybody asks.
    OvertakesWithoutLimit,
    /// Frees the key because one attempt of several had no effect.
    ReleasesEarlierAttempts,
    /// Refuses the holder whose lease lapsed, though nobody took over.
    RefusesLateTruth,
    /// A second completion overwrites the first.
    OutcomeChanges,
    /// A release is acknowledged and not carried out.
    KeepsReleased,
    /// A doubt frees the key.
    DoubtFrees,
    /// A doubt ends what the next retry should take over.
    DoubtIsFinal,
    /// Believes "it never happened" while the attempt can still act.
    SettlesTooEarly,
    /// After retention the key is free.
    NoTombstone,
    /// Outcomes are replayed for ever.
    NoRetention,
    /// A lease of zero stands for ever.
    ZeroLeaseIsEndless,
    /// Takes milliseconds for seconds.
    WrongUnits,
    /// The same claimant, asking again, is told to wait for itself.
    ForgetsClaimant,
    /// Bodies go through text.
    TextBodies,
    /// Trailers are dropped.
    LosesTrailers,
    /// Fences are issued more than once.
    RepeatsFences,
    /// Of several records one is kept.
    MixesUpRecords,
    /// A batch is decided on what was there before it.
    BatchIsBlind,
    /// Claims are read first and written a millisecond later. Needs a runtime with timers.
    LooksThenActs,
    /// Time is what the wall clock shows.
    TrustsWallClock,
    /// A sweep takes what is indeterminate with it.
    SweepsDoubt,
    /// A sweep takes every outcome with it.
    SweepsOutcomes,
    /// A sweep always says that it took as many as it was asked to.
    SweepsWithoutEnd,
    /// Lists come backwards.
    ListsOutOfOrder,
    /// Lists do not look at the state that was asked for.
    ListsEveryState,
    /// Records are gone after a restart.
    ForgetsOnReopen,
    /// Erasing is acknowledged and not carried out.
    KeepsErased,
    /// Erases what is in flight or in doubt, too.
    ErasesAnything,
    /// Counts records as they were last looked at, whatever time has made of them.
    CountsWithoutTime,
    /// Says that it tells of settlements, and does not.
    SettlesInSilence,
    /// After a restart what was erased is back.
    ForgetsErasedOnReopen,
    /// After a restart the count of fences begins anew.
    RepeatsFencesOnReopen,
}

const AGES: Duration = Duration::from_secs(10 * 365 * 86_400);

impl Flaw {
    /// [`step`], as this flaw has it.
    pub(super) fn step(self, record: Option<Record>, command: Command, now: Timestamp) -> Stepped {
        let record = self.bend_record(record, &command, now);
        let command = self.bend_command(command, record.as_ref());
        match self.overrule(record.as_ref(), &command, now) {
            Some(reply) => kept(record, reply),
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

    /// Whether a sweep wrongly takes this record.
    pub(super) fn sweeps(self, record: &Record) -> bool {
        match &record.state {
            State::Indeterminate { .. } => self == Self::SweepsDoubt,
            State::Completed { .. } => self == Self::SweepsOutcomes,
            _ => false,
        }
    }

    /// What the flawed store takes the record for.
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

    /// What the flawed store hears.
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

    /// What the flawed store answers without asking [`step`]; the record stays as it is.
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

/// Whether the record can be erased.
fn has_ended(record: &Record, now: Timestamp) -> bool {
    let aged = step(Some(record.clone()), Command::Age, now).record;
    matches!(
        aged.map(|record| record.state),
        Some(State::Completed { .. } | State::Tombstone { .. })
    )
}

/// A fence that nobody was granted.
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

/// A completed record as if it had not ended yet.
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

fn kept(record: Option<Record>, reply: Reply) -> Stepped {
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
