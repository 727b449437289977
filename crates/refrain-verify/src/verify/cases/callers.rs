//! Cases about credentials: other and rotated ones.

use super::judge::MOMENT;
use crate::verify::stage::{Stage, Stop};

pub(super) async fn other(stage: &mut Stage<'_>) -> Result<(), Stop> {
    let Some((name, value)) = stage.world.operation.other_credential.clone() else {
        return Err(Stop::Skip("no --other-credential is given".into()));
    };
    let before = accepted(stage, "other", (&name, &value)).await?;
    let intent = stage.intent();
    let first = stage.first(&intent).await?;
    let request = intent.request.clone().with(&name, &value);
    let sent = stage
        .decided("somebody else, same key", &request, MOMENT)
        .await;
    let effects = stage.effects().await?;
    let cookie =
        |it: &crate::verify::wire::ReceivedResponse| it.header("set-cookie").map(str::to_owned);
    match &sent {
        Ok(answer) if answer.is_success() => {
            let has_own = match effects.is_exact {
                true => effects.over(before + 1),
                false => stage.is_other(&first, answer),
            };
            let is_leaked = answer.body == first.body && !answer.body.is_empty();
            match (has_own, is_leaked) {
                (true, _) => stage.say("somebody else's key is a key of its own"),
                (false, true) => stage.fail("somebody else got the first caller's answer"),
                (false, false) => {
                    stage.fail("somebody else was answered as if it had run, and it did not");
                }
            }
            let own = |it: &String| !stage.world.usual_cookies.contains(it);
            let theirs = cookie(&first).filter(own);
            if theirs.is_some() && theirs == cookie(answer) {
                stage.fail("somebody else got the first caller's cookie");
            }
        }
        Ok(answer) if answer.status >= 500 => {
            stage.warn(format!(
                "somebody else with the same key was answered {}",
                answer.status
            ));
        }
        Ok(answer) if !first.body.is_empty() && answer.body == first.body => {
            stage.fail("somebody else got the first caller's answer");
        }
        Ok(_) => {}
        Err(lost) => stage.warn(format!(
            "somebody else with the same key got no answer: {lost}"
        )),
    }
    let again = stage
        .decided("the first caller again", &intent.request, MOMENT)
        .await;
    if !again.is_ok_and(|it| it.is_refusal() || !stage.is_other(&first, &it)) {
        stage.warn("afterwards the first caller no longer gets its own answer");
    }
    Ok(())
}

/// Skips the case if the service rejects this credential; returns the number of effects so far.
async fn accepted(
    stage: &mut Stage<'_>,
    which: &str,
    (name, value): (&str, &str),
) -> Result<u64, Stop> {
    let request = stage.intent().request.with(name, value);
    let label = format!("the {which} credential with a key of its own");
    let sent = stage.send(&label, &request).await;
    if !sent.as_ref().is_ok_and(|answer| answer.is_success()) {
        let said = sent.map_or_else(|lost| lost.to_string(), |it| it.status.to_string());
        return Err(Stop::Skip(format!(
            "the service does not accept the {which} credential by itself: {said}"
        )));
    }
    Ok(stage.effects().await?.count)
}

pub(super) async fn rotated(stage: &mut Stage<'_>) -> Result<(), Stop> {
    let Some((name, value)) = stage.world.operation.rotated_credential.clone() else {
        return Err(Stop::Skip("no --rotated-credential is given".into()));
    };
    let before = accepted(stage, "rotated", (&name, &value)).await?;
    let intent = stage.intent();
    let first = stage.first(&intent).await?;
    let request = intent.request.clone().with(&name, &value);
    let sent = stage
        .decided("new credential, same key", &request, MOMENT)
        .await;
    match &sent {
        Ok(answer) if answer.is_success() && stage.is_other(&first, answer) => {
            stage.fail("the duplicate with a new credential was answered about something else");
        }
        Ok(answer) if answer.is_success() => {}
        Ok(answer) if answer.status < 500 => {
            stage.say(format!(
                "the new credential is told apart ({}), and nothing ran",
                answer.status
            ));
        }
        Ok(answer) => stage.warn(format!("the duplicate was answered {}", answer.status)),
        Err(lost) => stage.warn(format!("the duplicate got no answer: {lost}")),
    }
    super::judge::effects(stage, before + 1).await
}
