//! Traces over OTLP, from `otlp_endpoint` and the variables that OpenTelemetry defines.

use std::{env, sync::Arc};

use http::{HeaderName, HeaderValue};
use percent_encoding::percent_decode_str;
use refrain::{policy::Settings, store::AnyStore};
use refrain_proxy::telemetry::{Telemetry, TraceOptions};

use super::Failure;

const SERVICE_NAME: &str = "service.name";

/// The URL of the collector from `REFRAIN_OTLP_ENDPOINT`, or else from the variables of OpenTelemetry.
pub(super) fn endpoint() -> Result<Option<String>, Failure> {
    if let Some(own) = crate::settings::value("otlp_endpoint", None)? {
        return Ok(Some(own));
    }
    let is_off = variable("OTEL_SDK_DISABLED")?.is_some_and(|it| it.eq_ignore_ascii_case("true"))
        || variable("OTEL_TRACES_EXPORTER")?.is_some_and(|it| it == "none");
    let url = match variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")? {
        Some(url) => Some(url),
        // The general URL is a base, also if it has a path.
        None => variable("OTEL_EXPORTER_OTLP_ENDPOINT")?
            .map(|url| format!("{}/v1/traces", url.trim_end_matches('/'))),
    };
    let url = url.filter(|_| !is_off);
    if url.is_some() {
        check_protocol()?;
    }
    Ok(url)
}

/// Rejects other protocols than the one that is implemented, because a collector would reject every export.
fn check_protocol() -> Result<(), Failure> {
    let of_traces = variable("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")?;
    let protocol = match of_traces {
        Some(protocol) => Some(protocol),
        None => variable("OTEL_EXPORTER_OTLP_PROTOCOL")?,
    };
    match protocol.as_deref() {
        None | Some("http/protobuf") => Ok(()),
        Some(other) => Err(bad(format!(
            "OTEL_EXPORTER_OTLP_PROTOCOL asks for `{other}`, and traces are exported over http/protobuf only; \
             set OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf, and OTEL_EXPORTER_OTLP_TRACES_ENDPOINT to the \
             collector's port for HTTP, usually 4318"
        ))),
    }
}

/// With this build every setting is possible.
#[expect(clippy::unnecessary_wraps, reason = "as without the feature")]
pub(super) fn check(_: &Settings) -> Result<(), Failure> {
    Ok(())
}

/// Starts to record and export spans, if the settings name a collector.
pub(super) fn start(
    settings: &Settings,
    telemetry: &Arc<Telemetry>,
    store: &AnyStore,
) -> Result<(), Failure> {
    let Some(traces) = &settings.traces else {
        return Ok(());
    };
    let mut options = TraceOptions::new(&traces.endpoint);
    options.sample_ratio = traces.sample_ratio;
    options.headers = headers()?;
    options.resource = resource()?;
    let upstream = settings.upstream.as_deref().unwrap_or_default();
    let rest = upstream.split_once("://").map_or("", |(_, rest)| rest);
    let authority = rest.split('/').next();
    options.upstream = authority.unwrap_or_default().into();
    telemetry
        .trace(options, store.clone())
        .map_err(|error| Failure::Unavailable(format!("otlp_endpoint: {error}")))
}

/// The headers of each export.
fn headers() -> Result<Vec<(HeaderName, HeaderValue)>, Failure> {
    let names = [
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
        "OTEL_EXPORTER_OTLP_HEADERS",
    ];
    for name in names {
        let Some(list) = variable(name)? else {
            continue;
        };
        let pairs = pairs(name, &list)?.into_iter();
        // The value may be a credential: it is not shown.
        let header = |(key, value): (String, String)| {
            let header = key.parse().ok().zip(value.parse().ok());
            header.ok_or_else(|| {
                bad(format!(
                    "{name} has an invalid header; write NAME=VALUE,NAME=VALUE"
                ))
            })
        };
        return pairs.map(header).collect();
    }
    Ok(Vec::new())
}

/// The attributes of this process.
fn resource() -> Result<Vec<(String, String)>, Failure> {
    const LIST: &str = "OTEL_RESOURCE_ATTRIBUTES";
    let list = variable(LIST)?.unwrap_or_default();
    let mut attributes = pairs(LIST, &list)?;
    if let Some(name) = variable("OTEL_SERVICE_NAME")? {
        attributes.retain(|(key, _)| key != SERVICE_NAME);
        attributes.push((SERVICE_NAME.into(), name));
    }
    for (key, value) in [
        (SERVICE_NAME, "refrain"),
        ("service.version", env!("CARGO_PKG_VERSION")),
    ] {
        if !attributes.iter().any(|(found, _)| found == key) {
            attributes.push((key.into(), value.into()));
        }
    }
    Ok(attributes)
}

/// A list `KEY=VALUE,KEY=VALUE`, percent-encoded.
fn pairs(name: &str, list: &str) -> Result<Vec<(String, String)>, Failure> {
    let members = list.split(',').map(str::trim).filter(|it| !it.is_empty());
    let pair = |member: &str| {
        let (key, value) = member.split_once('=')?;
        let value = percent_decode_str(value.trim()).decode_utf8().ok()?;
        Some((key.trim().to_owned(), value.into_owned()))
    };
    let pairs = members.map(pair).collect::<Option<_>>();
    pairs.ok_or_else(|| {
        bad(format!(
            "{name} is malformed; write KEY=VALUE,KEY=VALUE, percent-encoded"
        ))
    })
}

/// A variable of OpenTelemetry; an empty one counts as unset.
fn variable(name: &str) -> Result<Option<String>, Failure> {
    let value = env::var_os(name).map(|value| value.into_string());
    let value = value
        .transpose()
        .map_err(|_| bad(format!("{name} is not UTF-8")))?;
    Ok(value.filter(|value| !value.is_empty()))
}

fn bad(message: String) -> Failure {
    Failure::Configuration(format!("refrain: {message}"))
}
