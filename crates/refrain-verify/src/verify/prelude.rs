//! Runs before all cases: checks that the plain request works and is counted, and finds what tells two runs apart.

use std::{sync::atomic::AtomicU64, time::Duration};

use tokio::time::{Instant, sleep};

use super::{
    CaseReport, CaseVerdict, Trouble,
    cases::{self, CASES},
    change,
    effects::Counter,
    exchange::Exchange,
    identity::Identity,
    plan::{Counting, Operation, Plan, TlsSetup},
    service::Service,
    stage::{Intent, Stage, World, without},
    wire::ReceivedResponse,
};

/// Timeout for the first effect to be counted.
const EFFECT_MAX: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// An effect that is counted later than this is asynchronous: it may come after the response.
const LATE: Duration = Duration::from_millis(20);

/// Prepares an operation's cases; also reports on the same body under another key.
pub(super) async fn world<'p>(
    plan: &'p Plan,
    way: &TlsSetup,
    number: usize,
    operation: &'p Operation,
    service: &mut Service,
) -> Result<(World<'p>, CaseReport), Trouble> {
    operation.check().map_err(Trouble::Plan)?;
    let mut world = World {
        plan,
        operation,
        place: way.to(&plan.target).map_err(Trouble::Plan)?,
        number,
        counter: Counter::new(plan, &operation.headers, way),
        identity: Identity::None,
        latency: Duration::ZERO,
        settle: plan.settle,
        usual_cookies: Vec::new(),
        status: 0,
        refusal: None,
        is_late: false,
        must_vary: false,
        variant: None,
        varied: AtomicU64::new(0),
    };
    let since = Instant::now();
    let (one, first, seen) = plain(&mut world, service).await?;
    world.refusal = refusal(&world, service, &one).await?;
    let stage = Stage::new(&world, service, "prelude-other").await?;
    let mut stage = stage.continued(since, seen);
    let (other, second_since) = (stage.intent(), Instant::now());
    let second = stage
        .send("the same with another key", &other.request)
        .await;
    let latency = world.latency.min(second_since.elapsed());
    let effects = stage.effects().await?;
    let ran = |answer: &ReceivedResponse| answer.is_success() && !effects.under(1);
    let (verdict, findings) = judge(&mut stage, &second, ran);
    let report = CaseReport::new(
        case(cases::SAME_BODY),
        verdict,
        findings,
        since.elapsed(),
        stage.into_exchanges(),
    );
    let second = second.ok().filter(|answer| ran(answer));
    world.must_vary = second.is_none() && !operation.is_unique();
    let is_same_request = second.is_some();
    let varied = varied(&mut world, service).await?;
    let (second, other) = match (second, varied) {
        (Some(second), _) => (second, other),
        (None, Some(varied)) => varied,
        (None, None) => {
            return Err(Trouble::Plan(
                "the service accepts the same body only once; put {{unique}} where the body must differ"
                    .into(),
            ));
        }
    };
    let names = (one.names(), other.names());
    world.identity = Identity::find((&first, &names.0), (&second, &names.1), is_same_request);
    world.usual_cookies = cookies_of_both(&first, &second);
    world.latency = latency;
    Ok((world, report))
}

/// Sends the plain request, which must succeed and be counted.
async fn plain(
    world: &mut World<'_>,
    service: &mut Service,
) -> Result<(Intent, ReceivedResponse, Vec<Exchange>), Trouble> {
    let (plan, since) = (world.plan, Instant::now());
    let mut stage = Stage::new(world, service, "prelude").await?;
    let one = stage.intent();
    let sent = stage.send("a first request", &one.request).await;
    let latency = since.elapsed();
    let first = usable(
        sent.map_err(|lost| {
            Trouble::Unreachable(format!("{} does not respond: {lost}", plan.target))
        })?,
        world.operation,
    )?;
    let late = effect(&stage).await?;
    let seen = stage.into_exchanges();
    (world.status, world.latency) = (first.status, latency);
    world.is_late = late > LATE;
    // Wait longer for slow effects: a count taken too early is wrong.
    world.settle = plan.settle.max(late * 3);
    Ok((one, first, seen))
}

/// The response that refuses a duplicate of a completed run, if the service does not replay.
async fn refusal(
    world: &World<'_>,
    service: &mut Service,
    one: &Intent,
) -> Result<Option<ReceivedResponse>, Trouble> {
    let stage = Stage::new(world, service, "prelude-again").await?;
    let sent = stage.decided("again", &one.request, cases::MOMENT).await;
    let refused = sent.ok().filter(|answer| !answer.is_success());
    Ok(refused.map(|answer| without(&answer, &one.names())))
}

/// Finds a different body that the service accepts, and its response.
async fn varied(
    world: &mut World<'_>,
    service: &mut Service,
) -> Result<Option<(ReceivedResponse, Intent)>, Trouble> {
    let bodies = change::variants(&world.operation.body, 1);
    let mut stage = Stage::new(world, service, "prelude-varied").await?;
    let mut found = None;
    for (at, body) in bodies.iter().enumerate() {
        let intent = stage.intent_with(body);
        let sent = stage.send("another body with another key", &intent.request);
        if let Some(answer) = sent.await.ok().filter(ReceivedResponse::is_success) {
            found = Some((at, answer, intent));
            break;
        }
    }
    drop(stage);
    world.varied = AtomicU64::new(1);
    world.variant = found.as_ref().map(|(at, ..)| *at);
    Ok(found.map(|(_, answer, intent)| (answer, intent)))
}

/// Describes for the report how effects are counted.
pub(super) fn describe_counting(world: &World<'_>) -> String {
    match (&world.plan.counting, &world.identity) {
        (Counting::Url { url, .. }, _) => format!("at {url}"),
        (Counting::Sql { database, .. }, _) => format!("with SQL at {database}"),
        (Counting::Answers, Identity::Member(pointer)) => {
            format!("by {pointer} in the responses, which is weak: effects that no response shows are not counted")
        }
        (Counting::Answers, Identity::Location) => {
            "by Location in the responses, which is weak: effects that no response shows are not counted".into()
        }
        (Counting::Answers, Identity::Body) => {
            "by responses that differ, which is weak: effects that no response shows are not counted".into()
        }
        (Counting::Answers, Identity::None) => {
            "not at all: the responses of two executions are alike, and --effects-url is not set".into()
        }
    }
}

fn usable(answer: ReceivedResponse, operation: &Operation) -> Result<ReceivedResponse, Trouble> {
    match answer.is_success() {
        true => Ok(answer),
        false => Err(Trouble::Plan(format!(
            "not testable: {} returned {} to the plain request with a new key: {}; set a --body and --header that the service accepts",
            operation.name(),
            answer.status,
            String::from_utf8_lossy(&answer.body[..answer.body.len().min(200)]).trim(),
        ))),
    }
}

/// Returns how long the first effect took to be counted.
async fn effect(stage: &Stage<'_>) -> Result<Duration, Trouble> {
    let since = Instant::now();
    if !stage.world.counter.is_exact() {
        return Ok(Duration::ZERO);
    }
    while stage.count().await? == 0 {
        if since.elapsed() > EFFECT_MAX {
            return Err(Trouble::Plan(
                "the effect count did not rise with the plain request; it must count this operation, and each --seed works only once per service".into(),
            ));
        }
        sleep(LOOK_EVERY).await;
    }
    let took = since.elapsed();
    match stage.effects().await?.count {
        0 | 1 => Ok(took),
        many => Err(Trouble::Plan(format!(
            "the effect count rose by {many} with one plain request; it must count only this operation, without other traffic"
        ))),
    }
}

/// Judges two equal requests under two keys: they are two intended effects.
fn judge(
    stage: &mut Stage<'_>,
    second: &super::wire::Sent,
    ran: impl Fn(&ReceivedResponse) -> bool,
) -> (CaseVerdict, Vec<String>) {
    let is_unique = stage.world.operation.is_unique();
    match second {
        Ok(answer) if ran(answer) && is_unique => {
            let why = "the operation contains {{unique}}, so no two requests are equal";
            return (CaseVerdict::Skipped, vec![why.into()]);
        }
        Ok(answer) if ran(answer) => {}
        Ok(answer) if is_unique => stage.fail(format!(
            "another body with another key got {} and did not execute",
            answer.status
        )),
        Ok(answer) if answer.is_success() => {
            stage
                .fail("the same body with another key got a success response, but did not execute");
        }
        Ok(answer) => stage.fail(format!(
            "the same body with another key was rejected: {}",
            answer.status
        )),
        Err(lost) => stage.fail(format!(
            "the same body with another key got no response: {lost}"
        )),
    }
    (stage.verdict, std::mem::take(&mut stage.findings))
}

fn cookies_of_both(one: &ReceivedResponse, other: &ReceivedResponse) -> Vec<String> {
    let others: Vec<_> = other.all("set-cookie").collect();
    let cookies = one
        .all("set-cookie")
        .filter(|cookie| others.contains(cookie));
    cookies.map(str::to_owned).collect()
}

fn case(id: &str) -> &'static super::Case {
    let found = CASES.iter().find(|case| case.id == id);
    found.unwrap_or(&CASES[0])
}
