//! The transitions of a record. Their numbers (T1 to T13) are those of the table in `docs/semantics.md`.

use std::time::Duration;

use super::{
    Change, Claim, Command, Doubt, Erased, Fence, Grant, Guarantee, Hold, Reason, Record, Reply,
    Settled, Settlement, State, Stepped, Trace, Verdict,
};
use crate::{clock::Timestamp, key::Credential};

/// Applies a command to a record. This is the only place that decides transitions.
///
/// `record` is `None` if absent; `now` is the time on the store's clock.
/// Time acts first (a lease lapses, a retention ends), then the command.
pub fn step<O: Clone>(
    record: Option<Record<O>>,
    command: Command<O>,
    now: Timestamp,
) -> Stepped<O> {
    let record = record.and_then(|record| age(record, now));
    match command {
        Command::Claim(claim, fence) => claim_step(record, &claim, fence, now),
        Command::Renew(fence, lease) => renew_step(record, fence, lease, now),
        Command::Settle(fence, end) => settle_step(record, fence, end, now),
        Command::Erase => erase_step(record),
        Command::Age => Stepped {
            record,
            reply: Reply::Aged,
            change: Change::Nothing,
        },
    }
}

/// Applies the passage of time: T7, T11 and T12.
/// In-flight and indeterminate records never disappear, no matter how much time has passed.
fn age<O>(record: Record<O>, now: Timestamp) -> Option<Record<O>> {
    let Record {
        fingerprint,
        credential,
        state,
        trace,
    } = record;
    let state = match state {
        State::InFlight { hold, lease_ends } if lease_ends <= now && !hold.may_be_taken_over() => {
            let reason = Reason::Lapsed;
            State::Indeterminate { hold, reason }
        }
        State::Completed { remember_ends, .. } | State::Tombstone { remember_ends }
            if remember_ends <= now =>
        {
            return None;
        }
        State::Completed {
            retention_ends,
            remember_ends,
            ..
        } if retention_ends <= now => {
            return Some(Record {
                fingerprint,
                credential: None,
                state: State::Tombstone { remember_ends },
                trace,
            });
        }
        other => other,
    };
    Some(Record {
        fingerprint,
        credential,
        state,
        trace,
    })
}

impl Hold {
    fn may_be_taken_over(&self) -> bool {
        self.guarantee == Guarantee::AtLeastOnce && self.attempts < self.attempts_max
    }

    /// Under exactly-once, a claim may replace an indeterminate attempt whose receipt was looked for and not found.
    /// If the old attempt commits late, the receipt of the second commit violates the unique constraint.
    /// A claim under another guarantee writes no receipt, so it must wait until the old attempt can no longer act.
    fn may_be_overtaken(&self, claim: &Claim, now: Timestamp) -> bool {
        self.guarantee == Guarantee::ExactlyOnce
            && claim.overtakes == Some(self.fence)
            && self.attempts < self.attempts_max
            && (claim.guarantee == Guarantee::ExactlyOnce || self.settles <= now)
    }
}

fn claim_step<O: Clone>(
    record: Option<Record<O>>,
    claim: &Claim,
    fence: Fence,
    now: Timestamp,
) -> Stepped<O> {
    let Some(record) = record else {
        let grant = Grant { fence, attempt: 1 };
        return granted(claim, claim.credential, &Trace::default(), grant, now); // T1
    };
    // T3 comes first: compare the credential, then the fingerprint.
    if let (Some(asking), Some(first)) = (claim.credential, record.credential)
        && asking != first
    {
        return answer(record, Verdict::OtherCredential);
    }
    if claim.fingerprint != record.fingerprint {
        return answer(record, Verdict::Mismatch);
    }
    match &record.state {
        State::InFlight { hold, lease_ends } if hold.claimant == claim.claimant => {
            let lease_ends = (*lease_ends).max(now + claim.lease);
            let hold = *hold;
            regrant(record, hold, lease_ends, now)
        }
        State::InFlight { hold, lease_ends } if *lease_ends <= now => {
            let hold = *hold;
            takeover(record, claim, hold, fence, now)
        }
        State::InFlight { lease_ends, .. } => {
            let lease_left = lease_ends.left(now);
            answer(record, Verdict::InFlight { lease_left }) // T2
        }
        State::Completed { outcome, .. } => {
            let outcome = outcome.clone();
            answer(record, Verdict::Replay(outcome))
        }
        State::Indeterminate { hold, .. } if hold.may_be_overtaken(claim, now) => {
            let hold = *hold;
            next_grant(&record, claim, hold, fence, now) // T8
        }
        State::Indeterminate { hold, reason } => {
            let doubt = hold.doubt(*reason, now);
            answer(record, Verdict::Indeterminate(doubt))
        }
        State::Tombstone { .. } => answer(record, Verdict::Expired),
    }
}

fn answer<O>(record: Record<O>, verdict: Verdict<Grant, O>) -> Stepped<O> {
    Stepped {
        record: Some(record),
        reply: Reply::Verdict(verdict),
        change: Change::Nothing,
    }
}

fn next_grant<O>(
    record: &Record<O>,
    claim: &Claim,
    hold: Hold,
    fence: Fence,
    now: Timestamp,
) -> Stepped<O> {
    debug_assert!(fence > hold.fence, "fences of one record grow");
    let attempt = hold.attempts + 1;
    let credential = record.credential.or(claim.credential);
    let grant = Grant { fence, attempt };
    granted(claim, credential, &record.trace, grant, now)
}

fn granted<O>(
    claim: &Claim,
    credential: Option<Credential>,
    trace: &Trace,
    grant: Grant,
    now: Timestamp,
) -> Stepped<O> {
    let Grant { fence, attempt } = grant;
    let hold = Hold {
        fence,
        claimant: claim.claimant,
        guarantee: claim.guarantee,
        attempts: attempt,
        attempts_max: claim.attempts_max,
        settle_after: claim.settle_after,
        settles: now + claim.settle_after,
    };
    let lease_ends = now + claim.lease;
    Stepped {
        record: Some(Record {
            fingerprint: claim.fingerprint,
            credential,
            state: State::InFlight { hold, lease_ends },
            trace: trace.with_attempt(&claim.origin, grant, now),
        }),
        reply: Reply::Verdict(Verdict::Granted(grant)),
        change: Change::Record,
    }
}

/// Repeats the grant for the same claimant: the response to its first claim was lost, so it has executed nothing yet.
/// The terms stay those of the first claim. The lease starts again, and is never shortened.
fn regrant<O>(
    record: Record<O>,
    mut hold: Hold,
    lease_ends: Timestamp,
    now: Timestamp,
) -> Stepped<O> {
    hold.settles = hold.settles.max(now + hold.settle_after);
    let grant = Grant {
        fence: hold.fence,
        attempt: hold.attempts,
    };
    let state = State::InFlight { hold, lease_ends };
    Stepped {
        record: Some(Record { state, ..record }),
        reply: Reply::Verdict(Verdict::Granted(grant)),
        change: Change::Lease,
    }
}

/// T8; or T7, if the guarantee of the new claim does not allow a takeover.
fn takeover<O>(
    record: Record<O>,
    claim: &Claim,
    hold: Hold,
    fence: Fence,
    now: Timestamp,
) -> Stepped<O> {
    if claim.guarantee == Guarantee::AtLeastOnce {
        return next_grant(&record, claim, hold, fence, now);
    }
    let reason = Reason::Lapsed;
    let state = State::Indeterminate { hold, reason };
    let trace = record.trace.with_unknown(reason, now);
    Stepped {
        record: Some(Record {
            state,
            trace,
            ..record
        }),
        reply: Reply::Verdict(Verdict::Indeterminate(hold.doubt(reason, now))),
        change: Change::Record,
    }
}

impl Hold {
    fn doubt(&self, reason: Reason, now: Timestamp) -> Doubt {
        Doubt {
            fence: self.fence,
            reason,
            settle_left: self.settles.left(now),
        }
    }
}

/// T4. A lapsed lease can be renewed until another claim takes over: the renewal proves that its holder is alive.
fn renew_step<O>(
    record: Option<Record<O>>,
    fence: Fence,
    lease: Duration,
    now: Timestamp,
) -> Stepped<O> {
    match record {
        Some(mut record) if record.stands_under(fence) => {
            if let State::InFlight { mut hold, .. } | State::Indeterminate { mut hold, .. } =
                record.state
            {
                hold.settles = hold.settles.max(now + hold.settle_after);
                let lease_ends = now + lease;
                record.state = State::InFlight { hold, lease_ends };
            }
            settled(Some(record), Change::Lease)
        }
        record => fenced(record),
    }
}

fn settle_step<O>(
    record: Option<Record<O>>,
    fence: Fence,
    end: Settlement<O>,
    now: Timestamp,
) -> Stepped<O> {
    match record {
        Some(record) if record.fence() == Some(fence) => match end {
            Settlement::Complete {
                outcome,
                retention,
                remember,
            } => complete(record, fence, outcome, (retention, remember), now),
            Settlement::Release if record.stands_under(fence) => release(record, now),
            Settlement::Release => fenced(Some(record)),
            Settlement::Doubt { reason } => doubt(record, reason, now),
            Settlement::NeverHappened => never_happened(record, now),
        },
        record => fenced(record),
    }
}

/// T5. A late completion is accepted, also on an indeterminate record. A completed outcome never changes.
fn complete<O>(
    record: Record<O>,
    fence: Fence,
    outcome: O,
    (retention, remember): (Duration, Duration),
    now: Timestamp,
) -> Stepped<O> {
    if let State::Completed { .. } = record.state {
        return settled(Some(record), Change::Nothing);
    }
    let retention_ends = now + retention;
    let state = State::Completed {
        fence,
        outcome,
        retention_ends,
        remember_ends: retention_ends + remember,
    };
    let trace = record.trace.with_completion(now);
    let record = Record {
        state,
        trace,
        ..record
    };
    settled(Some(record), Change::Record)
}

/// T6. The proof covers only this attempt. Under exactly-once, earlier attempts may still commit;
/// if the key became free, another request could claim it before such a commit.
fn release<O>(record: Record<O>, now: Timestamp) -> Stepped<O> {
    match record.state {
        State::InFlight { mut hold, .. } | State::Indeterminate { mut hold, .. }
            if hold.guarantee == Guarantee::ExactlyOnce && hold.attempts > 1 =>
        {
            hold.attempts -= 1;
            let reason = Reason::Failed;
            let state = State::Indeterminate { hold, reason };
            let trace = record.trace.with_no_effect(now);
            let record = Record {
                state,
                trace,
                ..record
            };
            settled(Some(record), Change::Record)
        }
        _ => settled(None, Change::Record),
    }
}

/// T9. Under at-least-once, while attempts are left, the record stays in flight: a retry takes over after the lease.
fn doubt<O>(record: Record<O>, reason: Reason, now: Timestamp) -> Stepped<O> {
    match record.state {
        State::InFlight { hold, .. } if !hold.may_be_taken_over() => {
            let state = State::Indeterminate { hold, reason };
            let trace = record.trace.with_unknown(reason, now);
            let record = Record {
                state,
                trace,
                ..record
            };
            settled(Some(record), Change::Record)
        }
        State::InFlight { .. } | State::Indeterminate { .. } => {
            settled(Some(record), Change::Nothing)
        }
        State::Completed { .. } | State::Tombstone { .. } => fenced(Some(record)),
    }
}

/// T10. Accepted only once the old attempt can no longer act.
fn never_happened<O>(record: Record<O>, now: Timestamp) -> Stepped<O> {
    match &record.state {
        State::Indeterminate { hold, .. } if hold.settles <= now => settled(None, Change::Record),
        State::Indeterminate { hold, .. } => {
            let left = hold.settles.left(now);
            reply(Some(record), Settled::TooEarly { left }, Change::Nothing)
        }
        _ => fenced(Some(record)),
    }
}

/// T13. Only completed records and tombstones can be erased; any other record may still take effect, or already has.
fn erase_step<O>(record: Option<Record<O>>) -> Stepped<O> {
    let erased = match record.as_ref().map(|record| &record.state) {
        None => Erased::Absent,
        Some(State::Completed { .. } | State::Tombstone { .. }) => Erased::Gone,
        Some(State::InFlight { .. }) => Erased::InFlight,
        Some(State::Indeterminate { .. }) => Erased::Indeterminate,
    };
    let (record, change) = match erased {
        Erased::Gone => (None, Change::Record),
        _ => (record, Change::Nothing),
    };
    Stepped {
        record,
        reply: Reply::Erased(erased),
        change,
    }
}

impl<O> Record<O> {
    /// Returns whether the holder of this fence may still act on the record: in flight, or lapsed and not taken over.
    fn stands_under(&self, fence: Fence) -> bool {
        match &self.state {
            State::InFlight { hold, .. } => hold.fence == fence,
            State::Indeterminate { hold, reason } => {
                hold.fence == fence && *reason == Reason::Lapsed
            }
            State::Completed { .. } | State::Tombstone { .. } => false,
        }
    }
}

fn settled<O>(record: Option<Record<O>>, change: Change) -> Stepped<O> {
    reply(record, Settled::Applied, change)
}

fn fenced<O>(record: Option<Record<O>>) -> Stepped<O> {
    reply(record, Settled::Fenced, Change::Nothing)
}

fn reply<O>(record: Option<Record<O>>, settled: Settled, change: Change) -> Stepped<O> {
    Stepped {
        record,
        reply: Reply::Settled(settled),
        change,
    }
}
