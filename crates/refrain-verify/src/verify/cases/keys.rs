//! Cases about missing and unusual keys.

use super::judge::MOMENT;
use crate::verify::{
    stage::{Intent, Stage, Stop},
    wire::{Request, Sent},
};

/// Length of a long key, in bytes; most services accept up to 255.
const LONG: usize = 300;

pub(super) async fn missing(stage: &mut Stage<'_>) -> Result<(), Stop> {
    if stage.world.operation.holds_key() {
        return Err(not_a_header());
    }
    let header = stage.world.operation.key_header.clone();
    shared(stage, "without a key", |_, intent| {
        intent.request.clone().without(&header)
    })
    .await
}

/// Skips a case that needs the key in a header.
fn not_a_header() -> Stop {
    Stop::Skip("the key is not in a header: it is at the position of {{key}}".into())
}

pub(super) async fn empty(stage: &mut Stage<'_>) -> Result<(), Stop> {
    shared(stage, "with an empty key", |stage, intent| {
        stage.rekeyed(intent, b"")
    })
    .await
}

/// Sends two different requests, both without a usable key: neither may get the other's response.
async fn shared(
    stage: &mut Stage<'_>,
    what: &str,
    change: impl Fn(&Stage<'_>, &Intent) -> Request,
) -> Result<(), Stop> {
    let (one, other) = (stage.distinct(), stage.distinct());
    let (one, other) = (change(stage, &one), change(stage, &other));
    if one.body == other.body && one.target == other.target {
        return Err(Stop::Skip(
            "the operation has no body to vary; put {{unique}} into the request".into(),
        ));
    }
    let first = stage.send(&format!("one {what}"), &one).await;
    let second = stage.send(&format!("another {what}"), &other).await;
    let effects = stage.effects().await?;
    let ran = [&first, &second].map(|sent| sent.as_ref().is_ok_and(|it| it.is_success()));
    let wanted = ran.iter().map(|ran| u64::from(*ran)).sum();
    if effects.over(wanted) {
        stage.fail(format!("a request {what} got an error, but took effect"));
    }
    let is_swallowed = match (&first, &second) {
        (Ok(first), Ok(second)) if ran == [true, true] => match effects.is_exact {
            true => effects.under(2),
            false => stage.is_same(first, second),
        },
        _ => effects.under(wanted),
    };
    if is_swallowed {
        stage.fail(format!(
            "two different requests {what} were treated as duplicates: the second did not execute"
        ));
    }
    match (ran, wanted) {
        ([true, false], _) if is_conflict(&second) => {
            stage.fail(format!(
                "a request {what} is rejected because of another one"
            ));
        }
        (_, 0) if is_refused(&first) && is_refused(&second) => {
            stage.say(format!("requests {what} are rejected"));
        }
        (_, 2) => stage.say(format!("requests {what} execute without deduplication")),
        _ => {}
    }
    warn_of_failures(stage, &[first, second]);
    Ok(())
}

fn is_refused(sent: &Sent) -> bool {
    sent.as_ref().is_ok_and(|answer| answer.is_refusal())
}

fn is_conflict(sent: &Sent) -> bool {
    sent.as_ref()
        .is_ok_and(|answer| matches!(answer.status, 409 | 422))
}

pub(super) async fn too_long(stage: &mut Stage<'_>) -> Result<(), Stop> {
    let key = |word: &str, end: &str| {
        let padding = "k".repeat(LONG - word.len() - end.len());
        format!("{word}{padding}{end}").into_bytes()
    };
    odd(stage, "a long key", |word| [key(word, "1"), key(word, "2")]).await
}

pub(super) async fn non_ascii(stage: &mut Stage<'_>) -> Result<(), Stop> {
    odd(stage, "a key that is not ASCII", |word| {
        [
            format!("{word}-é").into_bytes(),
            format!("{word}-è").into_bytes(),
        ]
    })
    .await
}

/// Sends two unusual keys that resemble each other: each must be refused, or be a key of its own.
async fn odd(
    stage: &mut Stage<'_>,
    what: &str,
    keys: impl Fn(&str) -> [Vec<u8>; 2],
) -> Result<(), Stop> {
    let (one, other) = (stage.intent(), stage.intent());
    let [key, near] = keys(&one.key);
    let request = stage.rekeyed(&one, &key);
    let first = stage.send(what, &request).await;
    let again = stage.decided("its duplicate", &request, MOMENT).await;
    let effects = stage.effects().await?;
    let Some(answer) = first.as_ref().ok().filter(|it| it.is_success()) else {
        if effects.over(0) {
            stage.fail(format!("{what} got an error, but took effect"));
        }
        warn_of_failures(stage, &[first, again]);
        return Ok(());
    };
    if effects.over(1) {
        stage.fail(format!(
            "{what} is accepted but not stored: its duplicate executed too"
        ));
        return Ok(());
    }
    let second = stage
        .decided("a similar key", &stage.rekeyed(&other, &near), MOMENT)
        .await;
    let effects = stage.effects().await?;
    match &second {
        Ok(second) if second.is_success() => {
            let is_swallowed = match effects.is_exact {
                true => effects.under(2),
                false => stage.is_same(answer, second),
            };
            if is_swallowed {
                stage.fail(format!(
                    "{what} and a similar key are treated as the same key"
                ));
            }
        }
        second if is_conflict(second) => {
            stage.fail(format!("{what} is rejected because of a similar key"));
        }
        _ => {}
    }
    warn_of_failures(stage, &[again, second]);
    Ok(())
}

pub(super) async fn doubled(stage: &mut Stage<'_>) -> Result<(), Stop> {
    if stage.world.operation.holds_key() {
        return Err(not_a_header());
    }
    let header = stage.world.operation.key_header.clone();
    let (one, other) = (stage.intent(), stage.intent());
    let request = one.request.add_header(&header, &other.key);
    let first = stage.send("two keys", &request).await;
    let again = stage.decided("its duplicate", &request, MOMENT).await;
    check_duplicate(stage, "a request with two keys", &first).await?;
    if first.as_ref().is_ok_and(|it| it.is_success()) {
        stage.say("a request with two keys is accepted; reject it with 400");
    }
    warn_of_failures(stage, &[first, again]);
    Ok(())
}

pub(super) async fn quoted(stage: &mut Stage<'_>) -> Result<(), Stop> {
    if stage.world.operation.holds_key() {
        return Err(not_a_header());
    }
    let header = stage.world.operation.key_header.clone();
    let intent = stage.intent();
    let request = intent
        .request
        .clone()
        .set_header(&header, format!("\"{}\"", intent.key));
    let first = stage.send("the key in quotes", &request).await;
    let again = stage.decided("its duplicate", &request, MOMENT).await;
    let is_kept = check_duplicate(stage, "a key in quotes", &first).await?;
    if is_kept {
        let bare = stage
            .decided("the same key without quotes", &intent.request, MOMENT)
            .await;
        let effects = stage.effects().await?;
        let is_other = match (&first, &bare) {
            (Ok(first), Ok(bare)) => bare.is_success() && stage.is_other(first, bare),
            _ => false,
        };
        if effects.over(1) || is_other {
            stage.warn("the quoted and the bare form are different keys");
        }
    }
    warn_of_failures(stage, &[first, again]);
    Ok(())
}

/// Returns whether the key was accepted; if so, its duplicate must not have run.
async fn check_duplicate(stage: &mut Stage<'_>, what: &str, first: &Sent) -> Result<bool, Stop> {
    let effects = stage.effects().await?;
    let is_accepted = first.as_ref().is_ok_and(|it| it.is_success());
    if effects.over(u64::from(is_accepted)) {
        match is_accepted {
            true => stage.fail(format!(
                "{what} is accepted but not stored: its duplicate executed too"
            )),
            false => stage.fail(format!("{what} got an error, but took effect")),
        }
    }
    Ok(is_accepted)
}

/// Warns about a server error: it refuses the request, but should be a 4xx.
fn warn_of_failures(stage: &mut Stage<'_>, sent: &[Sent]) {
    for sent in sent {
        match sent {
            Ok(answer) if answer.status >= 500 => {
                stage.warn(format!(
                    "it got {}; return 400 to tell the client that its request is invalid",
                    answer.status
                ));
            }
            Ok(_) => {}
            Err(lost) => stage.warn(format!("it got no response: {lost}")),
        }
    }
}
