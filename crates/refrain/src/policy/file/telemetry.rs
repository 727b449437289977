//! Resolves the settings of `[proxy]` about what the proxy reports: its access log, and its traces.

use std::path::PathBuf;

use serde::{Serialize, Serializer};

use super::{
    draft::Apply,
    problem::Report,
    proxy::{count, size},
    table::Part,
    typed,
};

/// The name that stands for standard output.
const STDOUT: &str = "stdout";
const BYTES_MAX: usize = 100 << 20;
const FILES_MAX: usize = 10;
/// The path at which a collector receives traces, if the setting has none.
const TRACES_PATH: &str = "/v1/traces";

/// The access log of the proxy, from `[proxy]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct AccessLogSettings {
    /// Where its lines go.
    pub target: AccessLogTarget,
    /// Maximum size of a file, in bytes; then the next one is started.
    pub bytes_max: usize,
    /// Maximum number of files, with the current one; the oldest is deleted.
    pub files_max: usize,
}

/// Where the lines of an access log go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AccessLogTarget {
    /// Standard output.
    Stdout,
    /// A file, and older ones beside it: `FILE.1`, `FILE.2` and so on.
    File(PathBuf),
}

impl Serialize for AccessLogTarget {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Stdout => serializer.serialize_str(STDOUT),
            Self::File(path) => path.serialize(serializer),
        }
    }
}

/// Resolves the access log; `None` if there is none.
pub(super) fn access_log(
    part: &Part<typed::Proxy>,
    report: &mut Report<'_>,
) -> Option<AccessLogSettings> {
    let values = &part.values;
    let mut settings = AccessLogSettings {
        target: AccessLogTarget::Stdout,
        bytes_max: BYTES_MAX,
        files_max: FILES_MAX,
    };
    let mut apply = Apply {
        places: &part.places,
        report,
    };
    apply.scalar(
        "access_log_bytes_max",
        &values.access_log_bytes_max,
        |text| size(text, 1 << 20, 1 << 40),
        &mut settings.bytes_max,
    );
    apply.scalar(
        "access_log_files_max",
        &values.access_log_files_max,
        |text| count(text, 1, 1_000),
        &mut settings.files_max,
    );
    let named = values.access_log.as_deref()?;
    if named.trim().is_empty() {
        let place = part.places.get("access_log").cloned().unwrap_or_default();
        let help =
            "write \"stdout\" or a path, such as \"/var/log/refrain/access.log\", or leave it out";
        report.push(place, "`access_log` is empty", help);
    }
    if named != STDOUT {
        settings.target = AccessLogTarget::File(named.into());
    }
    Some(settings)
}

/// The traces of the proxy, from `[proxy]`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct TraceSettings {
    /// URL that spans are sent to, over OTLP/HTTP.
    pub endpoint: String,
    /// Part of the requests without a `traceparent` that are traced, from 0 to 1.
    pub sample_ratio: f64,
}

/// Resolves the traces; `None` if there are none.
pub(super) fn traces(part: &Part<typed::Proxy>, report: &mut Report<'_>) -> Option<TraceSettings> {
    let values = &part.values;
    let place = |name: &str| part.places.get(name).cloned().unwrap_or_default();
    let sample_ratio = values.otlp_sample_ratio.unwrap_or(1.0);
    if !(0.0..=1.0).contains(&sample_ratio) {
        let message = format!("`{sample_ratio}` is out of range");
        let help = "write a number from 0.0 (no new traces) to 1.0 (all requests)";
        report.push(place("otlp_sample_ratio"), message, help);
    }
    let url = values.otlp_endpoint.as_deref()?;
    let Some(endpoint) = traces_url(url) else {
        let help = "write scheme, host and port, such as \"http://127.0.0.1:4318\"; \
                    credentials belong in OTEL_EXPORTER_OTLP_HEADERS";
        report.push(
            place("otlp_endpoint"),
            "invalid URL in `otlp_endpoint`",
            help,
        );
        return None;
    };
    Some(TraceSettings {
        endpoint,
        sample_ratio,
    })
}

/// The URL for traces of a collector; `None` if `url` is invalid.
fn traces_url(url: &str) -> Option<String> {
    let rest = url
        .strip_prefix("http://")
        .or_else(|| url.strip_prefix("https://"))?;
    let authority = rest.split('/').next().unwrap_or_default();
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"?#@\\".contains(&byte);
    let is_valid = !authority.is_empty() && rest.bytes().all(is_plain);
    let base = url.strip_suffix('/').unwrap_or(url);
    let has_path = base.len() > url.len() - rest.len() + authority.len();
    is_valid.then(|| match has_path {
        true => url.into(),
        false => format!("{base}{TRACES_PATH}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_go_to_the_path_of_the_url_or_to_the_usual_one() {
        for (url, expected) in [
            ("http://c:4318", Some("http://c:4318/v1/traces")),
            ("https://c/", Some("https://c/v1/traces")),
            (
                "http://c:4318/otlp/v1/traces",
                Some("http://c:4318/otlp/v1/traces"),
            ),
            ("http://[::1]:4318", Some("http://[::1]:4318/v1/traces")),
            ("http://user:word@c", None),
            ("http://c/?x=1", None),
            ("http://", None),
            ("c:4317", None),
        ] {
            assert_eq!(traces_url(url).as_deref(), expected, "{url}");
        }
    }
}
