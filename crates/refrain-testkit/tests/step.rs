//! Property tests of the state machine alone, with random histories of one record.
//!
//! The invariants of the contract hold for any commands in any order and with any delays.
//! The store suite checks stores against the state machine; this file checks the state machine against the contract.

use std::{collections::HashMap, time::Duration};

use proptest::{collection::vec, prelude::*};
use refrain::{
    Claim, Credential, Fence, Fingerprint, Guarantee, Settled, Settlement, Verdict,
    clock::Timestamp,
    record::{Change, Claimant, Command, Erased, Reason, Record, Reply, State, Stepped, step},
};

/// Outcomes are numbers here, because the state machine does not look into them.
type Outcome = u32;

/// One step of a history: a delay, then a command.
#[derive(Debug, Clone)]
struct Move {
    wait: Duration,
    ask: Ask,
}

#[derive(Debug, Clone)]
enum Ask {
    /// A claim, and the attempt that it overtakes.
    Claim(Claim, Option<Pick>),
    Renew(Pick, Duration),
    Settle(Pick, Settlement<Outcome>),
    Erase,
    Age,
}

/// The fence of a command: a granted fence, counted from the last, or `None` for a fence that was never granted.
type Pick = Option<usize>;

/// One step as it was executed.
#[derive(Debug)]
struct Seen {
    /// The record as stored before the step.
    found: Option<Record<Outcome>>,
    /// The record aged to the time of the step.
    aged: Option<Record<Outcome>>,
    command: Command<Outcome>,
    now: Timestamp,
    after: Stepped<Outcome>,
}

const NOBODYS: Fence = Fence {
    epoch: 9,
    counter: 9,
    nonce: 9,
};

/// Runs a history that starts with an absent record.
fn run(history: Vec<Move>) -> Vec<Seen> {
    let mut now = Timestamp(1_000_000);
    let mut record = None;
    let mut granted: Vec<Fence> = Vec::new();
    let mut seen = Vec::new();
    for (counter, Move { wait, ask }) in (1..).zip(history) {
        now = now + wait;
        let pick = |pick: Pick| match pick.and_then(|back| granted.iter().nth_back(back)) {
            Some(fence) => *fence,
            None => NOBODYS,
        };
        let next = Fence {
            epoch: 1,
            counter,
            nonce: 0,
        };
        let command = match ask {
            Ask::Claim(claim, overtakes) => {
                let overtakes = overtakes.map(pick);
                Command::Claim(Claim { overtakes, ..claim }, next)
            }
            Ask::Renew(back, lease) => Command::Renew(pick(back), lease),
            Ask::Settle(back, end) => Command::Settle(pick(back), end),
            Ask::Erase => Command::Erase,
            Ask::Age => Command::Age,
        };
        let after = step(record.clone(), command.clone(), now);
        if let Some(fence) = newly_granted(&after) {
            granted.push(fence);
        }
        let aged = step(record.clone(), Command::Age, now).record;
        let left = after.record.clone();
        seen.push(Seen {
            found: std::mem::replace(&mut record, left),
            aged,
            command,
            now,
            after,
        });
    }
    seen
}

fn granted(stepped: &Stepped<Outcome>) -> Option<Fence> {
    match &stepped.reply {
        Reply::Verdict(Verdict::Granted(grant)) => Some(grant.fence),
        _ => None,
    }
}

/// A new grant, not the repeated grant to the same claimant.
fn newly_granted(stepped: &Stepped<Outcome>) -> Option<Fence> {
    granted(stepped).filter(|_| stepped.change == Change::Record)
}

fn applied(stepped: &Stepped<Outcome>) -> bool {
    stepped.reply == Reply::Settled(Settled::Applied)
}

fn erased(stepped: &Stepped<Outcome>) -> bool {
    stepped.reply == Reply::Erased(Erased::Gone)
}

/// Whether a completed record or tombstone was found, past retention.
fn retention_ended(seen: &Seen) -> bool {
    let ended = !matches!(
        seen.aged.as_ref().map(|record| &record.state),
        Some(State::Completed { .. })
    );
    match seen.found.as_ref().map(|record| &record.state) {
        Some(State::Completed { .. }) => ended,
        Some(State::Tombstone { .. }) => true,
        _ => false,
    }
}

fn millis(choices: &'static [u64]) -> impl Strategy<Value = Duration> {
    prop::sample::select(choices).prop_map(Duration::from_millis)
}

fn a_claim() -> impl Strategy<Value = Claim> {
    use Guarantee::{AtLeastOnce, AtMostOnce, ExactlyOnce};
    (
        prop::sample::select(&[1, 1, 1, 2][..]),
        prop::sample::select(&[None, Some(1), Some(1), Some(2)][..]),
        0..6_u64,
        prop::sample::select(
            &[
                AtMostOnce,
                AtLeastOnce,
                AtLeastOnce,
                ExactlyOnce,
                ExactlyOnce,
            ][..],
        ),
        0..4_u16,
        millis(&[0, 1, 10_000, 30_000]),
        millis(&[0, 20_000, 90_000]),
    )
        .prop_map(
            |(fingerprint, credential, claimant, guarantee, attempts_max, lease, settle_after)| {
                Claim {
                    fingerprint: Fingerprint([fingerprint; 16]),
                    credential: credential.map(|caller| Credential([caller; 8])),
                    claimant: Claimant(claimant),
                    guarantee,
                    attempts_max,
                    lease,
                    settle_after,
                    ..Claim::new(Default::default(), Default::default())
                }
            },
        )
}

fn an_end() -> impl Strategy<Value = Settlement<Outcome>> {
    let reasons = &[Reason::Lapsed, Reason::Timeout, Reason::Panicked][..];
    prop_oneof![
        3 => (any::<u32>(), millis(&[0, 60_000]), millis(&[0, 60_000])).prop_map(
            |(outcome, retention, remember)| Settlement::Complete { outcome, retention, remember }
        ),
        2 => Just(Settlement::Release),
        2 => prop::sample::select(reasons).prop_map(|reason| Settlement::Doubt { reason }),
        2 => Just(Settlement::NeverHappened),
    ]
}

fn a_pick() -> impl Strategy<Value = Pick> {
    prop::sample::select(&[Some(0), Some(0), Some(0), Some(1), Some(2), None][..])
}

fn a_move() -> impl Strategy<Value = Move> {
    let ask = prop_oneof![
        6 => (a_claim(), prop::option::of(a_pick()))
            .prop_map(|(claim, overtakes)| Ask::Claim(claim, overtakes)),
        1 => (a_pick(), millis(&[0, 1, 60_000])).prop_map(|(pick, lease)| Ask::Renew(pick, lease)),
        4 => (a_pick(), an_end()).prop_map(|(pick, end)| Ask::Settle(pick, end)),
        1 => Just(Ask::Erase),
        1 => Just(Ask::Age),
    ];
    let wait = millis(&[0, 0, 0, 1, 5_000, 30_000, 90_000]);
    (wait, ask).prop_map(|(wait, ask)| Move { wait, ask })
}

fn a_history() -> impl Strategy<Value = Vec<Seen>> {
    vec(a_move(), 1..40).prop_map(run)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 512,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// I1: a dispatch that may have executed is followed by another one only in two cases.
    /// All of them are at-least-once; or it was exactly-once and has no receipt, and either both attempts write
    /// receipts or it can no longer act.
    #[test]
    fn i1_what_may_have_taken_effect_is_not_run_again(history in a_history()) {
        // Dispatches since the key was last free that are not proven to be without effect.
        let mut open: HashMap<Fence, Guarantee> = HashMap::new();
        for seen in &history {
            if retention_ended(seen) {
                open.clear();
            }
            match (&seen.command, granted(&seen.after)) {
                (Command::Claim(claim, _), Some(fence)) if !open.contains_key(&fence) => {
                    let stood_in_for = match seen.aged.as_ref().map(|record| &record.state) {
                        Some(State::Indeterminate { hold, .. }) if claim.overtakes == Some(hold.fence) => Some(*hold),
                        _ => None,
                    };
                    let may = match stood_in_for {
                        Some(hold) if hold.settles <= seen.now => {
                            let was_receipted = open.get(&hold.fence) == Some(&Guarantee::ExactlyOnce);
                            // No receipt exists, and none can be written any more.
                            open.clear();
                            was_receipted
                        }
                        Some(hold) => [open.get(&hold.fence), Some(&claim.guarantee)]
                            .iter()
                            .all(|it| *it == Some(&Guarantee::ExactlyOnce)),
                        None => {
                            let repeatable = |guarantee: &Guarantee| *guarantee == Guarantee::AtLeastOnce;
                            open.is_empty() || open.values().chain([&claim.guarantee]).all(repeatable)
                        }
                    };
                    prop_assert!(may, "{seen:#?}");
                    open.insert(fence, claim.guarantee);
                }
                // Earlier, overtaken attempts may have executed: at-least-once accepts that,
                // and under exactly-once the record stays.
                (Command::Settle(_, Settlement::Release | Settlement::NeverHappened), _)
                    if applied(&seen.after) && seen.after.record.is_none() => open.clear(),
                // The operator's decision: the key executes again on purpose.
                (Command::Erase, _) if erased(&seen.after) => open.clear(),
                _ => (),
            }
        }
    }

    /// I2 and I5: until retention ends, every replay is the outcome that was stored first.
    #[test]
    fn i2_i5_the_first_outcome_is_the_only_one(history in a_history()) {
        let mut kept = None;
        for seen in &history {
            if retention_ended(seen) {
                kept = None;
            }
            if let Reply::Verdict(Verdict::Replay(outcome)) = &seen.after.reply {
                prop_assert_eq!(Some(*outcome), kept);
            }
            if erased(&seen.after) {
                kept = None;
            }
            if let Command::Settle(_, Settlement::Complete { outcome, .. }) = &seen.command
                && applied(&seen.after)
            {
                kept = kept.or(Some(*outcome));
            }
            if let Some(State::Completed { outcome, .. }) = seen.after.record.as_ref().map(|r| &r.state) {
                prop_assert_eq!(Some(*outcome), kept);
            }
        }
    }

    /// I4 and I15: a write whose fence is not current changes nothing.
    #[test]
    fn i4_i15_a_fence_that_is_not_current_changes_nothing(history in a_history()) {
        for seen in &history {
            let current = seen.aged.as_ref().and_then(Record::fence);
            let (Command::Renew(shown, _) | Command::Settle(shown, _)) = &seen.command else {
                continue;
            };
            if current != Some(*shown) {
                prop_assert_eq!(&seen.after.reply, &Reply::Settled(Settled::Fenced));
                prop_assert_eq!(&seen.after.record, &seen.aged);
                prop_assert_eq!(seen.after.change, Change::Nothing);
            }
        }
    }

    /// A write that is not answered with "applied" changes nothing.
    #[test]
    fn a_refused_write_changes_nothing(history in a_history()) {
        for seen in &history {
            if let Reply::Settled(Settled::Fenced | Settled::TooEarly { .. }) = seen.after.reply {
                prop_assert_eq!(&seen.after.record, &seen.aged);
            }
        }
    }

    /// I15: a claim that is not granted changes nothing.
    /// One exception, on the safe side: a claim that finds a lapsed lease and may not take over leaves doubt (T7).
    #[test]
    fn i15_a_claim_that_is_refused_touches_nothing(history in a_history()) {
        for seen in &history {
            let Command::Claim(claim, _) = &seen.command else { continue };
            let lapses = matches!(
                (&seen.after.reply, seen.aged.as_ref().map(|record| &record.state)),
                (Reply::Verdict(Verdict::Indeterminate(_)), Some(State::InFlight { lease_ends, .. }))
                    if claim.guarantee != Guarantee::AtLeastOnce && *lease_ends <= seen.now
            );
            if granted(&seen.after).is_none() && !lapses {
                prop_assert_eq!(&seen.after.record, &seen.aged);
                prop_assert_eq!(seen.after.change, Change::Nothing);
            }
        }
    }

    /// I6: nothing runs or replays under another fingerprint, or for another credential.
    #[test]
    fn i6_another_request_neither_runs_nor_replays(history in a_history()) {
        for seen in &history {
            let (Command::Claim(claim, _), Some(record)) = (&seen.command, &seen.aged) else {
                continue;
            };
            let stranger = claim.credential.zip(record.credential).is_some_and(|(a, b)| a != b);
            let want = match (stranger, claim.fingerprint != record.fingerprint) {
                (true, _) => Verdict::OtherCredential,
                (false, true) => Verdict::Mismatch,
                (false, false) => continue,
            };
            prop_assert_eq!(&seen.after.reply, &Reply::Verdict(want));
        }
    }

    /// I8: time never removes a dispatched record; only a proof that it had no effect does.
    #[test]
    fn i8_a_dispatch_never_vanishes(history in a_history(), later in millis(&[0, 1, 30_000, 315_360_000_000])) {
        for seen in &history {
            let Some(record) = &seen.found else { continue };
            let hold = match &record.state {
                State::InFlight { hold, .. } | State::Indeterminate { hold, .. } => *hold,
                _ => continue,
            };
            let much_later = step(Some(record.clone()), Command::Age, seen.now + later).record;
            let still = much_later.and_then(|record| match record.state {
                State::InFlight { hold, .. } | State::Indeterminate { hold, .. } => Some(hold),
                _ => None,
            });
            prop_assert_eq!(still, Some(hold));
            if seen.after.record.is_none() {
                let proof = matches!(
                    &seen.command,
                    Command::Settle(fence, Settlement::Release | Settlement::NeverHappened) if *fence == hold.fence
                );
                prop_assert!(proof, "{seen:#?}");
            }
        }
    }

    /// I9: a claim is refused only if an earlier one was granted; a first request is never swallowed.
    #[test]
    fn i9_a_refusal_has_an_original(history in a_history()) {
        let mut dispatched = false;
        for seen in &history {
            if seen.aged.is_none() {
                dispatched = false;
                if let Command::Claim(..) = seen.command {
                    prop_assert!(granted(&seen.after).is_some(), "{seen:#?}");
                }
            }
            dispatched |= granted(&seen.after).is_some();
            if let Reply::Verdict(_) = seen.after.reply {
                prop_assert!(dispatched, "{seen:#?}");
            }
        }
    }

    /// I11: a new grant has a fence above all earlier ones; a repeated claim of the same claimant gets the same fence.
    #[test]
    fn i11_fences_grow(history in a_history()) {
        let mut last = None;
        for seen in &history {
            let Some(fence) = granted(&seen.after) else { continue };
            if last.is_some_and(|last| fence <= last) {
                let (Command::Claim(claim, _), Some(record)) = (&seen.command, &seen.aged) else {
                    return Err(TestCaseError::fail(format!("{seen:#?}")));
                };
                let same = matches!(
                    record.state,
                    State::InFlight { hold, .. } if hold.claimant == claim.claimant && hold.fence == fence
                );
                prop_assert!(same, "{seen:#?}");
            }
            last = last.max(Some(fence));
            prop_assert_eq!(seen.after.record.as_ref().and_then(Record::fence), Some(fence));
        }
    }

    /// I12: once the lease has lapsed no claim is answered "in flight", and takeovers come to an end.
    #[test]
    fn i12_nobody_waits_for_ever(history in a_history(), ask in a_claim()) {
        let Some(last) = history.into_iter().last() else { return Ok(()) };
        let mut record = last.after.record;
        let Some(first) = &record else { return Ok(()) };
        let ask = Claim {
            fingerprint: first.fingerprint,
            credential: None,
            guarantee: Guarantee::AtLeastOnce,
            ..ask
        };
        let mut now = last.now;
        let mut ended = false;
        for number in 0..10 {
            now = now + Duration::from_secs(60);
            let claim = Claim { claimant: Claimant(1_000 + number), ..ask.clone() };
            let fence = Fence { epoch: 2, counter: number, nonce: 0 };
            let stepped = step(record, Command::Claim(claim, fence), now);
            let Reply::Verdict(verdict) = &stepped.reply else { unreachable!("a claim gets a verdict") };
            prop_assert!(!matches!(verdict, Verdict::InFlight { .. }), "{verdict:?}");
            ended |= !matches!(verdict, Verdict::Granted(_));
            record = stepped.record;
        }
        prop_assert!(ended, "ten takeovers, although at most four attempts are allowed");
    }

    /// Late truth: the holder of the current fence can complete at any later time.
    #[test]
    fn t5_the_holder_can_always_complete(history in a_history(), late in millis(&[0, 60_000, 315_360_000_000])) {
        for seen in history {
            let Some(record) = seen.after.record else { continue };
            let (State::InFlight { hold, .. } | State::Indeterminate { hold, .. }) = record.state else {
                continue;
            };
            let minute = Duration::from_secs(60);
            let end = Settlement::Complete { outcome: 7, retention: minute, remember: minute };
            let now = seen.now + late;
            let stepped = step(Some(record), Command::Settle(hold.fence, end), now);
            prop_assert!(applied(&stepped));
            let Some(State::Completed { outcome, retention_ends, .. }) = stepped.record.map(|r| r.state) else {
                return Err(TestCaseError::fail("the record is not completed"));
            };
            prop_assert_eq!((outcome, retention_ends), (7, now + minute));
        }
    }

    /// T6: under exactly-once, a proof that one attempt had no effect says nothing about earlier attempts;
    /// and no claim is granted beyond the limit of attempts.
    #[test]
    fn t6_a_release_speaks_for_one_attempt(history in a_history()) {
        for seen in &history {
            let holds = |record: &Option<Record<Outcome>>| match record.as_ref()?.state {
                State::InFlight { hold, .. } | State::Indeterminate { hold, .. } => Some(hold),
                _ => None,
            };
            if let (Some(hold), Some(_)) = (holds(&seen.aged), newly_granted(&seen.after)) {
                prop_assert!(hold.attempts < hold.attempts_max, "{seen:#?}");
            }
            let (Command::Settle(_, Settlement::Release), Some(hold)) = (&seen.command, holds(&seen.aged)) else {
                continue;
            };
            if applied(&seen.after) && hold.guarantee == Guarantee::ExactlyOnce && hold.attempts > 1 {
                let left = holds(&seen.after.record);
                prop_assert_eq!(left.map(|left| (left.fence, left.attempts)), Some((hold.fence, hold.attempts - 1)));
            }
        }
    }

    /// T13: only an ended record can be erased; any other stays as it is.
    #[test]
    fn t13_only_what_has_ended_is_erased(history in a_history()) {
        for seen in &history {
            let Command::Erase = seen.command else { continue };
            let ended = matches!(
                seen.aged.as_ref().map(|record| &record.state),
                Some(State::Completed { .. } | State::Tombstone { .. })
            );
            prop_assert_eq!(erased(&seen.after), ended, "{:#?}", seen);
            let left = seen.aged.clone().filter(|_| !ended);
            prop_assert_eq!(&seen.after.record, &left);
        }
    }

    /// T10: "never happened" frees a key only once the attempt can no longer act.
    #[test]
    fn t10_never_happened_waits(history in a_history()) {
        for seen in &history {
            let (Command::Settle(_, Settlement::NeverHappened), Some(record)) = (&seen.command, &seen.aged) else {
                continue;
            };
            if applied(&seen.after) {
                let State::Indeterminate { hold, .. } = record.state else {
                    return Err(TestCaseError::fail(format!("{seen:#?}")));
                };
                prop_assert!(hold.settles <= seen.now, "{seen:#?}");
            }
        }
    }

    /// Aging in one step equals aging in several, and aging before a command equals aging within it.
    #[test]
    fn aging_early_changes_nothing(history in a_history(), wait in millis(&[0, 1, 30_000, 60_000, 200_000])) {
        for seen in history {
            let halfway = step(seen.found.clone(), Command::Age, seen.now);
            prop_assert_eq!(halfway.change, Change::Nothing);
            let later = seen.now + wait;
            let at_once = step(seen.found.clone(), Command::Age, later);
            prop_assert_eq!(step(halfway.record.clone(), Command::Age, later), at_once);
            let aged_first = step(halfway.record, seen.command.clone(), later);
            prop_assert_eq!(aged_first, step(seen.found, seen.command, later));
        }
    }

    /// The same record, command and time give the same result.
    #[test]
    fn the_step_is_pure(history in a_history()) {
        for seen in history {
            prop_assert_eq!(step(seen.found, seen.command, seen.now), seen.after);
        }
    }

    /// `Change` says truthfully what a store must write: nothing, only the lease, or the whole record.
    #[test]
    fn a_change_is_called_what_it_is(history in a_history()) {
        for seen in history {
            match seen.after.change {
                Change::Nothing => prop_assert_eq!(seen.after.record, seen.aged),
                Change::Lease => {
                    prop_assert_eq!(seen.after.record.map(without_lease), seen.aged.map(without_lease));
                }
                Change::Record => prop_assert_ne!(seen.after.record, seen.aged),
            }
        }
    }

    /// A claim never shortens the holder's lease: no takeover before the lease has lapsed.
    #[test]
    fn a_claim_never_shortens_the_lease(history in a_history()) {
        for seen in &history {
            let lease_of = |record: &Option<Record<Outcome>>| match record.as_ref()?.state {
                State::InFlight { hold, lease_ends } => Some((hold.fence, lease_ends)),
                _ => None,
            };
            if let (Command::Claim(..), Some((held, before)), Some((fence, after))) =
                (&seen.command, lease_of(&seen.aged), lease_of(&seen.after.record))
                && held == fence
            {
                prop_assert!(after >= before, "{seen:#?}");
            }
        }
    }
}

/// The record without the fields that a renewal may change.
fn without_lease(mut record: Record<Outcome>) -> Record<Outcome> {
    if let State::InFlight { hold, .. } | State::Indeterminate { hold, .. } = &mut record.state {
        hold.settles = Timestamp(0);
        let (hold, lease_ends) = (*hold, Timestamp(0));
        record.state = State::InFlight { hold, lease_ends };
    }
    record
}
