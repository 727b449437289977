//! A correct payments service: the same key with the same request takes effect once.
//!
//! There is one process, so claims are in memory, end with the process and never lapse. Payment and
//! response are one line of a journal, written before the response is sent: a crash loses both or neither.

use std::{
    collections::{HashMap, HashSet},
    fs::{self, File},
    io::Write as _,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::State,
    http::{HeaderMap, Request, Response, request::Parts},
};
use base64::{Engine as _, prelude::BASE64_STANDARD as BASE64};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};

use crate::hole::Hole;

const WAIT: Duration = Duration::from_secs(2);
const STEP: Duration = Duration::from_millis(5);
const BODY_BYTES_MAX: usize = 8 << 20;

/// A rejection before anything took effect: status and message.
#[derive(Debug)]
pub(crate) struct Refused(pub(crate) u16, pub(crate) &'static str);

/// A response. The cookie is never stored.
#[derive(Debug, Clone)]
pub(crate) struct SampleResponse {
    pub(crate) status: u16,
    pub(crate) content_type: String,
    pub(crate) location: Option<String>,
    pub(crate) cookie: Option<String>,
    pub(crate) body: Vec<u8>,
    pub(crate) is_replay: bool,
}

/// A journal line: payment and response, written as one.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    is_payment: bool,
    record: Option<Kept>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Kept {
    identity: String,
    fingerprint: String,
    status: u16,
    content_type: String,
    location: Option<String>,
    /// In base64.
    body: String,
}

struct Service {
    hole: Box<dyn Hole>,
    state: Mutex<Memory>,
    /// Runs whose answers were not read, in the pooled connections that are used next.
    left: Mutex<Vec<Running>>,
}

type Running = JoinHandle<Result<SampleResponse, Refused>>;

/// Waits for a run on a pooled connection, which returns to the pool at the end.
struct Connection<'a> {
    service: &'a Service,
    running: Option<Running>,
}

impl Connection<'_> {
    async fn answer(mut self) -> Result<SampleResponse, Refused> {
        let Some(running) = &mut self.running else {
            return Err(Refused(500, "nothing runs"));
        };
        let answer = running.await;
        self.running = None;
        answer.unwrap_or(Err(Refused(500, "it broke")))
    }
}

impl Drop for Connection<'_> {
    fn drop(&mut self) {
        if self.service.hole.leaves_answers() {
            self.service.left().extend(self.running.take());
        }
    }
}

struct Memory {
    journal: File,
    payments: u64,
    /// Fingerprints of the records in flight, by identity.
    claims: HashMap<String, String>,
    records: HashMap<String, (Kept, Instant)>,
    /// References for which the bank has already failed once.
    tried: HashSet<String>,
}

struct PaymentRequest {
    parts: Parts,
    body: Vec<u8>,
    order: Value,
    caller: String,
}

/// Listens on the port, and keeps the journal in the folder.
pub(crate) async fn serve(hole: Box<dyn Hole>, port: u16, folder: &str) -> anyhow::Result<()> {
    let state = Mutex::new(Memory::open(&Path::new(folder).join("journal"))?);
    let left = Mutex::default();
    let service = Arc::new(Service { hole, state, left });
    let router = Router::new().fallback(answer).with_state(service);
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    Ok(axum::serve(listener, router).await?)
}

async fn answer(State(service): State<Arc<Service>>, request: Request<Body>) -> Response<Body> {
    let answered = match service.hole.outlives_clients() {
        true => service.connected(request).await,
        false => service.handle(request).await,
    };
    response(answered.unwrap_or_else(SampleResponse::from))
}

impl Service {
    /// Runs the request in its own task, so that a client's disconnect does not cancel it.
    async fn connected(
        self: &Arc<Self>,
        request: Request<Body>,
    ) -> Result<SampleResponse, Refused> {
        let is_read = request.method() == "GET";
        let ours = tokio::spawn(self.clone().handle(request));
        let left = self.left().pop_if(|_| !is_read);
        let connection = Connection {
            service: self,
            running: Some(left.unwrap_or(ours)),
        };
        connection.answer().await
    }

    async fn handle(self: Arc<Self>, request: Request<Body>) -> Result<SampleResponse, Refused> {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path();
        if parts.method == "GET" && path == "/ledger" {
            let count = self.memory().payments.to_string();
            return Ok(SampleResponse::json(200, count.into()));
        }
        let body = to_bytes(body, BODY_BYTES_MAX).await;
        let body = body.map_err(|_| Refused(413, "too large"))?.to_vec();
        let sent = parts.headers.get("authorization");
        let caller = sent.and_then(|it| it.to_str().ok()?.strip_prefix("Bearer "));
        // `Bearer alice.2` is a second credential of alice.
        let caller = caller.and_then(|it| it.split('.').next());
        let caller = caller
            .ok_or(Refused(401, "authentication required"))?
            .to_owned();
        if !matches!(path, "/v1/payments" | "/v1/refunds") {
            return Err(Refused(404, "not found"));
        }
        let order = match is_json(&parts.headers) {
            true => serde_json::from_slice(&body).map_err(|_| Refused(400, "no JSON"))?,
            false => Value::Null,
        };
        self.guarded(&PaymentRequest {
            parts,
            body,
            order,
            caller,
        })
        .await
    }

    async fn guarded(&self, asked: &PaymentRequest) -> Result<SampleResponse, Refused> {
        let key = self.hole.key(key(&asked.parts.headers)?)?;
        let identity = format!("{} {key}", self.hole.scope(&asked.caller));
        let fingerprint = asked.fingerprint();
        let since = Instant::now();
        while let Some(found) = self.claim(&identity, &fingerprint)? {
            match found {
                Some(kept) => return Ok(self.hole.replay(kept)),
                None if since.elapsed() > WAIT => return Err(Refused(409, "still in flight")),
                None => sleep(STEP).await,
            }
        }
        let ran = self.run(asked, &identity, fingerprint).await;
        self.memory().claims.remove(&identity);
        ran
    }

    /// Claims the record. Returns `None` if claimed, `Some(Some(…))` with a stored response, `Some(None)` if in flight.
    fn claim(
        &self,
        identity: &str,
        fingerprint: &str,
    ) -> Result<Option<Option<SampleResponse>>, Refused> {
        let mut memory = self.memory();
        let retention = self.hole.retention();
        let record = memory.records.get(identity);
        let record = record.filter(|(_, since)| since.elapsed() < retention);
        let known = record.map(|(kept, _)| &kept.fingerprint);
        let known = known.or_else(|| memory.claims.get(identity));
        if known.is_some_and(|known| known != fingerprint) {
            return Err(Refused(422, "the key was used for another request"));
        }
        if let Some((kept, _)) = record {
            return Ok(Some(Some(kept.answer())));
        }
        let claim = (identity.to_owned(), fingerprint.to_owned());
        let is_free = !memory.claims.contains_key(identity);
        if is_free {
            memory.claims.insert(claim.0, claim.1);
        }
        Ok((!is_free).then_some(None))
    }

    async fn run(
        &self,
        asked: &PaymentRequest,
        identity: &str,
        fingerprint: String,
    ) -> Result<SampleResponse, Refused> {
        let done = self.bank(asked).await;
        let mut memory = self.memory();
        let (answer, is_payment) = match done {
            Ok(()) => (asked.paid(memory.payments + 1), true),
            Err(refused) => (SampleResponse::from(refused), false),
        };
        let kept = self.hole.kept(&answer.body);
        let kept = kept.filter(|_| self.hole.is_kept(answer.status));
        let record = kept.map(|body| Kept {
            identity: identity.to_owned(),
            fingerprint,
            status: answer.status,
            content_type: answer.content_type.clone(),
            location: answer.location.clone(),
            body: BASE64.encode(body),
        });
        let written = memory.write(Line { is_payment, record });
        written.map_err(|_| Refused(503, "cannot write the journal"))?;
        Ok(answer)
    }

    /// Calls the bank, in small time steps; for some orders the first call fails.
    async fn bank(&self, asked: &PaymentRequest) -> Result<(), Refused> {
        let amount = asked.order["amount"].as_i64().unwrap_or_default();
        if amount < 0 {
            return Err(Refused(400, "the amount is negative"));
        }
        let is_slow = asked.order["slow"].as_bool().unwrap_or_default();
        for _ in 0..if is_slow { 60 } else { 4 } {
            sleep(STEP).await;
        }
        let reference = asked.order["reference"].to_string();
        match amount == 503 && self.memory().tried.insert(reference) {
            true => Err(Refused(503, "the bank does not answer")),
            false => Ok(()),
        }
    }

    fn left(&self) -> MutexGuard<'_, Vec<Running>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Memory {
    fn open(path: &Path) -> anyhow::Result<Self> {
        let text = fs::read(path).unwrap_or_default();
        let mut memory = Self {
            journal: File::options().create(true).append(true).open(path)?,
            payments: 0,
            claims: HashMap::new(),
            records: HashMap::new(),
            tried: HashSet::new(),
        };
        // A line that a crash cut short belongs to a request without a response.
        if !text.is_empty() && !text.ends_with(b"\n") {
            memory.journal.write_all(b"\n")?;
        }
        let lines = text.split(|byte| *byte == b'\n');
        for line in lines.filter_map(|line| serde_json::from_slice(line).ok()) {
            memory.apply(line);
        }
        Ok(memory)
    }

    fn write(&mut self, line: Line) -> anyhow::Result<()> {
        let text = serde_json::to_string(&line)?;
        self.journal.write_all(format!("{text}\n").as_bytes())?;
        self.apply(line);
        Ok(())
    }

    fn apply(&mut self, line: Line) {
        self.payments += u64::from(line.is_payment);
        if let Some(kept) = line.record {
            let record = (kept.clone(), Instant::now());
            self.records.insert(kept.identity, record);
        }
    }
}

impl Kept {
    fn answer(&self) -> SampleResponse {
        SampleResponse {
            status: self.status,
            content_type: self.content_type.clone(),
            location: self.location.clone(),
            cookie: None,
            body: BASE64.decode(&self.body).unwrap_or_default(),
            is_replay: false,
        }
    }
}

impl PaymentRequest {
    fn fingerprint(&self) -> String {
        let content = match is_json(&self.parts.headers) {
            true => canonical(&self.order),
            false => BASE64.encode(&self.body),
        };
        format!("{} {} {content}", self.parts.method, self.parts.uri)
    }

    fn paid(&self, number: u64) -> SampleResponse {
        let (body, content_type) = match is_json(&self.parts.headers) {
            true => {
                let front = format!("{{\"id\":{number},\"order\":").into_bytes();
                let body = [&front[..], &self.body, b"}"].concat();
                (body, "application/json")
            }
            false => (self.body.clone(), "application/octet-stream"),
        };
        SampleResponse {
            content_type: content_type.into(),
            location: Some(format!("{}/{number}", self.parts.uri.path())),
            cookie: Some(format!("session={number}")),
            ..SampleResponse::json(201, body)
        }
    }
}

/// Canonical JSON: members sorted by name.
fn canonical(value: &Value) -> String {
    match value {
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_by_key(|(name, _)| name.as_str());
            let member =
                |(name, value): &(&String, &Value)| format!("{name:?}:{}", canonical(value));
            let members: Vec<_> = members.iter().map(member).collect();
            format!("{{{}}}", members.join(","))
        }
        Value::Array(values) => {
            let values: Vec<_> = values.iter().map(canonical).collect();
            format!("[{}]", values.join(","))
        }
        plain => plain.to_string(),
    }
}

impl SampleResponse {
    fn json(status: u16, body: Vec<u8>) -> Self {
        Self {
            status,
            content_type: "application/json".into(),
            location: None,
            cookie: None,
            body,
            is_replay: false,
        }
    }
}

impl From<Refused> for SampleResponse {
    fn from(Refused(status, why): Refused) -> Self {
        Self::json(status, format!("{{\"error\":{why:?}}}").into_bytes())
    }
}

fn key(headers: &HeaderMap) -> Result<&str, Refused> {
    let mut keys = headers.get_all("idempotency-key").iter();
    match (keys.next().and_then(|key| key.to_str().ok()), keys.next()) {
        (Some(key), None) => Ok(key),
        _ => Err(Refused(
            400,
            "exactly one ASCII Idempotency-Key is required",
        )),
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    headers
        .get("content-type")
        .is_some_and(|kind| kind == "application/json")
}

fn response(answer: SampleResponse) -> Response<Body> {
    let mut response = Response::builder()
        .status(answer.status)
        .header("content-type", answer.content_type);
    let more = [
        ("location", answer.location),
        ("set-cookie", answer.cookie),
        ("retry-after", (answer.status == 409).then(|| "1".into())),
        (
            "idempotent-replayed",
            answer.is_replay.then(|| "true".into()),
        ),
    ];
    for (name, value) in more {
        if let Some(value) = value {
            response = response.header(name, value);
        }
    }
    response.body(Body::from(answer.body)).unwrap_or_default()
}
