//! What operators learn of a record: origin, attempts and ends.

use std::time::Duration;

use refrain::{
    Claim, RecordId, Store,
    record::{End, History, Reason},
};

use super::bench::{
    Bench, Checked, DOUBT, LEASE, claim, completion, expect, origin, outcome, overtaking,
    receipted, repeatable,
};

async fn history<S: Store>(bench: &Bench<S>, id: RecordId) -> Checked<History> {
    let reading = bench.twin.read(id).await?;
    let history = reading.and_then(|reading| reading.record.trace.read());
    expect("whether there is a trace", history.is_some(), true)?;
    Ok(history.unwrap_or_default())
}

pub(super) async fn a_trace_tells_who_tried_what_and_how_it_ended<S: Store>(
    bench: &Bench<S>,
) -> Checked {
    let first = receipted(1);
    let one = bench.granted(&first).await?;
    bench.clock.advance(Duration::from_secs(5));
    bench.end(first.id, one.fence, DOUBT).await?;
    let second = Claim {
        origin: origin("node-2"),
        ..overtaking(receipted(1), one.fence)
    };
    bench.clock.advance(Duration::from_secs(1));
    let two = bench.granted(&second).await?;
    bench.clock.advance(Duration::from_secs(2));
    let end = completion(outcome(first.id));
    bench.end(first.id, two.fence, end).await?;

    let history = history(bench, first.id).await?;
    expect("the operation", &*history.operation, "payments")?;
    expect("the target", &*history.target, "POST /v1/payments")?;
    expect("the key", history.key.as_deref(), Some("order-7"))?;
    let scope = history.scope_digest.map(|digest| digest.0);
    expect("the scope digest", scope, Some([7; 8]))?;
    expect("the number of attempts", history.attempts.len(), 2)?;
    let [a, b] = [&history.attempts[0], &history.attempts[1]];
    expect("the fences", [a.fence, b.fence], [one.fence, two.fence])?;
    expect("the numbers", [a.number, b.number], [1, 2])?;
    expect("the nodes", [&*a.node, &*b.node], ["node-1", "node-2"])?;
    expect("the trace id", a.trace_id, Some([7; 16]))?;
    let unknown = (a.at + Duration::from_secs(5), End::Unknown(Reason::Timeout));
    expect("the end of the first", &a.ends[..], &[unknown])?;
    expect("the second", b.at, a.at + Duration::from_secs(6))?;
    let completed = (b.at + Duration::from_secs(2), End::Completed);
    expect("the end of the second", &b.ends[..], &[completed])?;
    let seen = (history.first_seen(), history.last_change());
    expect("first and last", seen, (Some(a.at), Some(completed.0)))?;

    let quick = claim(2);
    let fence = bench.granted(&quick).await?.fence;
    let end = completion(outcome(quick.id));
    bench.end(quick.id, fence, end).await?;
    let quick = self::history(bench, quick.id).await?;
    let ends: Vec<_> = quick
        .attempts
        .iter()
        .map(|it| (it.fence, it.ends.len()))
        .collect();
    expect("a request without trouble", ends, vec![(fence, 1)])
}

pub(super) async fn a_trace_of_many_attempts_keeps_the_first_and_the_last<S: Store>(
    bench: &Bench<S>,
) -> Checked {
    let ask = || Claim {
        attempts_max: 100,
        ..repeatable(1)
    };
    for attempt in 1..=100 {
        let grant = bench.granted(&ask()).await?;
        expect("the attempt", grant.attempt, attempt)?;
        bench.clock.advance(LEASE);
    }
    let history = history(bench, ask().id).await?;
    let numbers: Vec<_> = history.attempts.iter().map(|it| it.number).collect();
    expect("the first", numbers.first(), Some(&1))?;
    expect("the last", numbers.last(), Some(&100))?;
    expect("whether some were dropped", numbers.len() < 30, true)
}
