//! Decides which responses are safe. Every case accepts all safe responses, in any style of API.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::verify::{
    identity::Likeness,
    stage::{Stage, Stop, says_done, says_unknown},
    wire::{ReceivedResponse, Request, Sent},
};

/// Time for a completed run to become visible everywhere.
pub(in crate::verify) const MOMENT: Duration = Duration::from_secs(1);

/// Judges a duplicate of a completed run: a replay is right; a refusal is safe, but withholds the first response.
pub(super) fn replay(stage: &mut Stage<'_>, first: &ReceivedResponse, again: &Sent) {
    match again {
        Ok(answer) if answer.is_success() => match stage.compare(first, answer) {
            Likeness::Same => same(stage, first, answer),
            Likeness::Other => {
                stage.fail("the duplicate got a response about another resource than the first request");
            }
            Likeness::Silent if is_put(stage) => {}
            Likeness::Silent if stage.is_busy(answer) || says_done(answer) => stage.warn(format!(
                "the duplicate got {} without the first response, so a client that lost the response cannot get it",
                answer.status
            )),
            Likeness::Silent => stage.fail("the duplicate did not get the first response"),
        },
        Ok(answer) if answer.is_refusal() => stage.warn(format!(
            "the duplicate was rejected ({}), so a client that lost the response cannot get it",
            answer.status
        )),
        Ok(answer) => stage.fail(format!("the duplicate failed: {}", answer.status)),
        Err(lost) => stage.fail(format!("the duplicate got no response: {lost}")),
    }
}

/// Both belong to the same run; warns if the responses differ.
fn same(stage: &mut Stage<'_>, first: &ReceivedResponse, answer: &ReceivedResponse) {
    let (then, now) = (first.status, answer.status);
    if now != then {
        // The first PUT creates the resource; a later one finds it.
        if !(is_put(stage) && then == 201) {
            stage.warn(format!(
                "the first response was {then}, the response to the duplicate is {now}"
            ));
        }
    } else if answer.body != first.body {
        stage
            .warn("the response to the duplicate is about the same resource, but its bytes differ");
    }
}

/// A repeated PUT stores the same content at the same place, so any response is safe.
pub(super) fn is_put(stage: &Stage<'_>) -> bool {
    stage.world.operation.method == "PUT"
}

/// Expects exactly `wanted` effects.
pub(super) async fn effects(stage: &mut Stage<'_>, wanted: u64) -> Result<(), Stop> {
    let effects = stage.effects().await?;
    let intended = match wanted {
        1 => "one intended effect".to_owned(),
        many => format!("{many} intended effects"),
    };
    if effects.over(wanted) {
        stage.fail(format!("{intended}, but {} effects", effects.count));
    } else if effects.under(wanted) {
        stage.fail(format!(
            "{intended}, but {} effects: a request was dropped",
            effects.count
        ));
    }
    Ok(())
}

/// Judges concurrent duplicates: all completed ones get the same response, the others are told to retry.
pub(super) async fn group(
    stage: &mut Stage<'_>,
    request: &Request,
    sent: &[Sent],
) -> Result<(), Stop> {
    let mut first: Option<&ReceivedResponse> = None;
    for sent in sent {
        match sent {
            Ok(answer) if stage.is_busy(answer) || stage.is_refusal_of_done(answer) => {}
            Ok(answer) if says_unknown(answer) => {}
            Ok(answer) if answer.is_success() => match first {
                None => first = Some(answer),
                Some(first) if stage.is_other(first, answer) => {
                    stage.fail("duplicates got the responses of different executions");
                }
                // Keep the response with the result; another one may only say "done".
                Some(before) if stage.only_says_done(before) => {
                    first = Some(answer);
                }
                Some(_) => {}
            },
            Ok(answer) => stage.warn(format!(
                "a duplicate got {} while another one was in flight; return 409 to tell the client to retry",
                answer.status
            )),
            Err(lost) => stage.warn(format!("a duplicate got no response: {lost}")),
        }
    }
    let patience = stage.world.plan.patience;
    let last = stage.decided("once more", request, patience).await;
    match (first, &last) {
        (Some(first), last) => replay(stage, &first.clone(), last),
        (None, Ok(answer)) if answer.is_success() && !stage.is_busy(answer) => {}
        (None, Ok(answer)) if stage.is_refusal_of_done(answer) => {}
        (None, Ok(answer)) => stage.fail(format!(
            "none of the duplicates ever got the response; the last one got {}",
            answer.status
        )),
        (None, Err(lost)) => {
            stage.fail(format!(
                "none of the duplicates ever got a response: {lost}"
            ));
        }
    }
    Ok(())
}

/// Retries a run with unknown outcome, which must come to an end. There were `before` effects before the run.
pub(super) async fn aftermath(
    stage: &mut Stage<'_>,
    request: &Request,
    before: u64,
    patience: Duration,
) -> Result<(), Stop> {
    let mut last = stage.decided("retry", request, patience).await;
    let mut effects = stage.effects().await?;
    let since = Instant::now();
    // It says "done" but has had no effect: the effect may still come.
    while effects.under(before + 1)
        && last.as_ref().is_ok_and(|it| stage.is_refusal_of_done(it))
        && since.elapsed() < patience
    {
        sleep(MOMENT / 4).await;
        last = stage.decided("retry", request, patience).await;
        effects = stage.effects().await?;
    }
    let has_run = effects.is_exact && effects.count > before;
    match &last {
        Ok(answer) if answer.is_success() && !stage.is_busy(answer) => {
            if effects.under(before + 1) {
                stage.fail("the retry got a success response, but the request never took effect");
            }
            let again = stage.decided("retry once more", request, MOMENT).await;
            replay(stage, answer, &again);
        }
        Ok(answer) if says_unknown(answer) => {
            stage.say("the retry gets unknown outcome, which is correct");
        }
        Ok(answer) if stage.is_refusal_of_done(answer) && effects.under(before + 1) => {
            stage.fail("the retry is rejected as a duplicate, but the request never took effect");
        }
        Ok(answer) if stage.is_busy(answer) && !has_run && !says_done(answer) => {
            stage.fail(format!(
                "the retry is still in flight ({}) after {patience:?}: the key stays locked",
                answer.status
            ));
        }
        Ok(answer) => stage.warn(format!(
            "the retry got {}: the client does not learn the outcome",
            answer.status
        )),
        Err(lost) => stage.fail(format!("the retry got no response: {lost}")),
    }
    let effects = stage.effects().await?;
    if effects.over(before + 1) {
        let times = effects.count - before;
        stage.fail(format!("one intended effect, but {times} effects"));
    }
    Ok(())
}
