//! What a folder tells by itself, so that nobody has to be asked.

use std::{
    fs::{self, File},
    io::Read as _,
    path::{Path, PathBuf},
};

/// How deep below the folder is looked.
const DEPTH_MAX: usize = 5;
/// How many files and folders are looked at.
const ENTRIES_MAX: usize = 20_000;
/// How much of a file is looked at to tell what it is.
const PEEK_BYTES_MAX: u64 = 8 << 10;
/// How many descriptions are offered.
const DESCRIPTIONS_MAX: usize = 20;
/// Others' code, and what was generated.
const SKIPPED: [&str; 9] = [
    "node_modules",
    "target",
    "vendor",
    "dist",
    "build",
    "venv",
    "site-packages",
    "__pycache__",
    "refrain-data",
];

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Descriptions of requests, OpenAPI and Swagger, the shallowest first.
    pub(crate) descriptions: Vec<PathBuf>,
    /// Descriptions of messages, AsyncAPI, likewise.
    pub(crate) messages: Vec<PathBuf>,
    /// Which engines the project already uses.
    pub(crate) postgres: Option<PathBuf>,
    pub(crate) redis: Option<PathBuf>,
    /// Whether not everything was looked at.
    pub(crate) is_cut: bool,
}

impl Found {
    /// Looks through a folder.
    pub(crate) fn in_folder(folder: &Path) -> Self {
        let mut found = Self::default();
        let mut level = vec![folder.to_path_buf()];
        let mut left = ENTRIES_MAX;
        for _ in 0..DEPTH_MAX {
            let mut next = Vec::new();
            for folder in &level {
                for path in sorted(folder) {
                    if left == 0 {
                        found.is_cut = true;
                        return found;
                    }
                    left -= 1;
                    match path.is_dir() {
                        true if is_own(&path) => next.push(path),
                        true => {}
                        false => found.look_at(path),
                    }
                }
            }
            level = next;
        }
        found
    }

    fn look_at(&mut self, path: PathBuf) {
        let name = name(&path).to_ascii_lowercase();
        let extension = path
            .extension()
            .and_then(|it| it.to_str())
            .unwrap_or_default();
        if is_deployment(&name) {
            let text = peek(&path);
            if text.contains("postgres") {
                self.postgres.get_or_insert_with(|| path.clone());
            }
            if text.contains("redis") || text.contains("valkey") {
                self.redis.get_or_insert_with(|| path.clone());
            }
        } else if matches!(extension, "yaml" | "yml" | "json") && !is_copy(&name) {
            let kind = match described(&peek(&path)) {
                Some(Kind::Requests) => &mut self.descriptions,
                Some(Kind::Messages) => &mut self.messages,
                None => return,
            };
            if kind.len() < DESCRIPTIONS_MAX {
                kind.push(path);
            }
        }
    }
}

/// The folder's entries by name: the same project gives the same questions.
fn sorted(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    // A link may lead out of the project, or in a circle.
    let is_no_link = |it: &fs::DirEntry| it.file_type().is_ok_and(|it| !it.is_symlink());
    let mut paths: Vec<_> = entries.filter(is_no_link).map(|it| it.path()).collect();
    paths.sort();
    paths
}

fn name(path: &Path) -> &str {
    path.file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default()
}

fn is_own(folder: &Path) -> bool {
    let name = name(folder);
    !name.starts_with('.') && !SKIPPED.contains(&name)
}

/// Where a project names the servers that it uses.
fn is_deployment(name: &str) -> bool {
    name.starts_with("docker-compose") || name.starts_with("compose.") || name.starts_with(".env")
}

/// An annotated copy of `refrain plan`, whose annotations may stand further down than is looked.
fn is_copy(name: &str) -> bool {
    name.ends_with(".refrain.yaml") || name.ends_with(".refrain.json")
}

fn peek(path: &Path) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(path) {
        // What cannot be read tells nothing.
        let _ = file.take(PEEK_BYTES_MAX).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// What a description is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Requests,
    Messages,
}

/// What a text describes, if it opens as OpenAPI, Swagger and AsyncAPI documents do; one that `refrain plan` annotated is a copy.
fn described(text: &str) -> Option<Kind> {
    if text.contains("x-refrain") {
        return None;
    }
    let version = |line: &str| {
        let line = line
            .trim()
            .trim_start_matches('{')
            .trim_start()
            .replace('"', "");
        let has = |name: &str| line.strip_prefix(name).is_some_and(is_number);
        match () {
            () if has("openapi:") || has("swagger:") => Some(Kind::Requests),
            () if has("asyncapi:") => Some(Kind::Messages),
            () => None,
        }
    };
    // In JSON written on one line the version mostly stands first, too.
    text.split(['\n', ',']).find_map(version)
}

fn is_number(text: &str) -> bool {
    text.trim()
        .trim_matches('\'')
        .starts_with(|it: char| it.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    //! A description that is overlooked is a question too many; a file that is taken for one is a wrong answer.

    use super::*;

    #[test]
    fn descriptions_are_told_by_their_version() {
        let cases = [
            ("openapi: 3.0.3\ninfo:\n", Some(Kind::Requests)),
            ("# ours\n\nswagger: '2.0'\n", Some(Kind::Requests)),
            ("{\"openapi\":\"3.1.0\",\"info\":{}}", Some(Kind::Requests)),
            (
                "{\n  \"info\": {},\n  \"asyncapi\": \"3.0.0\"\n}",
                Some(Kind::Messages),
            ),
            ("openapi: yes\n", None),
            ("paths:\n", None),
            ("{\"dependencies\":{\"swagger-ui\":\"4\"}}", None),
            ("openapi: 3.0.3\nx-refrain:\n", None),
        ];
        for (text, kind) in cases {
            assert_eq!(described(text), kind, "{text}");
        }
    }

    #[test]
    fn others_code_is_not_looked_at() {
        let folder = tempfile::tempdir().unwrap();
        for place in ["api", "node_modules/x", ".git"] {
            let place = folder.path().join(place);
            fs::create_dir_all(&place).unwrap();
            fs::write(place.join("openapi.yaml"), "openapi: 3.0.0\n").unwrap();
        }
        let copy = folder.path().join("api/openapi.refrain.yaml");
        fs::write(copy, "openapi: 3.0.0\n").unwrap();
        fs::write(
            folder.path().join("docker-compose.yml"),
            "services:\n  db:\n    image: postgres:16\n",
        )
        .unwrap();
        let found = Found::in_folder(folder.path());
        assert_eq!(found.descriptions, [folder.path().join("api/openapi.yaml")]);
        assert!(found.postgres.is_some());
        assert!(found.redis.is_none());
    }
}
