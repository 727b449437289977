//! Races: many tasks on two handles of one store.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};

use refrain::{Claim, Error, Fence, RecordId, Settled, Settlement, Store, Verdict};
use tokio::{
    runtime::{Handle, RuntimeFlavor},
    time::{Instant, sleep},
};

use super::{
    Options,
    bench::{
        Bench, Broken, Checked, brief, claim, completion, expect, id, outcome, repeatable,
        send_claims,
    },
    stage::Stage,
    view,
};

/// Concurrent claims of one task, where a case needs many.
const BATCH: u32 = 100;
/// How long a racer repeats a call that changed nothing because another racer held the record's lock.
const LOCKED_MAX: Duration = Duration::from_secs(30);
const LOCKED_PAUSE: Duration = Duration::from_millis(10);

pub(super) async fn one_of_many_is_granted<S: Store>(
    bench: &Bench<S>,
    options: &Options,
) -> Checked {
    for round in 1..=u64::from(options.rounds) {
        let answers = race(bench, options.racers, |_, store| async move {
            send_claim_unlocked(&*store, &claim(round)).await
        })
        .await?;
        let mut granted = 0;
        for verdict in answers {
            match verdict {
                Verdict::Granted(_) => granted += 1,
                Verdict::InFlight { .. } => (),
                other => return Err(unexpected("a racing claim", &other)),
            }
        }
        expect("how many of the racing claims are granted", granted, 1)?;
    }
    Ok(())
}

/// A late completion races with takeovers: either the completion or one takeover wins, never both.
pub(super) async fn completion_races_takeover<S: Store>(
    bench: &Bench<S>,
    options: &Options,
) -> Checked {
    for round in 1..=u64::from(options.rounds) {
        let (first, old) = Stage::UpForTakeover.reach(bench, round).await?;
        let late = outcome(first.id);
        let end = completion(late.clone());
        let answers = race(bench, options.racers, move |racer, store| {
            let end = end.clone();
            async move {
                match racer {
                    0 => Ok(RaceResult::Settled(
                        settle_unlocked(&*store, id(round), old, end).await?,
                    )),
                    _ => Ok(RaceResult::Verdict(
                        send_claim_unlocked(&*store, &repeatable(round)).await?,
                    )),
                }
            }
        })
        .await?;
        let landed = answers.contains(&RaceResult::Settled(Settled::Applied));
        let fences: Vec<_> = answers.iter().filter_map(RaceResult::fence).collect();
        let want = if landed { 0 } else { 1 };
        let what = format!("takeovers granted (the late completion landed: {landed})");
        expect(&what, fences.len(), want)?;
        let left = bench
            .view(first.id)
            .await?
            .and_then(|record| record.fence());
        let current = fences.first().copied().unwrap_or(old);
        expect("the fence that is current in the end", left, Some(current))?;
        if landed {
            let want = Verdict::Replay(late);
            let what = "a claim after the late completion landed";
            bench.refused(what, &claim(round), want).await?;
        }
    }
    Ok(())
}

/// Claims; again if the record was locked for too long.
async fn send_claim_unlocked(store: &impl Store, claim: &Claim) -> Checked<Verdict> {
    let end = Instant::now() + LOCKED_MAX;
    loop {
        match store.claim(claim.clone()).await {
            Err(error) if was_locked(&error) && Instant::now() < end => sleep(LOCKED_PAUSE).await,
            verdict => return Ok(view::of_verdict(verdict?, claim.id)),
        }
    }
}

/// Settles; again if the record was locked for too long.
async fn settle_unlocked(
    store: &impl Store,
    id: RecordId,
    fence: Fence,
    settlement: Settlement,
) -> Checked<Settled> {
    let end = Instant::now() + LOCKED_MAX;
    loop {
        match store.settle(id, fence, settlement.clone()).await {
            Err(error) if was_locked(&error) && Instant::now() < end => sleep(LOCKED_PAUSE).await,
            settled => return Ok(settled?),
        }
    }
}

fn was_locked(error: &Error) -> bool {
    error.is_retryable() && error.is_unapplied()
}

#[derive(Debug, PartialEq)]
enum RaceResult {
    Settled(Settled),
    Verdict(Verdict),
}

impl RaceResult {
    fn fence(&self) -> Option<Fence> {
        match self {
            Self::Verdict(Verdict::Granted(grant)) => Some(grant.fence),
            _ => None,
        }
    }
}

/// Between a grant and its release no other claim is granted.
pub(super) async fn holders_exclude_each_other<S: Store>(
    bench: &Bench<S>,
    options: &Options,
) -> Checked {
    let busy = Arc::new(AtomicBool::new(false));
    let turns = Arc::new(AtomicU32::new(0));
    let rounds = options.rounds;
    let (shared_busy, shared_turns) = (busy.clone(), turns.clone());
    race(bench, options.racers, move |_, store| {
        let (busy, turns) = (shared_busy.clone(), shared_turns.clone());
        async move {
            for _ in 0..rounds {
                hold_once(&*store, &busy, &turns).await?;
                tokio::task::yield_now().await;
            }
            Ok(())
        }
    })
    .await?;
    let held = turns.load(Ordering::SeqCst) > 0;
    expect("at least one claim was granted", held, true)
}

async fn hold_once(store: &impl Store, busy: &AtomicBool, turns: &AtomicU32) -> Checked {
    let ask_for = claim(1);
    let Verdict::Granted(grant) = send_claim_unlocked(store, &ask_for).await? else {
        return Ok(());
    };
    let was_busy = busy.swap(true, Ordering::SeqCst);
    expect(
        "a key was granted to two claimants at once",
        was_busy,
        false,
    )?;
    turns.fetch_add(1, Ordering::SeqCst);
    tokio::task::yield_now().await;
    busy.store(false, Ordering::SeqCst);
    let settled = settle_unlocked(store, ask_for.id, grant.fence, Settlement::Release).await?;
    expect("the release by its holder", settled, Settled::Applied)
}

pub(super) async fn i11_fences_are_never_issued_twice<S: Store>(
    bench: &Bench<S>,
    options: &Options,
) -> Checked {
    let racers = u32::try_from(options.racers).unwrap_or(1).max(1);
    let batches = options.fences.div_ceil(BATCH * racers);
    let per_racer = batches * BATCH;
    let granted = race(bench, options.racers, move |racer, store| async move {
        let mut fences = Vec::new();
        for batch in 0..batches {
            let start = u32::try_from(racer).unwrap_or(0) * per_racer + batch * BATCH;
            fences.extend(grants(&*store, start).await?);
        }
        Ok(fences)
    })
    .await?;
    let fences: Vec<_> = granted.into_iter().flatten().collect();
    let distinct: HashSet<_> = fences.iter().collect();
    expect("different fences", distinct.len(), fences.len())?;
    let want = (racers * per_racer) as usize;
    expect("fences granted", fences.len(), want)
}

async fn grants(store: &impl Store, start: u32) -> Checked<Vec<Fence>> {
    let claims: Vec<_> = (start..start + BATCH).map(|n| claim(n.into())).collect();
    let verdicts = send_claims(store, &claims).await?;
    let fence = |verdict: Verdict| match verdict {
        Verdict::Granted(grant) => Ok(grant.fence),
        other => Err(unexpected("a claim of a new key", &other)),
    };
    verdicts.into_iter().map(fence).collect()
}

/// Starts `racers` tasks at the same moment, alternating between the two handles.
/// The tasks yield until all of them run. With a wake-up per task the first would end before the last starts.
async fn race<S, T, Run, Running>(bench: &Bench<S>, racers: usize, run: Run) -> Checked<Vec<T>>
where
    S: Store,
    T: Send + 'static,
    Run: Fn(usize, Arc<S>) -> Running,
    Running: Future<Output = Checked<T>> + Send + 'static,
{
    if Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread {
        let message = "the race cases need several threads: run the suite under #[tokio::test(flavor = \"multi_thread\")]";
        return Err(Broken(message.into()));
    }
    let missing = Arc::new(AtomicUsize::new(racers));
    let spawn = |racer| {
        let running = run(racer, bench.handle(racer));
        let missing = missing.clone();
        tokio::spawn(async move {
            missing.fetch_sub(1, Ordering::SeqCst);
            while missing.load(Ordering::SeqCst) > 0 {
                tokio::task::yield_now().await;
            }
            running.await
        })
    };
    let tasks: Vec<_> = (0..racers).map(spawn).collect();
    let mut answers = Vec::new();
    for task in tasks {
        let ended = task.await;
        answers.push(ended.map_err(|error| Broken(format!("a racing task failed: {error}")))??);
    }
    Ok(answers)
}

fn unexpected(what: &str, verdict: &Verdict) -> Broken {
    Broken(format!("{what} got the reply {}", brief(verdict)))
}
