//! A lease that lapses while its holder lives executes an operation twice: leases are renewed as long as the holder
//! runs, also while the engine or the store is busy. A lease that lapses anyway is taken over (at-least-once) or
//! leaves an unknown outcome (at-most-once), and a holder that was overtaken changes nothing.

use std::time::Duration;

use refrain::{
    Claim, Engine, ErrorKind, Guarantee, Intent, Key, Outcome, Scope, Settled, Store, Terms,
    Verdict,
    engine::{Count, Running},
    record::Reason,
    store::{Memory, Query, StateName},
};

#[path = "support/scripted.rs"]
mod scripted;
use scripted::{Fault, Op, Scripted, complete, states, until};

const LEASE: Duration = Duration::from_secs(3);

fn intent(key: &str, guarantee: Guarantee) -> Intent {
    let mut intent = Intent::new(Scope::none(), Key::new(key).unwrap());
    intent.terms = Terms {
        wait: Duration::ZERO,
        lease: LEASE,
        guarantee,
        ..Terms::default()
    };
    intent
}

fn once() -> Intent {
    intent("k", Guarantee::AtMostOnce)
}

fn at_least_once() -> Intent {
    intent("k", Guarantee::AtLeastOnce)
}

async fn run(engine: &Engine, intent: &Intent) -> Running {
    match engine.claim(intent).await.unwrap() {
        Verdict::Granted(guard) => guard.start(),
        other => panic!("not granted: {other:?}"),
    }
}

async fn check_in_flight(engine: &Engine, intent: &Intent) {
    let verdict = engine.claim(intent).await.unwrap();
    assert!(matches!(verdict, Verdict::InFlight { .. }), "{verdict:?}");
}

/// The only test of this file in real time, with the machine's clock.
#[tokio::test]
async fn a_run_of_three_leases_never_lapses() {
    let store = Memory::new();
    let (holder, other) = (Engine::new(store.clone()), Engine::new(store.clone()));
    let mut brief = once();
    brief.terms.lease = Duration::from_secs(8);
    let running = run(&holder, &brief).await;
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(250)).await;
        check_in_flight(&other, &brief).await;
    }
    complete(running, "").await;
}

#[tokio::test(start_paused = true)]
async fn ended_claim_is_not_renewed() {
    let store = Scripted::on_runtime_clock();
    let engine = Engine::new(store.clone());
    complete(run(&engine, &once()).await, "").await;
    let doubtful = intent("doubtful", Guarantee::AtMostOnce);
    let mut running = run(&engine, &doubtful).await;
    let _ = running.doubt(Reason::Timeout).await.unwrap();
    drop(engine.claim(&intent("free", Guarantee::AtMostOnce)).await);
    tokio::time::sleep(LEASE * 3).await;
    assert_eq!(store.calls(Op::Renew), 0);
    assert_eq!(engine.tally().get(Count::LeaseLost), 0);
}

#[tokio::test(start_paused = true)]
async fn renewals_that_fail_are_tried_again() {
    let store = Scripted::on_runtime_clock();
    let engine = Engine::new(store.clone());
    let running = run(&engine, &once()).await;
    for fault in [Fault::Fails(ErrorKind::Unavailable), Fault::Hangs] {
        store.set(Op::Renew, 2, fault);
        for _ in 0..30 {
            tokio::time::sleep(LEASE / 10).await;
            check_in_flight(&engine, &once()).await;
        }
    }
    assert!(store.calls(Op::Renew) >= 6);
    // The store is unavailable for longer than the lease: the holder lives, and renews as soon as it can.
    store.set(Op::Renew, 6, Fault::Fails(ErrorKind::Unavailable));
    tokio::time::sleep(LEASE * 2).await;
    check_in_flight(&engine, &once()).await;
    complete(running, "").await;
}

/// The renewal of one record hangs; the renewals of other records must not wait for it.
#[tokio::test(start_paused = true)]
async fn one_renewal_that_hangs_holds_up_no_other() {
    let store = Scripted::on_runtime_clock();
    let engine = Engine::new(store.clone());
    let mut slow = intent("slow", Guarantee::AtMostOnce);
    slow.terms.lease = Duration::from_secs(3_600);
    let _slow = run(&engine, &slow).await;
    tokio::time::sleep(Duration::from_secs(899)).await;
    store.set(Op::Renew, 1, Fault::Hangs);
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    let _quick = run(&engine, &once()).await;
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        check_in_flight(&engine, &once()).await;
    }
}

/// A sweep can take long; leases must not lapse meanwhile.
#[tokio::test(start_paused = true)]
async fn a_long_sweep_holds_up_no_renewal() {
    let store = Scripted::on_runtime_clock();
    let engine = Engine::new(store.clone());
    store.set(Op::Sweep, 1, Fault::AnswersLate(Duration::from_secs(600)));
    let running = run(&engine, &once()).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(store.calls(Op::Sweep), 1, "one sweep at a time");
    check_in_flight(&engine, &once()).await;
    complete(running, "").await;
}

#[tokio::test(start_paused = true)]
async fn every_lease_is_renewed_in_time_and_not_more_often() {
    let store = Scripted::on_runtime_clock();
    let engine = Engine::new(store.clone());
    let mut long = Vec::new();
    for number in 0..300 {
        let intent = intent(&format!("long-{number}"), Guarantee::AtMostOnce);
        long.push((run(&engine, &intent).await, intent));
    }
    tokio::time::sleep(LEASE * 2).await;
    for (_, intent) in &long {
        check_in_flight(&engine, intent).await;
    }
    for (running, _) in long {
        complete(running, "").await;
    }
    let renewed = store.calls(Op::Renew);
    assert!((300 * 7..=300 * 9).contains(&renewed), "{renewed}");
}

/// Thousands of short operations run beside long ones; the long ones must still be renewed.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn many_short_flights_hide_no_long_one() {
    let store = Memory::new();
    let engine = Engine::new(store.clone());
    let mut long = Vec::new();
    for number in 0..50 {
        let mut intent = intent(&format!("long-{number}"), Guarantee::AtMostOnce);
        intent.terms.lease = Duration::from_secs(8);
        long.push(run(&engine, &intent).await);
    }
    let mut churn = Vec::new();
    for task in 0..2 {
        let engine = engine.clone();
        churn.push(tokio::spawn(async move {
            for number in 0.. {
                let mut brief = intent(&format!("{task}-{number}"), Guarantee::AtMostOnce);
                brief.terms.lease = Duration::from_secs(8);
                let running = run(&engine, &brief).await;
                tokio::task::yield_now().await;
                let _ = running.release(None).await.unwrap();
            }
        }));
    }
    for _ in 0..160 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let query = Query {
            state: Some(StateName::Indeterminate),
            ..Query::default()
        };
        let lapsed = store.list(&query).await.unwrap();
        assert_eq!(lapsed.readings, []);
    }
    churn.iter().for_each(tokio::task::JoinHandle::abort);
    for running in long {
        complete(running, "").await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_background_task_sweeps_the_store() {
    let store = Scripted::on_runtime_clock();
    let engine = Engine::new(store.clone());
    let mut brief = once();
    brief.terms.retention = Duration::from_secs(1);
    brief.terms.remember = Duration::from_secs(1);
    let running = run(&engine, &brief).await;
    complete(running, "").await;
    store.set(Op::Sweep, 1, Fault::Fails(ErrorKind::Unavailable));
    tokio::time::sleep(Duration::from_secs(65)).await;
    assert_eq!(
        store.calls(Op::Sweep),
        2,
        "sweeps continue after one that failed"
    );
    assert_eq!(states(&store).await, []);
    drop(engine);
    tokio::time::sleep(Duration::from_secs(65)).await;
    assert_eq!(store.calls(Op::Sweep), 2, "sweeps stop with the engine");
}

/// A holder is cut off from the store for longer than its lease, then reconnects.
#[tokio::test(start_paused = true)]
async fn a_paused_holders_completion_still_lands_if_nobody_took_over() {
    for guarantee in [Guarantee::AtMostOnce, Guarantee::AtLeastOnce] {
        let store = Scripted::on_runtime_clock();
        let engine = Engine::new(store.clone());
        store.set(Op::Renew, usize::MAX, Fault::Fails(ErrorKind::Unavailable));
        let running = run(&engine, &intent("k", guarantee)).await;
        tokio::time::sleep(LEASE * 2).await;
        complete(running, "late").await;
        let verdict = engine.claim(&intent("k", guarantee)).await.unwrap();
        assert!(matches!(verdict, Verdict::Replay(_)), "{verdict:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lapsed_lease_is_doubt_or_a_takeover_as_the_guarantee_says() {
    let store = Scripted::on_runtime_clock();
    let (dead, engine) = (Engine::new(store.clone()), Engine::new(store.clone()));
    store.set(Op::Renew, usize::MAX, Fault::Fails(ErrorKind::Unavailable));
    let two = intent("two", Guarantee::AtLeastOnce);
    let _holders = (run(&dead, &once()).await, run(&dead, &two).await);
    tokio::time::sleep(LEASE + Duration::from_secs(1)).await;
    let verdict = engine.claim(&once()).await.unwrap();
    let Verdict::Indeterminate(doubt) = verdict else {
        panic!("{verdict:?}");
    };
    assert_eq!(doubt.reason, Reason::Lapsed);
    let taken = run(&engine, &two).await;
    assert_eq!(taken.grant().attempt, 2);
    assert_eq!(engine.tally().get(Count::PossibleDuplicate), 1);
}

#[tokio::test(start_paused = true)]
async fn takeovers_end_at_the_limit() {
    let store = Scripted::on_runtime_clock();
    let engine = Engine::new(store.clone());
    store.set(Op::Renew, usize::MAX, Fault::Fails(ErrorKind::Unavailable));
    let mut limited = at_least_once();
    limited.terms.attempts_max = 3;
    let mut holders = Vec::new();
    for _ in 0..3 {
        holders.push(run(&engine, &limited).await);
        tokio::time::sleep(LEASE + Duration::from_secs(1)).await;
    }
    let verdict = engine.claim(&limited).await.unwrap();
    assert!(matches!(verdict, Verdict::Indeterminate(_)), "{verdict:?}");
}

/// The holder is cut off, another process takes over, and the holder reconnects.
async fn overtaken(store: &Scripted, holder: &Engine, winner: &Engine) -> (Running, Running) {
    store.set(Op::Renew, 4, Fault::Fails(ErrorKind::Unavailable));
    let first = run(holder, &at_least_once()).await;
    tokio::time::sleep(LEASE + Duration::from_millis(500)).await;
    let second = run(winner, &at_least_once()).await;
    assert!(second.fence() > first.fence());
    (first, second)
}

#[tokio::test(start_paused = true)]
async fn a_refused_renewal_is_a_lost_lease_and_is_not_tried_again() {
    let store = Scripted::on_runtime_clock();
    let (holder, winner) = (Engine::new(store.clone()), Engine::new(store.clone()));
    let (first, second) = overtaken(&store, &holder, &winner).await;
    tokio::time::sleep(LEASE * 3).await;
    assert_eq!(holder.tally().get(Count::LeaseLost), 1);
    assert_eq!(winner.tally().get(Count::LeaseLost), 0);
    // A duplicate at the overtaken holder's engine gets the winner's outcome.
    complete(second, "winner").await;
    let mut patient = at_least_once();
    patient.terms.wait = Duration::from_secs(10);
    let verdict = holder.claim(&patient).await.unwrap();
    assert!(matches!(verdict, Verdict::Replay(_)), "{verdict:?}");
    let settled = first.complete(Outcome::new(200, "loser")).await.unwrap();
    assert_eq!(settled, Settled::Fenced);
    assert_eq!(holder.tally().get(Count::Overtaken), 1);
}

/// Duplicates wait for the holder in this process, which was overtaken and hangs. They must get the winner's outcome.
#[tokio::test(start_paused = true)]
async fn waiter_of_a_superseded_holder_gets_the_winners_outcome() {
    let store = Scripted::on_runtime_clock();
    let (holder, winner) = (Engine::new(store.clone()), Engine::new(store.clone()));
    let (_first, second) = overtaken(&store, &holder, &winner).await;
    let waiter = tokio::spawn({
        let holder = holder.clone();
        async move {
            let mut patient = at_least_once();
            patient.terms.wait = Duration::from_secs(20);
            holder.claim(&patient).await.unwrap()
        }
    });
    tokio::time::sleep(Duration::from_secs(5)).await;
    complete(second, "winner").await;
    let verdict = waiter.await.unwrap();
    assert!(matches!(verdict, Verdict::Replay(_)), "{verdict:?}");
}

#[tokio::test(start_paused = true)]
async fn run_in_one_line_answers_what_the_winner_made_of_it() {
    let store = Scripted::on_runtime_clock();
    let (holder, winner) = (Engine::new(store.clone()), Engine::new(store.clone()));
    store.set(Op::Renew, 4, Fault::Fails(ErrorKind::Unavailable));
    let work = async |_| {
        tokio::time::sleep(LEASE + Duration::from_millis(500)).await;
        let second = run(&winner, &at_least_once()).await;
        complete(second, "winner").await;
        Outcome::new(200, "loser")
    };
    let verdict = holder.run(&at_least_once(), work).await.unwrap();
    let Verdict::Replay(outcome) = verdict else {
        panic!("{verdict:?}");
    };
    assert_eq!(&outcome.body()[..], b"winner");
}

/// The winner released the key. The loser's effect happened: its outcome is stored, and the operation is not executed
/// again.
#[tokio::test(start_paused = true)]
async fn run_in_one_line_stores_its_outcome_where_the_winner_left_none() {
    let store = Scripted::on_runtime_clock();
    let (holder, winner) = (Engine::new(store.clone()), Engine::new(store.clone()));
    store.set(Op::Renew, 4, Fault::Fails(ErrorKind::Unavailable));
    let work = async |_| {
        tokio::time::sleep(LEASE + Duration::from_millis(500)).await;
        let second = run(&winner, &at_least_once()).await;
        let _ = second.release(None).await.unwrap();
        Outcome::new(200, "stands")
    };
    let verdict = holder.run(&at_least_once(), work).await.unwrap();
    assert!(matches!(verdict, Verdict::Granted(_)), "{verdict:?}");
    let verdict = winner.claim(&at_least_once()).await.unwrap();
    let Verdict::Replay(outcome) = verdict else {
        panic!("{verdict:?}");
    };
    assert_eq!(&outcome.body()[..], b"stands");
}

/// A renewal that arrives after the outcome is stored is refused; that does not count as a lost lease.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_crosses_the_end_is_no_lost_lease() {
    let store = Scripted::on_runtime_clock();
    let engine = Engine::new(store.clone());
    let running = run(&engine, &once()).await;
    tokio::time::sleep(LEASE / 4 - Duration::from_millis(50)).await;
    store.set(Op::Renew, 1, Fault::DoneLate(Duration::from_millis(300)));
    until(|| store.calls(Op::Renew) == 1).await;
    complete(running, "").await;
    tokio::time::sleep(LEASE).await;
    assert_eq!(engine.tally().get(Count::LeaseLost), 0);
}

/// The store alone recognizes a repeated claim of the same claimant.
#[tokio::test]
async fn the_same_claimant_is_granted_the_same_again() {
    let store = Memory::new();
    let claim = Claim::new(Default::default(), Default::default());
    let mut fences = Vec::new();
    for _ in 0..2 {
        match store.claim(claim.clone()).await.unwrap() {
            Verdict::Granted(grant) => fences.push(grant.fence),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(fences[0], fences[1]);
}
