//! The files of a plan: which are written, merged, or left unchanged.

use std::{
    fmt, fs,
    io::{self, Read as _},
    path::{Component, Path, PathBuf},
};

use refrain_plan::render::{Owner, owner};

use crate::{proxy::Failure, verify::write::write_atomically};

/// The most bytes of an existing file that are read.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// The files of one plan.
pub(super) struct Files<'a> {
    folder: &'a Path,
    is_check: bool,
    is_forced: bool,
    pub(super) outcomes: Vec<Outcome>,
}

/// The result for one file.
#[derive(Debug, serde::Serialize)]
pub(crate) struct Outcome {
    path: PathBuf,
    /// `written`, `unchanged`, `left` if the file is not ours; under --check `stale` or `missing`.
    state: &'static str,
}

impl Outcome {
    pub(super) fn is_drift(&self) -> bool {
        matches!(self.state, "stale" | "missing")
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self.state {
            "left" => ": edited by hand, or not from `refrain plan`; pass --force to overwrite",
            "stale" => ": run `refrain plan` again",
            _ => "",
        };
        write!(f, "{:>9} {}{why}", self.state, self.path.display())
    }
}

impl<'a> Files<'a> {
    pub(super) fn new(folder: &'a Path, is_check: bool, is_forced: bool) -> Self {
        let outcomes = Vec::new();
        Self {
            folder,
            is_check,
            is_forced,
            outcomes,
        }
    }

    /// Reads an existing file to merge into; one without the plan's mark is rejected unless forced.
    pub(super) fn merged(&self, name: &str, mark: &str) -> Result<Option<String>, Failure> {
        let text = self.read(name)?;
        if !self.is_forced && self.is_foreign(name, mark)? {
            let path = self.folder.join(name);
            let path = path.display();
            return Err(Failure::Configuration(format!(
                "refrain: {path}: not written by `refrain plan`\n  fix: write to another folder with --out DIR, or merge into it with --force, which keeps its settings"
            )));
        }
        Ok(text)
    }

    /// Whether the file exists and is not from a plan.
    pub(super) fn is_foreign(&self, name: &str, mark: &str) -> Result<bool, Failure> {
        let is_ours = |text: &String| text.contains(mark) || text.contains("`refrain plan`");
        Ok(self.read(name)?.is_some_and(|it| !is_ours(&it)))
    }

    /// Writes a merged or new file.
    pub(super) fn write(&mut self, name: &str, text: &str) -> Result<(), Failure> {
        let existing = self.read(name)?;
        self.put(name, text, existing)
    }

    /// Writes a page or copy, unless it was changed by hand.
    pub(super) fn page(&mut self, name: &str, text: &str) -> Result<(), Failure> {
        let existing = self.read(name)?;
        let is_ours = existing.as_ref().is_none_or(|it| owner(it) == Owner::Ours);
        match is_ours || self.is_forced {
            true => self.put(name, text, existing),
            false => {
                self.add_outcome(name, "left");
                Ok(())
            }
        }
    }

    fn put(&mut self, name: &str, text: &str, existing: Option<String>) -> Result<(), Failure> {
        let state = match existing {
            Some(existing) if existing == text => "unchanged",
            Some(_) if self.is_check => "stale",
            None if self.is_check => "missing",
            _ => "written",
        };
        if state == "written" {
            let folder = self.folder.display();
            fs::create_dir_all(self.folder).map_err(|error| {
                Failure::Unavailable(format!("cannot create {folder}: {error}"))
            })?;
            write_atomically(&self.folder.join(name), text)?;
        }
        self.add_outcome(name, state);
        Ok(())
    }

    fn add_outcome(&mut self, name: &str, state: &'static str) {
        let path = self.folder.join(name);
        self.outcomes.push(Outcome { path, state });
    }

    fn read(&self, name: &str) -> Result<Option<String>, Failure> {
        let path = self.folder.join(name);
        let mut text = String::new();
        let read = fs::File::open(&path)
            .and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut text));
        match read {
            Ok(_) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Failure::Configuration(format!(
                "refrain: {}: cannot be read: {error}\n  fix: move it away, or write elsewhere with --out DIR",
                path.display()
            ))),
        }
    }
}

/// The prefix for references of the document in its copy in the folder `out`: the relative path back to the document's folder.
pub(super) fn references(document: &Path, out: &Path) -> String {
    let whole = |path: &Path| {
        std::path::absolute(path)
            .map(|it| tidy(&it))
            .unwrap_or(path.into())
    };
    let home = whole(
        document
            .parent()
            .unwrap_or(Path::new(""))
            .join(".")
            .as_path(),
    );
    let out = whole(out);
    let common = home
        .components()
        .zip(out.components())
        .take_while(|(a, b)| a == b)
        .count();
    let up = out.components().skip(common).map(|_| "..".to_owned());
    let down = home
        .components()
        .skip(common)
        .map(|it| it.as_os_str().to_string_lossy().into_owned());
    up.chain(down).map(|part| part + "/").collect()
}

fn tidy(path: &Path) -> PathBuf {
    let mut tidy = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                tidy.pop();
            }
            part => tidy.push(part),
        }
    }
    tidy
}
