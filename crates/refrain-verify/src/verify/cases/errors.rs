//! Cases about failed runs.

use super::{answers::is_marked, judge::MOMENT};
use crate::verify::{
    stage::{Intent, Stage, Stop, says_done, says_unknown},
    wire::{ReceivedResponse, Sent},
};

pub(super) async fn refused(stage: &mut Stage<'_>) -> Result<(), Stop> {
    let Some(bad) = stage.world.operation.bad_body.clone() else {
        return Err(Stop::Skip("needs --bad-body".into()));
    };
    let intent = stage.intent();
    let request = Stage::rewritten(&intent, &bad);
    let first = stage.send("a bad body", &request).await;
    let Some(first) = first.ok().filter(|answer| answer.is_refusal()) else {
        return Err(Stop::Skip(
            "the service does not reject --bad-body with 4xx".into(),
        ));
    };
    let same = stage.decided("the bad body again", &request, MOMENT).await;
    if let Ok(same) = same
        && same.is_success()
    {
        stage.fail(format!(
            "the duplicate of the rejected request got {}, as if it had executed",
            same.status
        ));
    }
    let corrected = stage
        .decided("the corrected body, same key", &intent.request, MOMENT)
        .await;
    let again = stage.decided("once more", &intent.request, MOMENT).await;
    let effects = stage.effects().await?;
    match &corrected {
        Ok(answer) if answer.is_success() => {
            if effects.under(1) {
                stage.fail("the corrected request got a success response, but did not execute");
            }
            if let Ok(again) = &again
                && again.is_success()
                && stage.is_other(answer, again)
            {
                stage.fail("the duplicate of the corrected request executed again");
            }
            stage.say("a rejected request releases its key");
        }
        Ok(answer)
            if answer.status == first.status
                && answer.body == first.body
                && !matches!(answer.status, 409 | 422) =>
        {
            let finding = format!(
                "the corrected request got the old error ({}): the client cannot know that it needs a new key",
                answer.status
            );
            match is_usual(stage, answer).await? {
                true => stage.warn(finding),
                false => stage.fail(finding),
            }
        }
        Ok(answer) if answer.status < 500 => {
            stage.say("a rejected request keeps its key; a corrected request needs a new key");
        }
        Ok(answer) => stage.fail(format!("the corrected request got {}", answer.status)),
        Err(lost) => stage.fail(format!("the corrected request got no response: {lost}")),
    }
    if effects.over(1) {
        stage.fail(format!("it took effect {} times", effects.count));
    }
    Ok(())
}

/// Whether the service refuses any other request under a used key with the same response.
async fn is_usual(stage: &mut Stage<'_>, refusal: &ReceivedResponse) -> Result<bool, Stop> {
    let intent = stage.intent();
    stage.first(&intent).await?;
    let Some(other) = stage.varied() else {
        return Ok(false);
    };
    let request = Stage::rewritten(&intent, &other);
    let sent = stage
        .send("another request with a used key", &request)
        .await;
    Ok(sent.is_ok_and(|it| it.status == refusal.status && it.body == refusal.body))
}

pub(super) async fn failed(stage: &mut Stage<'_>) -> Result<(), Stop> {
    let Some(failing) = stage.world.operation.failing_body.clone() else {
        return Err(Stop::Skip("needs --failing-body".into()));
    };
    let intent = stage.intent_with(&failing);
    let first = stage.send("it fails", &intent.request).await;
    if !first.is_ok_and(|answer| answer.status >= 500) {
        return Err(Stop::Skip(
            "the service does not respond to --failing-body with 5xx".into(),
        ));
    }
    let patience = stage.world.plan.patience;
    let retry = stage.decided("retry", &intent.request, patience).await;
    let again = stage
        .decided("retry once more", &intent.request, MOMENT)
        .await;
    let effects = stage.effects().await?;
    match &retry {
        Ok(answer) if says_unknown(answer) || says_done(answer) => {}
        Ok(answer) if stage.is_busy(answer) && answer.status != 503 => stage.fail(format!(
            "the retry is still in flight ({}) after {patience:?}: the failed request did not release its claim",
            answer.status
        )),
        Ok(_) => {}
        Err(lost) => stage.fail(format!("the retry got no response: {lost}")),
    }
    if retry.as_ref().is_ok_and(ReceivedResponse::is_success) && effects.under(1) {
        stage.fail("the retry got a success response, but the request never took effect");
    }
    if effects.is_exact && effects.count == 0 {
        check_silent_replay(stage, &failing, &intent, &retry).await;
    }
    if let (Ok(retry), Ok(again)) = (&retry, &again)
        && retry.is_success()
        && again.is_success()
        && stage.is_other(retry, again)
    {
        stage.fail("the duplicate of the retry executed again");
    }
    if effects.over(1) {
        stage.fail(format!(
            "the first request failed after its effect, and retries took effect too: {} times",
            effects.count
        ));
    }
    Ok(())
}

/// Fails if an error is still replayed after its cause is gone, without a header that marks it as a replay.
async fn check_silent_replay(stage: &mut Stage<'_>, failing: &[u8], intent: &Intent, retry: &Sent) {
    let is_silent = |sent: &Sent| {
        sent.as_ref()
            .is_ok_and(|it| it.status >= 500 && !is_marked(it))
    };
    if !is_silent(retry) {
        return;
    }
    let fresh = stage.intent_with(failing).key;
    let request = stage.rekeyed(intent, fresh.as_bytes());
    let other = stage.send("the same with a new key", &request).await;
    let last = stage.send("the first key once more", &intent.request).await;
    if other.is_ok_and(|it| it.is_success()) && is_silent(&last) {
        stage.fail("the request now succeeds with a new key, but the old key still gets the old error, which is not marked as a replay");
    }
}
