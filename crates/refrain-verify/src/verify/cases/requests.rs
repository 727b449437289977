//! Cases about another request under the same key, and the same request written differently.

use super::judge::{self, MOMENT};
use crate::verify::{
    change,
    identity::is_alike,
    stage::{Intent, KEY, Stage, Stop},
    wire::{ReceivedResponse, Request},
};

/// How to judge another request under a used key, and whether it may run.
struct Terms {
    what: &'static str,
    may_run: bool,
    /// Whether the difference may be irrelevant to this service.
    is_mild: bool,
}

pub(super) async fn other_body(stage: &mut Stage<'_>) -> Result<(), Stop> {
    let operation = stage.world.operation;
    let other = match operation.other_body.clone() {
        Some(other) => {
            alone(stage, &other).await?;
            other
        }
        None if operation.body.is_empty() => {
            return Err(Stop::Skip("the operation has no body".into()));
        }
        None => stage.varied().ok_or_else(|| {
            Stop::Skip("found no other body that the service accepts; set --other-body".into())
        })?,
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

/// Skips the case if the service refuses this body under a new key, too.
async fn alone(stage: &mut Stage<'_>, body: &[u8]) -> Result<(), Stop> {
    let intent = stage.intent_with(body);
    let sent = stage
        .send("the other body by itself", &intent.request)
        .await;
    match sent {
        Ok(answer) if answer.is_success() => Ok(()),
        Ok(answer) => Err(Stop::Skip(format!(
            "the service rejects --other-body even with a new key ({})",
            answer.status
        ))),
        Err(lost) => Err(Stop::Skip(format!(
            "the --other-body got no response: {lost}"
        ))),
    }
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
    let Some((changed, is_mild)) = changed_query(stage).await else {
        return Err(Stop::Skip(
            "found no other query that the service accepts".into(),
        ));
    };
    let intent = stage.intent();
    let (path, query) = split(&intent.request.target);
    let request = Request {
        target: format!("{path}{}", changed(query)),
        ..intent.request.clone()
    };
    let terms = Terms {
        what: "another query",
        may_run: true,
        is_mild,
    };
    another(stage, &intent, &request, &terms).await
}

type Query = Box<dyn Fn(&str) -> String + Send>;

/// Returns a query that the service accepts under a new key, and whether it may be irrelevant to the service.
async fn changed_query(stage: &mut Stage<'_>) -> Option<(Query, bool)> {
    let (_, query) = split(&stage.world.operation.path);
    let count = change::variants(query.as_bytes(), 1).len();
    let own = (0..count.saturating_sub(1)).map(|at| {
        let change = move |query: &str| {
            let mut all = change::variants(query.as_bytes(), 1);
            String::from_utf8_lossy(&all.swap_remove(at)).into_owned()
        };
        (Box::new(change) as Query, false)
    });
    let more: Query = Box::new(|query: &str| match query {
        "" => "?refrain_verify=2".into(),
        query => format!("{query}&refrain_verify=2"),
    });
    let is_keyed = query.contains(KEY);
    let own: Vec<_> = own.filter(|_| !is_keyed).collect();
    for (change, is_mild) in own.into_iter().chain([(more, true)]) {
        let intent = stage.intent();
        let (path, query) = split(&intent.request.target);
        let request = Request {
            target: format!("{path}{}", change(query)),
            ..intent.request.clone()
        };
        let sent = stage.send("another query by itself", &request).await;
        if sent.is_ok_and(|answer| answer.is_success()) {
            return Some((change, is_mild));
        }
    }
    None
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
    let before = stage.effects().await?.count;
    let first = stage.first(intent).await?;
    let label = format!("{}, same key", terms.what);
    let sent = stage.decided(&label, request, MOMENT).await;
    let effects = stage.effects().await?;
    match &sent {
        Ok(answer) if answer.is_success() => {
            let has_run = match effects.is_exact {
                true => effects.over(before + 1),
                false => stage.is_other(&first, answer),
            };
            match !has_run && judge::is_put(stage) && !is_alike(&first, answer) {
                true => stage.say(format!("{} replaced the resource at the path", terms.what)),
                false => judge_success(stage, has_run, terms),
            }
        }
        // 501 refuses a method, like 405.
        Ok(answer) if answer.status >= 500 && answer.status != 501 => {
            stage.warn(format!("{} got {}", terms.what, answer.status));
            if effects.over(before + 1) {
                stage.fail(format!("{} with the same key executed too", terms.what));
            }
        }
        Ok(_) if effects.over(before + 1) && !terms.may_run => {
            stage.fail(format!(
                "{} with the same key was rejected, but took effect",
                terms.what
            ));
        }
        Ok(_) => {}
        Err(lost) => stage.warn(format!("{} got no response: {lost}", terms.what)),
    }
    // The other request must not have removed the first one's record.
    let again = stage
        .decided("the first again", &intent.request, MOMENT)
        .await;
    judge_again(stage, &first, &again, effects.count.max(before + 1)).await
}

fn judge_success(stage: &mut Stage<'_>, has_run: bool, terms: &Terms) {
    let what = terms.what;
    match (has_run, terms.may_run, terms.is_mild) {
        (true, true, _) => stage.say(format!("{what} counts as a separate operation")),
        (true, false, _) => stage.fail(format!("{what} with the same key executed too")),
        (false, _, true) => stage.warn(format!(
            "{what} with the same key got the first response; this is wrong if the query has a meaning"
        )),
        (false, _, false) => stage.fail(format!("{what} with the same key got the first response")),
    }
}

async fn judge_again(
    stage: &mut Stage<'_>,
    first: &ReceivedResponse,
    again: &crate::verify::wire::Sent,
    so_far: u64,
) -> Result<(), Stop> {
    let effects = stage.effects().await?;
    let is_well = |it: &ReceivedResponse| {
        it.is_refusal()
            || stage.is_same(first, it)
            || stage.only_says_done(it)
            || judge::is_put(stage)
    };
    if effects.over(so_far) {
        stage.fail("afterwards the first request executed again");
    } else if !again.as_ref().is_ok_and(is_well) {
        stage.warn("afterwards a duplicate of the first request no longer gets its response");
    }
    Ok(())
}

pub(super) async fn member_order(stage: &mut Stage<'_>) -> Result<(), Stop> {
    let why = "the body is not a JSON object with several members";
    rewritten(stage, change::reordered, "members in another order", why).await
}

pub(super) async fn white_space(stage: &mut Stage<'_>) -> Result<(), Stop> {
    let why = "the body is not a JSON object or array";
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
            "the same request with {what} was rejected ({})",
            answer.status
        )),
        again => judge::replay(stage, &first, again),
    }
    judge::effects(stage, 1).await
}

/// Splits into path and query; the query includes its question mark.
fn split(target: &str) -> (&str, &str) {
    target.split_at(target.find('?').unwrap_or(target.len()))
}
