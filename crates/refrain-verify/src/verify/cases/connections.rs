//! Cases about connections: requests after a replay on the same connection, and after clients that hung up.

use std::collections::HashMap;

use tokio::time::Instant;

use super::{in_flight::hung_up, judge};
use crate::verify::{
    stage::{Intent, Stage, Stop},
    wire::Sent,
};

/// Number of clients that hang up, each at another moment of a run.
const HANG_UPS: u32 = 10;

pub(super) async fn next(stage: &mut Stage<'_>) -> Result<(), Stop> {
    let intent = stage.intent();
    let first = stage.first(&intent).await?;
    let (timeout, since) = (stage.world.plan.timeout, Instant::now());
    let kept = intent
        .request
        .clone()
        .set_header("connection", "keep-alive");
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
            "the next request on the same connection got {}: the service parsed it from the middle of the previous request",
            next.status
        )),
        // A closed connection is safe: unread body bytes are discarded with it.
        Err(_) => {}
    }
    Ok(())
}

/// The key that first received each response, by the response's identity.
type Owners = HashMap<String, String>;

pub(super) async fn apart(stage: &mut Stage<'_>) -> Result<(), Stop> {
    if !stage.world.identity.is_by_name() || judge::is_put(stage) {
        let why = "the responses have no ids, so they cannot be assigned to requests";
        return Err(Stop::Skip(why.into()));
    }
    let (mut owners, mut gone) = (Owners::new(), Vec::new());
    for moment in 0..HANG_UPS {
        let (first, next) = (stage.distinct(), stage.distinct());
        let since = Instant::now();
        let later = stage.world.latency * moment / HANG_UPS;
        let sent = hung_up(stage, &first, later).await;
        stage.note("client disconnects", &first.request, &sent, since);
        let sent = stage
            .send("another client directly after it", &next.request)
            .await;
        own(stage, &mut owners, &next, &sent);
        gone.push(first);
    }
    for intent in gone {
        let sent = stage.decided("retry", &intent.request, judge::MOMENT).await;
        own(stage, &mut owners, &intent, &sent);
        if sent.is_ok_and(|answer| stage.is_busy(&answer)) {
            // Another case reports keys that stay locked.
            break;
        }
    }
    Ok(())
}

/// Records which key received this response; fails if another key received the same one.
fn own(stage: &mut Stage<'_>, owners: &mut Owners, intent: &Intent, sent: &Sent) {
    let answer = sent.as_ref().ok().filter(|answer| answer.is_success());
    let Some(about) = answer.and_then(|answer| stage.world.identity.of(answer)) else {
        return;
    };
    let owner = owners.entry(about).or_insert_with(|| intent.key.clone());
    if *owner != intent.key {
        stage.fail("after clients disconnected, two requests got the same response: one of them got another client's response");
    }
}
