//! Records in every state, which a release writes once and every later release has to read.
//!
//! The tests of all stores use this file, so that a folder, a dump and a set of Redis keys hold the same records.

use std::time::Duration;

use refrain::{
    Claim, Fingerprint, Guarantee, Outcome, RecordId, Settled, Settlement, Store, Verdict,
    clock::Timestamp,
    key::Credential,
    outcome::Packer,
    record::{Grant, History, KeyDigest, Origin, OriginFields, Reason, ScopeDigest, State},
    store::StateName,
};

/// When the first record is written, on the store's clock.
pub(crate) const START: Timestamp = Timestamp(1_767_225_600_000);
/// How long writing them takes on that clock.
pub(crate) const WRITTEN_AFTER: Duration = Duration::from_secs(10);
const YEARS: Duration = Duration::from_secs(20 * 365 * 86_400);
const CREDENTIAL: Credential = Credential([5; 8]);

const COMPLETED: u8 = 1;
const WITHOUT_BODY: u8 = 2;
const IN_FLIGHT: u8 = 3;
const REPEATABLE: u8 = 4;
const DOUBTED: u8 = 5;
const TOMBSTONE: u8 = 6;
const TAKEN_OVER: u8 = 7;
const UNTRACED: u8 = 8;
const ALL: std::ops::RangeInclusive<u8> = COMPLETED..=UNTRACED;

fn id(number: u8) -> RecordId {
    RecordId([number; 16])
}

/// A claim by the same caller for the same request as the first one of this record.
fn claim(number: u8) -> Claim {
    let (key, target) = (format!("order-{number}"), format!("/orders/{number}?a=b"));
    let fields = OriginFields {
        operation: "POST /orders/{id}",
        method: "POST",
        target: &target,
        key_digest: KeyDigest([number; 8]),
        key: &key,
        host: "shop.test",
        scope_digest: ScopeDigest([9; 8]),
        node: "node-a",
        trace_id: [7; 16],
    };
    let mut claim = Claim::new(id(number), Fingerprint([number; 16]));
    claim.credential = (number == COMPLETED).then_some(CREDENTIAL);
    if matches!(number, REPEATABLE | TAKEN_OVER) {
        claim.guarantee = Guarantee::AtLeastOnce;
    }
    if number == TAKEN_OVER {
        claim.lease = Duration::from_secs(1);
    }
    if number != UNTRACED {
        claim.origin = Origin::new(&fields);
    }
    claim
}

fn outcome(number: u8) -> Outcome {
    let headers: [(&str, &[u8]); 2] = [
        ("content-type", b"application/json"),
        ("x-bytes", b"\x80\xff"),
    ];
    let mut packer = Packer::new(200 + u16::from(number), headers);
    packer.push(format!("{{\"order\":{number}}}").repeat(90).as_bytes());
    if number == WITHOUT_BODY {
        packer.drop_body();
    }
    let trailers: [(&str, &[u8]); 1] = [("x-sum", b"42")];
    packer.finish(trailers)
}

async fn granted(store: &impl Store, number: u8) -> Grant {
    match store.claim(claim(number)).await.unwrap() {
        Verdict::Granted(grant) => grant,
        other => panic!("{number}: {other:?}"),
    }
}

async fn complete(store: &impl Store, number: u8, grant: Grant, retention: Duration) {
    let end = Settlement::Complete {
        outcome: outcome(number),
        retention,
        remember: YEARS,
    };
    let settled = store.settle(id(number), grant.fence, end).await;
    assert_eq!(settled.unwrap(), Settled::Applied, "{number}");
}

/// Writes every record. `advance` moves the store's clock.
pub(crate) async fn write(store: &impl Store, advance: impl Fn(Duration)) {
    let tombstone = granted(store, TOMBSTONE).await;
    complete(store, TOMBSTONE, tombstone, Duration::from_secs(1)).await;
    assert_eq!(granted(store, TAKEN_OVER).await.attempt, 1);
    advance(WRITTEN_AFTER);
    let _ = store.sweep(100).await.unwrap();
    for number in [COMPLETED, WITHOUT_BODY, TAKEN_OVER, UNTRACED] {
        let grant = granted(store, number).await;
        complete(store, number, grant, YEARS).await;
    }
    for number in [IN_FLIGHT, REPEATABLE, DOUBTED] {
        let grant = granted(store, number).await;
        if number == DOUBTED {
            let reason = Reason::Truncated;
            let doubt = Settlement::Doubt { reason };
            let doubted = store.settle(id(number), grant.fence, doubt).await;
            assert_eq!(doubted.unwrap(), Settled::Applied);
        }
    }
}

fn name_of(number: u8, has_restarted: bool) -> StateName {
    match number {
        // Under at-most-once, the claim of a process that has ended is an unknown outcome.
        IN_FLIGHT if has_restarted => StateName::Indeterminate,
        IN_FLIGHT | REPEATABLE => StateName::InFlight,
        DOUBTED => StateName::Indeterminate,
        TOMBSTONE => StateName::Tombstone,
        _ => StateName::Completed,
    }
}

/// Checks the content of every record and the verdict on a retry, and changes nothing.
///
/// `has_restarted`: the leases of the earlier process have lapsed.
pub(crate) async fn check(store: &impl Store, has_restarted: bool) {
    for number in ALL {
        let reading = store.read(id(number)).await.unwrap().unwrap();
        let record = reading.record;
        let name = name_of(number, has_restarted);
        assert_eq!(record.state.name(), name, "{number}");
        assert_eq!(record.fingerprint, Fingerprint([number; 16]));
        assert_eq!(
            record.credential,
            claim(number).credential.filter(|_| number == COMPLETED)
        );
        check_history(number, record.trace.read());
        check_state(number, &record.state);
        // A retry with this claim would be granted: it is checked by `go_on`.
        if number != REPEATABLE || !has_restarted {
            check_verdict(number, store.claim(claim(number)).await.unwrap(), name);
        }
        let other = Claim {
            fingerprint: Fingerprint([99; 16]),
            ..claim(number)
        };
        let verdict = store.claim(other).await.unwrap();
        assert_eq!(verdict, Verdict::Mismatch, "{number}");
    }
    let stranger = Claim {
        credential: Some(Credential([6; 8])),
        ..claim(COMPLETED)
    };
    let verdict = store.claim(stranger).await.unwrap();
    assert_eq!(verdict, Verdict::OtherCredential);
}

fn check_history(number: u8, history: Option<History>) {
    // Releases keep no trace of a tombstone in every store.
    if number == TOMBSTONE {
        return;
    }
    let history = history.unwrap();
    let known = number != UNTRACED;
    let operation = if known { "POST /orders/{id}" } else { "" };
    assert_eq!(history.operation, operation, "{number}");
    let (key, host) = (format!("order-{number}"), "shop.test".to_owned());
    assert_eq!(history.key, known.then_some(key));
    assert_eq!(history.host, known.then_some(host));
    assert_eq!(history.key_digest, known.then_some(KeyDigest([number; 8])));
    assert_eq!(history.scope_digest, known.then_some(ScopeDigest([9; 8])));
    let attempts = if number == TAKEN_OVER { 2 } else { 1 };
    assert_eq!(history.attempts.len(), attempts, "{number}");
    let last = &history.attempts[attempts - 1];
    assert_eq!(usize::from(last.number), attempts);
    assert_eq!(last.trace_id, known.then_some([7; 16]));
    assert_eq!(last.node, if known { "node-a" } else { "" });
    assert_eq!(last.at, START + WRITTEN_AFTER, "{number}");
}

fn check_state(number: u8, state: &State) {
    let written = START + WRITTEN_AFTER;
    match state {
        State::InFlight { hold, .. } => assert_eq!(hold.attempts, 1),
        State::Indeterminate { hold, reason } => {
            let lapsed = number == IN_FLIGHT;
            let expected = if lapsed {
                Reason::Lapsed
            } else {
                Reason::Truncated
            };
            assert_eq!(*reason, expected, "{number}");
            assert_eq!(hold.settles, written + hold.settle_after);
        }
        State::Completed {
            outcome: stored,
            retention_ends,
            remember_ends,
            ..
        } => {
            let expected = outcome(number).sealed(id(number));
            assert_eq!(stored.encoded(), expected.encoded(), "{number}");
            assert_eq!(*retention_ends, written + YEARS);
            assert_eq!(*remember_ends, written + YEARS + YEARS);
        }
        State::Tombstone { remember_ends } => {
            let retained = Duration::from_secs(1);
            assert_eq!(*remember_ends, START + retained + YEARS);
        }
    }
}

fn check_verdict(number: u8, verdict: Verdict, name: StateName) {
    match (name, verdict) {
        (StateName::Completed, Verdict::Replay(replayed)) => {
            let expected = outcome(number);
            assert_eq!(replayed.status(), expected.status());
            assert_eq!(replayed.body(), expected.body());
            assert_eq!(replayed.is_body_kept(), number != WITHOUT_BODY);
            assert!(replayed.headers().eq(expected.headers()));
            assert!(replayed.trailers().eq(expected.trailers()));
        }
        (StateName::InFlight, Verdict::InFlight { .. })
        | (StateName::Indeterminate, Verdict::Indeterminate(_))
        | (StateName::Tombstone, Verdict::Expired) => {}
        (name, other) => panic!("{number} is {name:?}: {other:?}"),
    }
}

/// Continues what the earlier release began: ends its claims with their fences, and takes over what may be repeated.
pub(crate) async fn go_on(store: &impl Store, has_restarted: bool) {
    for number in [IN_FLIGHT, DOUBTED] {
        let reading = store.read(id(number)).await.unwrap().unwrap();
        let (State::InFlight { hold, .. } | State::Indeterminate { hold, .. }) =
            reading.record.state
        else {
            panic!("{number}: {:?}", reading.record.state);
        };
        let grant = Grant {
            fence: hold.fence,
            attempt: hold.attempts,
        };
        complete(store, number, grant, YEARS).await;
        let replayed = store.claim(claim(number)).await.unwrap();
        check_verdict(number, replayed, StateName::Completed);
    }
    if has_restarted {
        let before = store.read(id(REPEATABLE)).await.unwrap().unwrap();
        let grant = granted(store, REPEATABLE).await;
        assert_eq!(grant.attempt, 2);
        assert!(Some(grant.fence) > before.record.fence());
        complete(store, REPEATABLE, grant, YEARS).await;
    }
    let new = store.claim(Claim::new(id(50), Fingerprint([1; 16]))).await;
    assert!(matches!(new.unwrap(), Verdict::Granted(_)));
}
