//! Which files are looked at.

use std::{
    collections::BTreeSet,
    fs,
    io::Read as _,
    path::{Path, PathBuf},
};

use ignore::WalkBuilder;

use crate::{file::File, finding::Report, language::Lang};

/// Folders of others' code, and of what is generated.
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

/// What to read, and how much.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The largest file that is read, in bytes.
    pub file_bytes_max: u64,
    /// The most files that are looked at.
    pub files_max: usize,
    /// Whether files that test other code are looked at, too.
    pub tests: bool,
    /// Whether files are looked at that `.gitignore` names, and folders of others' code.
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

/// A file that was chosen.
#[derive(Debug)]
pub(crate) enum Source {
    Code(PathBuf, Lang),
    Sql(PathBuf),
}

/// A path that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{0}: {1}")]
pub struct NoSuchPath(String, String);

/// The files under the paths, each once, in the order of their names.
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
            "{} files, {} at most: the rest is left out",
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

/// The text of a file, or why it is left out.
pub(crate) fn read(path: &Path, limits: &Limits) -> Result<String, String> {
    let name = path.strip_prefix("./").unwrap_or(path).display();
    let file = fs::File::open(path).map_err(|error| format!("{name}: {error}"))?;
    let mut bytes = Vec::new();
    let read = file.take(limits.file_bytes_max + 1).read_to_end(&mut bytes);
    read.map_err(|error| format!("{name}: {error}"))?;
    if bytes.len() as u64 > limits.file_bytes_max {
        return Err(format!(
            "{name}: over {} bytes, left out",
            limits.file_bytes_max
        ));
    }
    String::from_utf8(bytes).map_err(|_| format!("{name}: not UTF-8, left out"))
}
