//! Transitions by time, T7, T11 and T12, and what time must not change.

use std::time::Duration;

use refrain::{
    RecordId, Settlement, Store, Verdict,
    record::{Doubt, Reason},
    store::StateName,
};

use super::{
    bench::{
        Bench, Broken, Checked, LEASE, MOMENT, REMEMBER, RETENTION, SETTLE_AFTER, claim,
        completion, expect, outcome, repeatable,
    },
    stage::Stage,
};

const DECADE: Duration = Duration::from_secs(10 * 365 * 86_400);

pub(super) async fn t7_a_lapsed_claim_is_indeterminate<S: Store>(bench: &Bench<S>) -> Checked {
    let (_, fence) = Stage::Lapsed.reach(bench, 1).await?;
    let want = Verdict::Indeterminate(Doubt {
        fence,
        reason: Reason::Lapsed,
        settle_left: SETTLE_AFTER - LEASE,
    });
    for ask in [claim(1), repeatable(1)] {
        let what = format!(
            "a claim ({:?}) on a lapsed at-most-once record",
            ask.guarantee
        );
        bench.refused(&what, &ask, want.clone()).await?;
    }
    Ok(())
}

pub(super) async fn t11_after_retention_the_key_is_refused<S: Store>(bench: &Bench<S>) -> Checked {
    let (first, fence) = Stage::Completed.reach(bench, 1).await?;
    bench.clock.advance(RETENTION - MOMENT);
    let want = Verdict::Replay(outcome(first.id));
    let what = "a claim just before retention ends";
    bench.refused(what, &claim(1), want).await?;
    bench.clock.advance(MOMENT);
    let what = "a claim when retention has ended";
    bench.refused(what, &claim(1), Verdict::Expired).await?;
    let late = bench
        .settle(first.id, fence, completion(outcome(first.id)))
        .await?;
    expect("completing a tombstone", late, refrain::Settled::Fenced)
}

pub(super) async fn t12_after_remember_the_key_is_free<S: Store>(bench: &Bench<S>) -> Checked {
    for (number, sweeps) in [(1, false), (2, true)] {
        let (first, old) = Stage::Tombstone.reach(bench, number).await?;
        bench.clock.advance(REMEMBER - MOMENT);
        if sweeps {
            bench.store.sweep(100).await?;
        }
        let what = "a claim just before the key is forgotten";
        bench
            .refused(what, &claim(number), Verdict::Expired)
            .await?;
        bench.clock.advance(MOMENT);
        expect("the forgotten record", bench.view(first.id).await?, None)?;
        let grant = bench.granted(&claim(number)).await?;
        expect("the attempt after the key was forgotten", grant.attempt, 1)?;
        let grows = grant.fence > old;
        expect("its fence is above the last", grows, true)?;
    }
    Ok(())
}

pub(super) async fn i8_time_alone_loses_nothing<S: Store>(bench: &Bench<S>) -> Checked {
    let stages = [Stage::InFlight, Stage::Lapsed, Stage::Indeterminate];
    let mut ids = Vec::new();
    for (number, stage) in (1..).zip(stages) {
        ids.push((stage, stage.reach(bench, number).await?.0.id));
    }
    let last = Stage::UpForTakeover.reach(bench, 9).await?.0.id;
    bench.clock.advance(DECADE);
    sweep_all(bench).await?;
    for (stage, id) in ids {
        let state = bench.view(id).await?.map(|record| record.state.name());
        let what = format!("{stage:?} after ten years and a sweep");
        expect(&what, state, Some(StateName::Indeterminate))?;
    }
    let state = bench.view(last).await?.map(|record| record.state.name());
    let what = "an at-least-once claim after ten years and a sweep";
    expect(what, state, Some(StateName::InFlight))?;
    let attempt = bench.granted(&repeatable(9)).await?.attempt;
    expect("its next attempt", attempt, 2)
}

pub(super) async fn the_wall_clock_is_not_believed<S: Store>(bench: &Bench<S>) -> Checked {
    for (base, forward) in [(10, true), (20, false)] {
        for (number, stage) in (base..).zip([Stage::InFlight, Stage::Completed, Stage::Tombstone]) {
            let (first, _) = stage.reach(bench, number).await?;
            // Remove records that are already expired by the steady clock.
            sweep_all(bench).await?;
            let before = bench.view(first.id).await?;
            match forward {
                true => bench.clock.jump(DECADE),
                false => bench.clock.jump_back(DECADE),
            }
            let swept = bench.store.sweep(100).await?;
            expect(
                "the number of records swept after the wall clock was set",
                swept,
                0,
            )?;
            let what = format!("{stage:?} after the wall clock was set (forward: {forward})");
            expect(&what, bench.view(first.id).await?, before)?;
        }
    }
    Ok(())
}

/// A store may drop expired records one by one or by whole files, at once or later; only the remaining records count.
pub(super) async fn a_sweep_takes_only_what_is_past_its_time<S: Store>(
    bench: &Bench<S>,
) -> Checked {
    for number in 1..=5 {
        Stage::Completed.reach(bench, number).await?;
    }
    bench.clock.advance(RETENTION + REMEMBER);
    let mut kept = Vec::new();
    // In reverse order: reaching a state advances the clock, which must not age the records made before it.
    for (number, stage) in (10..).zip(Stage::ALL.iter().rev()) {
        kept.push(stage.reach(bench, number).await?.0.id);
    }
    let before = views(bench, &kept).await?;
    let swept = sweep_all(bench).await?;
    // The five records, and the outcome of the record that is now a tombstone.
    let fits = swept <= 6;
    expect("sweeps delete only expired records", fits, true)?;
    expect("the remaining records", views(bench, &kept).await?, before)?;
    for number in 1..=5 {
        let gone = bench.view(claim(number).id).await?;
        expect("the swept records", gone, None)?;
    }
    Ok(())
}

pub(super) async fn sweeps_come_to_an_end<S: Store>(bench: &Bench<S>) -> Checked {
    for number in 1..=40 {
        let ask = claim(number);
        let fence = bench.granted(&ask).await?.fence;
        let end = Settlement::Complete {
            outcome: outcome(ask.id),
            retention: Duration::ZERO,
            remember: MOMENT,
        };
        bench.end(ask.id, fence, end).await?;
    }
    bench.clock.advance(MOMENT);
    let first = bench.store.sweep(10).await?;
    let rest = sweep_all(bench).await?;
    let fits = first + rest <= 40;
    expect("sweeps delete at most the existing records", fits, true)
}

async fn views<S: Store>(
    bench: &Bench<S>,
    ids: &[RecordId],
) -> Checked<Vec<Option<refrain::record::Record>>> {
    let mut views = Vec::new();
    for id in ids {
        views.push(bench.view(*id).await?);
    }
    Ok(views)
}

/// Sweeps until a sweep removes nothing.
async fn sweep_all<S: Store>(bench: &Bench<S>) -> Checked<u32> {
    let mut swept = 0;
    for _ in 0..100 {
        match bench.store.sweep(100).await? {
            0 => return Ok(swept),
            some => swept += some,
        }
    }
    Err(Broken(
        "100 sweeps in a row deleted records: sweeping does not end".into(),
    ))
}
