//! What comes behind a replay on the same connection.

use tokio::time::Instant;

use crate::verify::{
    stage::{Stage, Stop},
    wire::Sent,
};

pub(super) async fn next(stage: &mut Stage<'_>) -> Result<(), Stop> {
    let intent = stage.intent();
    let first = stage.first(&intent).await?;
    let (timeout, since) = (stage.world.plan.timeout, Instant::now());
    let kept = intent.request.clone().with("connection", "keep-alive");
    let line = stage.prepare(&kept).await;
    let mut line = line.map_err(|lost| Stop::Skip(lost.to_string()))?;
    let replay = line.answer(timeout).await;
    stage.note("duplicate", &kept, &replay, since);
    let Some(replay) = replay.ok().filter(|it| stage.is_same(&first, it)) else {
        return Err(Stop::Skip("the duplicate was not replayed".into()));
    };
    let is_closing = replay
        .header("connection")
        .is_some_and(|it| it.eq_ignore_ascii_case("close"));
    if is_closing {
        return Ok(());
    }
    let since = Instant::now();
    let authority = &stage.world.plan.target.authority;
    let next: Sent = match line.write(authority, &intent.request, timeout).await {
        Ok(()) => line.answer(timeout).await,
        Err(lost) => Err(lost),
    };
    stage.note("next on the same connection", &intent.request, &next, since);
    match next {
        Ok(next) if stage.is_same(&first, &next) => {}
        Ok(next) => stage.fail(format!(
            "the next request on the same connection was answered {}: it was read from the middle of the last one",
            next.status
        )),
        // A closed connection is safe; what was left of the body ended with it.
        Err(_) => {}
    }
    Ok(())
}
