//! The cases for consumers: what each does, the bug it reveals, and the fix.

use std::{process::Stdio, time::Duration};

use refrain::{Guarantee, consume::Delivery};
use tokio::{
    process::Command,
    time::{Instant, sleep, timeout},
};

use super::scene::{Pace, Scene};
use crate::verify::{Case, cases::case, stage::Stop};

/// When the consumer is killed, in percent of a message's processing time; `None` for when its effect is counted.
const KILLS: [Option<u32>; 4] = [Some(50), Some(25), Some(75), None];
/// When a duplicate arrives, in percent of a message's processing time.
const MEETINGS: [u32; 3] = [10, 50, 90];
/// Number of dead letters pulled at once.
const LETTERS: usize = 16;
/// Redelivery delay of dead letters that belong to others.
const LEFT_FOR: Duration = Duration::from_secs(60);
/// Timeout of the redrive command.
const REDRIVE_MAX: Duration = Duration::from_secs(60);

/// All cases for consumers, in the order in which they run.
pub const CASES: [Case; 10] = [
    case(
        "duplicate-message",
        "The same message again",
        "A message is published, handled, and published again under the same id. It has to take effect once.",
        "Messages are not told apart by their ids, or done ones are not remembered: every duplicate takes effect again.",
        "Claim the message's id before handling, keep that it is done, and skip what is done.",
    ),
    case(
        "same-body-other-id",
        "The same content under another id",
        "Two messages with the same content and different ids are two intended effects; both have to be handled.",
        "Messages are compared by their content: one order is swallowed because it equals another one.",
        "Tell messages apart by their ids alone.",
    ),
    case(
        "duplicates-at-once",
        "Many duplicates at once",
        "Many copies of a message are published at once, three times over. Each has to take effect once.",
        "No claim, or check-then-act: copies that are handled at the same time all take effect.",
        "Claim the message's id in one atomic step (INSERT … ON CONFLICT, SET NX) before handling.",
    ),
    case(
        "out-of-order",
        "Duplicates between other messages",
        "Several messages are published, and their copies in another order behind them. Each has to take effect once.",
        "Only the last message, or the highest number, is remembered: a duplicate behind another one takes effect again, or a late one is lost.",
        "Remember every message by its id.",
    ),
    case(
        "duplicate-in-flight",
        "A duplicate while the first one is handled",
        "A copy is published at several moments of the first one's handling (--slow-body gives more time). It has to take effect once.",
        "A message is remembered only when it is done: a copy that another worker takes meanwhile takes effect, too.",
        "Claim before handling; give a copy of what is in flight back, to be looked at later.",
    ),
    case(
        "late-duplicate",
        "A duplicate after a while",
        "The copy comes some seconds later (--late). It must not take effect again.",
        "Ids are remembered for a moment only: what a broker delivers late takes effect again.",
        "Remember ids for longer than the longest way to a redelivery.",
    ),
    case(
        "two-consumers",
        "Two consumers of one message",
        "With --consumers, each of them has to handle every message: as many effects as consumers.",
        "The key has no consumer's name in it: the second subscriber takes the message for a duplicate and loses it.",
        "Put the consumer's name into the scope of the key.",
    ),
    case(
        "failed-message",
        "A message that fails at first",
        "With --failing-body, handling fails at first and would work when the message is delivered again. It has to take effect in the end.",
        "The message is marked or acknowledged before it is handled: when handling fails, it is lost.",
        "Handle, keep the outcome, and acknowledge last; release the claim when handling fails, and give the message back.",
    ),
    case(
        "killed-in-flight",
        "The consumer is killed while it handles a message",
        "The consumer is killed (-9) in the middle of a message and started again. The message must not be lost; how often it takes effect is for --guarantee to say.",
        "The message is marked or acknowledged before it is handled: it is lost with the process; or it takes effect twice where once was promised.",
        "Acknowledge last, and let a claim lapse when its holder is gone; commit effect and mark in one transaction for exactly one effect.",
    ),
    case(
        "dead-letter-replay",
        "A dead letter is let through again",
        "With --poison-body and --dead-letter, a message fails until it is given up; then it is published again, on purpose. It has to be handled.",
        "A message that was given up counts as handled: its replay is refused as a duplicate, and it can never be mended.",
        "Release the key when a message is given up, or let through what comes from the dead letters.",
    ),
];

/// Runs the case with this id.
pub(super) async fn run(id: &str, scene: &mut Scene<'_>) -> Result<(), Stop> {
    match id {
        "duplicate-message" => duplicate(scene).await,
        "same-body-other-id" => other_id(scene).await,
        "duplicates-at-once" => at_once(scene).await,
        "out-of-order" => out_of_order(scene).await,
        "duplicate-in-flight" => in_flight(scene).await,
        "late-duplicate" => late(scene).await,
        "two-consumers" => two(scene),
        "failed-message" => failed(scene).await,
        "killed-in-flight" => killed(scene).await,
        "dead-letter-replay" => replayed(scene).await,
        other => Err(Stop::Skip(format!("there is no case {other}"))),
    }
}

/// Runs before all cases: checks that a plain message has an effect; measures how many and how soon.
pub(super) async fn pace(scene: &mut Scene<'_>) -> Result<Pace, Stop> {
    let id = scene.fresh();
    let since = Instant::now();
    // A consumer that was just started may have to create its queue first.
    while let Err(stop) = scene.publish("a first message", &id).await {
        if since.elapsed() > scene.plan.patience {
            return Err(stop);
        }
        sleep(scene.plan.settle).await;
    }
    let since = Instant::now();
    if !scene.reach(1).await? {
        return Err(Stop::Broken(format!(
            "a plain message to `{}` had no effect within {:?}: is the consumer running, does it handle --body, and is the count its own?",
            scene.plan.queue, scene.plan.patience
        )));
    }
    scene.pace = Pace {
        latency: since.elapsed(),
        effects: 1,
    };
    if scene.plan.consumers > 1 {
        // Other consumers may be slower.
        scene.reach(scene.plan.consumers).await?;
    }
    scene.pace.effects = scene.quiet().await?.max(1);
    Ok(scene.pace)
}

/// Expects the effects of this many messages.
async fn judge(scene: &mut Scene<'_>, messages: u64) -> Result<(), Stop> {
    let unit = scene.pace.effects;
    scene.reach(messages * unit).await?;
    let (effects, want) = (scene.settled().await?, messages * unit);
    let meant = match messages {
        1 => "1 message".to_owned(),
        many => format!("{many} messages"),
    };
    match effects == want {
        true => Ok(()),
        false => {
            let expected = match unit {
                1 => String::new(),
                unit => format!(", where {unit} consumers make {want}"),
            };
            scene.fail(format!("{meant}, and {effects} effects{expected}"));
            Ok(())
        }
    }
}

async fn duplicate(scene: &mut Scene<'_>) -> Result<(), Stop> {
    let id = scene.fresh();
    scene.publish("first", &id).await?;
    scene.reach(scene.pace.effects).await?;
    scene.publish("duplicate", &id).await?;
    scene.publish("duplicate", &id).await?;
    judge(scene, 1).await
}

async fn other_id(scene: &mut Scene<'_>) -> Result<(), Stop> {
    for label in ["first", "the same content under another id"] {
        let id = scene.fresh();
        scene.publish(label, &id).await?;
    }
    judge(scene, 2).await
}

async fn at_once(scene: &mut Scene<'_>) -> Result<(), Stop> {
    for _ in 0..3 {
        let id = scene.fresh();
        for _ in 0..scene.plan.concurrent {
            scene.publish("one of many", &id).await?;
        }
    }
    judge(scene, 3).await
}

async fn out_of_order(scene: &mut Scene<'_>) -> Result<(), Stop> {
    let ids = [scene.fresh(), scene.fresh(), scene.fresh()];
    for id in &ids {
        scene.publish("first", id).await?;
    }
    for id in ids.iter().rev() {
        scene.publish("duplicate, in another order", id).await?;
    }
    for at in [1, 0, 2] {
        scene
            .publish("duplicate, in another order", &ids[at])
            .await?;
    }
    judge(scene, 3).await
}

async fn in_flight(scene: &mut Scene<'_>) -> Result<(), Stop> {
    let body = slow(scene);
    let takes = timed(scene, &body).await?;
    for part in MEETINGS {
        let id = scene.fresh();
        scene.publish_as("first", &id, &body).await?;
        sleep(takes * part / 100).await;
        let label = "duplicate while it is handled";
        scene.publish_as(label, &id, &body).await?;
    }
    judge(scene, 1 + MEETINGS.len() as u64).await
}

fn slow(scene: &Scene<'_>) -> Vec<u8> {
    let slow = scene.template.slow_body.as_ref();
    slow.unwrap_or(&scene.template.body).clone()
}

/// Measures how long this body takes to have its effect.
async fn timed(scene: &mut Scene<'_>, body: &[u8]) -> Result<Duration, Stop> {
    let (id, since) = (scene.fresh(), Instant::now());
    let before = scene.count().await?;
    scene
        .publish_as("to see how long it takes", &id, body)
        .await?;
    match scene.handled(&id, before).await? {
        true => Ok(since.elapsed()),
        false => Err(Stop::Skip(format!(
            "its first message had no effect within {:?}",
            scene.plan.patience
        ))),
    }
}

async fn late(scene: &mut Scene<'_>) -> Result<(), Stop> {
    let id = scene.fresh();
    scene.publish("first", &id).await?;
    scene.reach(scene.pace.effects).await?;
    sleep(scene.plan.late).await;
    scene.publish("duplicate, later", &id).await?;
    judge(scene, 1).await
}

/// Judged by the plain message of the prelude: one effect for each consumer.
fn two(scene: &mut Scene<'_>) -> Result<(), Stop> {
    let (consumers, effects) = (scene.plan.consumers, scene.pace.effects);
    if consumers == 1 {
        let why = "give --consumers 2 where two consumers get every message and count into the same ledger";
        return Err(Stop::Skip(why.into()));
    }
    if effects != consumers {
        scene.fail(format!(
            "one message had {effects} effects, where {consumers} consumers get it"
        ));
    }
    Ok(())
}

async fn failed(scene: &mut Scene<'_>) -> Result<(), Stop> {
    let Some(body) = scene.template.failing_body.clone() else {
        let why = "give --failing-body, which fails at first and works when it is delivered again";
        return Err(Stop::Skip(why.into()));
    };
    let id = scene.fresh();
    scene.publish_as("fails at first", &id, &body).await?;
    let is_there = scene.reach(scene.pace.effects).await?;
    if !is_there && scene.plan.guarantee == Guarantee::AtMostOnce {
        scene.say("a message that failed at first had no effect, as at-most-once allows; whether somebody is told is not seen");
        return promised(scene, 1).await;
    }
    if !is_there {
        scene.fail(format!(
            "a message that failed at first has had no effect after {:?}: it is lost",
            scene.plan.patience
        ));
        return Err(Stop::Found);
    }
    let effects = scene.settled().await?;
    if effects > scene.pace.effects {
        let finding = format!(
            "it took effect {effects} times: it failed when its effect had happened, or is not told from a duplicate"
        );
        match scene.plan.guarantee {
            Guarantee::AtLeastOnce => scene.say(finding),
            _ => scene.fail(finding),
        }
    }
    Ok(())
}

async fn killed(scene: &mut Scene<'_>) -> Result<(), Stop> {
    if !scene.service.is_known() {
        return Err(Stop::Skip(
            "give --restart-command or --pid, so that the consumer may be killed".into(),
        ));
    }
    let body = slow(scene);
    let takes = timed(scene, &body).await?;
    let kills = match scene.service.is_ours_to_start() {
        true => &KILLS[..],
        false => &KILLS[..1],
    };
    let mut meant = 1;
    for part in kills {
        let (id, before) = (scene.fresh(), scene.count().await?);
        match part {
            Some(part) => {
                let later = takes * *part / 100;
                let label = format!("killed after {} ms", later.as_millis());
                scene.publish_as(&label, &id, &body).await?;
                sleep(later).await;
            }
            None => {
                let label = "killed as soon as its effect is seen";
                scene.publish_as(label, &id, &body).await?;
                scene.handled(&id, before).await?;
            }
        }
        let broken = |why: String| Stop::Broken(why);
        scene.service.kill().await.map_err(broken)?;
        scene.service.restart().await.map_err(broken)?;
        meant += 1;
        let is_there = scene.handled(&id, before).await?;
        if !is_there {
            is_back(scene).await?;
        }
        if !is_there && scene.plan.guarantee != Guarantee::AtMostOnce {
            scene.fail(format!(
                "a message that was being handled when the consumer was killed has had no effect after {:?}: it is lost",
                scene.plan.patience
            ));
            return Err(Stop::Found);
        }
        if !is_there {
            scene.say("a message that was being handled when the consumer was killed had no effect, as at-most-once allows; whether somebody is told is not seen");
        }
    }
    promised(scene, meant).await
}

/// Skips the case if no consumer runs: a message without an effect then proves nothing.
async fn is_back(scene: &mut Scene<'_>) -> Result<(), Stop> {
    let (id, before) = (scene.fresh(), scene.count().await?);
    scene.publish("is anybody there?", &id).await?;
    let is_there = scene.handled(&id, before).await?;
    scene.forget(&id, before).await?;
    match is_there || scene.service.is_ours_to_start() {
        true => Ok(()),
        false => Err(Stop::Skip(
            "nobody started the consumer again after it was killed: with --pid alone something has to, such as a supervisor; or give --restart-command".into(),
        )),
    }
}

/// Judges the number of effects after crashes by the guarantee.
async fn promised(scene: &mut Scene<'_>, messages: u64) -> Result<(), Stop> {
    let want = messages * scene.pace.effects;
    let effects = scene.settled().await?;
    if effects > want && scene.plan.guarantee == Guarantee::AtLeastOnce {
        scene.say(format!(
            "{} effects more than messages, as at-least-once allows after a crash",
            effects - want
        ));
        return Ok(());
    }
    if effects > want {
        scene.fail(format!(
            "{messages} messages, and {effects} effects after the consumer was killed"
        ));
    }
    Ok(())
}

async fn replayed(scene: &mut Scene<'_>) -> Result<(), Stop> {
    let Some(body) = scene.template.poison_body.clone() else {
        let why = "give --poison-body, which fails until it is given up, and works after that";
        return Err(Stop::Skip(why.into()));
    };
    if scene.lines.dead.is_none() {
        return Err(Stop::Skip(
            "give --dead-letter, where the consumer puts what it gives up".into(),
        ));
    }
    let id = scene.fresh();
    scene
        .publish_as("fails until it is given up", &id, &body)
        .await?;
    if !is_dead(scene, &id).await? {
        return Err(Stop::Skip(format!(
            "it did not come to the dead letters within {:?}",
            scene.plan.patience
        )));
    }
    if scene.count().await? > 0 {
        return Err(Stop::Skip(
            "--poison-body took effect before it was given up".into(),
        ));
    }
    match &scene.plan.redrive {
        Some(command) => redrive(command).await?,
        None => scene.publish_as("its replay", &id, &body).await?,
    }
    if !scene.reach(scene.pace.effects).await? {
        scene.fail(format!(
            "a dead letter that was let through again has had no effect after {:?}: it was refused{}",
            scene.plan.patience,
            match scene.plan.redrive.is_some() {
                true => ", or --redrive-command did not let it through",
                false => "",
            }
        ));
        return Err(Stop::Found);
    }
    judge(scene, 1).await
}

/// Waits for the message among the dead letters; leaves all of them in the queue.
async fn is_dead(scene: &Scene<'_>, id: &str) -> Result<bool, Stop> {
    let Some(dead) = &scene.lines.dead else {
        return Ok(false);
    };
    let since = Instant::now();
    let has_id = |delivery: &Delivery| {
        let has = |bytes: &[u8]| String::from_utf8_lossy(bytes).contains(id);
        let message = &delivery.message;
        has(&message.payload) || message.headers.iter().any(|(_, value)| has(value))
    };
    while since.elapsed() < scene.plan.patience {
        let pulled = dead.pull(LETTERS, Duration::from_millis(500)).await;
        let pulled = pulled
            .map_err(|error| Stop::Broken(format!("dead letters cannot be read: {error}")))?;
        let mut is_found = false;
        for delivery in pulled {
            let is_ours = has_id(&delivery);
            is_found |= is_ours;
            // The redrive command must find it again at once.
            let delay = if is_ours { Duration::ZERO } else { LEFT_FOR };
            let _ = delivery.ticket.nack(delay).await;
        }
        if is_found {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn redrive(command: &str) -> Result<(), Stop> {
    let broken = |why: String| Stop::Broken(format!("--redrive-command: {why}"));
    let running = Command::new("sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .status();
    let ended = timeout(REDRIVE_MAX, running).await;
    let ended = ended.map_err(|_| broken(format!("did not end within {REDRIVE_MAX:?}")))?;
    match ended {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(broken(format!(
            "ended with {status}; run it by hand to see why"
        ))),
        Err(error) => Err(broken(format!("cannot be started: {error}"))),
    }
}
