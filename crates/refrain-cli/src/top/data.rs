//! What the admin API says: as JSON, and as the fields that are shown.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::client::{Client, RequestError};

/// Most requests and records that are fetched at a time.
const REQUESTS_MAX: usize = 100;
const UNKNOWN_MAX: usize = 100;

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

/// Fetches everything that is shown, with the requests after this sequence number.
pub(super) async fn fetch(client: &Client, after: u64) -> Result<Fetched, RequestError> {
    let overview = client.get("/api/overview").await?;
    let path = format!("/api/requests?after={after}&limit={REQUESTS_MAX}");
    let requests = list(client.get(&path).await?, "requests");
    let unknown = match overview["records"]["indeterminate"].as_u64() {
        Some(0) => Some(Vec::new()),
        Some(_) => {
            let path = format!("/api/records?state=indeterminate&limit={UNKNOWN_MAX}");
            // A slow store must not hide the rest.
            let listed = client.get(&path).await;
            listed.ok().map(|records| list(records, "records"))
        }
        None => None,
    };
    // Without them the rest is shown: a broker may be slow to tell.
    let workers = client.get("/api/workers").await;
    Ok(Fetched {
        overview,
        requests,
        unknown,
        workers: workers.map_or(Vec::new(), |response| list(response, "workers")),
    })
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
