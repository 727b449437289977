//! The contract's table of transitions, written out: every command in every state.
//!
//! The rows are written by hand, from the contract and not from the code.
//! A missing or duplicate pair of state and command fails the test.

use std::{collections::BTreeMap, time::Duration};

use refrain::{
    Claim, Credential, Fence, Fingerprint, Guarantee, Settled, Settlement, Verdict,
    clock::Timestamp,
    record::{Claimant, Command, Erased, Hold, Reason, Record, Reply, State, Trace, step},
};

/// Columns: command, reply, resulting record, and the transition if there is one.
///
/// Resulting record: `same` is the record as found;
/// `first` is in flight, held by the claimant of the command; `next` and `third` are the same as attempt 2 and 3;
/// `running` is in flight, held by its earlier holder, with a new lease;
/// `given-back` is indeterminate, with the last attempt not counted.
///
/// `stand-in` is a claim that overtakes the last attempt, which has no receipt; `stand-in-bare` writes no receipt
/// itself; `stand-in-wrong` looked up the receipt of another attempt.
const TABLE: &str = include_str!("step_table.txt");

const COMMANDS: usize = 17;
const STATES: usize = 21;

#[test]
fn every_command_in_every_state_does_what_the_contract_says() {
    let mut rows: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut state = "";
    for line in TABLE.lines().filter(|line| !line.is_empty()) {
        if let Some(name) = line.strip_prefix("= ") {
            state = name;
            continue;
        }
        let columns: Vec<_> = line.split_whitespace().collect();
        let [name, reply, left, ..] = columns[..] else {
            panic!("a row needs a command, a reply and a resulting record: {line}");
        };
        let seen = rows.entry(state).or_default();
        assert!(
            !seen.contains(&name),
            "duplicate row: {name} in state {state}"
        );
        seen.push(name);
        for command in commands(name) {
            check(state, command, reply, left, line);
        }
    }
    assert_eq!(rows.len(), STATES, "states: {:?}", rows.keys());
    for (state, commands) in rows {
        assert_eq!(
            commands.len(),
            COMMANDS,
            "commands for {state}: {commands:?}"
        );
    }
}

/// Each transition of the contract is named by at least one row.
#[test]
fn every_transition_is_in_the_table() {
    for number in 1..=13 {
        let name = format!("T{number}");
        let named = TABLE.lines().any(|line| line.ends_with(&name));
        assert!(named, "no row for {name}");
    }
}

fn check(state: &str, command: Command<&'static str>, reply: &str, left: &str, row: &str) {
    let found = found(state);
    let asker = match &command {
        Command::Claim(claim, _) => Some(claim.clone()),
        _ => None,
    };
    let stepped = step(found.clone(), command.clone(), NOW);
    let told = format!("in state {state}: {row} ({command:?})");
    assert_eq!(stepped.reply, reply_named(reply, found.as_ref()), "{told}");
    // Traces have tests of their own in the suite of stores.
    let left = record_left(left, found, asker.as_ref());
    assert_eq!(stepped.record.map(without_trace), left, "{told}");
}

const NOW: Timestamp = Timestamp(1_000_000_000);
const LEASE: Duration = Duration::from_secs(30);
const SETTLE_AFTER: Duration = Duration::from_secs(90);
/// Remaining lease, and time until the attempt can no longer act, where they have not ended.
const LEFT: Duration = Duration::from_secs(20);
const SETTLE_LEFT: Duration = Duration::from_secs(60);
const RETENTION: Duration = Duration::from_secs(3_600);
const REMEMBER: Duration = Duration::from_secs(86_400);
const HOLDER: Claimant = Claimant(1);

const fn fence(counter: u64) -> Fence {
    Fence {
        epoch: 1,
        counter,
        nonce: 5,
    }
}

fn claim(claimant: Claimant, fingerprint: u8, credential: u8) -> Claim {
    Claim {
        fingerprint: Fingerprint([fingerprint; 16]),
        credential: Some(Credential([credential; 8])),
        claimant,
        guarantee: Guarantee::AtMostOnce,
        attempts_max: 3,
        lease: LEASE,
        settle_after: SETTLE_AFTER,
        ..Claim::new(Default::default(), Default::default())
    }
}

/// Returns the commands that have this name in the table.
fn commands(name: &str) -> Vec<Command<&'static str>> {
    let ask = |claim| vec![Command::Claim(claim, fence(8))];
    let settle = |end| vec![Command::Settle(fence(7), end)];
    let other = Claimant(2);
    match name {
        "claim" => ask(claim(other, 1, 1)),
        "claim-repeatable" => ask(Claim {
            guarantee: Guarantee::AtLeastOnce,
            ..claim(other, 1, 1)
        }),
        "stand-in" => ask(Claim {
            guarantee: Guarantee::ExactlyOnce,
            overtakes: Some(fence(7)),
            ..claim(other, 1, 1)
        }),
        "stand-in-bare" => ask(Claim {
            overtakes: Some(fence(7)),
            ..claim(other, 1, 1)
        }),
        "stand-in-wrong" => ask(Claim {
            guarantee: Guarantee::ExactlyOnce,
            overtakes: Some(fence(6)),
            ..claim(other, 1, 1)
        }),
        "ask-again" => ask(claim(HOLDER, 1, 1)),
        "other-request" => ask(claim(other, 2, 1)),
        "stranger" => ask(claim(other, 1, 2)),
        "stranger-other" => ask(claim(other, 2, 2)),
        "renew" => vec![Command::Renew(fence(7), LEASE)],
        "complete" => settle(complete()),
        "release" => settle(Settlement::Release),
        "doubt" => settle(doubt()),
        "never-happened" => settle(Settlement::NeverHappened),
        "wrong-fence" => vec![
            Command::Renew(fence(6), LEASE),
            Command::Settle(fence(6), complete()),
            Command::Settle(fence(6), Settlement::Release),
            Command::Settle(fence(6), doubt()),
            Command::Settle(fence(6), Settlement::NeverHappened),
        ],
        "erase" => vec![Command::Erase],
        "age" => vec![Command::Age],
        other => panic!("unknown command {other}"),
    }
}

fn complete() -> Settlement<&'static str> {
    Settlement::Complete {
        outcome: "new outcome",
        retention: RETENTION,
        remember: REMEMBER,
    }
}

fn doubt() -> Settlement<&'static str> {
    let reason = Reason::Timeout;
    Settlement::Doubt { reason }
}

fn hold(guarantee: Guarantee, attempts: u16, settles: Timestamp) -> Hold {
    Hold {
        fence: fence(7),
        claimant: HOLDER,
        guarantee,
        attempts,
        attempts_max: 3,
        settle_after: SETTLE_AFTER,
        settles,
    }
}

/// Returns the record in the state of this name.
fn found(state: &str) -> Option<Record<&'static str>> {
    use Guarantee::{AtLeastOnce, AtMostOnce, ExactlyOnce};
    let acts = NOW + SETTLE_LEFT;
    let in_flight = |guarantee, attempts, settles, lease_ends| State::InFlight {
        hold: hold(guarantee, attempts, settles),
        lease_ends,
    };
    let in_doubt = |guarantee, attempts, settles| State::Indeterminate {
        hold: hold(guarantee, attempts, settles),
        reason: Reason::Timeout,
    };
    let completed = |retention_ends, remember_ends| State::Completed {
        fence: fence(7),
        outcome: "old outcome",
        retention_ends,
        remember_ends,
    };
    let tombstone = |remember_ends| State::Tombstone { remember_ends };
    let state = match state {
        "absent" => return None,
        "in-flight" => in_flight(AtMostOnce, 1, acts, NOW + LEFT),
        "lapsed" => in_flight(AtMostOnce, 1, acts, NOW),
        "lapsed-long-ago" => in_flight(AtMostOnce, 1, NOW, NOW - LEFT),
        "exactly-once-lapsed" => in_flight(ExactlyOnce, 1, acts, NOW),
        "repeatable" => in_flight(AtLeastOnce, 1, acts, NOW + LEFT),
        "repeatable-lapsed" => in_flight(AtLeastOnce, 1, acts, NOW),
        "repeatable-used-up" => in_flight(AtLeastOnce, 3, acts, NOW + LEFT),
        "repeatable-used-up-lapsed" => in_flight(AtLeastOnce, 3, acts, NOW),
        "indeterminate" => in_doubt(AtMostOnce, 1, acts),
        "indeterminate-long-ago" => in_doubt(AtMostOnce, 1, NOW),
        "exactly-once-doubt" => in_doubt(ExactlyOnce, 1, acts),
        "exactly-once-doubt-long-ago" => in_doubt(ExactlyOnce, 1, NOW),
        "exactly-once-second" => in_flight(ExactlyOnce, 2, acts, NOW + LEFT),
        "exactly-once-second-lapsed" => in_flight(ExactlyOnce, 2, acts, NOW),
        "exactly-once-used-up" => in_doubt(ExactlyOnce, 3, NOW),
        "completed" => completed(NOW + LEFT, NOW + REMEMBER),
        "past-retention" => completed(NOW, NOW + REMEMBER),
        "completed-past-remember" => completed(NOW - LEFT, NOW),
        "tombstone" => tombstone(NOW + REMEMBER),
        "past-remember" => tombstone(NOW),
        other => panic!("unknown state {other}"),
    };
    let credential = match state {
        State::Tombstone { .. } => None,
        _ => Some(Credential([1; 8])),
    };
    Some(Record {
        fingerprint: Fingerprint([1; 16]),
        credential,
        state,
        trace: Trace::default(),
    })
}

fn without_trace(record: Record<&'static str>) -> Record<&'static str> {
    Record {
        trace: Trace::default(),
        ..record
    }
}

/// Returns the reply of this name for the record that was found.
fn reply_named(name: &str, found: Option<&Record<&'static str>>) -> Reply<&'static str> {
    let verdict = match name {
        "granted-1" if stands_free(found) => granted(8, 1),
        "granted-1" => granted(7, 1),
        "granted-2" => granted(8, 2),
        "granted-2-again" => granted(7, 2),
        "granted-3" => granted(7, 3),
        "granted-3-new" => granted(8, 3),
        "in-flight" => Verdict::InFlight { lease_left: LEFT },
        "stranger" => Verdict::OtherCredential,
        "mismatch" => Verdict::Mismatch,
        "replay" => Verdict::Replay("old outcome"),
        "expired" => Verdict::Expired,
        "indeterminate" => Verdict::Indeterminate(doubt_of(found)),
        "applied" => return Reply::Settled(Settled::Applied),
        "fenced" => return Reply::Settled(Settled::Fenced),
        "too-early" => return Reply::Settled(Settled::TooEarly { left: SETTLE_LEFT }),
        "gone" => return Reply::Erased(Erased::Gone),
        "not-there" => return Reply::Erased(Erased::Absent),
        "refused-flight" => return Reply::Erased(Erased::InFlight),
        "refused-doubt" => return Reply::Erased(Erased::Indeterminate),
        "aged" => return Reply::Aged,
        other => panic!("unknown reply {other}"),
    };
    Reply::Verdict(verdict)
}

/// Whether the record does not prevent a first grant.
fn stands_free(found: Option<&Record<&'static str>>) -> bool {
    !matches!(
        found.map(|record| &record.state),
        Some(State::InFlight { .. })
    )
}

fn granted(counter: u64, attempt: u16) -> Verdict<refrain::record::Grant, &'static str> {
    let fence = fence(counter);
    Verdict::Granted(refrain::record::Grant { fence, attempt })
}

fn doubt_of(found: Option<&Record<&'static str>>) -> refrain::record::Doubt {
    let (hold, reason) = match found.map(|record| &record.state) {
        Some(State::InFlight { hold, .. }) => (hold, Reason::Lapsed),
        Some(State::Indeterminate { hold, reason }) => (hold, *reason),
        other => panic!("not an indeterminate record: {other:?}"),
    };
    refrain::record::Doubt {
        fence: fence(7),
        reason,
        settle_left: hold.settles.left(NOW),
    }
}

/// Returns the resulting record by its name in the table.
fn record_left(
    name: &str,
    found: Option<Record<&'static str>>,
    asker: Option<&Claim>,
) -> Option<Record<&'static str>> {
    match name {
        "absent" => None,
        "same" => found,
        "first" => asker.map(|claim| by_asker(claim, 1)),
        "next" => asker.map(|claim| by_asker(claim, 2)),
        "third" => asker.map(|claim| by_asker(claim, 3)),
        other => found.map(|record| changed(other, record)),
    }
}

fn by_asker(claim: &Claim, attempts: u16) -> Record<&'static str> {
    let hold = Hold {
        fence: fence(8),
        claimant: claim.claimant,
        ..hold(claim.guarantee, attempts, NOW + SETTLE_AFTER)
    };
    let lease_ends = NOW + LEASE;
    Record {
        fingerprint: claim.fingerprint,
        credential: claim.credential,
        state: State::InFlight { hold, lease_ends },
        trace: Trace::default(),
    }
}

fn changed(name: &str, mut record: Record<&'static str>) -> Record<&'static str> {
    record.state = match (name, record.state) {
        ("running", State::InFlight { hold, .. }) => State::InFlight {
            hold: Hold {
                settles: NOW + SETTLE_AFTER,
                ..hold
            },
            lease_ends: NOW + LEASE,
        },
        ("given-back", State::InFlight { hold, .. }) => State::Indeterminate {
            hold: Hold {
                attempts: hold.attempts - 1,
                ..hold
            },
            reason: Reason::Failed,
        },
        ("lapsed", State::InFlight { hold, .. }) => State::Indeterminate {
            hold,
            reason: Reason::Lapsed,
        },
        ("timeout", State::InFlight { hold, .. }) => State::Indeterminate {
            hold,
            reason: Reason::Timeout,
        },
        ("completed", State::InFlight { .. } | State::Indeterminate { .. }) => State::Completed {
            fence: fence(7),
            outcome: "new outcome",
            retention_ends: NOW + RETENTION,
            remember_ends: NOW + RETENTION + REMEMBER,
        },
        ("tombstone", State::Completed { remember_ends, .. }) => {
            record.credential = None;
            State::Tombstone { remember_ends }
        }
        (name, state) => panic!("{name} cannot result from {state:?}"),
    };
    record
}
