//! Claims: T1, T2, T3, T8, and repeated claims of one claimant.

use std::time::Duration;

use refrain::{
    Claim, Credential, Fingerprint, Guarantee, Store, Verdict,
    record::{Claimant, Doubt, Reason},
};

use super::{
    bench::{
        Bench, Broken, Checked, LEASE, MOMENT, SETTLE_AFTER, brief, claim, completion, expect,
        outcome, repeatable, send_claims,
    },
    stage::Stage,
};

pub(super) async fn t1_an_absent_key_is_granted<S: Store>(bench: &Bench<S>) -> Checked {
    let first = claim(1);
    expect("the record before", bench.view(first.id).await?, None)?;
    let grant = bench.granted(&first).await?;
    expect("the attempt", grant.attempt, 1)?;
    let view = bench.view(first.id).await?;
    let fence = view.and_then(|record| record.fence());
    expect("the fence of the record", fence, Some(grant.fence))
}

pub(super) async fn t2_another_claimant_finds_it_in_flight<S: Store>(bench: &Bench<S>) -> Checked {
    for guarantee in [Guarantee::AtMostOnce, Guarantee::AtLeastOnce] {
        let number = guarantee as u64;
        let ask = || Claim {
            guarantee,
            ..claim(number)
        };
        bench.granted(&ask()).await?;
        bench.clock.advance(Duration::from_secs(10));
        let lease_left = Duration::from_secs(20);
        let want = Verdict::InFlight { lease_left };
        bench.refused("a second claim", &ask(), want).await?;
        bench.clock.advance(lease_left - MOMENT);
        let want = Verdict::InFlight { lease_left: MOMENT };
        let what = "a claim just before the lease lapses";
        bench.refused(what, &ask(), want).await?;
    }
    Ok(())
}

pub(super) async fn t3_credential_then_fingerprint_then_state<S: Store>(
    bench: &Bench<S>,
) -> Checked {
    for (number, stage) in (1..).zip(Stage::ALL) {
        let (first, _) = stage.reach(bench, number).await?;
        let stranger = Claim {
            credential: Some(Credential([2; 8])),
            ..first.clone()
        };
        let changed = Claim {
            fingerprint: Fingerprint([2; 16]),
            ..first
        };
        let both = Claim {
            fingerprint: changed.fingerprint,
            ..stranger.clone()
        };
        // A tombstone keeps only the fingerprint.
        let (other, neither) = match stage {
            Stage::Tombstone => (Verdict::Expired, Verdict::Mismatch),
            _ => (Verdict::OtherCredential, Verdict::OtherCredential),
        };
        let asks = [
            ("another credential", stranger, other),
            ("another fingerprint", changed, Verdict::Mismatch),
            ("another credential and fingerprint", both, neither),
        ];
        for (what, ask, want) in asks {
            // Also from the claimant that holds the record.
            let by_another = Claim {
                claimant: Claimant::random(),
                ..ask.clone()
            };
            for (who, ask) in [("the holder", ask), ("another claimant", by_another)] {
                let what = format!("{what} on {stage:?} by {who}");
                bench.refused(&what, &ask, want.clone()).await?;
            }
        }
    }
    Ok(())
}

pub(super) async fn t3_a_claim_without_credential_is_not_bound<S: Store>(
    bench: &Bench<S>,
) -> Checked {
    let unbound = |number| Claim {
        credential: None,
        ..claim(number)
    };
    let cases = [(1, claim(1), unbound(1)), (2, unbound(2), claim(2))];
    for (number, first, second) in cases {
        bench.granted(&first).await?;
        let want = Verdict::InFlight { lease_left: LEASE };
        let what = format!("a claim where only one side has a credential ({number})");
        bench.refused(&what, &second, want).await?;
    }
    Ok(())
}

pub(super) async fn the_same_claimant_gets_the_same_fence<S: Store>(bench: &Bench<S>) -> Checked {
    for (number, ask) in [(1, claim(1)), (2, repeatable(2))] {
        let grant = bench.granted(&ask).await?;
        for _ in 0..2 {
            bench.clock.advance(LEASE - MOMENT);
            let again = bench.granted(&ask).await?;
            let what = format!("the repeated grant of claimant {number}");
            expect(&what, again, grant)?;
        }
        let end = completion(outcome(ask.id));
        bench.end(ask.id, grant.fence, end).await?;
    }
    Ok(())
}

pub(super) async fn t8_a_lapsed_claim_is_taken_over<S: Store>(bench: &Bench<S>) -> Checked {
    let first = bench.granted(&repeatable(1)).await?;
    bench.clock.advance(LEASE);
    let second = bench.granted(&repeatable(1)).await?;
    expect("the attempt", second.attempt, 2)?;
    let grows = second.fence > first.fence;
    expect("the second fence is above the first", grows, true)?;
    let want = Verdict::InFlight { lease_left: LEASE };
    let what = "a claim after the takeover";
    bench.refused(what, &repeatable(1), want).await
}

pub(super) async fn t8_needs_a_claim_that_stands_for_it<S: Store>(bench: &Bench<S>) -> Checked {
    for guarantee in [Guarantee::AtMostOnce, Guarantee::ExactlyOnce] {
        let number = guarantee as u64;
        let fence = bench.granted(&repeatable(number)).await?.fence;
        bench.clock.advance(LEASE);
        let ask = Claim {
            guarantee,
            ..claim(number)
        };
        let want = Verdict::Indeterminate(Doubt {
            fence,
            reason: Reason::Lapsed,
            settle_left: SETTLE_AFTER - LEASE,
        });
        expect(
            "a claim that must not execute it again",
            bench.send_claim(&ask).await?,
            want,
        )?;
    }
    Ok(())
}

pub(super) async fn t8_ends_with_the_attempts<S: Store>(bench: &Bench<S>) -> Checked {
    let ask = || Claim {
        attempts_max: 3,
        ..repeatable(1)
    };
    let mut fence = None;
    for attempt in 1..=3 {
        let grant = bench.granted(&ask()).await?;
        expect("the attempt", grant.attempt, attempt)?;
        fence = Some(grant.fence);
        bench.clock.advance(LEASE);
    }
    let Verdict::Indeterminate(doubt) = bench.send_claim(&ask()).await? else {
        let message = "after the last attempt lapsed: expected indeterminate, got something else";
        return Err(Broken(message.into()));
    };
    expect(
        "the fence of the indeterminate record",
        Some(doubt.fence),
        fence,
    )
}

pub(super) async fn a_zero_lease_lapses_at_once<S: Store>(bench: &Bench<S>) -> Checked {
    let zero = |claim: Claim| Claim {
        lease: Duration::ZERO,
        ..claim
    };
    let fence = bench.granted(&zero(claim(1))).await?.fence;
    let want = Verdict::Indeterminate(Doubt {
        fence,
        reason: Reason::Lapsed,
        settle_left: SETTLE_AFTER,
    });
    let what = "a claim directly after an at-most-once claim with a zero lease";
    expect(what, bench.send_claim(&claim(1)).await?, want)?;
    bench.granted(&zero(repeatable(2))).await?;
    let grant = bench.granted(&repeatable(2)).await?;
    expect("the attempt after a zero lease", grant.attempt, 2)
}

pub(super) async fn concurrent_claims_grant_a_key_once<S: Store>(bench: &Bench<S>) -> Checked {
    let claims = [1, 2, 1, 3, 2, 1].map(claim);
    let verdicts = send_claims(&*bench.store, &claims).await?;
    let mut granted = Vec::new();
    for (claim, verdict) in claims.iter().zip(verdicts) {
        match verdict {
            Verdict::Granted(_) => granted.push(claim.id),
            Verdict::InFlight { .. } => (),
            other => {
                let got = brief(&other);
                let message =
                    format!("expected a grant or in flight for a concurrent claim, got {got}");
                return Err(Broken(message));
            }
        }
    }
    granted.sort();
    let mut want: Vec<_> = [1, 2, 3].map(super::bench::id).into();
    want.sort();
    let what = "the keys granted to concurrent claims with duplicates";
    expect(what, granted, want)
}

pub(super) async fn concurrent_claims_get_their_own_verdicts<S: Store>(
    bench: &Bench<S>,
) -> Checked {
    let mut claims = Vec::new();
    let mut want = Vec::new();
    for number in 1..=5 {
        let (first, _) = Stage::Completed.reach(bench, number).await?;
        claims.push(claim(number));
        want.push(Verdict::Replay(outcome(first.id)));
    }
    claims[2].fingerprint = Fingerprint([9; 16]);
    want[2] = Verdict::Mismatch;
    let got = send_claims(&*bench.store, &claims).await?;
    expect("the verdicts of concurrent claims", got, want)
}

/// I3: a change to one record affects no other record.
pub(super) async fn records_do_not_interact<S: Store>(bench: &Bench<S>) -> Checked {
    let bystander = claim(100);
    let grant = bench.granted(&bystander).await?;
    let end = completion(outcome(bystander.id));
    bench.end(bystander.id, grant.fence, end).await?;
    for number in 1..=20 {
        let stage = Stage::ALL[usize::try_from(number).unwrap_or(0) % 4];
        let (first, fence) = stage.reach(bench, number).await?;
        let want = Verdict::Replay(outcome(bystander.id));
        let what = format!("the bystander beside {stage:?}");
        expect(&what, bench.send_claim(&claim(100)).await?, want)?;
        let other = bench
            .settle(bystander.id, fence, refrain::Settlement::Release)
            .await?;
        let what = "settling with another record's fence";
        expect(what, other, refrain::Settled::Fenced)?;
        let kept = bench.view(first.id).await?.is_some();
        expect("the record beside the bystander is kept", kept, true)?;
    }
    Ok(())
}
