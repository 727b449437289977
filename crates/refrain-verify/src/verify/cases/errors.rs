//! Cases about failed runs.

use super::{answers::is_marked, judge::MOMENT};
use crate::verify::{
    stage::{Intent, Stage, Stop, says_done, says_unknown},
    wire::{ReceivedResponse, Sent},
};

pub(super) async fn refused(stage: &mut Stage<'_>) -> Result<(), Stop> {
    let Some(bad) = stage.world.operation.bad_body.clone() else {
        return Err(Stop::Skip("no --bad-body is given".into()));
    };
    let intent = stage.intent();
    let request = Stage::rewritten(&intent, &bad);
    let first = stage.send("a bad body", &request).await;
    let Some(first) = first.ok().filter(|answer| answer.is_refusal()) else {
        return Err(Stop::Skip("the --bad-body is not refused with 4xx".into()));
    };
    let same = stage.decided("the bad body again", &request, MOMENT).await;
    if let Ok(same) = same
        && same.is_success()
    {
        stage.fail(format!(
            "the refused request's duplicate was answered {}, as if it had run",
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
                stage.fail("the corrected request was answered as if it had run, and did not");
            }
            if let Ok(again) = &again
                && again.is_success()
                && stage.is_other(answer, again)
            {
                stage.fail("the corrected request ran again with its duplicate");
            }
            stage.say("a refused request frees its key");
        }
        Ok(answer)
            if answer.status == first.status
                && answer.body == first.body
                && !matches!(answer.status, 409 | 422) =>
        {
            let finding = format!(
                "the corrected request got the old answer ({}): the client cannot know that it needs a new key",
                answer.status
            );
            match is_usual(stage, answer).await? {
                true => stage.warn(finding),
                false => stage.fail(finding),
            }
        }
        Ok(answer) if answer.status < 500 => {
            stage.say("a refused request keeps its key; a corrected one needs a new key");
        }
        Ok(answer) => stage.fail(format!(
            "the corrected request was answered {}",
            answer.status
        )),
        Err(lost) => stage.fail(format!("the corrected request got no answer: {lost}")),
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
        return Err(Stop::Skip("no --failing-body is given".into()));
    };
    let intent = stage.intent_with(&failing);
    let first = stage.send("it fails", &intent.request).await;
    if !first.is_ok_and(|answer| answer.status >= 500) {
        return Err(Stop::Skip(
            "the --failing-body is not answered with 5xx".into(),
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
            "the retry is still told that it is in flight ({}) after {patience:?}: the failed run left its claim behind",
            answer.status
        )),
        Ok(_) => {}
        Err(lost) => stage.fail(format!("the retry got no answer: {lost}")),
    }
    if retry.as_ref().is_ok_and(ReceivedResponse::is_success) && effects.under(1) {
        stage.fail("the retry was answered as if it had run, and it never took effect");
    }
    if effects.is_exact && effects.count == 0 {
        kept(stage, &failing, &intent, &retry).await;
    }
    if let (Ok(retry), Ok(again)) = (&retry, &again)
        && retry.is_success()
        && again.is_success()
        && stage.is_other(retry, again)
    {
        stage.fail("the retry ran again with its duplicate");
    }
    if effects.over(1) {
        stage.fail(format!(
            "the first run failed after its effect, and retries took effect too: {} times",
            effects.count
        ));
    }
    Ok(())
}

/// Fails if an error is still replayed after its cause is gone, without a header that marks it as a replay.
async fn kept(stage: &mut Stage<'_>, failing: &[u8], intent: &Intent, retry: &Sent) {
    let is_silent = |sent: &Sent| {
        sent.as_ref()
            .is_ok_and(|it| it.status >= 500 && !is_marked(it))
    };
    if !is_silent(retry) {
        return;
    }
    let fresh = stage.intent_with(failing).key;
    let request = stage.rekeyed(intent, fresh.as_bytes());
    let other = stage.send("the same with a fresh key", &request).await;
    let last = stage.send("the first key once more", &intent.request).await;
    if other.is_ok_and(|it| it.is_success()) && is_silent(&last) {
        stage.fail("a fresh key succeeds by now, and the old one still gets its old error, which does not say that it is a replay");
    }
}
