//! Test scene of a case: new ids, the broker, the count of effects, and the findings.

use std::time::Duration;

use refrain::consume::Message;
use tokio::time::{Instant, sleep};

use super::{Lines, Plan, Template};
use crate::verify::{
    CaseVerdict, Exchange, draw, effects::Counter, report::millis, service::Service, stage::Stop,
};

/// Maximum number of publications of one case in a report.
const EXCHANGES_MAX: usize = 60;
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Maximum time for which a count must stay unchanged, also for slow effects.
const SETTLE_MAX: Duration = Duration::from_secs(3);

/// State shared by all cases.
#[derive(Debug)]
pub(super) struct World<'p> {
    pub(super) plan: &'p Plan,
    pub(super) lines: &'p Lines,
    pub(super) counter: Counter,
}

/// Measurements of a plain message.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct MessageTiming {
    /// Time until its first effect.
    pub(super) latency: Duration,
    /// Number of effects: one for each consumer if all is well.
    pub(super) effects: u64,
}

/// A running case.
#[derive(Debug)]
pub(super) struct Scene<'w> {
    pub(super) plan: &'w Plan,
    pub(super) lines: &'w Lines,
    pub(super) template: &'w Template,
    pub(super) service: &'w mut Service,
    pub(super) pace: MessageTiming,
    counter: &'w Counter,
    /// Message and case; it makes ids differ between cases.
    place: String,
    drawn: u64,
    published: u64,
    /// Ids so far, for a count by id.
    ids: Vec<String>,
    /// The count when the case began, if effects are counted in total.
    before: u64,
    since: Instant,
    seen: Vec<Exchange>,
    pub(super) verdict: CaseVerdict,
    pub(super) findings: Vec<String>,
}

impl<'w> Scene<'w> {
    pub(super) async fn new(
        world: &'w World<'w>,
        (number, template): (usize, &'w Template),
        service: &'w mut Service,
        id: &str,
    ) -> Result<Self, Stop> {
        let mut scene = Self {
            plan: world.plan,
            lines: world.lines,
            template,
            service,
            pace: MessageTiming::default(),
            counter: &world.counter,
            place: format!("worker {number} {id}"),
            drawn: 0,
            published: 0,
            ids: Vec::new(),
            before: 0,
            since: Instant::now(),
            seen: Vec::new(),
            verdict: CaseVerdict::Pass,
            findings: Vec::new(),
        };
        if !scene.counter.is_keyed() {
            scene.before = scene.read("").await?;
        }
        Ok(scene)
    }

    /// Returns a new id.
    pub(super) fn fresh(&mut self) -> String {
        let id = draw::key(self.plan.seed, &self.place, self.drawn);
        self.drawn += 1;
        self.ids.push(id.clone());
        id
    }

    /// Excludes a message from the count, which was `before` when it was published.
    pub(super) async fn forget(&mut self, id: &str, before: u64) -> Result<(), Stop> {
        match self.counter.is_keyed() {
            true => self.ids.retain(|it| it != id),
            false => self.before += self.count().await?.saturating_sub(before),
        }
        Ok(())
    }

    /// Publishes the plain message under this id.
    pub(super) async fn publish(&mut self, label: &str, id: &str) -> Result<(), Stop> {
        self.publish_as(label, id, &self.template.body).await
    }

    pub(super) async fn publish_as(
        &mut self,
        label: &str,
        id: &str,
        body: &[u8],
    ) -> Result<(), Stop> {
        self.published += 1;
        let message = self.template.filled(body, id, self.published);
        let since = Instant::now();
        let published = self.lines.publisher.publish(&self.plan.queue, &message);
        let published = published.await;
        self.note(label, &message, published.is_ok(), since);
        published.map_err(|error| Stop::Broken(format!("the broker rejects messages: {error}")))
    }

    fn note(&mut self, label: &str, message: &Message, is_held: bool, since: Instant) {
        if self.seen.len() == EXCHANGES_MAX {
            return;
        }
        let headers = message.headers.iter();
        let headers = headers.map(|(name, value)| {
            let value = String::from_utf8_lossy(value);
            (name.clone(), value.into_owned())
        });
        let id = message.id.clone().map(|id| ("message id".to_owned(), id));
        let lines: Vec<_> = id.into_iter().chain(headers).collect();
        self.seen.push(Exchange::published(
            label,
            &self.plan.queue,
            &lines,
            &message.payload,
            (millis(since - self.since), millis(since.elapsed()), is_held),
        ));
    }

    async fn read(&self, id: &str) -> Result<u64, Stop> {
        self.counter.read(id, id).await.map_err(Stop::Broken)
    }

    /// Returns the number of effects of these ids; if effects are counted in total, those of the whole case.
    async fn count_of(&self, ids: &[String]) -> Result<u64, Stop> {
        if !self.counter.is_keyed() {
            let now = self.read("").await?;
            return now.checked_sub(self.before).ok_or_else(|| {
                Stop::Skip(
                    "the effect count decreased: it is lost when the consumer is killed".into(),
                )
            });
        }
        let mut sum = 0;
        for id in ids {
            sum += self.read(id).await?;
        }
        Ok(sum)
    }

    /// Returns the number of effects of this case so far.
    pub(super) async fn count(&self) -> Result<u64, Stop> {
        self.count_of(&self.ids).await
    }

    /// Waits until the case has had `want` effects; returns whether it had them in time.
    pub(super) async fn reach(&self, want: u64) -> Result<bool, Stop> {
        self.reach_of(&self.ids, want).await
    }

    /// Waits until a message has had its effects. The case had `before` effects when it was published.
    pub(super) async fn handled(&self, id: &String, before: u64) -> Result<bool, Stop> {
        match self.counter.is_keyed() {
            true => {
                let ids = std::slice::from_ref(id);
                self.reach_of(ids, self.pace.effects).await
            }
            false => self.reach(before + self.pace.effects).await,
        }
    }

    async fn reach_of(&self, ids: &[String], want: u64) -> Result<bool, Stop> {
        let since = Instant::now();
        loop {
            if self.count_of(ids).await? >= want {
                return Ok(true);
            }
            if since.elapsed() >= self.plan.patience {
                return Ok(false);
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// Returns the number of effects of the case once the consumer has seen all published messages.
    ///
    /// Publishes a marker message last and waits for its effect, then until the count stays unchanged.
    /// The marker's own effects are excluded.
    pub(super) async fn settled(&mut self) -> Result<u64, Stop> {
        let before = self.count().await?;
        let marker = self.fresh();
        self.publish(
            "a last message, to know that the earlier ones were handled",
            &marker,
        )
        .await?;
        let unit = self.pace.effects.max(1);
        let is_keyed = self.counter.is_keyed();
        let since = Instant::now();
        loop {
            let came = match is_keyed {
                true => self.count_of(std::slice::from_ref(&marker)).await?,
                false => self.count().await?.saturating_sub(before),
            };
            if came >= unit {
                break;
            }
            if since.elapsed() > self.plan.patience {
                let why = "a last message had no effect in time: the consumer is stuck";
                self.fail(why);
                return Err(Stop::Found);
            }
            sleep(LOOK_EVERY).await;
        }
        let all = self.quiet().await?;
        if is_keyed {
            self.ids.pop();
            return self.count().await;
        }
        Ok(all.saturating_sub(unit))
    }

    /// Returns the count once it stays unchanged.
    pub(super) async fn quiet(&self) -> Result<u64, Stop> {
        let settle = self.plan.settle.max(self.pace.latency * 3).min(SETTLE_MAX);
        let (mut count, mut since) = (self.count().await?, Instant::now());
        while since.elapsed() < settle {
            sleep(settle / 6).await;
            let now = self.count().await?;
            if now != count {
                (count, since) = (now, Instant::now());
            }
        }
        Ok(count)
    }

    pub(super) fn fail(&mut self, finding: impl Into<String>) {
        self.verdict = CaseVerdict::Fail;
        self.say(finding);
    }

    /// Records a finding that is not a problem.
    pub(super) fn say(&mut self, finding: impl Into<String>) {
        let finding = finding.into();
        if !self.findings.contains(&finding) {
            self.findings.push(finding);
        }
    }

    pub(super) fn into_exchanges(self) -> Vec<Exchange> {
        self.seen
    }
}
