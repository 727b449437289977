//! Rules: data files, built in or the user's own.

use std::{fmt, fs, path::Path};

use ast_grep_core::matcher::Pattern;
use serde::{Deserialize, Serialize};

use crate::{analyses, language::Lang, words::Words};

mod built_in;

/// The largest rule file that is read.
const RULE_BYTES_MAX: u64 = 1 << 20;
/// The most files in a folder of rules.
const RULE_FILES_MAX: usize = 1_000;

/// How bad it is, and how certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Not certain: worth a look.
    Hint,
    /// Wrong in most programs.
    Warning,
    /// A retry does it twice, or loses it.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Hint => "hint",
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// One rule.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Its name, as in `allow(…)`.
    pub id: String,
    /// Its severity where a finding has no other.
    pub severity: Severity,
    /// What is found, in a few words.
    pub title: String,
    /// What goes wrong.
    pub why: String,
    /// What to do instead.
    pub fix: String,
    /// Where there is more about it.
    pub link: String,
    /// The languages that it looks at; all without this.
    #[serde(default)]
    pub languages: Vec<Lang>,
    /// The analysis that finds it.
    #[serde(default)]
    pub analysis: Option<String>,
    /// Patterns that find it.
    #[serde(default, rename = "pattern")]
    pub patterns: Vec<PatternRule>,
}

/// A pattern of a rule.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PatternRule {
    /// The languages that it is written in.
    pub languages: Vec<Lang>,
    /// The pattern, in the form of ast-grep: `$NAME` is one node, `$$$` any number.
    pub pattern: String,
    /// The kind of node inside the pattern that is looked for, where the pattern is only its surroundings.
    #[serde(default)]
    pub selector: Option<String>,
    /// Words of which the file has to hold one.
    #[serde(default)]
    pub mentions: Vec<String>,
    /// Words of which the file must hold none.
    #[serde(default)]
    pub unless: Vec<String>,
    /// What has to be true of the place, by name; with `not-` in front, what must not.
    #[serde(default)]
    pub when: Vec<String>,
    /// Another severity than the rule's.
    #[serde(default)]
    pub severity: Option<Severity>,
    /// What is seen there.
    #[serde(default)]
    pub note: String,
    /// One for each language.
    #[serde(skip)]
    pub(crate) compiled: Vec<(Lang, Pattern)>,
}

/// All rules that are in force, and the words they go by.
#[derive(Debug)]
pub struct Rules {
    /// The rules, in the order of their names.
    pub rules: Vec<Rule>,
    pub(crate) words: Words,
}

/// A rule that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {why}")]
pub struct BadRule {
    place: String,
    why: String,
}

/// What a file of rules may hold.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    #[serde(default)]
    rule: Vec<Rule>,
    #[serde(default)]
    words: Words,
}

impl Rules {
    /// The rules that are built in.
    ///
    /// # Errors
    ///
    /// Never with the files as they are shipped.
    pub fn built_in() -> Result<Self, BadRule> {
        let mut rules = Self {
            rules: Vec::new(),
            words: Words::default(),
        };
        for (name, text) in built_in::FILES {
            rules.add(name, text)?;
        }
        Ok(rules)
    }

    /// Adds the rules of every `.toml` in a folder.
    ///
    /// # Errors
    ///
    /// Where the folder cannot be read, or a file in it is no rule.
    pub fn add_folder(&mut self, folder: &Path) -> Result<(), BadRule> {
        let bad = |why: String| BadRule {
            place: folder.display().to_string(),
            why,
        };
        let entries = fs::read_dir(folder).map_err(|error| bad(error.to_string()))?;
        let mut paths: Vec<_> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .collect();
        paths.retain(|path| path.extension().is_some_and(|end| end == "toml"));
        paths.sort();
        if paths.is_empty() {
            return Err(bad(
                "no rule is in it; write one to a file ending in .toml".into()
            ));
        }
        if paths.len() > RULE_FILES_MAX {
            return Err(bad(format!(
                "{} files, {RULE_FILES_MAX} at most",
                paths.len()
            )));
        }
        for path in paths {
            let place = path.display().to_string();
            let bad = |why: String| BadRule {
                place: place.clone(),
                why,
            };
            let size = fs::metadata(&path)
                .map_err(|error| bad(error.to_string()))?
                .len();
            if size > RULE_BYTES_MAX {
                return Err(bad(format!("{size} bytes, {RULE_BYTES_MAX} at most")));
            }
            let text = fs::read_to_string(&path).map_err(|error| bad(error.to_string()))?;
            self.add(&place, &text)?;
        }
        Ok(())
    }

    /// Adds the rules and words of one file.
    ///
    /// # Errors
    ///
    /// Where it is no rule, or one of its patterns or names is not known.
    pub fn add(&mut self, place: &str, text: &str) -> Result<(), BadRule> {
        let bad = |why: String| BadRule {
            place: place.into(),
            why,
        };
        let content: Content = toml::from_str(text).map_err(|error| bad(error.to_string()))?;
        for mut rule in content.rule {
            rule.check()
                .map_err(|why| bad(format!("rule {}: {why}", rule.id)))?;
            if self.find(&rule.id).is_some() {
                return Err(bad(format!(
                    "the rule {} is there already; take another id",
                    rule.id
                )));
            }
            self.rules.push(rule);
        }
        self.words.add(content.words);
        self.rules.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(())
    }

    /// The rule of a name.
    #[must_use]
    pub fn find(&self, id: &str) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.id == id)
    }
}

impl Rule {
    /// Whether it looks at a language.
    #[must_use]
    pub fn is_for(&self, lang: Lang) -> bool {
        self.languages.is_empty() || self.languages.contains(&lang)
    }

    fn check(&mut self) -> Result<(), String> {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if self.id.is_empty() || !self.id.chars().all(plain) {
            return Err("an id is of small letters, digits and -".into());
        }
        if self.analysis.is_none() && self.patterns.is_empty() {
            return Err("it has neither an `analysis` nor a [[rule.pattern]]".into());
        }
        if let Some(name) = self
            .analysis
            .as_deref()
            .filter(|name| analyses::named(name).is_none())
        {
            let known: Vec<_> = analyses::ANALYSES.iter().map(|(name, _)| *name).collect();
            return Err(format!(
                "there is no analysis {name}; there are {}",
                known.join(", ")
            ));
        }
        self.patterns.iter_mut().try_for_each(PatternRule::compile)
    }
}

impl PatternRule {
    fn compile(&mut self) -> Result<(), String> {
        for name in &self.when {
            let name = name.strip_prefix("not-").unwrap_or(name);
            if !crate::predicate::NAMES.contains(&name) {
                return Err(format!(
                    "there is no predicate {name}; there are {}",
                    crate::predicate::NAMES.join(", ")
                ));
            }
        }
        for lang in &self.languages {
            let pattern = match &self.selector {
                None => Pattern::try_new(&self.pattern, *lang),
                Some(selector) => Pattern::contextual(&self.pattern, selector, *lang),
            };
            let pattern = pattern.map_err(|error| {
                format!(
                    "`{}` is no pattern in {}: {error}",
                    self.pattern,
                    lang.name()
                )
            })?;
            if pattern.has_error() {
                return Err(format!(
                    "`{}` is not {}; write a whole expression, or surroundings with a `selector`",
                    self.pattern,
                    lang.name()
                ));
            }
            self.compiled.push((*lang, pattern));
        }
        Ok(())
    }
}

const PAGE: &str = include_str!("../../../docs/lint.md");

/// What a rule means: its section of the documentation, or what its own file says.
#[must_use]
pub fn explanation(rule: &Rule) -> String {
    let section = PAGE.split("\n### ").find(|section| {
        let heading = section.lines().next();
        heading == Some(rule.id.as_str())
    });
    match section {
        Some(section) => {
            let end = section.find("\n## ").unwrap_or(section.len());
            section[..end].trim_end().to_string()
        }
        None => format!(
            "{}\n\n{}.\n{}\n{}\n{}",
            rule.id, rule.title, rule.why, rule.fix, rule.link
        ),
    }
}
