//! Records that an operator erases: T13.

use refrain::{Store, record::Erased};

use super::{
    bench::{Bench, Checked, MOMENT, REMEMBER, claim, expect, id},
    stage::Stage,
};

pub(super) async fn t13_erasing_frees_what_has_ended<S: Store>(bench: &Bench<S>) -> Checked {
    let none = bench.store.erase(id(9)).await?;
    expect("erasing a missing record", none, Erased::Absent)?;
    for (number, stage) in [(1, Stage::Completed), (2, Stage::Tombstone)] {
        let (first, fence) = stage.reach(bench, number).await?;
        let bystander = Stage::Completed.reach(bench, number + 10).await?.0;
        let erased = bench.store.erase(first.id).await?;
        expect(&format!("erasing {stage:?}"), erased, Erased::Gone)?;
        expect("the erased record", bench.view(first.id).await?, None)?;
        let again = bench.store.erase(first.id).await?;
        expect("erasing it again", again, Erased::Absent)?;
        let left = bench.view(bystander.id).await?.is_some();
        expect("another record is unchanged", left, true)?;
        let mut other = claim(number);
        other.fingerprint.0 = [9; 16];
        let grant = bench.granted(&other).await?;
        expect("the attempt after erasing", grant.attempt, 1)?;
        let grows = grant.fence > fence;
        expect("the fence after erasing is above the last", grows, true)?;
    }
    let (past, _) = Stage::Tombstone.reach(bench, 3).await?;
    bench.clock.advance(REMEMBER + MOMENT);
    let gone = bench.store.erase(past.id).await?;
    expect("erasing an expired record", gone, Erased::Absent)
}

pub(super) async fn t13_erasing_needs_an_end<S: Store>(bench: &Bench<S>) -> Checked {
    let stages = [
        (Stage::InFlight, Erased::InFlight),
        (Stage::Lapsed, Erased::Indeterminate),
        (Stage::UpForTakeover, Erased::InFlight),
        (Stage::Indeterminate, Erased::Indeterminate),
    ];
    for (number, (stage, want)) in (1..).zip(stages) {
        let (first, _) = stage.reach(bench, number).await?;
        let before = bench.view(first.id).await?;
        let refused = bench.store.erase(first.id).await?;
        expect(&format!("erasing {stage:?}"), refused, want)?;
        let what = format!("{stage:?} after a rejected erasure");
        expect(&what, bench.view(first.id).await?, before)?;
    }
    Ok(())
}
