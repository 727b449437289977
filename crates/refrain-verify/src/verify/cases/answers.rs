//! Cases about the content of replays.

use super::judge::{self, MOMENT};
use crate::verify::{
    change,
    identity::Likeness,
    stage::{Stage, Stop, says_done},
    wire::ReceivedResponse,
};

const LARGE: usize = 1 << 20;
/// The character that a decoder writes for invalid bytes.
const REPLACEMENT: &[u8] = "\u{fffd}".as_bytes();

pub(super) async fn large(stage: &mut Stage<'_>) -> Result<(), Stop> {
    let Some(body) = change::padded(&stage.world.operation.body, LARGE) else {
        return Err(Stop::Skip("the operation has no body to enlarge".into()));
    };
    let intent = stage.intent_with(&body);
    let first = stage.send("1 MiB", &intent.request).await;
    let effects = stage.effects().await?;
    let first = match first {
        Ok(answer) if answer.is_success() => answer,
        refused => {
            if effects.over(0) {
                stage.fail("a request with a large body got an error, but took effect");
                return Ok(());
            }
            let said = refused.map_or_else(|lost| lost.to_string(), |it| it.status.to_string());
            return Err(Stop::Skip(format!("the service rejects it: {said}")));
        }
    };
    let again = stage.decided("duplicate", &intent.request, MOMENT).await;
    judge::replay(stage, &first, &again);
    judge::effects(stage, 1).await
}

pub(super) async fn binary(stage: &mut Stage<'_>) -> Result<(), Stop> {
    if stage.world.operation.has_key_in_body() {
        return Err(Stop::Skip("the body contains the key".into()));
    }
    let body: Vec<u8> = (0..=255).collect();
    let intent = stage.intent_with(&body);
    let request = intent
        .request
        .set_header("content-type", "application/octet-stream");
    let first = stage.send("all 256 bytes", &request).await;
    let first = match first {
        Ok(answer) if answer.is_success() => answer,
        refused => {
            let said = refused.map_or_else(|lost| lost.to_string(), |it| it.status.to_string());
            return Err(Stop::Skip(format!(
                "the operation rejects a binary body: {said}"
            )));
        }
    };
    let again = stage.decided("duplicate", &request, MOMENT).await;
    let holds = |answer: &ReceivedResponse, part: &[u8]| {
        answer.body.windows(part.len()).any(|it| it == part)
    };
    if !holds(&first, &body) && holds(&first, REPLACEMENT) {
        stage.fail(
            "the response echoes the body with some bytes replaced: the body was converted to text",
        );
    }
    // A 303, or a response that only says "done", has no body to compare.
    let is_replay = |it: &ReceivedResponse| {
        it.is_success() && it.status != 303 && (!says_done(it) || says_done(&first))
    };
    if let Ok(again) = &again
        && is_replay(again)
        && again.body != first.body
    {
        stage.fail("the bytes of the replay differ from the first response");
    }
    Ok(())
}

pub(super) async fn set_cookie(stage: &mut Stage<'_>) -> Result<(), Stop> {
    let (first, again) = twice(stage).await?;
    let usual = &stage.world.usual_cookies;
    let own = |cookie: &&str| !usual.iter().any(|it| it == cookie);
    let cookies: Vec<_> = first
        .all("set-cookie")
        .filter(own)
        .map(str::to_owned)
        .collect();
    if cookies.is_empty() {
        return Err(Stop::Skip(
            "the first response sets no cookie of its own".into(),
        ));
    }
    let is_replayed = again
        .all("set-cookie")
        .any(|it| cookies.iter().any(|own| own == it));
    if is_replayed {
        stage.fail("the replay sets the cookie of the first response again");
    }
    Ok(())
}

pub(super) async fn location(stage: &mut Stage<'_>) -> Result<(), Stop> {
    let (first, again) = twice(stage).await?;
    let Some(location) = first.header("location") else {
        return Err(Stop::Skip("the first response has no Location".into()));
    };
    match again.header("location") {
        Some(found) if found == location => {}
        Some(found) => stage.fail(format!(
            "the Location of the first response is {location}, that of the replay {found}"
        )),
        None => stage.fail("the replay lost its Location"),
    }
    Ok(())
}

pub(super) async fn marked(stage: &mut Stage<'_>) -> Result<(), Stop> {
    let (first, again) = twice(stage).await?;
    if !stage.is_same(&first, &again) {
        return Err(Stop::Skip("the duplicate was not replayed".into()));
    }
    match (is_marked(&first), is_marked(&again)) {
        (false, true) => {}
        (_, false) => stage.warn("the replay is not marked as a replay"),
        (true, true) => stage.warn("the first response is marked as a replay"),
    }
    Ok(())
}

/// Whether a header marks the response as a replay, a hit or a duplicate, and does not deny it.
pub(super) fn is_marked(answer: &ReceivedResponse) -> bool {
    answer.headers.iter().any(|(name, value)| {
        let (name, value) = (name.to_ascii_lowercase(), value.to_ascii_lowercase());
        let is_telling = ["replay", "duplicate"]
            .iter()
            .any(|word| name.contains(word))
            || (name.contains("idempoten")
                && ["hit", "replay", "duplicate", "cached"]
                    .iter()
                    .any(|word| value.contains(word)))
            || (name.contains("idempoten") && name.contains("hit"));
        is_telling && !matches!(&*value, "false" | "0" | "no" | "miss")
    })
}

async fn twice(stage: &mut Stage<'_>) -> Result<(ReceivedResponse, ReceivedResponse), Stop> {
    let intent = stage.intent();
    let first = stage.first(&intent).await?;
    let again = stage.decided("duplicate", &intent.request, MOMENT).await;
    let again = again.ok().filter(ReceivedResponse::is_success);
    // A response that only says "done" is no replay.
    let again = again.filter(|it| stage.compare(&first, it) != Likeness::Silent || !says_done(it));
    let again = again.ok_or_else(|| Stop::Skip("the duplicate was not replayed".into()))?;
    Ok((first, again))
}
