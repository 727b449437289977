//! Renewals and settlements under the right fence: T4, T5, T6, T9, T10.

use std::time::Duration;

use refrain::{
    Claim, Outcome, Settled, Settlement, Store, Verdict,
    record::{Doubt, Reason},
};

use super::{
    bench::{
        Bench, Checked, DOUBT, LEASE, MOMENT, SETTLE_AFTER, brief, claim, completion, expect,
        outcome, repeatable, send_claim,
    },
    stage::Stage,
};

/// Timeout for a settlement to wake a watch on another handle, on a busy machine.
const TOLD_WITHIN: Duration = Duration::from_secs(30);

pub(super) async fn t4_renewing_prolongs_the_lease<S: Store>(bench: &Bench<S>) -> Checked {
    for number in [1, 2] {
        let ask = || match number {
            1 => claim(1),
            _ => repeatable(2),
        };
        let fence = bench.granted(&ask()).await?.fence;
        bench.clock.advance(LEASE - MOMENT);
        let longer = LEASE * 2;
        let renewed = bench.renew(ask().id, fence, longer).await?;
        expect("renewing", renewed, Settled::Applied)?;
        bench.clock.advance(LEASE);
        let want = Verdict::InFlight { lease_left: LEASE };
        bench
            .refused("a claim on a renewed record", &ask(), want)
            .await?;
    }
    Ok(())
}

pub(super) async fn t4_renewing_brings_back_a_lapsed_claim<S: Store>(bench: &Bench<S>) -> Checked {
    for (number, stage) in [(1, Stage::Lapsed), (2, Stage::UpForTakeover)] {
        let (first, fence) = stage.reach(bench, number).await?;
        bench.clock.advance(LEASE);
        if stage == Stage::Lapsed {
            // A claim that finds the lapsed record must not end it.
            let seen = bench.send_claim(&claim(number)).await?;
            let doubted = matches!(seen, Verdict::Indeterminate(_));
            expect("a lapsed claim is indeterminate", doubted, true)?;
        }
        let renewed = bench.renew(first.id, fence, LEASE).await?;
        let what = format!("renewing, found {stage:?}");
        expect(&what, renewed, Settled::Applied)?;
        let want = Verdict::InFlight { lease_left: LEASE };
        let again = match stage {
            Stage::Lapsed => claim(number),
            _ => repeatable(number),
        };
        let what = format!("a claim on a renewed record, found {stage:?}");
        bench.refused(&what, &again, want).await?;
    }
    Ok(())
}

/// A lease of zero gives up a failed attempt: the lease ends at once, and the record keeps its count of attempts.
pub(super) async fn t4_renewing_for_no_time_ends_the_lease<S: Store>(bench: &Bench<S>) -> Checked {
    let ask = || Claim {
        attempts_max: 3,
        ..repeatable(1)
    };
    for attempt in 1..=3 {
        let grant = bench.granted(&ask()).await?;
        expect("the attempt", grant.attempt, attempt)?;
        let renewed = bench.renew(ask().id, grant.fence, Duration::ZERO).await?;
        expect("renewing with a zero lease", renewed, Settled::Applied)?;
    }
    let seen = bench.send_claim(&ask()).await?;
    let lapsed = matches!(seen, Verdict::Indeterminate(doubt) if doubt.reason == Reason::Lapsed);
    expect("indeterminate when no attempts are left", lapsed, true)
}

pub(super) async fn t5_completing_replays<S: Store>(bench: &Bench<S>) -> Checked {
    for (number, ask) in [(1, claim(1)), (2, repeatable(2))] {
        let fence = bench.granted(&ask).await?.fence;
        let end = completion(outcome(ask.id));
        bench.end(ask.id, fence, end).await?;
        let want = Verdict::Replay(outcome(ask.id));
        let what = "a claim on a completed record";
        bench.refused(what, &claim(number), want.clone()).await?;
        // Also for its own claimant: a completed record is never granted again.
        bench
            .refused("a repeated claim by the same claimant", &ask, want)
            .await?;
    }
    Ok(())
}

pub(super) async fn t5_late_truth_lands<S: Store>(bench: &Bench<S>) -> Checked {
    for (number, stage) in [(1, Stage::Lapsed), (2, Stage::UpForTakeover)] {
        let (first, fence) = stage.reach(bench, number).await?;
        bench.clock.advance(LEASE * 10);
        let end = completion(outcome(first.id));
        bench.end(first.id, fence, end).await?;
        let want = Verdict::Replay(outcome(first.id));
        let what = format!("a claim after the late completion of {stage:?}");
        bench.refused(&what, &claim(number), want).await?;
    }
    Ok(())
}

pub(super) async fn t5_doubt_can_be_completed<S: Store>(bench: &Bench<S>) -> Checked {
    let (first, fence) = Stage::Indeterminate.reach(bench, 1).await?;
    bench.clock.advance(SETTLE_AFTER * 2);
    let end = completion(outcome(first.id));
    bench.end(first.id, fence, end).await?;
    let want = Verdict::Replay(outcome(first.id));
    let what = "a claim after the indeterminate record was completed";
    bench.refused(what, &claim(1), want).await
}

pub(super) async fn t5_an_overtaken_holder_is_fenced<S: Store>(bench: &Bench<S>) -> Checked {
    let (first, old) = Stage::UpForTakeover.reach(bench, 1).await?;
    let new = bench.granted(&repeatable(1)).await?.fence;
    let late = Outcome::new(500, b"late").sealed(first.id);
    let settled = bench.settle(first.id, old, completion(late)).await?;
    let what = "the completion by a superseded holder";
    expect(what, settled, Settled::Fenced)?;
    let end = completion(outcome(first.id));
    bench.end(first.id, new, end).await?;
    let want = Verdict::Replay(outcome(first.id));
    let what = "a claim after the new holder completed";
    bench.refused(what, &repeatable(1), want).await
}

pub(super) async fn t5_the_first_outcome_stays<S: Store>(bench: &Bench<S>) -> Checked {
    let (first, fence) = Stage::Completed.reach(bench, 1).await?;
    let before = bench.view(first.id).await?;
    let other = Outcome::new(500, b"other").sealed(first.id);
    // A repeated completion is no error: the reply to the first may have been lost.
    bench.end(first.id, fence, completion(other)).await?;
    let after = bench.view(first.id).await?;
    expect("the record after a second completion", after, before)?;
    let want = Verdict::Replay(outcome(first.id));
    let what = "a claim after a second completion";
    bench.refused(what, &claim(1), want).await
}

pub(super) async fn t6_releasing_frees_the_key<S: Store>(bench: &Bench<S>) -> Checked {
    for ask in [claim(1), repeatable(2)] {
        let old = bench.granted(&ask).await?.fence;
        bench.end(ask.id, old, Settlement::Release).await?;
        expect("the released record", bench.view(ask.id).await?, None)?;
        let mut other = ask.clone();
        other.fingerprint.0 = [9; 16];
        let grant = bench.granted(&other).await?;
        expect("the attempt after a release", grant.attempt, 1)?;
        let grows = grant.fence > old;
        expect("the fence after a release is above the last", grows, true)?;
    }
    Ok(())
}

pub(super) async fn t9_doubt_is_remembered<S: Store>(bench: &Bench<S>) -> Checked {
    let reasons = [
        Reason::Timeout,
        Reason::Reset,
        Reason::Truncated,
        Reason::Panicked,
        Reason::Dropped,
        Reason::Failed,
    ];
    for (number, reason) in (1..).zip(reasons) {
        let ask = claim(number);
        let fence = bench.granted(&ask).await?.fence;
        let end = Settlement::Doubt { reason };
        bench.end(ask.id, fence, end).await?;
        let want = Verdict::Indeterminate(Doubt {
            fence,
            reason,
            settle_left: SETTLE_AFTER,
        });
        bench
            .refused("a claim on an indeterminate record", &claim(number), want)
            .await?;
    }
    Ok(())
}

pub(super) async fn t9_doubt_leaves_the_lease_where_it_may_run_again<S: Store>(
    bench: &Bench<S>,
) -> Checked {
    let ask = repeatable(1);
    let fence = bench.granted(&ask).await?.fence;
    bench.end(ask.id, fence, DOUBT).await?;
    let want = Verdict::InFlight { lease_left: LEASE };
    let what = "a claim on an indeterminate at-least-once record";
    bench.refused(what, &repeatable(1), want).await?;
    bench.clock.advance(LEASE);
    let grant = bench.granted(&repeatable(1)).await?;
    expect("the attempt after the indeterminate one", grant.attempt, 2)
}

pub(super) async fn t10_never_happened_waits_for_the_attempt<S: Store>(
    bench: &Bench<S>,
) -> Checked {
    for (number, stage) in [(1, Stage::Indeterminate), (2, Stage::Lapsed)] {
        let (first, fence) = stage.reach(bench, number).await?;
        let passed = match stage {
            Stage::Lapsed => LEASE,
            _ => Duration::ZERO,
        };
        bench.clock.advance(SETTLE_AFTER - passed - MOMENT);
        let before = bench.view(first.id).await?;
        let early = bench
            .settle(first.id, fence, Settlement::NeverHappened)
            .await?;
        let what = format!("`never happened` on {stage:?} while the attempt can act");
        expect(&what, early, Settled::TooEarly { left: MOMENT })?;
        expect("the record after it", bench.view(first.id).await?, before)?;
        bench.clock.advance(MOMENT);
        bench
            .end(first.id, fence, Settlement::NeverHappened)
            .await?;
        expect(
            "the record that never happened",
            bench.view(first.id).await?,
            None,
        )?;
        bench.granted(&claim(number)).await?;
    }
    Ok(())
}

pub(super) async fn t10_never_happened_needs_doubt<S: Store>(bench: &Bench<S>) -> Checked {
    for (number, stage) in (1..).zip([Stage::InFlight, Stage::UpForTakeover, Stage::Completed]) {
        let (first, fence) = stage.reach(bench, number).await?;
        let before = bench.view(first.id).await?;
        let settled = bench
            .settle(first.id, fence, Settlement::NeverHappened)
            .await?;
        let what = format!("`never happened` on {stage:?}");
        expect(&what, settled, Settled::Fenced)?;
        let what = format!("{stage:?} after `never happened`");
        expect(&what, bench.view(first.id).await?, before)?;
    }
    Ok(())
}

/// Watches are optional. A store that offers them must wake the other handle after every kind of settlement.
pub(super) async fn a_settlement_wakes_who_watches_elsewhere<S: Store>(
    bench: &Bench<S>,
) -> Checked {
    let ends = [completion(outcome(claim(1).id)), Settlement::Release, DOUBT];
    for (number, end) in (1..).zip(ends) {
        let fence = bench.granted(&claim(number)).await?.fence;
        let Some(mut watch) = bench.twin.watch(claim(number).id) else {
            return Ok(());
        };
        let asked = send_claim(&*bench.twin, &claim(number)).await?;
        let want = Verdict::InFlight { lease_left: LEASE };
        expect("a claim on the other handle", asked, want)?;
        let what = format!("a watch on the other handle is notified of {}", brief(&end));
        bench.end(claim(number).id, fence, end).await?;
        let told = tokio::time::timeout(TOLD_WITHIN, watch.settled()).await;
        expect(&what, told.is_ok(), true)?;
    }
    Ok(())
}
