//! What each scope holds, for quotas. Ends may be rounded up by 2 % of the remaining time, never down.

use std::time::Duration;

use refrain::{
    Claim, Outcome, Settlement, Store,
    record::{KeyDigest, Origin, OriginFields, ScopeDigest},
    store::ScopeUsage,
};

use super::{
    Fixture,
    bench::{Bench, Checked, DOUBT, REMEMBER, RETENTION, claim, completion, expect},
};

const SCOPES_MAX: usize = 1_000;
const LARGE: ScopeDigest = ScopeDigest([1; 8]);
const SMALL: ScopeDigest = ScopeDigest([2; 8]);

/// A claim of this scope; texts of several lengths precede the scope in the trace.
fn claim_of(scope: ScopeDigest, number: u64) -> Claim {
    let len = usize::try_from(number).unwrap_or(0) * 37;
    let origin = Origin::new(&OriginFields {
        operation: &"o".repeat(len % 150),
        method: "POST",
        target: &"t".repeat(len),
        key_digest: KeyDigest([9; 8]),
        key: &"k".repeat(len % 200),
        host: &"h".repeat(len % 250),
        scope_digest: scope,
        node: "node-1",
        trace_id: [7; 16],
    });
    Claim {
        origin,
        ..claim(number)
    }
}

/// A completion with a body of this length, and the length of its outcome as it is stored.
fn completion_of(claim: &Claim, body_len: usize) -> (Settlement, u64) {
    let outcome = Outcome::new(200, vec![7; body_len]).sealed(claim.id);
    let len = outcome.encoded().len() as u64;
    (completion(outcome), len)
}

async fn usage<S: Store>(bench: &Bench<S>, scope: ScopeDigest) -> Checked<ScopeUsage> {
    Ok(bench.twin.usage(SCOPES_MAX).await?.of(scope))
}

/// Checks the records and the bytes of a scope that are left after this time.
async fn holds<S: Store>(
    bench: &Bench<S>,
    scope: ScopeDigest,
    after: Duration,
    want: (i64, u64),
) -> Checked {
    let mut usage = usage(bench, scope).await?;
    usage.forget_ended(after);
    let what = format!("records and bytes of {scope} after {after:?}");
    expect(&what, (usage.records(), usage.bytes()), want)
}

/// Completes 20 records of the large scope; returns the bytes of their outcomes.
async fn fill<S: Store>(bench: &Bench<S>) -> Checked<u64> {
    let mut bytes = 0;
    for number in 1..=20 {
        let claim = claim_of(LARGE, number);
        let fence = bench.granted(&claim).await?.fence;
        let (end, len) = completion_of(&claim, 1_000);
        bench.end(claim.id, fence, end).await?;
        bytes += len;
    }
    Ok(bytes)
}

pub(super) async fn usage_is_counted_by_scope_until_it_ends<S: Store>(bench: &Bench<S>) -> Checked {
    let bytes = fill(bench).await?;
    bench.granted(&claim_of(SMALL, 21)).await?;
    let doubted = claim_of(SMALL, 22);
    let fence = bench.granted(&doubted).await?.fence;
    bench.end(doubted.id, fence, DOUBT).await?;
    let released = claim_of(SMALL, 23);
    let fence = bench.granted(&released).await?.fence;
    bench.end(released.id, fence, Settlement::Release).await?;
    // Without a known scope it belongs to none.
    let scopeless = Claim {
        origin: Origin::default(),
        ..claim(24)
    };
    bench.granted(&scopeless).await?;

    holds(bench, LARGE, Duration::ZERO, (20, bytes)).await?;
    holds(bench, LARGE, RETENTION - SECOND, (20, bytes)).await?;
    holds(bench, LARGE, late(RETENTION), (20, 0)).await?;
    let all = RETENTION + REMEMBER;
    holds(bench, LARGE, all - SECOND, (20, 0)).await?;
    holds(bench, LARGE, late(all), (0, 0)).await?;
    // The end of these is not known.
    holds(bench, SMALL, late(all), (2, 0)).await?;

    bench.clock.advance(RETENTION);
    holds(bench, LARGE, Duration::ZERO, (20, 0)).await?;
    holds(bench, LARGE, REMEMBER - SECOND, (20, 0)).await?;
    bench.clock.advance(REMEMBER);
    holds(bench, LARGE, Duration::ZERO, (0, 0)).await?;
    holds(bench, SMALL, Duration::ZERO, (2, 0)).await
}

pub(super) async fn a_restart_keeps_usage<F: Fixture>(fixture: &F) -> Checked {
    let bench = Bench::open(fixture).await?;
    let bytes = fill(&bench).await?;
    let open = claim_of(SMALL, 21);
    bench.granted(&open).await?;
    let bench = bench.restarted(fixture, |_| ()).await?;
    holds(&bench, LARGE, RETENTION - SECOND, (20, bytes)).await?;
    holds(&bench, LARGE, late(RETENTION), (20, 0)).await?;
    holds(&bench, SMALL, Duration::ZERO, (1, 0)).await?;
    bench.clock.advance(RETENTION);
    bench.store.sweep(1_000).await?;
    holds(&bench, LARGE, Duration::ZERO, (20, 0)).await?;
    let bench = bench.restarted(fixture, |_| ()).await?;
    holds(&bench, LARGE, Duration::ZERO, (20, 0)).await
}

const SECOND: Duration = Duration::from_secs(1);

/// When all that ends then is no longer counted.
fn late(end: Duration) -> Duration {
    end + end / 50 + SECOND
}
