//! API descriptions and servers found in a project's folder, so that the user does not have to name them.

use std::{
    fs::{self, File},
    io::Read as _,
    path::{Path, PathBuf},
};

use refrain::policy::schemes::{self, Backend};

/// The most levels of folders that are searched.
const DEPTH_MAX: usize = 5;
/// The most files and folders that are visited.
const ENTRIES_MAX: usize = 20_000;
/// The most bytes of a file that are read to recognise its kind.
const PEEK_BYTES_MAX: u64 = 8 << 10;
/// The most descriptions of each kind that are listed.
const DESCRIPTIONS_MAX: usize = 20;
/// Folders of third-party and generated code, which are skipped.
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

/// Descriptions and servers found in a folder.
#[derive(Debug, Default)]
pub(crate) struct FoundFiles {
    /// Descriptions of requests, OpenAPI and Swagger, the shallowest first.
    pub(crate) descriptions: Vec<PathBuf>,
    /// Descriptions of messages, AsyncAPI, in the same order.
    pub(crate) messages: Vec<PathBuf>,
    /// Servers that can be a store, each with the first deployment file that mentions it.
    pub(crate) servers: Vec<(&'static Backend, PathBuf)>,
    /// Whether the search stopped at [`ENTRIES_MAX`].
    pub(crate) is_cut: bool,
}

impl FoundFiles {
    /// Searches a folder.
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
                        false => found.add_file(path),
                    }
                }
            }
            level = next;
        }
        found
    }

    fn add_file(&mut self, path: PathBuf) {
        let name = name(&path).to_ascii_lowercase();
        let extension = path
            .extension()
            .and_then(|it| it.to_str())
            .unwrap_or_default();
        if is_deployment(&name) {
            let text = peek(&path);
            for (backend, _) in schemes::stores() {
                let is_mentioned = backend.images.iter().any(|it| text.contains(it));
                let is_new = self.servers.iter().all(|(it, _)| it.id != backend.id);
                if is_mentioned && is_new {
                    self.servers.push((backend, path.clone()));
                }
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

/// The folder's entries sorted by name, so that the same project gives the same questions.
fn sorted(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    // A symbolic link may lead out of the project, or in a circle.
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

/// Whether a file is one in which a project names its servers.
fn is_deployment(name: &str) -> bool {
    name.starts_with("docker-compose") || name.starts_with("compose.") || name.starts_with(".env")
}

/// Whether a file is an annotated copy written by `refrain plan`, whose annotations may come after the bytes that are read.
fn is_copy(name: &str) -> bool {
    name.ends_with(".refrain.yaml") || name.ends_with(".refrain.json")
}

fn peek(path: &Path) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(path) {
        // A file that cannot be read counts as empty.
        let _ = file.take(PEEK_BYTES_MAX).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Whether a description is of requests or of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Requests,
    Messages,
}

/// The kind of an OpenAPI, Swagger or AsyncAPI document, recognised by its version line; `None` for a copy annotated by `refrain plan`.
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
    // In single-line JSON the version is usually the first member.
    text.split(['\n', ',']).find_map(version)
}

fn is_number(text: &str) -> bool {
    text.trim()
        .trim_matches('\'')
        .starts_with(|it: char| it.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    //! A description that is missed costs the user a question; a file mistaken for one gives a wrong result.

    use super::*;

    #[test]
    fn api_descriptions_are_recognised_by_their_version() {
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
    fn skips_vendored_code() {
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
        let found = FoundFiles::in_folder(folder.path());
        assert_eq!(found.descriptions, [folder.path().join("api/openapi.yaml")]);
        let servers: Vec<_> = found.servers.iter().map(|(it, _)| it.title).collect();
        assert_eq!(servers, ["PostgreSQL"]);
    }
}
