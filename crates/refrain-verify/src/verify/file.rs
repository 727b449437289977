//! `verify.toml`: the same settings as the flags, for several operations.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    time::Duration,
};

use refrain::policy::units;
use serde::Deserialize;

use super::plan::{BadPlan, Counting, Operation, Process, Trust, header};

const FILE_BYTES_MAX: u64 = 4 << 20;
const OPERATIONS_MAX: usize = 100;

/// Contents of a `verify.toml`.
#[derive(Debug, Clone)]
pub struct File {
    /// URL of the service.
    pub url: Option<String>,
    /// Which TLS certificates to trust, if set.
    pub trust: Option<Trust>,
    /// How effects are counted, if set.
    pub counting: Option<Counting>,
    /// The service's process.
    pub process: Process,
    /// The operations under test.
    pub operations: Vec<Operation>,
}

/// Why a file is invalid: the position and the error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadFile {
    place: String,
    message: String,
}

impl fmt::Display for BadFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message)
    }
}

impl std::error::Error for BadFile {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Typed {
    url: Option<String>,
    cacert: Option<PathBuf>,
    #[serde(default)]
    insecure: bool,
    effects: Option<Effects>,
    restart: Option<Restart>,
    #[serde(default)]
    operation: Vec<toml::Spanned<TypedOperation>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Effects {
    url: Option<String>,
    pointer: Option<String>,
    sql: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Restart {
    command: Option<String>,
    pid: Option<u32>,
}

impl From<Restart> for Process {
    fn from(restart: Restart) -> Self {
        Self {
            command: restart.command,
            pid: restart.pid,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TypedOperation {
    r#match: String,
    #[serde(default)]
    headers: Vec<String>,
    body: Option<String>,
    content_type: Option<String>,
    key_header: Option<String>,
    other_credential: Option<String>,
    rotated_credential: Option<String>,
    other_body: Option<String>,
    other_path: Option<String>,
    bad_body: Option<String>,
    failing_body: Option<String>,
    slow_body: Option<String>,
    retention: Option<String>,
    lease: Option<String>,
}

impl File {
    /// Reads a file. A body written `@FILE` is read from a path relative to this file.
    ///
    /// # Errors
    /// [`BadFile`] with the position of the first error.
    pub fn read(path: &Path) -> Result<Self, BadFile> {
        let (text, name, folder) = text(path)?;
        Self::parse(&text, &name, &folder)
    }

    /// Parses the text of a file with this `name`; paths are relative to `folder`.
    ///
    /// # Errors
    /// [`BadFile`] with the position of the first error.
    pub fn parse(text: &str, name: &str, folder: &Path) -> Result<Self, BadFile> {
        let at = |offset: usize, message: String| mistake(name, text, offset, message);
        let typed: Typed = typed(text, name)?;
        if typed.operation.len() > OPERATIONS_MAX {
            return Err(at(0, format!("more than {OPERATIONS_MAX} operations")));
        }
        let operations = typed.operation.into_iter().map(|operation| {
            let start = operation.span().start;
            let built = operation.into_inner().build(folder);
            built.map_err(|error| at(start, error.to_string()))
        });
        let counting = typed.effects.map(counting).transpose();
        Ok(Self {
            url: typed.url,
            trust: match (typed.insecure, typed.cacert) {
                (false, file) => file.map(|file| Trust::File(folder.join(file))),
                (true, None) => Some(Trust::Anybody),
                (true, Some(_)) => {
                    let why = "insecure and cacert cannot be combined; remove one".to_owned();
                    return Err(at(0, why));
                }
            },
            counting: counting.map_err(|error| at(0, error.to_string()))?,
            process: typed.restart.map(Process::from).unwrap_or_default(),
            operations: operations.collect::<Result<_, _>>()?,
        })
    }
}

/// Parses a TOML text; an error has the position of the first mistake.
pub(super) fn typed<T: serde::de::DeserializeOwned>(text: &str, name: &str) -> Result<T, BadFile> {
    toml::from_str(text).map_err(|error| {
        let offset = error.span().map_or(0, |span| span.start);
        mistake(name, text, offset, error.message().to_owned())
    })
}

/// Reads a file; returns its text, its name for error messages, and its folder.
pub(super) fn text(path: &Path) -> Result<(String, String, PathBuf), BadFile> {
    let name = path.display().to_string();
    let bad = |message: String| BadFile {
        place: name.clone(),
        message,
    };
    let text = limited(path).map_err(|error| bad(format!("cannot be read: {error}")))?;
    let text = String::from_utf8(text).map_err(|_| bad("is not UTF-8".into()))?;
    let folder = path.parent().unwrap_or(Path::new("")).to_owned();
    Ok((text, name, folder))
}

/// Makes an error for a byte offset in the text.
pub(super) fn mistake(name: &str, text: &str, offset: usize, message: String) -> BadFile {
    BadFile {
        place: position(name, text, offset),
        message,
    }
}

impl TypedOperation {
    fn build(self, folder: &Path) -> Result<Operation, BadPlan> {
        let body = |text: Option<String>| text.map(|text| body(&text, folder)).transpose();
        let named = |text: Option<String>| text.map(|text| header(&text)).transpose();
        let time = |text: Option<String>| duration(text.as_deref());
        let mut operation = Operation::new(&self.r#match)?;
        operation.headers = self
            .headers
            .iter()
            .map(|it| header(it))
            .collect::<Result<_, _>>()?;
        operation.body = body(self.body)?.unwrap_or_default();
        operation.set_content_type(self.content_type.as_deref());
        operation.key_header = self.key_header.unwrap_or(operation.key_header);
        operation.other_credential = named(self.other_credential)?;
        operation.rotated_credential = named(self.rotated_credential)?;
        operation.other_body = body(self.other_body)?;
        operation.other_path = self.other_path;
        operation.bad_body = body(self.bad_body)?;
        operation.failing_body = body(self.failing_body)?;
        operation.slow_body = body(self.slow_body)?;
        operation.retention = time(self.retention)?;
        operation.lease = time(self.lease)?;
        Ok(operation)
    }
}

impl Operation {
    /// Sets the content type: the given one, or JSON or text by the first byte of the body.
    /// A `Content-Type` header takes precedence.
    pub fn set_content_type(&mut self, given: Option<&str>) {
        let has_one = self
            .headers
            .iter()
            .any(|(name, _)| name.eq_ignore_ascii_case("content-type"));
        if has_one || (given.is_none() && self.body.is_empty()) {
            return;
        }
        let is_json = self.body.trim_ascii_start().starts_with(b"{")
            || self.body.trim_ascii_start().starts_with(b"[");
        let guessed = if is_json {
            "application/json"
        } else {
            "text/plain; charset=utf-8"
        };
        let kind = given.unwrap_or(guessed).to_owned();
        self.headers.push(("Content-Type".into(), kind));
    }
}

/// Returns a body: the text itself, or the contents of `@FILE`, relative to `folder`.
///
/// # Errors
/// [`BadPlan`] when the file cannot be read.
pub fn body(text: &str, folder: &Path) -> Result<Vec<u8>, BadPlan> {
    let Some(name) = text.strip_prefix('@') else {
        return Ok(text.as_bytes().to_owned());
    };
    let path: PathBuf = folder.join(name);
    limited(&path).map_err(|error| BadPlan(format!("{}: cannot be read: {error}", path.display())))
}

/// Parses how effects are counted with SQL, from `postgres://… SELECT …`.
///
/// # Errors
/// [`BadPlan`] when it is not a PostgreSQL address followed by a statement.
pub fn sql(text: &str) -> Result<Counting, BadPlan> {
    let split = text.split_once(char::is_whitespace);
    let is_good = |(database, _): &(&str, &str)| {
        database.starts_with("postgres://") || database.starts_with("postgresql://")
    };
    let (database, statement) = split.filter(is_good).ok_or_else(|| {
        BadPlan(
            "invalid effects SQL; write \"postgres://USER@HOST/DATABASE SELECT count(*) FROM …\""
                .into(),
        )
    })?;
    Ok(Counting::Sql {
        database: database.into(),
        statement: statement.trim().into(),
    })
}

pub(super) fn counting(effects: Effects) -> Result<Counting, BadPlan> {
    match (effects.url, effects.sql) {
        (Some(url), None) => Ok(Counting::Url {
            url: url.into(),
            pointer: effects.pointer,
        }),
        (None, Some(text)) => sql(&text),
        _ => Err(BadPlan("[effects] needs either url or sql".into())),
    }
}

/// Parses an optional duration.
///
/// # Errors
/// [`BadPlan`] when the duration is invalid.
pub fn duration(text: Option<&str>) -> Result<Option<Duration>, BadPlan> {
    let read = text.map(|text| units::duration(text).map_err(|error| BadPlan(error.to_string())));
    read.transpose()
}

fn limited(path: &Path) -> std::io::Result<Vec<u8>> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    let file = fs::File::open(path)?;
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > FILE_BYTES_MAX {
        true => Err(std::io::Error::other(format!(
            "larger than {FILE_BYTES_MAX} bytes"
        ))),
        false => Ok(bytes),
    }
}

/// `name:line:column` of a byte offset.
fn position(name: &str, text: &str, offset: usize) -> String {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
    format!("{name}:{line}:{column}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_told_with_their_place() {
        for (text, said) in [
            ("url = 7", "verify.toml:1:7"),
            ("\n[effect]\nurl = 'x'", "verify.toml:2:2"),
            (
                "[[operation]]\nmatch = 'POST'",
                "verify.toml:1:1: invalid operation `POST`",
            ),
            (
                "[[operation]]\nmatch = 'POST /a'\nlease = 'long'",
                "invalid duration",
            ),
            (
                "[[operation]]\nmatch = 'POST /a'\nbody = '@no-such'",
                "no-such: cannot be read",
            ),
            ("[effects]\npointer = '/a'", "either url or sql"),
            ("cacert = 'a.pem'\ninsecure = true", "cannot be combined"),
            ("[effects]\nsql = 'SELECT 1'", "postgres://"),
        ] {
            let error = File::parse(text, "verify.toml", Path::new(""))
                .unwrap_err()
                .to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
        let text = "url = 'http://h'\n[effects]\nsql = 'postgres://a@b/c SELECT 1'\n[[operation]]\nmatch = 'POST /a'\nbody = '{}'\nlease = '2s'";
        let file = File::parse(text, "verify.toml", Path::new("")).unwrap();
        assert_eq!(file.operations[0].lease, Some(Duration::from_secs(2)));
        assert_eq!(file.operations[0].headers[0].1, "application/json");
        assert!(
            matches!(file.counting, Some(Counting::Sql { statement, .. }) if statement == "SELECT 1")
        );
    }
}
