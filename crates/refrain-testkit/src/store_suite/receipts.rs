//! Exactly-once: attempts whose receipt was looked up and not found (T6 and T8).

use refrain::{
    Claim, Fence, Settled, Settlement, Store, Verdict,
    record::{Doubt, Reason},
};

use super::bench::{
    Bench, Checked, DOUBT, LEASE, SETTLE_AFTER, claim, completion, expect, outcome, overtaking,
    receipted,
};

/// Makes an exactly-once record indeterminate.
async fn doubted<S: Store>(bench: &Bench<S>, number: u64) -> Checked<Fence> {
    let ask = receipted(number);
    let fence = bench.granted(&ask).await?.fence;
    bench.end(ask.id, fence, DOUBT).await?;
    Ok(fence)
}

fn in_doubt(fence: Fence, reason: Reason) -> Verdict {
    Verdict::Indeterminate(Doubt {
        fence,
        reason,
        settle_left: SETTLE_AFTER,
    })
}

pub(super) async fn t8_an_attempt_without_receipt_is_taken_over<S: Store>(
    bench: &Bench<S>,
) -> Checked {
    let doubt = doubted(bench, 1).await?;
    let lapsed = bench.granted(&receipted(2)).await?.fence;
    bench.clock.advance(LEASE);
    for (number, old) in [(1, doubt), (2, lapsed)] {
        let ask = overtaking(receipted(number), old);
        let grant = bench.granted(&ask).await?;
        expect("the attempt", grant.attempt, 2)?;
        let grows = grant.fence > old;
        expect("the fence is above the superseded one", grows, true)?;
        expect(
            "the same claimant, repeated",
            bench.granted(&ask).await?,
            grant,
        )?;
        let late = completion(outcome(ask.id));
        let late = bench.settle(ask.id, old, late).await?;
        expect("the superseded attempt", late, Settled::Fenced)?;
        let end = completion(outcome(ask.id));
        bench.end(ask.id, grant.fence, end).await?;
    }
    Ok(())
}

pub(super) async fn t8_needs_the_fence_of_the_last_attempt<S: Store>(bench: &Bench<S>) -> Checked {
    let first = doubted(bench, 1).await?;
    let want = in_doubt(first, Reason::Timeout);
    let what = "a claim that has looked up no receipt";
    bench.refused(what, &receipted(1), want).await?;
    let second = bench.granted(&overtaking(receipted(1), first)).await?.fence;
    bench.end(receipted(1).id, second, DOUBT).await?;
    let want = in_doubt(second, Reason::Timeout);
    let what = "a claim that has looked up the receipt of an older attempt";
    let ask = overtaking(receipted(1), first);
    bench.refused(what, &ask, want).await
}

pub(super) async fn t8_needs_receipts_on_both_sides_or_time<S: Store>(bench: &Bench<S>) -> Checked {
    let bare = bench.granted(&claim(1)).await?.fence;
    bench.end(claim(1).id, bare, DOUBT).await?;
    let what = "superseding an attempt without its own receipt";
    let ask = overtaking(receipted(1), bare);
    bench
        .refused(what, &ask, in_doubt(bare, Reason::Timeout))
        .await?;
    let fence = doubted(bench, 2).await?;
    let what = "a claim without a receipt while the attempt can act";
    let ask = || overtaking(claim(2), fence);
    bench
        .refused(what, &ask(), in_doubt(fence, Reason::Timeout))
        .await?;
    bench.clock.advance(SETTLE_AFTER);
    let grant = bench.granted(&ask()).await?;
    expect("the attempt once the last cannot act", grant.attempt, 2)
}

pub(super) async fn t8_without_receipt_ends_with_the_attempts<S: Store>(
    bench: &Bench<S>,
) -> Checked {
    let ask = |overtakes| Claim {
        attempts_max: 3,
        overtakes,
        ..receipted(1)
    };
    let mut last = None;
    for attempt in 1..=3 {
        let grant = bench.granted(&ask(last)).await?;
        expect("the attempt", grant.attempt, attempt)?;
        bench.end(ask(None).id, grant.fence, DOUBT).await?;
        last = Some(grant.fence);
    }
    let what = "a claim after the last attempt";
    let doubt = last.map(|fence| in_doubt(fence, Reason::Timeout));
    let Some(want) = doubt else { return Ok(()) };
    bench.refused(what, &ask(last), want).await
}

pub(super) async fn t6_a_release_speaks_for_one_attempt<S: Store>(bench: &Bench<S>) -> Checked {
    let ask = receipted(1);
    let first = bench.granted(&ask).await?.fence;
    bench.end(ask.id, first, Settlement::Release).await?;
    expect("the released record", bench.view(ask.id).await?, None)?;
    let mut last = doubted(bench, 1).await?;
    // More often than the default `attempts_max` of 10: a released attempt is not counted.
    for _ in 0..12 {
        let grant = bench.granted(&overtaking(receipted(1), last)).await?;
        expect("the attempt", grant.attempt, 2)?;
        last = grant.fence;
        bench.end(ask.id, last, Settlement::Release).await?;
        let want = in_doubt(last, Reason::Failed);
        let what = "a claim after a later attempt was released";
        bench.refused(what, &receipted(1), want).await?;
    }
    Ok(())
}
