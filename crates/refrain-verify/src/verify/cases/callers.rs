//! Cases about credentials: other and rotated ones.

use super::judge::MOMENT;
use crate::verify::stage::{Stage, Stop};

pub(super) async fn other(stage: &mut Stage<'_>) -> Result<(), Stop> {
    let Some((name, value)) = stage.world.operation.other_credential.clone() else {
        return Err(Stop::Skip("needs --other-credential".into()));
    };
    let before = accepted(stage, "other", (&name, &value)).await?;
    let intent = stage.intent();
    let first = stage.first(&intent).await?;
    let request = intent.request.clone().set_header(&name, &value);
    let sent = stage
        .decided("another caller, same key", &request, MOMENT)
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
                (true, _) => stage.say("the same key of another caller is a separate key"),
                (false, true) => stage.fail("another caller got the first caller's response"),
                (false, false) => {
                    stage.fail(
                        "another caller got a success response, but the request did not execute",
                    );
                }
            }
            let own = |it: &String| !stage.world.usual_cookies.contains(it);
            let theirs = cookie(&first).filter(own);
            if theirs.is_some() && theirs == cookie(answer) {
                stage.fail("another caller got the first caller's cookie");
            }
        }
        Ok(answer) if answer.status >= 500 => {
            stage.warn(format!(
                "another caller with the same key got {}",
                answer.status
            ));
        }
        Ok(answer) if !first.body.is_empty() && answer.body == first.body => {
            stage.fail("another caller got the first caller's response");
        }
        Ok(_) => {}
        Err(lost) => stage.warn(format!(
            "another caller with the same key got no response: {lost}"
        )),
    }
    let again = stage
        .decided("the first caller again", &intent.request, MOMENT)
        .await;
    if !again.is_ok_and(|it| it.is_refusal() || !stage.is_other(&first, &it)) {
        stage.warn("afterwards the first caller no longer gets its own response");
    }
    Ok(())
}

/// Skips the case if the service rejects this credential; returns the number of effects so far.
async fn accepted(
    stage: &mut Stage<'_>,
    which: &str,
    (name, value): (&str, &str),
) -> Result<u64, Stop> {
    let request = stage.intent().request.set_header(name, value);
    let label = format!("the {which} credential with a new key");
    let sent = stage.send(&label, &request).await;
    if !sent.as_ref().is_ok_and(|answer| answer.is_success()) {
        let said = sent.map_or_else(|lost| lost.to_string(), |it| it.status.to_string());
        return Err(Stop::Skip(format!(
            "the service rejects the {which} credential even with a new key: {said}"
        )));
    }
    Ok(stage.effects().await?.count)
}

pub(super) async fn rotated(stage: &mut Stage<'_>) -> Result<(), Stop> {
    let Some((name, value)) = stage.world.operation.rotated_credential.clone() else {
        return Err(Stop::Skip("needs --rotated-credential".into()));
    };
    let before = accepted(stage, "rotated", (&name, &value)).await?;
    let intent = stage.intent();
    let first = stage.first(&intent).await?;
    let request = intent.request.clone().set_header(&name, &value);
    let sent = stage
        .decided("new credential, same key", &request, MOMENT)
        .await;
    match &sent {
        Ok(answer) if answer.is_success() && stage.is_other(&first, answer) => {
            stage.fail("the duplicate with a new credential got a response about another resource");
        }
        Ok(answer) if answer.is_success() => {}
        Ok(answer) if answer.status < 500 => {
            stage.say(format!(
                "the duplicate with a new credential was rejected ({}) and did not execute",
                answer.status
            ));
        }
        Ok(answer) => stage.warn(format!("the duplicate got {}", answer.status)),
        Err(lost) => stage.warn(format!("the duplicate got no response: {lost}")),
    }
    super::judge::effects(stage, before + 1).await
}
