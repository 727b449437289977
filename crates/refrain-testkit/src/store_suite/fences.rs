//! I4: a write whose fence is not current changes nothing, for every kind of write in every state.

use refrain::{Fence, Outcome, RecordId, Settled, Settlement, Store};

use super::{
    bench::{Bench, Checked, DOUBT, LEASE, claim, completion, expect, outcome, repeatable},
    stage::Stage,
};

pub(super) async fn i4_a_wrong_fence_changes_nothing<S: Store>(bench: &Bench<S>) -> Checked {
    let absent = claim(1_000).id;
    for fence in wrong(RIGHT_LOOKING) {
        changes_nothing(bench, "absent", absent, fence).await?;
    }
    for (number, stage) in (1..).zip(Stage::ALL) {
        let (first, right) = stage.reach(bench, number).await?;
        for fence in wrong(right) {
            let state = format!("{stage:?}");
            changes_nothing(bench, &state, first.id, fence).await?;
        }
    }
    Ok(())
}

/// Writes with the fence of an overtaken holder, while the new holder runs and after each way in which it can end.
pub(super) async fn i4_an_overtaken_fence_changes_nothing<S: Store>(bench: &Bench<S>) -> Checked {
    for number in 1..=2 {
        let (first, old) = Stage::UpForTakeover.reach(bench, number).await?;
        let new = bench.granted(&repeatable(number)).await?.fence;
        changes_nothing(bench, "taken over", first.id, old).await?;
        let end = match number {
            1 => completion(outcome(first.id)),
            _ => Settlement::Release,
        };
        let state = format!("taken over and ended with {end:?}");
        bench.end(first.id, new, end).await?;
        changes_nothing(bench, &state, first.id, old).await?;
    }
    Ok(())
}

pub(super) async fn i4_a_released_fence_changes_nothing<S: Store>(bench: &Bench<S>) -> Checked {
    let (first, old) = Stage::InFlight.reach(bench, 1).await?;
    bench.end(first.id, old, Settlement::Release).await?;
    changes_nothing(bench, "released", first.id, old).await?;
    bench.granted(&claim(1)).await?;
    changes_nothing(bench, "claimed after a release", first.id, old).await
}

async fn changes_nothing<S: Store>(
    bench: &Bench<S>,
    state: &str,
    id: RecordId,
    fence: Fence,
) -> Checked {
    let other = Outcome::new(500, b"another fence than the holder's").sealed(id);
    let ends = [
        completion(other),
        Settlement::Release,
        DOUBT,
        Settlement::NeverHappened,
    ];
    let before = bench.view(id).await?;
    for end in ends {
        let what = format!("{end:?} of a record that is {state}, with a fence that is not current");
        let settled = bench.settle(id, fence, end).await?;
        expect(&what, settled, Settled::Fenced)?;
        expect(
            &format!("the record after {what}"),
            bench.view(id).await?,
            before.clone(),
        )?;
    }
    let what = format!("renewing a record that is {state}, with a fence that is not current");
    let renewed = bench.renew(id, fence, LEASE * 9).await?;
    expect(&what, renewed, Settled::Fenced)?;
    expect(
        &format!("the record after {what}"),
        bench.view(id).await?,
        before,
    )
}

const RIGHT_LOOKING: Fence = Fence {
    epoch: 1,
    counter: 1,
    nonce: 1,
};

/// Fences that each differ from the right one in one field.
fn wrong(right: Fence) -> [Fence; 3] {
    let Fence {
        epoch,
        counter,
        nonce,
    } = right;
    [
        Fence {
            epoch: epoch ^ 1,
            ..right
        },
        Fence {
            counter: counter + 1,
            ..right
        },
        Fence {
            nonce: nonce ^ 1,
            ..right
        },
    ]
}
