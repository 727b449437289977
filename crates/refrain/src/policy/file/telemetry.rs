//! Resolves the settings of `[proxy]` about what the proxy reports: its access log.

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
