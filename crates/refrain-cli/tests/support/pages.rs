//! The pages of the documentation, and their code blocks.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// A page, with its path from the root of the project.
pub(crate) struct Page {
    pub(crate) path: String,
    pub(crate) text: String,
}

/// A fenced code block.
#[allow(dead_code, reason = "some test files use only part of it")]
pub(crate) struct Block<'p> {
    /// `path:line` of the opening fence.
    pub(crate) place: String,
    /// Line number of the opening fence.
    pub(crate) line: usize,
    /// The first word after the fence.
    pub(crate) language: &'p str,
    /// The words after the language, such as `not-run`.
    marks: Vec<&'p str>,
    pub(crate) lines: Vec<&'p str>,
}

#[allow(dead_code, reason = "some test files use only part of it")]
impl Block<'_> {
    /// Whether the fence has this word after the language.
    pub(crate) fn has(&self, mark: &str) -> bool {
        self.marks.contains(&mark)
    }

    /// The value of `name` in the fence, such as the 1 of `exit=1`.
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        self.marks.iter().find_map(|mark| mark.strip_prefix(name))
    }
}

/// Every page of the book and of the skill, and those at the root.
pub(crate) fn all() -> Vec<Page> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files: Vec<PathBuf> = ["README.md", "CONTRIBUTING.md", "SECURITY.md"]
        .iter()
        .map(|name| root.join(name))
        .collect();
    let mut folders = vec![
        root.join("docs"),
        root.join("skills"),
        root.join("examples"),
    ];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true if path.ends_with("node_modules") => {}
                true => folders.push(path),
                false if path.extension().is_some_and(|it| it == "md") => files.push(path),
                false => {}
            }
        }
    }
    files.sort();
    let pages = files.iter().map(|file| Page {
        path: file.strip_prefix(&root).unwrap().display().to_string(),
        text: fs::read_to_string(file).unwrap(),
    });
    pages.collect()
}

impl Page {
    /// Code blocks of the page.
    pub(crate) fn blocks(&self) -> Vec<Block<'_>> {
        let mut blocks = Vec::new();
        let mut open: Option<Block<'_>> = None;
        for (at, line) in self.text.lines().enumerate() {
            let fence = line.trim_start().strip_prefix("```");
            match (fence, open.take()) {
                (Some(info), None) => {
                    let mut words = info.split([',', ' ']);
                    open = Some(Block {
                        place: format!("{}:{}", self.path, at + 1),
                        line: at + 1,
                        language: words.next().unwrap_or_default(),
                        marks: words.collect(),
                        lines: Vec::new(),
                    });
                }
                (Some(_), Some(block)) => blocks.push(block),
                (None, Some(mut block)) => {
                    block.lines.push(line);
                    open = Some(block);
                }
                (None, None) => {}
            }
        }
        assert!(open.is_none(), "{}: a code fence is not closed", self.path);
        blocks
    }
}
