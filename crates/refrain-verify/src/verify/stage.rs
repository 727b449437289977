//! What a case has to work with: fresh keys, requests, the count of effects, and a place for what it finds.

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
    report::Verdict,
    service::Service,
    wire::{self, Answer, Line, Request, Sent},
};
use crate::place::Place;

/// What is replaced by a word that no other request has.
pub(super) const UNIQUE: &str = "{{unique}}";
/// What is replaced by the key, where it is no header.
pub(super) const KEY: &str = "{{key}}";
/// The most exchanges that a report shows of one case.
const EXCHANGES_MAX: usize = 60;
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// What all cases of an operation share.
#[derive(Debug)]
pub(super) struct World<'p> {
    pub(super) plan: &'p Plan,
    pub(super) operation: &'p Operation,
    /// Where the service listens.
    pub(super) place: Place,
    /// Which of the plan's operations: none has a key of another one.
    pub(super) number: usize,
    pub(super) counter: Counter,
    pub(super) identity: Identity,
    /// How long a first answer takes.
    pub(super) latency: Duration,
    /// How long the count has to stay as it is.
    pub(super) settle: Duration,
    /// Cookies that every answer has, whoever asks: not part of an outcome.
    pub(super) usual_cookies: Vec<String>,
    /// What the plain request is answered with.
    pub(super) status: u16,
    /// What a duplicate of a completed run is refused with, where it is not replayed.
    pub(super) refusal: Option<Answer>,
    /// Effects come later than answers.
    pub(super) is_late: bool,
    /// Bodies have to differ, because the service refuses the same one under another key.
    pub(super) must_vary: bool,
    /// Which of the variants of its body the service takes.
    pub(super) variant: Option<usize>,
    pub(super) varied: AtomicU64,
}

/// Why a case ends early.
#[derive(Debug)]
pub(super) enum Stop {
    /// It does not apply, or could not be tried.
    Skip(String),
    /// What it found already is enough.
    Found,
    /// Nothing more can be tried at all.
    Broken(String),
}

/// One intended effect: a key and the request that it names.
#[derive(Debug, Clone)]
pub(super) struct Intent {
    pub(super) key: String,
    /// The word that stands for `{{unique}}`.
    pub(super) unique: String,
    pub(super) request: Request,
    /// The body before anything is filled in.
    template: Vec<u8>,
}

impl Intent {
    /// What an answer may echo.
    pub(super) fn names(&self) -> [String; 2] {
        [self.key.clone(), self.unique.clone()]
    }
}

/// One case while it runs.
#[derive(Debug)]
pub(super) struct Stage<'w> {
    pub(super) world: &'w World<'w>,
    pub(super) service: &'w mut Service,
    id: &'static str,
    drawn: u64,
    /// Keys and unique words so far, for a count that goes by them.
    names: Vec<(String, String)>,
    /// The count when the case began, where it goes by nothing.
    before: u64,
    since: Instant,
    seen: Mutex<Vec<Exchange>>,
    /// What the successful answers say that they are about.
    identities: Mutex<BTreeSet<String>>,
    pub(super) verdict: Verdict,
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
            verdict: Verdict::Pass,
            findings: Vec::new(),
        };
        if !world.counter.is_keyed() {
            stage.before = match world.is_late {
                // What came of the case before may still be on its way.
                true => stage.effects().await?.count,
                false => stage.count().await?,
            };
        }
        Ok(stage)
    }

    /// A fresh key with the operation's own body.
    pub(super) fn intent(&mut self) -> Intent {
        let body = match self.world.must_vary {
            true => self.another_body(),
            false => self.world.operation.body.clone(),
        };
        self.intent_with(&body)
    }

    /// A fresh key with a request that differs from the others in its content too, where that can be done.
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

    /// Another request's body, which no other one has, and which the service takes; `None` where none is known.
    pub(super) fn varied(&self) -> Option<Vec<u8>> {
        let by = self.world.varied.fetch_add(1, Relaxed) + 1;
        let mut all = change::variants(&self.world.operation.body, by);
        let at = self.world.variant.filter(|at| *at < all.len())?;
        Some(all.swap_remove(at))
    }

    /// A fresh key with this body.
    pub(super) fn intent_with(&mut self, body: &[u8]) -> Intent {
        let seed = self.world.plan.seed;
        let place = format!("{} {}", self.world.number, self.id);
        let key = draw::key(seed, &place, self.drawn);
        let unique = draw::unique(seed, &place, self.drawn);
        self.drawn += 1;
        self.names.push((key.clone(), unique.clone()));
        let (plan, operation) = (self.world.plan, self.world.operation);
        let request = request(plan, operation, body, (&unique, key.as_bytes()));
        Intent {
            key,
            unique,
            request,
            template: body.to_owned(),
        }
    }

    /// The same intent with another body; what is unique in it stays the same.
    pub(super) fn rewritten(intent: &Intent, body: &[u8]) -> Request {
        Request {
            body: filled(body, (&intent.unique, &intent.key)).into(),
            ..intent.request.clone()
        }
    }

    /// The same intent under another key, which may be any bytes.
    pub(super) fn rekeyed(&self, intent: &Intent, key: &[u8]) -> Request {
        let (plan, operation) = (self.world.plan, self.world.operation);
        request(plan, operation, &intent.template, (&intent.unique, key))
    }

    /// Sends it straight to the service.
    pub(super) async fn send(&self, label: &str, request: &Request) -> Sent {
        self.send_via(&self.world.place, label, request).await
    }

    /// Sends it to this place, which leads to the service.
    pub(super) async fn send_via(&self, place: &Place, label: &str, request: &Request) -> Sent {
        let (since, plan) = (Instant::now(), self.world.plan);
        let sent = wire::send(place, &plan.target.authority, request, plan.timeout).await;
        self.note(label, request, &sent, since);
        sent
    }

    /// Everything but the last byte of it.
    pub(super) async fn prepare(&self, request: &Request) -> Result<Line, wire::Lost> {
        let plan = self.world.plan;
        let (place, authority) = (&self.world.place, &plan.target.authority);
        Line::prepare(place, authority, request, plan.timeout).await
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

    /// The first request of an intent, which has to succeed for the case to mean anything.
    pub(super) async fn first(&mut self, intent: &Intent) -> Result<Answer, Stop> {
        let sent = self.send("first", &intent.request).await;
        self.must_succeed(sent)
    }

    pub(super) fn must_succeed(&mut self, sent: Sent) -> Result<Answer, Stop> {
        match sent {
            Ok(answer) if answer.is_success() => Ok(answer),
            Ok(answer) if answer.status < 500 => Err(Stop::Skip(format!(
                "its first request, with a fresh key, was answered {}",
                answer.status
            ))),
            Ok(answer) => {
                self.fail(format!(
                    "a first request with a fresh key failed: {}",
                    answer.status
                ));
                Err(Stop::Found)
            }
            Err(lost) => {
                self.fail(format!(
                    "a first request with a fresh key got no answer: {lost}"
                ));
                Err(Stop::Found)
            }
        }
    }

    /// Sends it again for as long as it is said to be in flight, up to `patience`.
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

    /// How often it took effect so far, once that stays as it is.
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

    /// How often it took effect so far.
    pub(super) async fn count(&self) -> Result<u64, Stop> {
        let counter = &self.world.counter;
        if !counter.is_keyed() {
            let now = counter.read("", "").await.map_err(Stop::Broken)?;
            return now.checked_sub(self.before).ok_or_else(|| {
                Stop::Skip("the count of effects went back: it is lost with the service".into())
            });
        }
        let mut sum = 0;
        for (key, unique) in &self.names {
            sum += counter.read(key, unique).await.map_err(Stop::Broken)?;
        }
        Ok(sum)
    }

    /// Whether both are about the same run.
    pub(super) fn compare(&self, one: &Answer, other: &Answer) -> Likeness {
        self.world.identity.compare(one, other)
    }

    /// Whether both are about the same run for certain.
    pub(super) fn is_same(&self, one: &Answer, other: &Answer) -> bool {
        self.compare(one, other) == Likeness::Same
    }

    /// Whether both are about different runs for certain.
    pub(super) fn is_other(&self, one: &Answer, other: &Answer) -> bool {
        self.compare(one, other) == Likeness::Other
    }

    /// Whether the answer says that it is still in flight: asking again may get another one.
    pub(super) fn is_busy(&self, answer: &Answer) -> bool {
        match answer.is_success() {
            true => self.is_pending(answer),
            false => is_busy(answer) && !self.is_refusal_of_done(answer),
        }
    }

    /// "Accepted, and on its way", where the plain request is answered otherwise.
    fn is_pending(&self, answer: &Answer) -> bool {
        let is_unusual = answer.status == 202 && self.world.status != 202;
        is_unusual && self.world.identity.of(answer).is_none()
    }

    /// Whether the answer says that it is done, and not what came of it.
    pub(super) fn only_says_done(&self, answer: &Answer) -> bool {
        let identity = &self.world.identity;
        let is_silent = *identity != Identity::None && identity.of(answer).is_none();
        answer.is_success() && is_silent && answer.status != 303 && says_done(answer)
    }

    /// Whether a duplicate of a completed run is refused in these words.
    pub(super) fn is_refusal_of_done(&self, answer: &Answer) -> bool {
        let names = self.names.iter();
        let names = names.flat_map(|(key, unique)| [key.clone(), unique.clone()]);
        let found = without(answer, &names.collect::<Vec<_>>());
        let refusal = self.world.refusal.as_ref();
        refusal.is_some_and(|it| it.status == answer.status && is_alike(it, &found))
    }

    /// Goes on from what was seen since then.
    pub(super) fn continued(mut self, since: Instant, seen: Vec<Exchange>) -> Self {
        (self.since, self.seen) = (since, Mutex::new(seen));
        self
    }

    pub(super) fn fail(&mut self, finding: impl Into<String>) {
        self.verdict = Verdict::Fail;
        self.find(finding.into());
    }

    pub(super) fn warn(&mut self, finding: impl Into<String>) {
        if self.verdict != Verdict::Fail {
            self.verdict = Verdict::Warn;
        }
        self.find(finding.into());
    }

    /// What is worth saying though nothing is wrong with it.
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

/// A request of the operation with this unique word and this key, in its header or where `{{key}}` stands.
pub(super) fn request(
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
        false => request.and(&operation.key_header, key),
    }
}

/// The answer without these names in its body.
pub(super) fn without(answer: &Answer, names: &[String]) -> Answer {
    let text = nameless(&String::from_utf8_lossy(&answer.body), names);
    Answer {
        body: text.into(),
        ..answer.clone()
    }
}

/// Whether the answer says that it is still in flight: asking again may get another one.
fn is_busy(answer: &Answer) -> bool {
    match answer.status {
        409 => !says_unknown(answer),
        423 | 425 | 429 => true,
        503 => answer.header("retry-after").is_some(),
        _ => false,
    }
}

/// Whether the answer says that nobody knows what became of it: an honest end.
pub(super) fn says_unknown(answer: &Answer) -> bool {
    let text = String::from_utf8_lossy(&answer.body).to_ascii_lowercase();
    ["unknown", "indeterminate", "in doubt"]
        .iter()
        .any(|word| text.contains(word))
}

/// Whether the answer says that it is done already, and does not tell how.
pub(super) fn says_done(answer: &Answer) -> bool {
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
