//! A small payments API that is correct by default, with a switch for each bug.

#![allow(dead_code, reason = "each test file uses only part of this module")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, Method, Response, StatusCode, Uri},
};
use tokio::{net::TcpListener, task::JoinHandle, time::Instant};

/// Duration of a run.
const RUN: Duration = Duration::from_millis(20);
/// Time between reading and claiming, where these are two steps.
const GAP: Duration = Duration::from_millis(30);
/// Both durations for bugs that show only during a run: concurrent duplicates find the claim even if one of them is
/// late, and a client disconnects before the run has ended.
const LONG: Duration = Duration::from_millis(150);
/// How long a service with `ShortMemory` remembers keys.
const SHORT: Duration = Duration::from_secs(5);

type Answer = Response<axum::body::Body>;

/// The bug or the style of the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hole {
    Nothing,
    /// Answers completed duplicates with 409 instead of the response.
    Refuses,
    /// Makes duplicates wait for the first request instead of answering 409. Correct.
    Waits,
    /// Keys are scoped by route. Correct.
    RouteScope,
    /// No response has an id. Correct, but only a count at the source can tell.
    Faceless,
    /// Answers 202 without an id while the first request runs. Correct.
    SaysPending,
    /// Answers completed duplicates with 303 to the result. Correct.
    SeesOther,
    /// Answers completed duplicates with "done" and without the result. Safe.
    SaysDone,
    /// Renders the response again for each replay, with the current time. Correct.
    WritesAnew,
    /// The same, and no response has an id. Correct, but only a count at the source can tell.
    FacelessAnew,
    /// The effect comes some time after the response. Correct.
    Later,
    /// Accepts amounts up to 100 and no unknown members. Correct.
    Strict,
    /// The same, but does not compare requests.
    StrictNoFingerprint,
    /// The key is the member `key` of the body. Correct.
    KeyInBody,
    IgnoresKey,
    NoClaim,
    ReadThenLock,
    AcrossKeys,
    DropsRunOnHangUp,
    MixesAnswers,
    NoFingerprint,
    RunsOtherBody,
    NoPath,
    NoQuery,
    NoMethod,
    ByteFingerprint,
    NoScope,
    CredentialInKey,
    MissingIsShared,
    EmptyIsShared,
    CutsKeys,
    LosesLongKeys,
    ReplacesLetters,
    FirstKeyOrRun,
    QuotesAreNotKept,
    QuotesDiffer,
    ReplaysErrorToAll,
    ErrorLeavesClaim,
    ErrorAfterEffectReleases,
    LargeNotKept,
    TextBodies,
    ReplaysCookie,
    LosesLocation,
    NotMarked,
    ShortMemory,
    AlwaysOk,
}

use Hole::*;

#[derive(Debug, Clone)]
struct Kept {
    status: u16,
    body: Bytes,
    location: String,
    cookie: String,
    at: Instant,
}

#[derive(Debug, Clone)]
struct Record {
    fingerprint: Vec<u8>,
    /// `None` while in flight.
    kept: Option<Kept>,
}

#[derive(Debug, Default)]
struct SampleState {
    records: Mutex<HashMap<Vec<u8>, Record>>,
    bodies: Mutex<Vec<Bytes>>,
    effects: AtomicU64,
    runs: AtomicU64,
    /// Responses that no client read, left in the connection that the next request uses.
    left: Mutex<Vec<JoinHandle<Answer>>>,
}

/// Reads a response from a connection that returns to its pool even if a response is still to come on it.
struct Reading {
    shared: Arc<SampleState>,
    answer: Option<JoinHandle<Answer>>,
}

impl Reading {
    async fn answer(mut self) -> Answer {
        let answer = self.answer.as_mut().unwrap().await.unwrap();
        self.answer = None;
        answer
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.shared.left.lock().unwrap().extend(self.answer.take());
    }
}

#[derive(Debug, Clone)]
struct Api {
    hole: Hole,
    shared: Arc<SampleState>,
}

/// A running sample service; it stops when dropped.
pub(crate) struct Sample {
    pub(crate) url: String,
    serving: JoinHandle<()>,
}

impl Sample {
    pub(crate) async fn start(hole: Hole) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let api = Api {
            hole,
            shared: Arc::default(),
        };
        let routes = Router::new()
            .fallback(answer)
            .layer(axum::extract::DefaultBodyLimit::max(4 << 20))
            .with_state(api);
        let serving = tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
        Self { url, serving }
    }
}

impl Drop for Sample {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn answer(
    State(api): State<Api>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Answer {
    if method == Method::GET && uri.path() == "/count" {
        return text(200, &api.shared.effects.load(SeqCst).to_string());
    }
    let asked = ReceivedRequest {
        method,
        uri,
        headers,
        body,
    };
    if matches!(api.hole, Strict | StrictNoFingerprint) && !is_known(&asked.body) {
        return text(400, "unknown or too much");
    }
    if api.hole == DropsRunOnHangUp {
        return api.guarded(asked).await;
    }
    // A client that disconnects cancels neither the run nor its recording.
    let (hole, shared) = (api.hole, api.shared.clone());
    let run = tokio::spawn(async move { api.guarded(asked).await });
    if hole == MixesAnswers {
        let left = shared.left.lock().unwrap().pop();
        let answer = Some(left.unwrap_or(run));
        return Reading { shared, answer }.answer().await;
    }
    run.await.unwrap()
}

/// Whether the amount is at most 100 and there are no members but `amount` and `to`.
fn is_known(body: &[u8]) -> bool {
    let json = serde_json::from_slice::<serde_json::Value>(body).unwrap_or_default();
    let is_much = json["amount"].as_u64().is_some_and(|amount| amount > 100);
    let members = json.as_object().cloned().unwrap_or_default();
    let mut names = members.keys();
    !is_much && names.all(|name| name == "amount" || name == "to")
}

struct ReceivedRequest {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
}

impl ReceivedRequest {
    fn caller(&self) -> String {
        let credential = self.headers.get("authorization");
        let credential = credential.map_or("", |it| it.to_str().unwrap());
        credential.to_owned()
    }

    /// `Bearer alice-1` and `Bearer alice-2` are the same caller.
    fn person(&self) -> String {
        self.caller().split('-').next().unwrap().to_owned()
    }
}

impl Api {
    /// How long a step takes; `usual` for most services.
    fn takes(&self, usual: Duration) -> Duration {
        match self.hole {
            ReadThenLock | DropsRunOnHangUp => LONG,
            _ => usual,
        }
    }

    fn records(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Record>> {
        self.shared.records.lock().unwrap()
    }

    async fn guarded(self, asked: ReceivedRequest) -> Answer {
        let key = match self.key(&asked) {
            Ok(Some(key)) => key,
            Ok(None) => return self.run(&asked).await.show(),
            Err(status) => return text(status, "bad key"),
        };
        if self.hole == IgnoresKey {
            return self.run(&asked).await.show();
        }
        let fingerprint = self.fingerprint(&asked);
        if self.hole == AcrossKeys && self.is_known_elsewhere(&key, &fingerprint) {
            return text(409, "seen before");
        }
        if let Some(refused) = self.claim(&key, &fingerprint).await {
            return refused;
        }
        let kept = self.run(&asked).await;
        self.settle(&key, fingerprint, &asked, &kept);
        kept.show()
    }

    fn is_known_elsewhere(&self, key: &[u8], fingerprint: &[u8]) -> bool {
        let records = self.records();
        let mut others = records.iter().filter(|(other, _)| *other != key);
        others.any(|(_, record)| record.fingerprint == fingerprint)
    }

    /// Claims the key; returns the response to send instead if it is not granted.
    async fn claim(&self, key: &[u8], fingerprint: &[u8]) -> Option<Answer> {
        if matches!(self.hole, NoClaim | ReadThenLock) {
            let known = self.records().get(key).cloned();
            if let Some(record) = known.filter(|it| it.kept.is_some()) {
                return Some(self.known(&record, fingerprint));
            }
            // The race window between reading and writing.
            tokio::time::sleep(self.takes(GAP)).await;
            let known = self.records().get(key).cloned();
            if self.hole == ReadThenLock && known.is_some_and(|it| it.kept.is_none()) {
                return Some(text(409, "in progress"));
            }
        }
        loop {
            let known = {
                let mut records = self.records();
                let known = records
                    .get(key)
                    .filter(|_| !matches!(self.hole, NoClaim | ReadThenLock))
                    .cloned();
                if known.is_none() {
                    let fingerprint = fingerprint.to_vec();
                    records.insert(
                        key.to_vec(),
                        Record {
                            fingerprint,
                            kept: None,
                        },
                    );
                }
                known
            };
            let record = known?;
            let is_short = |kept: &Kept| self.hole == ShortMemory && kept.at.elapsed() > SHORT;
            if record.kept.as_ref().is_some_and(is_short) {
                return None;
            }
            if self.hole == Waits && record.kept.is_none() {
                tokio::time::sleep(Duration::from_millis(1)).await;
                continue;
            }
            return Some(self.known(&record, fingerprint));
        }
    }

    /// The response to a duplicate.
    fn known(&self, record: &Record, fingerprint: &[u8]) -> Answer {
        let is_error = record.kept.as_ref().is_some_and(|kept| kept.status >= 400);
        let is_compared = match self.hole {
            NoFingerprint | StrictNoFingerprint => false,
            ReplaysErrorToAll => !is_error,
            _ => true,
        };
        if is_compared && record.fingerprint != fingerprint {
            return text(422, "the key was used for something else");
        }
        let Some(kept) = &record.kept else {
            return match self.hole {
                SaysPending => text(202, "processing"),
                _ => text(409, "in progress"),
            };
        };
        if self.hole == SaysDone && !is_error {
            return text(200, "{\"status\":\"already processed\"}");
        }
        if self.hole == SeesOther && !is_error {
            let answer = Response::builder().status(303);
            let answer = answer.header("location", &kept.location);
            return answer.body("".into()).unwrap();
        }
        if self.hole == Refuses {
            return text(409, "done already");
        }
        let status = if self.hole == AlwaysOk {
            200
        } else {
            kept.status
        };
        let mut answer = Response::builder().status(status);
        if self.hole != NotMarked {
            answer = answer.header("idempotent-replayed", "true");
        }
        if self.hole != LosesLocation && !kept.location.is_empty() {
            answer = answer.header("location", &kept.location);
        }
        if self.hole == ReplaysCookie {
            answer = answer.header("set-cookie", &kept.cookie);
        }
        let body = match (self.hole, is_error) {
            (WritesAnew | FacelessAnew, false) if kept.body.starts_with(b"{") => {
                let text = String::from_utf8_lossy(&kept.body).into_owned();
                // A later time, and another order.
                let rendered = text.replace("\"at\":1,", "");
                Bytes::from(rendered.replace('}', ",\"at\":2}"))
            }
            _ => kept.body.clone(),
        };
        answer.body(body.into()).unwrap()
    }

    fn settle(&self, key: &[u8], fingerprint: Vec<u8>, asked: &ReceivedRequest, kept: &Kept) {
        let is_released = match kept.status {
            500.. if self.hole == ErrorLeavesClaim => return,
            500.. => self.hole == ErrorAfterEffectReleases,
            400.. => self.hole != ReplaysErrorToAll,
            _ => self.hole == LargeNotKept && asked.body.len() > 100_000,
        };
        let mut records = self.records();
        match is_released {
            true => drop(records.remove(key)),
            false => {
                let kept = Some(kept.clone());
                records.insert(key.to_vec(), Record { fingerprint, kept });
            }
        }
    }

    /// The key with its scope; `None` if the request is not guarded.
    fn key(&self, asked: &ReceivedRequest) -> Result<Option<Vec<u8>>, u16> {
        if self.hole == KeyInBody {
            let json = serde_json::from_slice::<serde_json::Value>(&asked.body);
            let key = json.unwrap_or_default()["key"].as_str().map(str::to_owned);
            let key = key.filter(|key| !key.is_empty()).ok_or(400_u16)?;
            return Ok(Some(format!("{}\0{key}", asked.person()).into_bytes()));
        }
        let mut given = asked.headers.get_all("idempotency-key").iter();
        let (first, second) = (given.next(), given.next());
        let mut key = match first {
            None if self.hole == MissingIsShared => b"undefined".to_vec(),
            None => return Ok(None),
            Some(key) => key.as_bytes().to_vec(),
        };
        if second.is_some() {
            return match self.hole {
                FirstKeyOrRun => Ok(None),
                _ => Err(400),
            };
        }
        if key.starts_with(b"\"") {
            match self.hole {
                QuotesAreNotKept => return Ok(None),
                QuotesDiffer => {}
                _ => key = key.trim_ascii().trim_matches_quotes(),
            }
        }
        match self.hole {
            CutsKeys => key.truncate(255),
            LosesLongKeys if key.len() > 255 => return Ok(None),
            ReplacesLetters => {
                let text = String::from_utf8(key).unwrap();
                key = text.replace(['é', 'è'], "?").into_bytes();
            }
            _ => {}
        }
        let is_empty = key.is_empty() && self.hole != EmptyIsShared;
        if is_empty || key.len() > 255 || !key.is_ascii() {
            return Err(400);
        }
        let scope = match self.hole {
            NoScope => String::new(),
            CredentialInKey => asked.caller(),
            RouteScope => format!("{}{}{}", asked.person(), asked.method, asked.uri),
            _ => asked.person(),
        };
        let mut scoped = [scope.as_bytes(), b"\0", &key].concat();
        if self.hole == RunsOtherBody {
            scoped.extend(&asked.body);
        }
        Ok(Some(scoped))
    }

    fn fingerprint(&self, asked: &ReceivedRequest) -> Vec<u8> {
        let json = serde_json::from_slice::<serde_json::Value>(&asked.body);
        let body = match json {
            Ok(json) if self.hole != ByteFingerprint => {
                // Sorted by the `BTreeMap`.
                let sorted: std::collections::BTreeMap<_, _> = json
                    .as_object()
                    .cloned()
                    .unwrap_or_default()
                    .into_iter()
                    .collect();
                serde_json::to_vec(&sorted).unwrap()
            }
            _ => asked.body.to_vec(),
        };
        let query = asked.uri.query().unwrap_or_default();
        let part = |hole: Hole, text: &str| match self.hole == hole {
            true => String::new(),
            false => text.to_owned(),
        };
        let head = [
            part(NoMethod, asked.method.as_str()),
            part(NoPath, asked.uri.path()),
            part(NoQuery, query),
        ];
        [head.join("\0").as_bytes(), &body].concat()
    }

    /// The operation itself: takes 20 ms, then has its effect.
    async fn run(&self, asked: &ReceivedRequest) -> Kept {
        let refused = |status: u16, why: &str| Kept {
            status,
            body: Bytes::from(why.to_owned()),
            location: String::new(),
            cookie: "none=1".into(),
            at: Instant::now(),
        };
        if asked.uri.path() != "/payments" || asked.method != Method::POST {
            return refused(404, "not found");
        }
        let body = String::from_utf8_lossy(&asked.body).into_owned();
        if body.contains("bad") {
            return refused(400, "bad amount");
        }
        tokio::time::sleep(self.takes(RUN)).await;
        if body.contains("fails") {
            if self.hole == ErrorAfterEffectReleases {
                self.shared.effects.fetch_add(1, SeqCst);
            }
            return refused(500, "failed");
        }
        self.shared.bodies.lock().unwrap().push(asked.body.clone());
        if self.hole == Later {
            let shared = self.shared.clone();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(120)).await;
                shared.effects.fetch_add(1, SeqCst);
            });
        } else {
            self.shared.effects.fetch_add(1, SeqCst);
        }
        let id = self.shared.runs.fetch_add(1, SeqCst) + 1;
        let is_binary = asked
            .headers
            .get("content-type")
            .is_some_and(|it| it == "application/octet-stream");
        let body = match (is_binary, self.hole) {
            (true, TextBodies) => Bytes::from(body),
            (true, _) => asked.body.clone(),
            (false, Faceless) => Bytes::from("paid"),
            (false, FacelessAnew) => Bytes::from("{\"at\":1,\"paid\":true}"),
            (false, WritesAnew) => Bytes::from(format!("{{\"at\":1,\"id\":{id}}}")),
            (false, _) => Bytes::from(format!("{{\"id\":{id},\"paid\":true}}")),
        };
        let is_plain = matches!(self.hole, Faceless | FacelessAnew);
        Kept {
            status: 201,
            body,
            location: if is_plain {
                String::new()
            } else {
                format!("/payments/{id}")
            },
            cookie: if is_plain {
                "shop=1".into()
            } else {
                format!("session={id}")
            },
            at: Instant::now(),
        }
    }
}

impl Kept {
    fn show(&self) -> Answer {
        let mut answer = Response::builder()
            .status(self.status)
            .header("set-cookie", &self.cookie);
        if !self.location.is_empty() {
            answer = answer.header("location", &self.location);
        }
        answer.body(self.body.clone().into()).unwrap()
    }
}

trait Quotes {
    fn trim_matches_quotes(&self) -> Vec<u8>;
}

impl Quotes for [u8] {
    fn trim_matches_quotes(&self) -> Vec<u8> {
        let inner = self
            .strip_prefix(b"\"")
            .and_then(|it| it.strip_suffix(b"\""));
        inner.unwrap_or(self).to_vec()
    }
}

fn text(status: u16, text: &str) -> Answer {
    let status = StatusCode::from_u16(status).unwrap();
    let body = text.to_owned().into();
    Response::builder().status(status).body(body).unwrap()
}
