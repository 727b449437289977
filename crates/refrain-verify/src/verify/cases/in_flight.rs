//! Cases about duplicates that arrive while the first request runs.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::judge;
use crate::{
    chaos::Fault,
    verify::{
        CaseVerdict,
        between::Between,
        stage::{Intent, Stage, Stop},
        wire::{Lost, Sent},
    },
};

const ROUNDS: u64 = 3;
/// Number of moments of a run at which a duplicate arrives.
const MOMENTS: u32 = 10;
/// Delay of the first request, so that the second overtakes it.
const HELD_UP: Duration = Duration::from_millis(300);
/// Longest delay before the first hang-up: by then the request has arrived at the service.
const ARRIVED: Duration = Duration::from_millis(5);

pub(super) async fn concurrent(stage: &mut Stage<'_>) -> Result<(), Stop> {
    for _ in 0..ROUNDS {
        let intent = stage.intent();
        let sent = at_once(stage, &intent).await;
        judge::group(stage, &intent.request, &sent).await?;
    }
    judge::effects(stage, ROUNDS).await
}

/// Writes all requests except their last bytes, then sends the last bytes on all connections at once.
async fn at_once(stage: &Stage<'_>, intent: &Intent) -> Vec<Sent> {
    let (concurrent, timeout) = (stage.world.plan.concurrent, stage.world.plan.timeout);
    let mut lines = Vec::new();
    for _ in 0..concurrent {
        lines.push(stage.prepare(&intent.request).await);
    }
    let since = Instant::now();
    for line in lines.iter_mut().flatten() {
        // A closed connection is detected when its response is read.
        let _ = line.release().await;
    }
    let mut answers = tokio::task::JoinSet::new();
    for line in lines {
        answers.spawn(async move {
            match line {
                Ok(mut line) => line.answer(timeout).await,
                Err(lost) => Err(lost),
            }
        });
    }
    let mut all = Vec::new();
    while let Some(answer) = answers.join_next().await {
        let Ok(sent) = answer else { continue };
        stage.note("at once", &intent.request, &sent, since);
        all.push(sent);
    }
    all
}

pub(super) async fn in_flight(stage: &mut Stage<'_>) -> Result<(), Stop> {
    let slow = stage.world.operation.slow_body.clone();
    let fresh = |stage: &mut Stage<'_>| match &slow {
        Some(body) => stage.intent_with(body),
        None => stage.intent(),
    };
    let mut runs = 0;
    let latency = match slow.is_some() {
        false => stage.world.latency,
        true => {
            let (intent, since) = (fresh(stage), Instant::now());
            let sent = stage
                .send("measures how long a request takes", &intent.request)
                .await;
            stage.must_succeed(sent)?;
            runs += 1;
            since.elapsed()
        }
    };
    for moment in 0..MOMENTS {
        let intent = fresh(stage);
        let later = latency * moment / (MOMENTS - 1);
        let sent = {
            let stage = &*stage;
            let (one, other) = tokio::join!(stage.send("first", &intent.request), async {
                sleep(later).await;
                let sent = stage.send("duplicate", &intent.request).await;
                if !sent.as_ref().is_ok_and(|it| stage.is_busy(it)) {
                    return sent;
                }
                // The client retries after a "busy" response, while the first request is still running.
                sleep(latency / MOMENTS).await;
                stage
                    .send("duplicate, sent again as told", &intent.request)
                    .await
            });
            [one, other]
        };
        judge::group(stage, &intent.request, &sent).await?;
        runs += 1;
    }
    overtaken(stage).await?;
    judge::effects(stage, runs + 1).await
}

/// Delays the first request in the network, so that the retry arrives first.
async fn overtaken(stage: &mut Stage<'_>) -> Result<(), Stop> {
    let intent = stage.intent();
    let plan = stage.world.plan;
    let fault = Fault::Delay(HELD_UP);
    let between = Between::new(&stage.world.place, plan.seed, fault, 1).await?;
    let sent = {
        let stage = &*stage;
        let (one, other) = tokio::join!(
            stage.send_via(&between.place, "first, delayed on its way", &intent.request),
            async {
                sleep(HELD_UP / 6).await;
                stage.send("retry that overtakes it", &intent.request).await
            }
        );
        [one, other]
    };
    judge::group(stage, &intent.request, &sent).await
}

pub(super) async fn hangs_up(stage: &mut Stage<'_>) -> Result<(), Stop> {
    let latency = stage.world.latency;
    let patience = stage.world.plan.patience;
    for later in [(latency / 4).min(ARRIVED), latency / 2] {
        let intent = match stage.world.operation.slow_body.clone() {
            Some(body) => stage.intent_with(&body),
            None => stage.intent(),
        };
        let before = stage.effects().await?;
        let since = Instant::now();
        let sent = hung_up(stage, &intent, later).await;
        stage.note("first, client disconnects", &intent.request, &sent, since);
        judge::aftermath(stage, &intent.request, before.count, patience).await?;
        if stage.verdict == CaseVerdict::Fail {
            break;
        }
    }
    Ok(())
}

/// Sends a request and closes the connection after this delay.
pub(super) async fn hung_up(stage: &Stage<'_>, intent: &Intent, later: Duration) -> Sent {
    let mut line = stage.prepare(&intent.request).await?;
    line.release().await?;
    sleep(later).await;
    drop(line);
    Err(Lost("the test closed the connection".into()))
}
