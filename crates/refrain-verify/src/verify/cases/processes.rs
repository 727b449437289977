//! Cases in which the service's process is paused or killed during a run.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::judge::{self, MOMENT};
use crate::verify::{
    CaseVerdict,
    stage::{Intent, Stage, Stop},
    wire::{Lost, PartialRequest, Sent},
};

/// Duration of a pause if no lease is given.
const PAUSE: Duration = Duration::from_secs(3);
/// The longest pause that a run waits for.
const LEASE_MAX: Duration = Duration::from_secs(30);
/// Margin after the lease.
const BEHIND: Duration = Duration::from_millis(500);
/// Number of moments of a run at which the service is killed.
const KILLS: u32 = 3;

pub(super) async fn paused(stage: &mut Stage<'_>) -> Result<(), Stop> {
    let pause = stage
        .world
        .operation
        .lease
        .map_or(PAUSE, |lease| lease + BEHIND);
    require_process(stage)?;
    if pause > LEASE_MAX {
        return Err(Stop::Skip(format!(
            "a lease over {LEASE_MAX:?} is longer than the maximum wait of a test"
        )));
    }
    let intent = slow(stage);
    let timeout = stage.world.plan.timeout + pause;
    let (since, latency) = (Instant::now(), stage.world.latency);
    let line = started(stage, &intent).await;
    sleep(latency / 2).await;
    let still = stage.service.pause().map_err(Stop::Skip)?;
    // The kernel accepts connections; the paused service reads them when it resumes.
    let duplicate = started(stage, &intent).await;
    sleep(pause).await;
    drop(still);
    let (one, other) = tokio::join!(finished(line, timeout), finished(duplicate, timeout));
    stage.note("first", &intent.request, &one, since);
    stage.note(
        "duplicate while the service is paused",
        &intent.request,
        &other,
        since,
    );
    judge::group(stage, &intent.request, &[one, other]).await?;
    judge::effects(stage, 1).await
}

pub(super) async fn killed(stage: &mut Stage<'_>) -> Result<(), Stop> {
    require_process(stage)?;
    let lease = stage.world.operation.lease.unwrap_or_default();
    let patience = stage
        .world
        .plan
        .patience
        .max((lease + BEHIND * 2).min(LEASE_MAX));
    let kills = if stage.service.is_ours_to_start() {
        KILLS
    } else {
        1
    };
    for moment in 0..kills {
        let intent = slow(stage);
        let before = stage.effects().await?;
        let (since, latency) = (Instant::now(), stage.world.latency);
        let line = started(stage, &intent).await;
        sleep(latency * (moment + 1) / (KILLS + 1)).await;
        stage.service.kill().await.map_err(Stop::Broken)?;
        let sent = finished(line, Duration::from_secs(1)).await;
        stage.note(
            "first, the service is killed",
            &intent.request,
            &sent,
            since,
        );
        stage.service.restart().await.map_err(Stop::Broken)?;
        judge::aftermath(stage, &intent.request, before.count, patience).await?;
        if stage.verdict == CaseVerdict::Fail {
            break;
        }
    }
    Ok(())
}

pub(super) async fn killed_after(stage: &mut Stage<'_>) -> Result<(), Stop> {
    require_process(stage)?;
    let intent = stage.intent();
    let first = stage.first(&intent).await?;
    stage.service.kill().await.map_err(Stop::Broken)?;
    stage.service.restart().await.map_err(Stop::Broken)?;
    let label = "duplicate after the restart";
    let again = stage.decided(label, &intent.request, MOMENT).await;
    judge::replay(stage, &first, &again);
    judge::effects(stage, 1).await
}

fn require_process(stage: &Stage<'_>) -> Result<(), Stop> {
    match stage.service.is_known() {
        true => Ok(()),
        false => Err(Stop::Skip("needs --restart-command or --pid".into())),
    }
}

fn slow(stage: &mut Stage<'_>) -> Intent {
    match stage.world.operation.slow_body.clone() {
        Some(body) => stage.intent_with(&body),
        None => stage.intent(),
    }
}

async fn started(stage: &Stage<'_>, intent: &Intent) -> Result<PartialRequest, Lost> {
    let mut line = stage.prepare(&intent.request).await?;
    line.release().await?;
    Ok(line)
}

async fn finished(line: Result<PartialRequest, Lost>, timeout: Duration) -> Sent {
    line?.answer(timeout).await
}
