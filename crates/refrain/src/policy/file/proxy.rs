//! Resolves `[proxy]`: limits and times of the proxy itself.

use std::time::Duration;

use serde::{Serialize, Serializer};

use super::{draft::Apply, problem::Report, table::Part, typed};
use crate::{
    Result,
    policy::{
        invalid,
        units::{self, Size, Span},
    },
};

/// Limits and times of the proxy itself, from `[proxy]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ProxySettings {
    /// Threads that serve requests; 0 stands for one per processor.
    pub threads: usize,
    /// Connections from clients at a time; more wait to be accepted.
    pub connections_max: usize,
    /// The largest head of a request or an answer, in bytes.
    pub head_bytes_max: usize,
    /// The most header fields in one head.
    pub headers_max: usize,
    /// How many bytes of the bodies of guarded requests and of their answers are held in memory at a time.
    pub buffered_bytes_max: usize,
    /// How long a client may take for a request's head.
    #[serde(serialize_with = "as_span")]
    pub head_timeout: Duration,
    /// How long a client's body, or the sending of an answer to it, may stand still.
    #[serde(serialize_with = "as_span")]
    pub client_timeout: Duration,
    /// How long an idle connection of a client is kept.
    #[serde(serialize_with = "as_span")]
    pub keep_alive: Duration,
    /// How long connecting to the upstream may take.
    #[serde(serialize_with = "as_span")]
    pub connect_timeout: Duration,
    /// How long the upstream may take to begin its answer to an unguarded request, and how long that answer may stand still.
    #[serde(serialize_with = "as_span")]
    pub read_timeout: Duration,
    /// How long an idle connection to the upstream is kept; below the upstream's own idle time.
    #[serde(serialize_with = "as_span")]
    pub upstream_idle: Duration,
    /// The most idle connections to the upstream, in each thread.
    pub upstream_idle_max: usize,
    /// How long running requests may take to end once the proxy is told to stop.
    #[serde(serialize_with = "as_span")]
    pub drain: Duration,
    /// Which `Host` the upstream sees.
    pub host: HostHeader,
    /// Whether a guarded request's answer that ends with its connection, as HTTP/1.0 allows it, counts as complete.
    pub http10_upstream: bool,
}

/// Which `Host` the upstream sees.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    serde::Deserialize,
    serde::Serialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum HostHeader {
    /// The one that the client sent.
    #[default]
    Client,
    /// The upstream's own.
    Upstream,
}

impl Default for ProxySettings {
    fn default() -> Self {
        Self {
            threads: 0,
            connections_max: 10_000,
            head_bytes_max: 64 << 10,
            headers_max: 100,
            buffered_bytes_max: 256 << 20,
            head_timeout: Duration::from_secs(30),
            client_timeout: Duration::from_secs(60),
            keep_alive: Duration::from_secs(75),
            connect_timeout: Duration::from_secs(5),
            read_timeout: Duration::from_secs(300),
            upstream_idle: Duration::from_secs(4),
            upstream_idle_max: 256,
            drain: Duration::from_secs(30),
            host: HostHeader::default(),
            http10_upstream: false,
        }
    }
}

pub(super) fn resolve(part: &Part<typed::Proxy>, report: &mut Report<'_>) -> ProxySettings {
    let mut it = ProxySettings::default();
    let values = &part.values;
    let mut apply = Apply {
        places: &part.places,
        report,
    };
    let times = [
        ("head_timeout", &values.head_timeout, &mut it.head_timeout),
        (
            "client_timeout",
            &values.client_timeout,
            &mut it.client_timeout,
        ),
        ("keep_alive", &values.keep_alive, &mut it.keep_alive),
        (
            "connect_timeout",
            &values.connect_timeout,
            &mut it.connect_timeout,
        ),
        ("read_timeout", &values.read_timeout, &mut it.read_timeout),
        (
            "upstream_idle",
            &values.upstream_idle,
            &mut it.upstream_idle,
        ),
        ("drain", &values.drain, &mut it.drain),
    ];
    for (name, text, field) in times {
        apply.scalar(name, text, time, field);
    }
    let counts = [
        ("threads", &values.threads, 0..=1_024, &mut it.threads),
        (
            "connections_max",
            &values.connections_max,
            1..=1_000_000,
            &mut it.connections_max,
        ),
        (
            "headers_max",
            &values.headers_max,
            10..=10_000,
            &mut it.headers_max,
        ),
        (
            "upstream_idle_max",
            &values.upstream_idle_max,
            0..=100_000,
            &mut it.upstream_idle_max,
        ),
    ];
    for (name, text, range, field) in counts {
        let (first, last) = range.into_inner();
        apply.scalar(name, text, |text| count(text, first, last), field);
    }
    apply.scalar(
        "head_bytes_max",
        &values.head_bytes_max,
        |text| size(text, 8 << 10, 1 << 20),
        &mut it.head_bytes_max,
    );
    apply.scalar(
        "buffered_bytes_max",
        &values.buffered_bytes_max,
        |text| size(text, 1 << 20, 1 << 40),
        &mut it.buffered_bytes_max,
    );
    it.http10_upstream = values.http10_upstream.unwrap_or(it.http10_upstream);
    apply.choice("host", &values.host, &mut it.host);
    it
}

pub(super) fn time(text: &str) -> Result<Duration> {
    let time = units::duration(text)?;
    let (least, most) = (Duration::from_millis(10), Duration::from_hours(24));
    if (least..=most).contains(&time) {
        return Ok(time);
    }
    Err(invalid(format!(
        "`{text}` is out of range; write a time from {} to {}",
        Span(least),
        Span(most)
    )))
}

pub(super) fn count(text: &str, first: usize, last: usize) -> Result<usize> {
    let number = text.parse().ok();
    number
        .filter(|number| (first..=last).contains(number))
        .ok_or_else(|| {
            invalid(format!(
                "`{text}` is out of range; write a number from {first} to {last}"
            ))
        })
}

fn size(text: &str, least: usize, most: usize) -> Result<usize> {
    let bytes = units::size(text)?;
    if (least..=most).contains(&bytes) {
        return Ok(bytes);
    }
    Err(invalid(format!(
        "`{text}` is out of range; write a size from {} to {}",
        Size(least),
        Size(most)
    )))
}

fn as_span<S: Serializer>(time: &Duration, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_str(&Span(*time))
}
