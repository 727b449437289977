//! The input of the rules: all files of the project, text files with their contents.

use std::{collections::BTreeSet, fs, io, path::Path};

/// Folders without hand-written files.
const SKIPPED: [&str; 3] = [".git", "target", "refrain-data"];
/// Name endings of hand-written text files.
const WRITTEN: [&str; 6] = [".rs", ".md", ".toml", ".sh", ".ci/run", ".gitignore"];

/// The project's files, as paths relative to its root, with `/` as separator.
#[derive(Debug, Default)]
pub(super) struct Tree {
    /// The hand-written text files.
    pub(super) files: Vec<File>,
    /// All files, as link targets.
    pub(super) paths: BTreeSet<String>,
}

/// A text file.
#[derive(Debug)]
pub(super) struct File {
    pub(super) path: String,
    pub(super) text: String,
}

impl Tree {
    /// Reads the project below `root`.
    pub(super) fn read(root: &Path) -> io::Result<Self> {
        let mut tree = Self::default();
        tree.read_folder(root, "")?;
        tree.files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(tree)
    }

    fn read_folder(&mut self, folder: &Path, prefix: &str) -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if SKIPPED.contains(&name.as_str()) {
                continue;
            }
            let path = format!("{prefix}{name}");
            let kind = entry.file_type()?;
            if kind.is_dir() {
                self.read_folder(&entry.path(), &format!("{path}/"))?;
            } else if kind.is_symlink() {
                // Pages that a crate packages; their links are relative to the file itself.
                self.paths.insert(path);
            } else {
                self.read_file(&entry.path(), path)?;
            }
        }
        Ok(())
    }

    fn read_file(&mut self, file: &Path, path: String) -> io::Result<()> {
        if !WRITTEN.iter().any(|end| path.ends_with(end)) {
            self.paths.insert(path);
            return Ok(());
        }
        let text = fs::read_to_string(file)
            .map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))?;
        self.add(&path, &text);
        Ok(())
    }

    /// Adds a text file.
    pub(super) fn add(&mut self, path: &str, text: &str) {
        self.paths.insert(path.into());
        self.files.push(File {
            path: path.into(),
            text: text.into(),
        });
    }

    /// The text file at exactly this path.
    pub(super) fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// The text files whose paths have this ending.
    pub(super) fn ending(&self, end: &'static str) -> impl Iterator<Item = &File> {
        self.files
            .iter()
            .filter(move |file| file.path.ends_with(end))
    }
}

impl File {
    /// The lines with their numbers, counted from 1.
    pub(super) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text
            .lines()
            .enumerate()
            .map(|(at, line)| (at + 1, line))
    }

    /// The lines of a Rust or TOML file without their comments.
    pub(super) fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let mark = match self.path.ends_with(".rs") {
            true => "//",
            false => "#",
        };
        self.lines()
            .map(move |(at, line)| (at, line.split_once(mark).map_or(line, |(code, _)| code)))
    }
}

/// The words of a line: runs of letters, digits and underscores.
pub(super) fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_')
}
