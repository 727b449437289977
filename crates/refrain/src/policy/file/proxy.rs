//! Resolves `[proxy]`: limits and timeouts of the proxy.

use std::time::Duration;

use serde::{Serialize, Serializer};

use super::{Network, draft::Apply, problem::Report, table::Part, typed};
use crate::{
    Result,
    policy::{
        invalid,
        units::{self, Size, Span},
    },
};

/// Each connection is compared with each of them.
const TRUSTED_PROXIES_MAX: usize = 64;

/// Limits and timeouts of the proxy, from `[proxy]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ProxySettings {
    /// Number of threads that serve requests; 0 means one per processor.
    pub threads: usize,
    /// Maximum concurrent client connections; further ones wait to be accepted.
    pub connections_max: usize,
    /// Maximum size of a request or response head, in bytes.
    pub head_bytes_max: usize,
    /// Maximum number of header fields in one head.
    pub headers_max: usize,
    /// Maximum memory for buffered bodies of guarded requests and their responses, in bytes, in total.
    pub buffered_bytes_max: usize,
    /// Maximum time for a client to send a request head.
    #[serde(serialize_with = "as_span")]
    pub head_timeout: Duration,
    /// Maximum time without progress while reading a request body or writing a response.
    #[serde(serialize_with = "as_span")]
    pub client_timeout: Duration,
    /// Maximum idle time of a client connection.
    #[serde(serialize_with = "as_span")]
    pub keep_alive: Duration,
    /// Maximum time to connect to the upstream.
    #[serde(serialize_with = "as_span")]
    pub connect_timeout: Duration,
    /// Maximum time for the upstream to start its response to an unguarded request, and maximum time without progress
    /// of that response.
    #[serde(serialize_with = "as_span")]
    pub read_timeout: Duration,
    /// Maximum idle time of an upstream connection; must be below the idle timeout of the upstream.
    #[serde(serialize_with = "as_span")]
    pub upstream_idle: Duration,
    /// Maximum number of idle upstream connections per thread.
    pub upstream_idle_max: usize,
    /// Maximum time for running requests to finish at shutdown.
    #[serde(serialize_with = "as_span")]
    pub drain: Duration,
    /// `Host` header that the upstream receives.
    pub host: HostHeader,
    /// Accept a response to a guarded request that ends with its connection, as in HTTP/1.0.
    pub http10_upstream: bool,
}

/// `Host` header that the upstream receives.
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
    /// The `Host` that the client sent.
    #[default]
    Client,
    /// The upstream's own host.
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

/// Resolves the proxies in front of this one.
pub(super) fn trusted_proxies(part: &Part<typed::Proxy>, report: &mut Report<'_>) -> Vec<Network> {
    let mut networks = Vec::new();
    let mut apply = Apply {
        places: &part.places,
        report,
    };
    apply.list(
        "trusted_proxies",
        &part.values.trusted_proxies,
        &[],
        &mut networks,
    );
    if networks.len() > TRUSTED_PROXIES_MAX {
        let message = format!("`trusted_proxies` has {} members", networks.len());
        let help = format!("write at most {TRUSTED_PROXIES_MAX}; one network has many addresses");
        let place = apply.place("trusted_proxies");
        report.push(place, message, help);
    }
    networks
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

pub(super) fn size(text: &str, least: usize, most: usize) -> Result<usize> {
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
