//! What a store that declares that it survives its process must keep after a restart.

use std::{sync::Arc, time::Duration};

use refrain::{
    Claim, Fence, Settlement, Store, Verdict,
    clock::Timestamp,
    record::{Claimant, Erased, Record, State},
};

use super::{
    Fixture,
    bench::{
        Bench, Broken, Checked, LEASE, REMEMBER, RETENTION, claim, completion, expect, outcome,
        repeatable,
    },
    stage::Stage,
};

pub(super) async fn a_restart_keeps<F: Fixture>(fixture: &F, stage: Stage) -> Checked {
    let bench = Bench::open(fixture).await?;
    let (first, fence) = stage.reach(&bench, 1).await?;
    let before = bench.view(first.id).await?;
    let bench = bench.restarted(fixture, |_| ()).await?;
    match stage {
        Stage::InFlight => still_claimed(&bench, &first, fence).await,
        Stage::UpForTakeover => {
            let grant = bench.granted(&repeatable(1)).await?;
            expect("the attempt after a restart", grant.attempt, 2)?;
            let grows = grant.fence > fence;
            expect("the fence of the takeover is above the last", grows, true)
        }
        _ => still_the_same(before, bench.view(first.id).await?),
    }
}

/// Compares everything but the claimant, which a restart may lose, and the settle time, which it may only postpone.
fn still_the_same(before: Option<Record>, after: Option<Record>) -> Checked {
    let settle_left = |record: &Option<Record>| match record.as_ref().map(|record| &record.state) {
        Some(State::Indeterminate { hold, .. }) => hold.settles,
        _ => Timestamp::default(),
    };
    let no_earlier = settle_left(&after) >= settle_left(&before);
    let what = "`never happened` counts no earlier after a restart";
    expect(what, no_earlier, true)?;
    let (before, after) = (before.map(timeless), after.map(timeless));
    expect("the record after a restart", after, before)
}

fn timeless(mut record: Record) -> Record {
    if let State::Indeterminate { hold, .. } = &mut record.state {
        hold.claimant = Claimant::default();
        hold.settles = Timestamp::default();
    }
    record
}

/// A store with exclusive access to its records knows after a restart that their holders are gone, and may let their
/// leases lapse. It must keep the records, and must accept a write of a holder in another process.
async fn still_claimed<S: Store>(bench: &Bench<S>, first: &Claim, fence: Fence) -> Checked {
    let record = bench.view(first.id).await?;
    let known = record.as_ref().and_then(|record| record.fence());
    expect("the fence after a restart", known, Some(fence))?;
    let fits = match record.map(|record| record.state) {
        Some(State::InFlight { lease_ends, .. }) => u128::from(lease_ends.0) <= LEASE.as_millis(),
        Some(State::Indeterminate { .. }) => true,
        _ => false,
    };
    expect(
        "it is in flight or indeterminate after a restart",
        fits,
        true,
    )?;
    if let Verdict::Granted(_) = bench.send_claim(&claim(1)).await? {
        return Err(Broken(
            "a claimed key was granted again after a restart".into(),
        ));
    }
    bench
        .end(first.id, fence, completion(outcome(first.id)))
        .await?;
    let want = Verdict::Replay(outcome(first.id));
    expect(
        "a claim after that",
        bench.send_claim(&claim(1)).await?,
        want,
    )
}

/// Also for a key that was claimed again after the erase, and after sweeps.
pub(super) async fn a_restart_keeps_what_was_erased<F: Fixture>(fixture: &F) -> Checked {
    let mut bench = Bench::open(fixture).await?;
    let (tombstone, _) = Stage::Tombstone.reach(&bench, 2).await?;
    let (first, _) = Stage::Completed.reach(&bench, 1).await?;
    let (again, _) = Stage::Completed.reach(&bench, 3).await?;
    for id in [first.id, tombstone.id, again.id] {
        expect("erasing", bench.store.erase(id).await?, Erased::Gone)?;
    }
    let (_, fence) = Stage::Completed.reach(&bench, 3).await?;
    for round in 0..3 {
        bench = bench.restarted(fixture, |_| ()).await?;
        for id in [first.id, tombstone.id] {
            let what = format!("the erased record, after restart {round}");
            expect(&what, bench.view(id).await?, None)?;
        }
        let kept = bench.view(again.id).await?;
        let kept = kept.and_then(|record| record.fence());
        expect(
            "the next claim of the key after a restart",
            kept,
            Some(fence),
        )?;
        bench.store.sweep(100).await?;
    }
    bench.granted(&claim(1)).await?;
    Ok(())
}

pub(super) async fn i11_fences_grow_over_restarts<F: Fixture>(fixture: &F) -> Checked {
    let mut bench = Bench::open(fixture).await?;
    let mut last = None;
    for _ in 0..4 {
        for _ in 0..3 {
            let fence = bench.granted(&claim(1)).await?.fence;
            let what = format!("the fence {fence} is above {last:?}, also over restarts");
            expect(&what, Some(fence) > last, true)?;
            last = Some(fence);
            bench.end(claim(1).id, fence, Settlement::Release).await?;
        }
        bench = bench.restarted(fixture, |_| ()).await?;
    }
    Ok(())
}

pub(super) async fn time_passes_while_closed<F: Fixture>(fixture: &F) -> Checked {
    let bench = Bench::open(fixture).await?;
    Stage::Completed.reach(&bench, 1).await?;
    let bench = bench
        .restarted(fixture, |clock| clock.advance(RETENTION))
        .await?;
    let what = "a claim when retention ended while the store was closed";
    bench.refused(what, &claim(1), Verdict::Expired).await?;
    let bench = bench
        .restarted(fixture, |clock| clock.advance(REMEMBER))
        .await?;
    bench.granted(&claim(1)).await?;
    Ok(())
}

/// A store cannot know how long the machine was off, and must not trust the wall clock for it.
pub(super) async fn a_reboot_ends_nothing_early<F: Fixture>(fixture: &F) -> Checked {
    let bench = Bench::open(fixture).await?;
    let (first, _) = Stage::Completed.reach(&bench, 1).await?;
    bench.clock.advance(RETENTION / 2);
    Stage::Indeterminate.reach(&bench, 2).await?;
    let decade = Duration::from_secs(10 * 365 * 86_400);
    let bench = bench
        .restarted(fixture, |clock| {
            clock.reboot();
            clock.jump(decade);
        })
        .await?;
    expect(
        "the number of records swept after a reboot",
        bench.store.sweep(100).await?,
        0,
    )?;
    let want = Verdict::Replay(outcome(first.id));
    let what = "a claim within retention, after a reboot";
    expect(what, bench.send_claim(&claim(1)).await?, want)?;
    let doubted = matches!(
        bench.send_claim(&claim(2)).await?,
        Verdict::Indeterminate(_)
    );
    expect(
        "an indeterminate record stays indeterminate after a reboot",
        doubted,
        true,
    )?;
    bench.clock.advance(RETENTION);
    let what = "a claim after the end of retention, with a reboot before";
    expect(what, bench.send_claim(&claim(1)).await?, Verdict::Expired)
}

impl<S: Store> Bench<S> {
    /// Closes every handle, lets `meanwhile` change the clock, and reopens the records.
    pub(super) async fn restarted<F: Fixture<Store = S>>(
        self,
        fixture: &F,
        meanwhile: impl FnOnce(&crate::ManualClock),
    ) -> Checked<Self> {
        let Self { clock, store, twin } = self;
        drop(twin);
        let store = Arc::into_inner(store)
            .ok_or_else(|| Broken("the fixture keeps a handle on the store".into()))?;
        // Change the clock only now, so that the new handle sees the change and the closed one does not.
        meanwhile(&clock);
        let reopened = fixture.reopen(store, clock.shared()).await?;
        let store = Arc::new(reopened.ok_or_else(|| {
            let message =
                "the store promises to survive its process: its fixture must implement `reopen`";
            Broken(message.into())
        })?);
        let twin = fixture.another(&store).await?;
        Ok(Self { clock, store, twin })
    }
}
