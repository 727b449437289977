//! Report files, each written atomically.

use std::{
    fs,
    io::{Read as _, Write as _},
    path::Path,
};

use refrain_verify::verify::{Report, html, junit, sarif};

use super::Args;
use crate::{output::say, proxy::Failure};

/// The most bytes of a baseline that are read.
const BASELINE_BYTES_MAX: u64 = 64 << 20;

/// Writes every report that the flags ask for.
pub(super) fn all(args: &Args, report: &Report) -> Result<(), Failure> {
    let json = || serde_json::to_string_pretty(report).unwrap_or_default() + "\n";
    match args.json.as_deref() {
        Some(path) if path == Path::new("-") => say(json().trim_end()),
        Some(path) => write_atomically(path, &json())?,
        None => {}
    }
    if let Some(path) = &args.junit {
        write_atomically(path, &junit(report))?;
    }
    if let Some(path) = &args.sarif {
        write_atomically(path, &format!("{:#}\n", sarif(report)))?;
    }
    if let Some(path) = &args.html {
        write_atomically(path, &html(report))?;
    }
    Ok(())
}

/// Writes a file atomically: to a temporary file in the same folder, which is then renamed.
pub(crate) fn write_atomically(path: &Path, text: &str) -> Result<(), Failure> {
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    let written = || {
        let mut file = tempfile::NamedTempFile::new_in(folder.unwrap_or(Path::new(".")))?;
        file.write_all(text.as_bytes())?;
        readable(&file)?;
        file.persist(path)?;
        Ok::<_, std::io::Error>(())
    };
    written()
        .map_err(|error| Failure::Unavailable(format!("cannot write {}: {error}", path.display())))
}

/// Makes a report readable for all users; temporary files are readable for their owner alone.
fn readable(file: &tempfile::NamedTempFile) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    file.as_file()
        .set_permissions(fs::Permissions::from_mode(0o644))
}

/// Reads an earlier report.
pub(super) fn baseline(path: &Path) -> Result<Report, Failure> {
    let bad = |why: &dyn std::fmt::Display| {
        Failure::Configuration(format!("refrain: --baseline {}: {why}", path.display()))
    };
    let mut text = String::new();
    fs::File::open(path)
        .and_then(|file| file.take(BASELINE_BYTES_MAX).read_to_string(&mut text))
        .map_err(|error| bad(&error))?;
    serde_json::from_str(&text)
        .map_err(|error| bad(&format!("not a report of refrain verify --json: {error}")))
}
