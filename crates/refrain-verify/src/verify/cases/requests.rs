//! Another request under the same key, and the same one written in another way.

use super::judge::{self, MOMENT};
use crate::verify::{
    change,
    stage::{Intent, Stage, Stop},
    wire::{Answer, Request},
};

/// What is wrong with answering another request with the first one's answer, and whether it may run.
struct Terms {
    what: &'static str,
    may_run: bool,
    /// The difference may mean nothing to this service.
    is_mild: bool,
}

pub(super) async fn other_body(stage: &mut Stage<'_>) -> Result<(), Stop> {
    let operation = stage.world.operation;
    let other = operation.other_body.clone();
    let other = other.or_else(|| change::varied(&operation.body, 1_000));
    let Some(other) = other else {
        return Err(Stop::Skip("the operation has no body".into()));
    };
    let intent = stage.intent();
    let request = Stage::rewritten(&intent, &other);
    let terms = Terms {
        what: "another body",
        may_run: false,
        is_mild: false,
    };
    another(stage, &intent, &request, &terms).await
}

pub(super) async fn other_path(stage: &mut Stage<'_>) -> Result<(), Stop> {
    let intent = stage.intent();
    let (path, query) = split(&intent.request.target);
    let prefix = &stage.world.plan.target.prefix;
    let path = match &stage.world.operation.other_path {
        Some(path) => format!("{prefix}{path}"),
        None => format!("{}/refrain-verify-other{query}", path.trim_end_matches('/')),
    };
    let request = Request {
        target: path,
        ..intent.request.clone()
    };
    let terms = Terms {
        what: "another path",
        may_run: true,
        is_mild: false,
    };
    another(stage, &intent, &request, &terms).await
}

pub(super) async fn other_query(stage: &mut Stage<'_>) -> Result<(), Stop> {
    let intent = stage.intent();
    let target = &intent.request.target;
    let (path, query) = split(target);
    let changed = match query {
        "" => format!("{path}?refrain_verify=2"),
        query => {
            let varied = change::varied(query.as_bytes(), 1_000).unwrap_or_default();
            format!("{path}{}", String::from_utf8_lossy(&varied))
        }
    };
    let is_mild = query.is_empty();
    let request = Request {
        target: changed,
        ..intent.request.clone()
    };
    let terms = Terms {
        what: "another query",
        may_run: true,
        is_mild,
    };
    another(stage, &intent, &request, &terms).await
}

pub(super) async fn other_method(stage: &mut Stage<'_>) -> Result<(), Stop> {
    let intent = stage.intent();
    let method = match &*intent.request.method {
        "PUT" | "PATCH" => "POST",
        _ => "PUT",
    };
    let request = Request {
        method: method.into(),
        ..intent.request.clone()
    };
    let terms = Terms {
        what: "another method",
        may_run: true,
        is_mild: false,
    };
    another(stage, &intent, &request, &terms).await
}

async fn another(
    stage: &mut Stage<'_>,
    intent: &Intent,
    request: &Request,
    terms: &Terms,
) -> Result<(), Stop> {
    let first = stage.first(intent).await?;
    let label = format!("{}, same key", terms.what);
    let sent = stage.decided(&label, request, MOMENT).await;
    let effects = stage.effects().await?;
    match &sent {
        Ok(answer) if answer.is_success() => {
            let has_run = match effects.is_exact {
                true => effects.over(1),
                false => !stage.is_same(&first, answer),
            };
            judge_success(stage, has_run, terms);
        }
        // 501 refuses a method as well as 405 does.
        Ok(answer) if answer.status >= 500 && answer.status != 501 => {
            stage.warn(format!("{} was answered {}", terms.what, answer.status));
            if effects.over(1) {
                stage.fail(format!("{} with the same key ran as well", terms.what));
            }
        }
        Ok(_) if effects.over(1) && !terms.may_run => {
            stage.fail(format!(
                "{} with the same key was refused, and took effect",
                terms.what
            ));
        }
        Ok(_) => {}
        Err(lost) => stage.warn(format!("{} got no answer: {lost}", terms.what)),
    }
    // What came between must not have cost the first one its record.
    let again = stage
        .decided("the first again", &intent.request, MOMENT)
        .await;
    judge_again(stage, &first, &again, effects.count).await
}

fn judge_success(stage: &mut Stage<'_>, has_run: bool, terms: &Terms) {
    let what = terms.what;
    match (has_run, terms.may_run, terms.is_mild) {
        (true, true, _) => stage.say(format!("{what} counts as something of its own")),
        (true, false, _) => stage.fail(format!("{what} with the same key ran as well")),
        (false, _, true) => stage.warn(format!(
            "{what} with the same key got the first one's answer; that is wrong where queries mean something"
        )),
        (false, _, false) => stage.fail(format!("{what} with the same key got the first one's answer")),
    }
}

async fn judge_again(
    stage: &mut Stage<'_>,
    first: &Answer,
    again: &crate::verify::wire::Sent,
    so_far: u64,
) -> Result<(), Stop> {
    let effects = stage.effects().await?;
    if effects.over(so_far.max(1)) {
        stage.fail("afterwards the first request ran again");
    } else if !again
        .as_ref()
        .is_ok_and(|it| it.is_refusal() || stage.is_same(first, it))
    {
        stage.warn("afterwards the first request's own duplicate no longer gets its answer");
    }
    Ok(())
}

pub(super) async fn member_order(stage: &mut Stage<'_>) -> Result<(), Stop> {
    let why = "the body is no JSON object with several members";
    rewritten(stage, change::reordered, "members in another order", why).await
}

pub(super) async fn white_space(stage: &mut Stage<'_>) -> Result<(), Stop> {
    let why = "the body is no JSON object or array";
    rewritten(stage, change::spaced, "other white space", why).await
}

async fn rewritten(
    stage: &mut Stage<'_>,
    change: impl Fn(&[u8]) -> Option<Vec<u8>>,
    what: &str,
    why: &str,
) -> Result<(), Stop> {
    let intent = stage.intent();
    let Some(body) = change(&intent.request.body) else {
        return Err(Stop::Skip(why.into()));
    };
    let request = Request {
        body: body.into(),
        ..intent.request.clone()
    };
    let first = stage.first(&intent).await?;
    let again = stage.decided(what, &request, MOMENT).await;
    match &again {
        Ok(answer) if answer.is_refusal() => stage.warn(format!(
            "the same request with {what} was refused ({})",
            answer.status
        )),
        again => judge::replay(stage, &first, again),
    }
    judge::effects(stage, 1).await
}

/// Path and query, with its question mark.
fn split(target: &str) -> (&str, &str) {
    target.split_at(target.find('?').unwrap_or(target.len()))
}
