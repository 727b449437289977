//! The cases for consumers: what each does, the bug it reveals, and the fix.

use std::{process::Stdio, time::Duration};

use refrain::{Guarantee, consume::Delivery};
use tokio::{
    process::Command,
    time::{Instant, sleep, timeout},
};

use super::scene::{MessageTiming, Scene};
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
        "The test publishes a message, waits until it is handled, and publishes it again with the same id. It must take effect once.",
        "The consumer does not identify messages by id, or forgets handled ids: every duplicate takes effect again.",
        "Claim the message id before handling, record completion, and skip completed messages.",
    ),
    case(
        "same-body-other-id",
        "The same content with another id",
        "Two messages with the same content and different ids are two intended effects; both must be handled.",
        "Messages are compared by content: one order is dropped because it equals another order.",
        "Identify messages by id only.",
    ),
    case(
        "duplicates-at-once",
        "Many duplicates at once",
        "The test publishes many copies of a message at once, in three rounds. Each message must take effect once.",
        "No claim, or check-then-act: copies that are handled concurrently all take effect.",
        "Claim the message id in one atomic step (INSERT … ON CONFLICT, SET NX) before handling.",
    ),
    case(
        "out-of-order",
        "Duplicates between other messages",
        "The test publishes several messages, then their copies in another order. Each message must take effect once.",
        "Only the last message, or the highest number, is remembered: a duplicate after another message takes effect again, or a late message is lost.",
        "Remember every message by its id.",
    ),
    case(
        "duplicate-in-flight",
        "A duplicate while the first copy is handled",
        "The test publishes a copy at several moments while the first copy is handled (--slow-body gives more time). The message must take effect once.",
        "A message is recorded only after handling: a copy that another worker receives meanwhile takes effect too.",
        "Claim before handling; return a copy of an in-flight message to the broker for later redelivery.",
    ),
    case(
        "late-duplicate",
        "A late duplicate",
        "The copy arrives some seconds later (--late). It must not take effect again.",
        "Ids are remembered for too short a time: a late redelivery takes effect again.",
        "Remember ids for longer than the longest redelivery path.",
    ),
    case(
        "two-consumers",
        "Two consumers of one message",
        "With --consumers, each consumer must handle every message: as many effects as consumers.",
        "The key does not contain the consumer's name: the second subscriber treats the message as a duplicate and loses it.",
        "Put the consumer's name into the scope of the key.",
    ),
    case(
        "failed-message",
        "A message that fails at first",
        "With --failing-body, the handler fails on the first delivery and succeeds on redelivery. The message must take effect in the end.",
        "The message is marked or acknowledged before it is handled: a failure in the handler loses it.",
        "Handle, store the outcome, and acknowledge last; release the claim and return the message if handling fails.",
    ),
    case(
        "killed-in-flight",
        "The consumer is killed while it handles a message",
        "The consumer is killed (kill -9) while it handles a message, and is restarted. The message must not be lost; --guarantee sets how often it may take effect.",
        "The message is marked or acknowledged before it is handled, and is lost with the process; or it takes effect twice where one effect was promised.",
        "Acknowledge last, and let a claim lapse when its holder is gone; commit effect and mark in one transaction for exactly one effect.",
    ),
    case(
        "dead-letter-replay",
        "A dead letter is redriven",
        "With --poison-body and --dead-letter, a message fails until the consumer dead-letters it; then the test redrives it. It must be handled.",
        "A dead-lettered message counts as handled: its redrive is rejected as a duplicate, and the message can never be repaired.",
        "Release the key when a message is dead-lettered, or accept redriven dead letters.",
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
        other => Err(Stop::Skip(format!("unknown case {other}"))),
    }
}

/// Runs before all cases: checks that a plain message has an effect; measures how many and how soon.
pub(super) async fn pace(scene: &mut Scene<'_>) -> Result<MessageTiming, Stop> {
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
            "a plain message to `{}` had no effect within {:?}: check that the consumer is running, that it handles --body, and that the effect count counts its effects",
            scene.plan.queue, scene.plan.patience
        )));
    }
    scene.pace = MessageTiming {
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
                unit => format!(", expected {want} for {unit} consumers"),
            };
            scene.fail(format!("{meant}, but {effects} effects{expected}"));
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
    for label in ["first", "the same content with another id"] {
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
        let label = "duplicate while the first copy is handled";
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
        .publish_as("measures how long handling takes", &id, body)
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
        let why = "needs --consumers 2, with two consumers that receive every message and count into the same ledger";
        return Err(Stop::Skip(why.into()));
    }
    if effects != consumers {
        scene.fail(format!(
            "one message had {effects} effects, expected {consumers}: one for each consumer"
        ));
    }
    Ok(())
}

async fn failed(scene: &mut Scene<'_>) -> Result<(), Stop> {
    let Some(body) = scene.template.failing_body.clone() else {
        let why =
            "needs --failing-body, which fails on the first delivery and succeeds on redelivery";
        return Err(Stop::Skip(why.into()));
    };
    let id = scene.fresh();
    scene.publish_as("fails at first", &id, &body).await?;
    let is_there = scene.reach(scene.pace.effects).await?;
    if !is_there && scene.plan.guarantee == Guarantee::AtMostOnce {
        scene.say("a message that failed at first had no effect, as at-most-once allows; the test does not see whether anyone is notified");
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
            "it took effect {effects} times: the handler failed after the effect, or the redelivery was not recognised as a duplicate"
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
            "needs --restart-command or --pid to kill the consumer".into(),
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
            scene.say("a message that was being handled when the consumer was killed had no effect, as at-most-once allows; the test does not see whether anyone is notified");
        }
    }
    promised(scene, meant).await
}

/// Skips the case if no consumer runs: a message without an effect then proves nothing.
async fn is_back(scene: &mut Scene<'_>) -> Result<(), Stop> {
    let (id, before) = (scene.fresh(), scene.count().await?);
    scene
        .publish("check whether the consumer is running", &id)
        .await?;
    let is_there = scene.handled(&id, before).await?;
    scene.forget(&id, before).await?;
    match is_there || scene.service.is_ours_to_start() {
        true => Ok(()),
        false => Err(Stop::Skip(
            "the consumer was not restarted after it was killed; with --pid alone a supervisor must restart it, or set --restart-command".into(),
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
            "{messages} messages, but {effects} effects after the consumer was killed"
        ));
    }
    Ok(())
}

async fn replayed(scene: &mut Scene<'_>) -> Result<(), Stop> {
    let Some(body) = scene.template.poison_body.clone() else {
        let why = "needs --poison-body, which fails until the consumer dead-letters it, and succeeds after that";
        return Err(Stop::Skip(why.into()));
    };
    if scene.lines.dead.is_none() {
        return Err(Stop::Skip(
            "needs --dead-letter, the queue of the consumer's dead letters".into(),
        ));
    }
    let id = scene.fresh();
    scene
        .publish_as("fails until it is dead-lettered", &id, &body)
        .await?;
    if !is_dead(scene, &id).await? {
        return Err(Stop::Skip(format!(
            "it did not reach the dead-letter queue within {:?}",
            scene.plan.patience
        )));
    }
    if scene.count().await? > 0 {
        return Err(Stop::Skip(
            "--poison-body took effect before it was dead-lettered".into(),
        ));
    }
    match &scene.plan.redrive {
        Some(command) => redrive(command).await?,
        None => scene.publish_as("its redrive", &id, &body).await?,
    }
    if !scene.reach(scene.pace.effects).await? {
        scene.fail(format!(
            "a redriven dead letter has had no effect after {:?}: the consumer rejected it{}",
            scene.plan.patience,
            match scene.plan.redrive.is_some() {
                true => ", or --redrive-command did not redrive it",
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
        let pulled =
            pulled.map_err(|error| Stop::Broken(format!("cannot read dead letters: {error}")))?;
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
    let ended = ended.map_err(|_| broken(format!("did not exit within {REDRIVE_MAX:?}")))?;
    match ended {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(broken(format!(
            "failed with {status}; run it by hand to see why"
        ))),
        Err(error) => Err(broken(format!("cannot be started: {error}"))),
    }
}
