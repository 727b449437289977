//! Lint rules: TOML files, built in or written by the user.

use std::{fmt, fs, path::Path};

use ast_grep_core::matcher::Pattern;
use serde::{Deserialize, Serialize};

use crate::{analyses, language::Lang, words::Words};

mod built_in;

/// Maximum size of a rule file, in bytes.
const RULE_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of files in a rules folder.
const RULE_FILES_MAX: usize = 1_000;

/// Severity of a finding, which also expresses its certainty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Uncertain: worth a review.
    Hint,
    /// Wrong in most programs.
    Warning,
    /// A retry executes the operation twice, or loses it.
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

/// A lint rule.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Id, as used in `allow(…)`.
    pub id: String,
    /// Default severity of findings, and their maximum.
    pub severity: Severity,
    /// Short description of the problem.
    pub title: String,
    /// What goes wrong.
    pub why: String,
    /// How to fix it.
    pub fix: String,
    /// Link to the documentation.
    pub link: String,
    /// Languages of the rule; empty means all.
    #[serde(default)]
    pub languages: Vec<Lang>,
    /// Name of the analysis that finds violations.
    #[serde(default)]
    pub analysis: Option<String>,
    /// Patterns that find violations.
    #[serde(default, rename = "pattern")]
    pub patterns: Vec<PatternRule>,
}

/// A pattern of a rule.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PatternRule {
    /// Languages that the pattern is written in.
    pub languages: Vec<Lang>,
    /// Pattern in ast-grep syntax: `$NAME` matches one node, `$$$` any number.
    pub pattern: String,
    /// Kind of the node to match inside the pattern, if the pattern is only its context.
    #[serde(default)]
    pub selector: Option<String>,
    /// The file must contain at least one of these words.
    #[serde(default)]
    pub mentions: Vec<String>,
    /// The file must contain none of these words.
    #[serde(default)]
    pub unless: Vec<String>,
    /// Predicates that must hold at the match; with the prefix `not-`, must not hold.
    #[serde(default)]
    pub when: Vec<String>,
    /// Severity instead of the rule's; only a lower one has an effect.
    #[serde(default)]
    pub severity: Option<Severity>,
    /// Details about the match.
    #[serde(default)]
    pub note: String,
    /// Compiled pattern, one per language.
    #[serde(skip)]
    pub(crate) compiled: Vec<(Lang, Pattern)>,
}

/// All active rules and their word lists.
#[derive(Debug)]
pub struct Rules {
    /// Rules, sorted by id.
    pub rules: Vec<Rule>,
    pub(crate) words: Words,
}

/// An invalid rule, with the file and the reason.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {why}")]
pub struct BadRule {
    place: String,
    why: String,
}

/// Content of a rule file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    #[serde(default)]
    rule: Vec<Rule>,
    #[serde(default)]
    words: Words,
}

impl Rules {
    /// The built-in rules.
    ///
    /// # Errors
    ///
    /// Never with the shipped rule files.
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

    /// Adds the rules of every `.toml` file in a folder.
    ///
    /// # Errors
    ///
    /// When the folder cannot be read, has no `.toml` file, or contains an invalid rule.
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
                "the folder has no rules; add a .toml file with a [[rule]]".into(),
            ));
        }
        if paths.len() > RULE_FILES_MAX {
            return Err(bad(format!(
                "{} rule files; the limit is {RULE_FILES_MAX}",
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
                return Err(bad(format!(
                    "{size} bytes; the limit is {RULE_BYTES_MAX} bytes"
                )));
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
    /// When a rule is invalid, uses an unknown analysis or predicate, or has the id of an existing rule.
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
                    "duplicate rule id {}; use another id",
                    rule.id
                )));
            }
            self.rules.push(rule);
        }
        self.words.add(content.words);
        self.rules.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(())
    }

    /// Rule with this id.
    #[must_use]
    pub fn find(&self, id: &str) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.id == id)
    }
}

impl Rule {
    /// Whether the rule applies to a language.
    #[must_use]
    pub fn is_for(&self, lang: Lang) -> bool {
        self.languages.is_empty() || self.languages.contains(&lang)
    }

    fn check(&mut self) -> Result<(), String> {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if self.id.is_empty() || !self.id.chars().all(plain) {
            return Err("an id may contain lower-case letters, digits and -".into());
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
                "unknown analysis {name}; the analyses are {}",
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
                    "unknown predicate {name}; the predicates are {}",
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
                    "invalid pattern `{}` for {}: {error}",
                    self.pattern,
                    lang.name()
                )
            })?;
            if pattern.has_error() {
                return Err(format!(
                    "pattern `{}` does not parse as {}; write a whole expression, or its context and a `selector`",
                    self.pattern,
                    lang.name()
                ));
            }
            self.compiled.push((*lang, pattern));
        }
        Ok(())
    }
}

const PAGE: &str = include_str!("../lint.md");

/// Explanation of a rule: its section in the documentation, or else the texts of its rule file.
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
