//! What the admin API says: as JSON, and as the fields that are shown.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc, time::Duration};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::{
    task::{JoinHandle, spawn_local},
    time::{Instant, timeout},
};

use crate::client::{Client, RequestError};

/// Most requests and records that are fetched at a time.
const REQUESTS_MAX: usize = 100;
const UNKNOWN_MAX: usize = 100;
/// The store is listed for at most this part of the time: a list is shown this many times as long as it took.
const LISTED_TIMES: u32 = 10;

/// The responses of the admin API at one time.
#[derive(Debug, Default, Serialize)]
pub(super) struct Fetched {
    pub(super) overview: Value,
    pub(super) requests: Vec<Value>,
    /// Records with an unknown outcome; `None` if the store cannot list them now.
    pub(super) unknown: Option<Vec<Value>>,
    /// The message consumers of the process, if it has any.
    pub(super) workers: Vec<Value>,
}

/// Fetches from one admin address. The list of unknown outcomes may take long, and does not delay the rest.
pub(super) struct Fetcher {
    client: Rc<Client>,
    listing: RefCell<Listing>,
}

/// The latest list of unknown outcomes, and the request for the next one.
#[derive(Default)]
struct Listing {
    running: Option<(Instant, JoinHandle<Option<Vec<Value>>>)>,
    /// When the next request may start.
    due: Option<Instant>,
    last: Option<Vec<Value>>,
}

impl Fetcher {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client: Rc::new(client),
            listing: RefCell::default(),
        }
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Fetches everything that is shown, with the requests after this sequence number.
    /// Waits for the list of unknown outcomes at most `list_wait`, and then returns the previous one.
    pub(super) async fn fetch(
        &self,
        after: u64,
        list_wait: Duration,
    ) -> Result<Fetched, RequestError> {
        let overview = self.client.get("/api/overview").await?;
        let path = format!("/api/requests?after={after}&limit={REQUESTS_MAX}");
        let requests = list(self.client.get(&path).await?, "requests");
        let unknown = match overview["records"]["indeterminate"].as_u64() {
            Some(0) => Some(Vec::new()),
            Some(_) => self.unknown(list_wait).await,
            None => None,
        };
        // Without them the rest is shown: a broker may be slow to tell.
        let workers = self.client.get("/api/workers").await;
        Ok(Fetched {
            overview,
            requests,
            unknown,
            workers: workers.map_or(Vec::new(), |response| list(response, "workers")),
        })
    }

    async fn unknown(&self, wait: Duration) -> Option<Vec<Value>> {
        let mut listing = self.listing.take();
        let is_due = listing.due.is_none_or(|due| due <= Instant::now());
        if listing.running.is_none() && is_due {
            let list = spawn_local(list_unknown(self.client.clone()));
            listing.running = Some((Instant::now(), list));
        }
        if let Some((start, list)) = &mut listing.running
            && let Ok(listed) = timeout(wait, list).await
        {
            listing.due = Some(Instant::now() + start.elapsed() * LISTED_TIMES);
            listing.last = listed.ok().flatten();
            listing.running = None;
        }
        let last = listing.last.clone();
        self.listing.replace(listing);
        last
    }
}

async fn list_unknown(client: Rc<Client>) -> Option<Vec<Value>> {
    let path = format!("/api/records?state=indeterminate&limit={UNKNOWN_MAX}");
    let listed = client.get(&path).await;
    listed.ok().map(|records| list(records, "records"))
}

fn list(mut response: Value, name: &str) -> Vec<Value> {
    match response[name].take() {
        Value::Array(values) => values,
        _ => Vec::new(),
    }
}

/// The fields of a response that are shown.
pub(super) fn parse<T: DeserializeOwned>(value: Value) -> Result<T, RequestError> {
    serde_json::from_value(value).map_err(|error| {
        RequestError::usage(format!(
            "cannot read the response of the admin address: {error}; use the release of refrain that the proxy has"
        ))
    })
}

/// The state of the proxy.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Overview {
    pub(super) ready: bool,
    pub(super) reason: Option<String>,
    pub(super) detail: Option<String>,
    pub(super) version: Option<String>,
    /// When the process started; another time after a restart.
    pub(super) started: Option<String>,
    /// Addresses without secrets, the one with the claims last.
    pub(super) store: Option<Vec<String>>,
    pub(super) uptime_seconds: u64,
    pub(super) waiting_now: u64,
    /// By state; `None` if the store did not respond.
    pub(super) records: Option<BTreeMap<String, u64>>,
    pub(super) unknown: Option<Unknown>,
    pub(super) operations: Vec<Operation>,
    pub(super) samples: Vec<Sample>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Unknown {
    pub(super) oldest_seconds: u64,
}

/// Counts of an operation since the start.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Operation {
    pub(super) operation: String,
    pub(super) requests: BTreeMap<String, u64>,
    pub(super) waited: u64,
    pub(super) executed_p50_us: Option<u64>,
    pub(super) executed_p99_us: Option<u64>,
}

impl Operation {
    pub(super) fn count(&self, outcome: &str) -> u64 {
        self.requests.get(outcome).copied().unwrap_or_default()
    }
}

/// What happened in one interval.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Sample {
    pub(super) seconds: f64,
    pub(super) executed: u64,
    pub(super) replayed: u64,
    pub(super) waited: u64,
    pub(super) refused: u64,
    pub(super) unknown: u64,
    pub(super) passed: u64,
    pub(super) executed_p50_us: Option<u64>,
    pub(super) executed_p99_us: Option<u64>,
    pub(super) replayed_p99_us: Option<u64>,
}

/// A recent request.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Request {
    pub(super) seq: u64,
    pub(super) time: String,
    pub(super) operation: Option<String>,
    pub(super) method: String,
    pub(super) path: String,
    pub(super) outcome: String,
    pub(super) code: Option<String>,
    pub(super) status: Option<u16>,
    pub(super) record: Option<String>,
    pub(super) total_us: u64,
}

/// A record with an unknown outcome.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct UnknownRecord {
    pub(super) id: String,
    pub(super) operation: Option<String>,
    pub(super) reason: Option<String>,
    pub(super) first_seen: Option<String>,
    pub(super) node: Option<String>,
}

/// A message consumer.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Worker {
    pub(super) name: String,
    /// Deliveries by outcome, since the start.
    pub(super) counts: Vec<(String, u64)>,
    pub(super) in_flight: u64,
    pub(super) lag: Option<u64>,
    /// Dead letters in the queue now, if that is known.
    pub(super) dead_letters: Option<u64>,
    pub(super) trouble: Option<String>,
}

impl Worker {
    pub(super) fn count(&self, outcome: &str) -> u64 {
        let found = self.counts.iter().find(|(name, _)| name == outcome);
        found.map_or(0, |(_, count)| *count)
    }
}
