//! Selects the files to analyse.

use std::{
    collections::BTreeSet,
    fs,
    io::Read as _,
    path::{Path, PathBuf},
};

use ignore::WalkBuilder;

use crate::{file::File, finding::Report, language::Lang};

/// Folders with third-party or generated code.
const SKIPPED: [&str; 16] = [
    ".git",
    "node_modules",
    "target",
    "vendor",
    "dist",
    "build",
    "venv",
    ".venv",
    "__pycache__",
    "site-packages",
    ".tox",
    "bower_components",
    ".next",
    "third_party",
    ".gradle",
    "coverage",
];

/// Limits of a lint run, and which files it includes.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum size of a file, in bytes.
    pub file_bytes_max: u64,
    /// Maximum number of files.
    pub files_max: usize,
    /// Whether test files are analysed, too.
    pub tests: bool,
    /// Whether to include files in `.gitignore`, hidden files, and folders with third-party or generated code.
    pub ignored: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            file_bytes_max: 1 << 20,
            files_max: 200_000,
            tests: false,
            ignored: false,
        }
    }
}

/// A selected file.
#[derive(Debug)]
pub(crate) enum Source {
    Code(PathBuf, Lang),
    Sql(PathBuf),
}

/// A path that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{0}: {1}")]
pub struct NoSuchPath(String, String);

/// Files under the paths, without duplicates, sorted by name.
pub(crate) fn files(
    paths: &[PathBuf],
    limits: &Limits,
    report: &mut Report,
) -> Result<Vec<Source>, NoSuchPath> {
    let mut found = BTreeSet::new();
    for path in paths {
        fs::metadata(path)
            .map_err(|error| NoSuchPath(path.display().to_string(), error.to_string()))?;
        let mut walk = WalkBuilder::new(path);
        let ignored = limits.ignored;
        walk.git_ignore(!ignored)
            .ignore(!ignored)
            .hidden(!ignored)
            .require_git(false)
            .filter_entry(move |entry| {
                let name = entry.file_name().to_str().unwrap_or_default();
                entry.depth() == 0 || ignored && name != ".git" || !SKIPPED.contains(&name)
            });
        for entry in walk.build() {
            match entry {
                Ok(entry) if entry.file_type().is_some_and(|it| it.is_file()) => {
                    found.insert((entry.into_path(), path.clone()));
                }
                Ok(_) => {}
                Err(error) => report.notes.push(error.to_string()),
            }
        }
    }
    let mut sources = Vec::new();
    let mut before = PathBuf::new();
    for (path, root) in found {
        if path == before {
            continue;
        }
        before.clone_from(&path);
        choose(path, &root, limits, report, &mut sources);
    }
    if sources.len() > limits.files_max {
        report.notes.push(format!(
            "{} files; the limit is {}: the rest is skipped",
            sources.len(),
            limits.files_max
        ));
        sources.truncate(limits.files_max);
    }
    Ok(sources)
}

fn choose(
    path: PathBuf,
    root: &Path,
    limits: &Limits,
    report: &mut Report,
    sources: &mut Vec<Source>,
) {
    let within = path
        .strip_prefix(root)
        .unwrap_or(&path)
        .to_string_lossy()
        .into_owned();
    match Lang::of(&path) {
        Some(_) if !limits.tests && path != root && File::is_test(&within) => {
            report.test_files += 1;
        }
        Some(lang) => sources.push(Source::Code(path, lang)),
        None if path.extension().is_some_and(|end| end == "sql") => sources.push(Source::Sql(path)),
        None => report.other_files += 1,
    }
}

/// Text of a file, or the reason why it is skipped.
pub(crate) fn read(path: &Path, limits: &Limits) -> Result<String, String> {
    let name = path.strip_prefix("./").unwrap_or(path).display();
    let file = fs::File::open(path).map_err(|error| format!("{name}: {error}"))?;
    let mut bytes = Vec::new();
    let read = file.take(limits.file_bytes_max + 1).read_to_end(&mut bytes);
    read.map_err(|error| format!("{name}: {error}"))?;
    if bytes.len() as u64 > limits.file_bytes_max {
        return Err(format!(
            "{name}: larger than {} bytes, skipped",
            limits.file_bytes_max
        ));
    }
    String::from_utf8(bytes).map_err(|_| format!("{name}: not UTF-8, skipped"))
}
