//! Scores the rules on the labelled corpus.
//!
//! A line such as `# snippet: name` begins a snippet, which is linted as a project of its own.
//! `# file: name` inside one begins another file of it.
//! `expect: rule` in a comment says that a finding of that rule belongs on the line.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use refrain_lint::{Rules, lint_texts};

/// A rule at a line of a file.
type Place = (String, usize, String);

/// Hits and misses.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Score {
    /// Found, and labelled.
    pub(crate) right: usize,
    /// Found, and not labelled.
    pub(crate) wrong: usize,
    /// Labelled, and not found.
    pub(crate) missed: usize,
}

impl Score {
    /// How many of the findings are right.
    pub(crate) fn precision(self) -> f64 {
        ratio(self.right, self.right + self.wrong)
    }

    /// How many of the labels are found.
    pub(crate) fn recall(self) -> f64 {
        ratio(self.right, self.right + self.missed)
    }

    fn add(&mut self, other: Self) {
        self.right += other.right;
        self.wrong += other.wrong;
        self.missed += other.missed;
    }
}

#[allow(clippy::cast_precision_loss)]
fn ratio(part: usize, whole: usize) -> f64 {
    if whole == 0 {
        1.0
    } else {
        part as f64 / whole as f64
    }
}

/// Scores of the whole corpus.
#[derive(Debug, Default)]
pub(crate) struct Table {
    /// By rule.
    pub(crate) rules: BTreeMap<String, Score>,
    /// By language.
    pub(crate) languages: BTreeMap<String, Score>,
    /// Snippets by language.
    pub(crate) snippets: BTreeMap<String, usize>,
    /// All together.
    pub(crate) total: Score,
    /// Every finding that is not labelled, and every label that is not found.
    pub(crate) faults: Vec<String>,
}

/// One snippet: its files, as (name, text, first line in the corpus file).
struct Snippet {
    name: String,
    files: Vec<(String, String, usize)>,
}

/// Scores every file of the corpus whose name the filter takes.
pub(crate) fn score(corpus: &Path, takes: impl Fn(&str) -> bool) -> Table {
    let rules = Rules::built_in().expect("built-in rules are well formed");
    let mut table = Table::default();
    for folder in sorted(corpus) {
        let language = name(&folder);
        for path in sorted(&folder) {
            if !takes(&name(&path)) {
                continue;
            }
            let text = fs::read_to_string(&path).expect("corpus file is readable");
            for snippet in snippets(&path, &text) {
                *table.snippets.entry(language.clone()).or_default() += 1;
                judge(&rules, &language, &path, &snippet, &mut table);
            }
        }
    }
    table
}

fn sorted(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(folder).expect("corpus folder is readable");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("entry").path()).collect();
    paths.sort();
    paths
}

fn name(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

fn snippets(path: &Path, text: &str) -> Vec<Snippet> {
    let end = path.extension().unwrap_or_default().to_string_lossy();
    let mut snippets: Vec<Snippet> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let mark = line.trim_start_matches(['#', '/', ' ']);
        let is_comment = line.starts_with(['#', '/']);
        if let Some(name) = mark.strip_prefix("snippet: ").filter(|_| is_comment) {
            let file = (format!("main.{end}"), String::new(), at + 1);
            snippets.push(Snippet {
                name: name.into(),
                files: vec![file],
            });
        } else if let Some(snippet) = snippets.last_mut() {
            if let Some(name) = mark.strip_prefix("file: ").filter(|_| is_comment) {
                snippet.files.push((name.into(), String::new(), at + 1));
            } else if let Some((_, text, _)) = snippet.files.last_mut() {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    snippets
}

fn judge(rules: &Rules, language: &str, path: &Path, snippet: &Snippet, table: &mut Table) {
    let texts: Vec<(&str, &str)> = snippet
        .files
        .iter()
        .map(|(name, text, _)| (name.as_str(), text.as_str()))
        .collect();
    let found: BTreeSet<Place> = lint_texts(&texts, rules)
        .findings
        .into_iter()
        .map(|it| (it.path, it.line, it.rule))
        .collect();
    let wanted: BTreeSet<Place> = snippet
        .files
        .iter()
        .flat_map(|(name, text, _)| labels(name, text))
        .collect();
    for place in found.union(&wanted) {
        let (is_found, is_wanted) = (found.contains(place), wanted.contains(place));
        let one = Score {
            right: usize::from(is_found && is_wanted),
            wrong: usize::from(is_found && !is_wanted),
            missed: usize::from(!is_found && is_wanted),
        };
        table.rules.entry(place.2.clone()).or_default().add(one);
        table.languages.entry(language.into()).or_default().add(one);
        table.total.add(one);
        if one.right == 0 {
            let first = snippet
                .files
                .iter()
                .find(|(name, ..)| *name == place.0)
                .map_or(0, |(_, _, first)| *first);
            let what = if is_found { "wrong" } else { "missed" };
            table.faults.push(format!(
                "{what}: {language}/{}:{}: {} ({})",
                name(path),
                first + place.1,
                place.2,
                snippet.name
            ));
        }
    }
}

fn labels(file: &str, text: &str) -> Vec<Place> {
    let mut labels = Vec::new();
    for (at, line) in text.lines().enumerate() {
        for label in line.split("expect: ").skip(1) {
            let rule = label.split([' ', ',']).next().unwrap_or_default();
            labels.push((file.to_string(), at + 1, rule.to_string()));
        }
    }
    labels
}
