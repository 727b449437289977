//! Cases about sequential duplicates.

use std::time::Duration;

use tokio::time::sleep;

use super::judge::{self, MOMENT};
use crate::{
    chaos::Fault,
    verify::{
        between::Between,
        stage::{Stage, Stop},
    },
};

/// The longest retention period that a run waits for.
const RETENTION_MAX: Duration = Duration::from_secs(30);

pub(super) async fn sequential(stage: &mut Stage<'_>) -> Result<(), Stop> {
    after(stage, Duration::ZERO).await
}

pub(super) async fn late(stage: &mut Stage<'_>) -> Result<(), Stop> {
    let late = stage.world.plan.late;
    if stage
        .world
        .operation
        .retention
        .is_some_and(|told| told <= late)
    {
        return Err(Stop::Skip(format!(
            "--late {late:?} is longer than --retention"
        )));
    }
    after(stage, late).await
}

pub(super) async fn retention(stage: &mut Stage<'_>) -> Result<(), Stop> {
    let Some(told) = stage.world.operation.retention else {
        return Err(Stop::Skip("needs --retention".into()));
    };
    if told > RETENTION_MAX {
        let why = format!(
            "a retention of {told:?} is longer than the maximum wait of a test ({RETENTION_MAX:?})"
        );
        return Err(Stop::Skip(why));
    }
    after(stage, told * 4 / 5).await
}

async fn after(stage: &mut Stage<'_>, pause: Duration) -> Result<(), Stop> {
    let intent = stage.intent();
    let first = stage.first(&intent).await?;
    sleep(pause).await;
    let again = stage.decided("duplicate", &intent.request, MOMENT).await;
    judge::replay(stage, &first, &again);
    judge::effects(stage, 1).await
}

pub(super) async fn lost_answer(stage: &mut Stage<'_>) -> Result<(), Stop> {
    let intent = stage.intent();
    let plan = stage.world.plan;
    let between = Between::new(&stage.world.place, plan.seed, Fault::DropAnswer, 1).await?;
    let lost = stage
        .send_via(
            &between.place,
            "first, its response is lost",
            &intent.request,
        )
        .await;
    if lost.is_ok() {
        return Err(Stop::Skip(
            "the fault proxy could not drop the response".into(),
        ));
    }
    let retry = stage.decided("retry", &intent.request, plan.patience).await;
    let again = stage
        .decided("retry once more", &intent.request, MOMENT)
        .await;
    match &retry {
        Ok(answer) if stage.only_says_done(answer) => stage.warn(format!(
            "the retry got {} without the lost response, so the client cannot get it",
            answer.status
        )),
        Ok(answer) if answer.is_success() => judge::replay(stage, answer, &again),
        Ok(answer) if answer.is_refusal() => stage.warn(format!(
            "the retry was rejected ({}), so the client cannot get the lost response",
            answer.status
        )),
        Ok(answer) => stage.fail(format!("the retry failed: {}", answer.status)),
        Err(lost) => stage.fail(format!("the retry got no response: {lost}")),
    }
    judge::effects(stage, 1).await
}
