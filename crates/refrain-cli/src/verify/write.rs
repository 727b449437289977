//! Reports on disk: a file is there whole, or not at all.

use std::{
    fs,
    io::{Read as _, Write as _},
    path::Path,
};

use refrain_verify::verify::{Report, html, junit, sarif};

use super::Args;
use crate::{output::say, proxy::Failure};

/// The largest baseline that is read.
const BASELINE_BYTES_MAX: u64 = 64 << 20;

/// Writes everything that was asked for.
pub(super) fn all(args: &Args, report: &Report) -> Result<(), Failure> {
    let json = || serde_json::to_string_pretty(report).unwrap_or_default() + "\n";
    match args.json.as_deref() {
        Some(path) if path == Path::new("-") => say(json().trim_end()),
        Some(path) => whole(path, &json())?,
        None => {}
    }
    if let Some(path) = &args.junit {
        whole(path, &junit(report))?;
    }
    if let Some(path) = &args.sarif {
        whole(path, &format!("{:#}\n", sarif(report)))?;
    }
    if let Some(path) = &args.html {
        whole(path, &html(report))?;
    }
    Ok(())
}

/// Written beside it first, so that an interruption leaves no half file.
pub(crate) fn whole(path: &Path, text: &str) -> Result<(), Failure> {
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    let written = || {
        let mut file = tempfile::NamedTempFile::new_in(folder.unwrap_or(Path::new(".")))?;
        file.write_all(text.as_bytes())?;
        readable(&file)?;
        file.persist(path)?;
        Ok::<_, std::io::Error>(())
    };
    written().map_err(|error| {
        Failure::Unavailable(format!("{} cannot be written: {error}", path.display()))
    })
}

/// Temporary files are for their owner alone; reports are for everybody.
fn readable(file: &tempfile::NamedTempFile) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    file.as_file()
        .set_permissions(fs::Permissions::from_mode(0o644))
}

/// An earlier report.
pub(super) fn baseline(path: &Path) -> Result<Report, Failure> {
    let bad = |why: &dyn std::fmt::Display| {
        Failure::Configuration(format!("refrain: --baseline {}: {why}", path.display()))
    };
    let mut text = String::new();
    fs::File::open(path)
        .and_then(|file| file.take(BASELINE_BYTES_MAX).read_to_string(&mut text))
        .map_err(|error| bad(&error))?;
    serde_json::from_str(&text).map_err(|error| bad(&format!("is no report of --json: {error}")))
}
