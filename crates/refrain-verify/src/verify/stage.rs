//! Test stage of a case: new keys, requests, the count of effects, and the findings.

use std::{
    collections::BTreeSet,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::time::{Instant, sleep};

use super::{
    change, draw,
    effects::{Counter, Effects, escaped},
    exchange::Exchange,
    identity::{Identity, Likeness, is_alike, nameless},
    plan::{Operation, Plan},
    report::CaseVerdict,
    service::Service,
    wire::{self, PartialRequest, ReceivedResponse, Request, Sent},
};
use crate::place::Endpoint;

/// Placeholder for a word that is unique to each request.
pub(super) const UNIQUE: &str = "{{unique}}";
/// Placeholder for the key, where it is not sent in a header of its own.
pub(super) const KEY: &str = "{{key}}";
/// Maximum number of exchanges of one case in a report.
const EXCHANGES_MAX: usize = 60;
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// State shared by all cases of an operation.
#[derive(Debug)]
pub(super) struct World<'p> {
    pub(super) plan: &'p Plan,
    pub(super) operation: &'p Operation,
    /// Address of the service.
    pub(super) place: Endpoint,
    /// Index of the operation in the plan; it makes keys differ between operations.
    pub(super) number: usize,
    pub(super) counter: Counter,
    pub(super) identity: Identity,
    /// Response time of a first request.
    pub(super) latency: Duration,
    /// How long the count of effects must stay unchanged.
    pub(super) settle: Duration,
    /// Cookies that the service sets on every response; not part of an outcome.
    pub(super) usual_cookies: Vec<String>,
    /// Status of the response to the plain request.
    pub(super) status: u16,
    /// The response that refuses a duplicate of a completed run, if the service does not replay.
    pub(super) refusal: Option<ReceivedResponse>,
    /// Whether effects may come after the response.
    pub(super) is_late: bool,
    /// Whether bodies must differ, because the service refuses the same body under another key.
    pub(super) must_vary: bool,
    /// Index of the body variant that the service accepts.
    pub(super) variant: Option<usize>,
    pub(super) varied: AtomicU64,
}

/// Why a case ends early.
#[derive(Debug)]
pub(super) enum Stop {
    /// The case does not apply, or could not be run.
    Skip(String),
    /// The findings so far are enough.
    Found,
    /// No further case can run.
    Broken(String),
}

/// One intended effect: a key and the request that it names.
#[derive(Debug, Clone)]
pub(super) struct Intent {
    pub(super) key: String,
    /// The word that replaces `{{unique}}`.
    pub(super) unique: String,
    pub(super) request: Request,
    /// The body before placeholders are replaced.
    template: Vec<u8>,
}

impl Intent {
    /// The key and unique word, which a response may echo.
    pub(super) fn names(&self) -> [String; 2] {
        [self.key.clone(), self.unique.clone()]
    }
}

/// A running case.
#[derive(Debug)]
pub(super) struct Stage<'w> {
    pub(super) world: &'w World<'w>,
    pub(super) service: &'w mut Service,
    id: &'static str,
    drawn: u64,
    /// Keys and unique words so far, for a count by key or unique word.
    names: Vec<(String, String)>,
    /// The count when the case began, if effects are counted in total.
    before: u64,
    since: Instant,
    seen: Mutex<Vec<Exchange>>,
    /// Identities of the successful responses.
    identities: Mutex<BTreeSet<String>>,
    pub(super) verdict: CaseVerdict,
    pub(super) findings: Vec<String>,
}

impl<'w> Stage<'w> {
    pub(super) async fn new(
        world: &'w World<'w>,
        service: &'w mut Service,
        id: &'static str,
    ) -> Result<Self, Stop> {
        let mut stage = Self {
            world,
            service,
            id,
            drawn: 0,
            names: Vec::new(),
            before: 0,
            since: Instant::now(),
            seen: Mutex::default(),
            identities: Mutex::default(),
            verdict: CaseVerdict::Pass,
            findings: Vec::new(),
        };
        if !world.counter.is_keyed() {
            stage.before = match world.is_late {
                // Effects of the previous case may still come.
                true => stage.effects().await?.count,
                false => stage.count().await?,
            };
        }
        Ok(stage)
    }

    /// Returns a new key with the operation's own body.
    pub(super) fn intent(&mut self) -> Intent {
        let body = match self.world.must_vary {
            true => self.another_body(),
            false => self.world.operation.body.clone(),
        };
        self.intent_with(&body)
    }

    /// Returns a new key with a request whose content differs from all others, if possible.
    pub(super) fn distinct(&mut self) -> Intent {
        match self.world.operation.is_unique() {
            true => self.intent(),
            false => {
                let body = self.another_body();
                self.intent_with(&body)
            }
        }
    }

    fn another_body(&self) -> Vec<u8> {
        let body = &self.world.operation.body;
        self.varied().unwrap_or_else(|| body.clone())
    }

    /// Returns an unused body that the service accepts; `None` if none is known.
    pub(super) fn varied(&self) -> Option<Vec<u8>> {
        let by = self.world.varied.fetch_add(1, Relaxed) + 1;
        let mut all = change::variants(&self.world.operation.body, by);
        let at = self.world.variant.filter(|at| *at < all.len())?;
        Some(all.swap_remove(at))
    }

    /// Returns a new key with this body.
    pub(super) fn intent_with(&mut self, body: &[u8]) -> Intent {
        let seed = self.world.plan.seed;
        let place = format!("{} {}", self.world.number, self.id);
        let key = draw::key(seed, &place, self.drawn);
        let unique = draw::unique(seed, &place, self.drawn);
        self.drawn += 1;
        self.names.push((key.clone(), unique.clone()));
        let (plan, operation) = (self.world.plan, self.world.operation);
        let request = build_request(plan, operation, body, (&unique, key.as_bytes()));
        Intent {
            key,
            unique,
            request,
            template: body.to_owned(),
        }
    }

    /// The same intent with another body; key and unique word stay the same.
    pub(super) fn rewritten(intent: &Intent, body: &[u8]) -> Request {
        Request {
            body: filled(body, (&intent.unique, &intent.key)).into(),
            ..intent.request.clone()
        }
    }

    /// The same intent under another key, which may contain any bytes.
    pub(super) fn rekeyed(&self, intent: &Intent, key: &[u8]) -> Request {
        let (plan, operation) = (self.world.plan, self.world.operation);
        build_request(plan, operation, &intent.template, (&intent.unique, key))
    }

    /// Sends a request directly to the service.
    pub(super) async fn send(&self, label: &str, request: &Request) -> Sent {
        self.send_via(&self.world.place, label, request).await
    }

    /// Sends a request to this address, such as a fault proxy in front of the service.
    pub(super) async fn send_via(&self, place: &Endpoint, label: &str, request: &Request) -> Sent {
        let (since, plan) = (Instant::now(), self.world.plan);
        let sent = wire::send(place, &plan.target.authority, request, plan.timeout).await;
        self.note(label, request, &sent, since);
        sent
    }

    /// Connects and sends the request except its last byte.
    pub(super) async fn prepare(&self, request: &Request) -> Result<PartialRequest, wire::Lost> {
        let plan = self.world.plan;
        let (place, authority) = (&self.world.place, &plan.target.authority);
        PartialRequest::prepare(place, authority, request, plan.timeout).await
    }

    pub(super) fn note(&self, label: &str, request: &Request, sent: &Sent, since: Instant) {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let times = (millis(since - self.since), millis(since.elapsed()));
        let operation = self.world.operation;
        let credentials = [&operation.other_credential, &operation.rotated_credential];
        let secret: Vec<_> = credentials
            .into_iter()
            .flatten()
            .map(|it| it.0.clone())
            .collect();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() < EXCHANGES_MAX {
            seen.push(Exchange::new(label, request, sent, times, &secret));
        }
        drop(seen);
        if let Some(answer) = sent.as_ref().ok().filter(|answer| answer.is_success())
            && let Some(identity) = self.world.identity.of(answer)
        {
            let mut identities = self
                .identities
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            identities.insert(identity);
        }
    }

    /// Sends the first request of an intent; ends the case unless it succeeds.
    pub(super) async fn first(&mut self, intent: &Intent) -> Result<ReceivedResponse, Stop> {
        let sent = self.send("first", &intent.request).await;
        self.must_succeed(sent)
    }

    pub(super) fn must_succeed(&mut self, sent: Sent) -> Result<ReceivedResponse, Stop> {
        match sent {
            Ok(answer) if answer.is_success() => Ok(answer),
            Ok(answer) if answer.status < 500 => Err(Stop::Skip(format!(
                "its first request, with a new key, got {}",
                answer.status
            ))),
            Ok(answer) => {
                self.fail(format!(
                    "a first request with a new key failed: {}",
                    answer.status
                ));
                Err(Stop::Found)
            }
            Err(lost) => {
                self.fail(format!(
                    "a first request with a new key got no response: {lost}"
                ));
                Err(Stop::Found)
            }
        }
    }

    /// Repeats the request while the response says "in flight", for up to `patience`.
    pub(super) async fn decided(&self, label: &str, request: &Request, patience: Duration) -> Sent {
        let since = Instant::now();
        loop {
            let sent = self.send(label, request).await;
            let is_open = sent.as_ref().is_ok_and(|it| self.is_busy(it));
            if !is_open || since.elapsed() >= patience {
                return sent;
            }
            sleep(ASK_AGAIN).await;
        }
    }

    /// Returns the number of effects so far, once it stays unchanged.
    pub(super) async fn effects(&self) -> Result<Effects, Stop> {
        if !self.world.counter.is_exact() {
            let identities = self
                .identities
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            return Ok(Effects {
                count: identities.len() as u64,
                is_exact: false,
            });
        }
        let settle = self.world.settle;
        let (mut count, mut since) = (self.count().await?, Instant::now());
        while since.elapsed() < settle {
            sleep(settle / 3).await;
            let now = self.count().await?;
            if now != count {
                (count, since) = (now, Instant::now());
            }
        }
        Ok(Effects {
            count,
            is_exact: true,
        })
    }

    /// Returns the number of effects so far.
    pub(super) async fn count(&self) -> Result<u64, Stop> {
        let counter = &self.world.counter;
        if !counter.is_keyed() {
            let now = counter.read("", "").await.map_err(Stop::Broken)?;
            return now.checked_sub(self.before).ok_or_else(|| {
                Stop::Skip(
                    "the effect count decreased: it is lost when the service is killed".into(),
                )
            });
        }
        let mut sum = 0;
        for (key, unique) in &self.names {
            sum += counter.read(key, unique).await.map_err(Stop::Broken)?;
        }
        Ok(sum)
    }

    /// Compares the runs of two responses.
    pub(super) fn compare(&self, one: &ReceivedResponse, other: &ReceivedResponse) -> Likeness {
        self.world.identity.compare(one, other)
    }

    /// Whether both responses certainly belong to the same run.
    pub(super) fn is_same(&self, one: &ReceivedResponse, other: &ReceivedResponse) -> bool {
        self.compare(one, other) == Likeness::Same
    }

    /// Whether the responses certainly belong to different runs.
    pub(super) fn is_other(&self, one: &ReceivedResponse, other: &ReceivedResponse) -> bool {
        self.compare(one, other) == Likeness::Other
    }

    /// Whether the response says that the request is in flight, so a retry may get another response.
    pub(super) fn is_busy(&self, answer: &ReceivedResponse) -> bool {
        match answer.is_success() {
            true => self.is_pending(answer),
            false => is_busy(answer) && !self.is_refusal_of_done(answer),
        }
    }

    /// Whether the response is a 202 without an identity, although the plain request is answered with another status.
    fn is_pending(&self, answer: &ReceivedResponse) -> bool {
        let is_unusual = answer.status == 202 && self.world.status != 202;
        is_unusual && self.world.identity.of(answer).is_none()
    }

    /// Whether the response says "done" without the result.
    pub(super) fn only_says_done(&self, answer: &ReceivedResponse) -> bool {
        let identity = &self.world.identity;
        let is_silent = *identity != Identity::None && identity.of(answer).is_none();
        answer.is_success() && is_silent && answer.status != 303 && says_done(answer)
    }

    /// Whether the response equals the known refusal of a completed duplicate.
    pub(super) fn is_refusal_of_done(&self, answer: &ReceivedResponse) -> bool {
        let names = self.names.iter();
        let names = names.flat_map(|(key, unique)| [key.clone(), unique.clone()]);
        let found = without(answer, &names.collect::<Vec<_>>());
        let refusal = self.world.refusal.as_ref();
        refusal.is_some_and(|it| it.status == answer.status && is_alike(it, &found))
    }

    /// Takes over the start time and the exchanges of an earlier stage.
    pub(super) fn continued(mut self, since: Instant, seen: Vec<Exchange>) -> Self {
        (self.since, self.seen) = (since, Mutex::new(seen));
        self
    }

    pub(super) fn fail(&mut self, finding: impl Into<String>) {
        self.verdict = CaseVerdict::Fail;
        self.find(finding.into());
    }

    pub(super) fn warn(&mut self, finding: impl Into<String>) {
        if self.verdict != CaseVerdict::Fail {
            self.verdict = CaseVerdict::Warn;
        }
        self.find(finding.into());
    }

    /// Records a finding that is not a problem.
    pub(super) fn say(&mut self, finding: impl Into<String>) {
        self.find(finding.into());
    }

    fn find(&mut self, finding: String) {
        if !self.findings.contains(&finding) {
            self.findings.push(finding);
        }
    }

    pub(super) fn into_exchanges(self) -> Vec<Exchange> {
        let mut seen = self
            .seen
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        seen.sort_by_key(|exchange| exchange.at_ms);
        seen
    }
}

/// Makes a request with this unique word and this key, in the key header or in place of `{{key}}`.
pub(super) fn build_request(
    plan: &Plan,
    operation: &Operation,
    body: &[u8],
    (unique, key): (&str, &[u8]),
) -> Request {
    let text = String::from_utf8_lossy(key);
    let fill = |part: &str| part.replace(UNIQUE, unique).replace(KEY, &text);
    let path = operation.path.replace(UNIQUE, unique);
    let path = path.replace(KEY, &escaped(&text));
    let headers = operation.headers.iter();
    let request = Request {
        method: operation.method.clone(),
        target: format!("{}{path}", plan.target.prefix),
        headers: headers
            .map(|(name, value)| (name.clone(), fill(value).into_bytes()))
            .collect(),
        body: Bytes::from(filled(body, (unique, &text))),
    };
    match operation.holds_key() {
        true => request,
        false => request.add_header(&operation.key_header, key),
    }
}

/// The response without these names in its body.
pub(super) fn without(answer: &ReceivedResponse, names: &[String]) -> ReceivedResponse {
    let text = nameless(&String::from_utf8_lossy(&answer.body), names);
    ReceivedResponse {
        body: text.into(),
        ..answer.clone()
    }
}

/// Whether the response says that the request is in flight, so a retry may get another response.
fn is_busy(answer: &ReceivedResponse) -> bool {
    match answer.status {
        409 => !says_unknown(answer),
        423 | 425 | 429 => true,
        503 => answer.header("retry-after").is_some(),
        _ => false,
    }
}

/// Whether the response reports an unknown outcome, which is an honest answer.
pub(super) fn says_unknown(answer: &ReceivedResponse) -> bool {
    let text = String::from_utf8_lossy(&answer.body).to_ascii_lowercase();
    ["unknown", "indeterminate", "in doubt"]
        .iter()
        .any(|word| text.contains(word))
}

/// Whether the response says that the request was already completed.
pub(super) fn says_done(answer: &ReceivedResponse) -> bool {
    let text = String::from_utf8_lossy(&answer.body).to_ascii_lowercase();
    ["already", "done", "processed", "completed"]
        .iter()
        .any(|word| text.contains(word))
}

fn filled(body: &[u8], (unique, key): (&str, &str)) -> Vec<u8> {
    match std::str::from_utf8(body) {
        Ok(text) => text.replace(UNIQUE, unique).replace(KEY, key).into_bytes(),
        Err(_) => body.to_owned(),
    }
}
