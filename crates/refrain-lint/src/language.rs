//! Supported languages: file extensions, grammars, and roles of syntax nodes.

use std::{borrow::Cow, path::Path, sync::OnceLock};

use ast_grep_core::{
    Language,
    matcher::{Pattern, PatternBuilder, PatternError},
    tree_sitter::{LanguageExt, StrDoc, TSLanguage},
};
use serde::{Deserialize, Serialize};

use crate::item::Role;

mod table;

/// A supported programming language.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Lang {
    /// Python.
    Python,
    /// JavaScript, with JSX.
    JavaScript,
    /// TypeScript.
    TypeScript,
    /// TypeScript with JSX.
    Tsx,
    /// Go.
    Go,
    /// Java.
    Java,
    /// Rust.
    Rust,
    /// Ruby.
    Ruby,
    /// PHP.
    Php,
}

impl Lang {
    /// All languages.
    pub const ALL: [Self; 9] = [
        Self::Python,
        Self::JavaScript,
        Self::TypeScript,
        Self::Tsx,
        Self::Go,
        Self::Java,
        Self::Rust,
        Self::Ruby,
        Self::Php,
    ];

    /// Language of a file, from its extension.
    #[must_use]
    pub fn of(path: &Path) -> Option<Self> {
        Some(match path.extension()?.to_str()? {
            "py" | "pyi" => Self::Python,
            "js" | "jsx" | "mjs" | "cjs" => Self::JavaScript,
            "ts" | "mts" | "cts" => Self::TypeScript,
            "tsx" => Self::Tsx,
            "go" => Self::Go,
            "java" => Self::Java,
            "rs" => Self::Rust,
            "rb" | "rake" => Self::Ruby,
            "php" => Self::Php,
            _ => return None,
        })
    }

    /// Name in rules and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::JavaScript => "javascript",
            Self::TypeScript => "typescript",
            Self::Tsx => "tsx",
            Self::Go => "go",
            Self::Java => "java",
            Self::Rust => "rust",
            Self::Ruby => "ruby",
            Self::Php => "php",
        }
    }

    /// Role of each kind of syntax node, indexed by the kind id of the grammar.
    pub(crate) fn roles(self) -> &'static [Role] {
        static ROLES: [OnceLock<Vec<Role>>; 9] = [const { OnceLock::new() }; 9];
        ROLES[self as usize].get_or_init(|| {
            let grammar = self.get_ts_language();
            let mut roles = vec![Role::Other; grammar.node_kind_count()];
            for (role, kinds) in table::role_table(self) {
                for kind in *kinds {
                    let id = grammar.id_for_node_kind(kind, true);
                    roles[usize::from(id)] = *role;
                }
            }
            roles[0] = Role::Other;
            roles
        })
    }

    /// Character that replaces `$` in patterns, for languages in which `$NAME` is not an identifier.
    fn dollar_substitute(self) -> char {
        match self {
            Self::JavaScript | Self::TypeScript | Self::Tsx | Self::Java => '$',
            _ => 'µ',
        }
    }
}

impl Language for Lang {
    fn pre_process_pattern<'q>(&self, query: &'q str) -> Cow<'q, str> {
        match self.dollar_substitute() {
            '$' => Cow::Borrowed(query),
            other => Cow::Owned(marked(query, other)),
        }
    }

    fn expando_char(&self) -> char {
        self.dollar_substitute()
    }

    fn kind_to_id(&self, kind: &str) -> u16 {
        self.get_ts_language().id_for_node_kind(kind, true)
    }

    fn field_to_id(&self, field: &str) -> Option<u16> {
        let id = self.get_ts_language().field_id_for_name(field);
        id.map(std::num::NonZero::get)
    }

    fn build_pattern(&self, builder: &PatternBuilder<'_>) -> Result<Pattern, PatternError> {
        builder.build(|source| StrDoc::try_new(source, *self))
    }
}

impl LanguageExt for Lang {
    fn get_ts_language(&self) -> TSLanguage {
        match self {
            Self::Python => tree_sitter_python::LANGUAGE.into(),
            Self::JavaScript => tree_sitter_javascript::LANGUAGE.into(),
            Self::TypeScript => tree_sitter_typescript::LANGUAGE_TYPESCRIPT.into(),
            Self::Tsx => tree_sitter_typescript::LANGUAGE_TSX.into(),
            Self::Go => tree_sitter_go::LANGUAGE.into(),
            Self::Java => tree_sitter_java::LANGUAGE.into(),
            Self::Rust => tree_sitter_rust::LANGUAGE.into(),
            Self::Ruby => tree_sitter_ruby::LANGUAGE.into(),
            // The grammar without HTML, so that patterns need no opening tag.
            Self::Php => tree_sitter_php::LANGUAGE_PHP_ONLY.into(),
        }
    }
}

/// Replaces `$` in `$NAME` and `$$$` with another character; PHP's own `$variable` stays unchanged.
fn marked(query: &str, letter: char) -> String {
    let mut out = String::with_capacity(query.len());
    let mut rest = query;
    while let Some(at) = rest.find('$') {
        let (before, dollars) = rest.split_at(at);
        out.push_str(before);
        let count = dollars.len() - dollars.trim_start_matches('$').len();
        rest = &dollars[count..];
        let is_variable = rest.starts_with(|c: char| c.is_ascii_uppercase() || c == '_');
        let sign = if is_variable || count == 3 {
            letter
        } else {
            '$'
        };
        out.extend(std::iter::repeat_n(sign, count));
    }
    out.push_str(rest);
    out
}
