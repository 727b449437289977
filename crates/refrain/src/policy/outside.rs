//! Secrets outside `refrain.toml`: in an environment variable or in a file.

use std::{env, fs, io::Read as _, path::Path};

use super::invalid;
use crate::{Error, Result};

/// Maximum length of a secret, in bytes.
pub(super) const SECRET_BYTES_MAX: usize = 4_096;

/// A secret and its origin.
pub(super) struct Outside {
    /// Without surrounding white space.
    pub(super) text: String,
    /// Origin, such as `env:STRIPE_WEBHOOK_SECRET`.
    pub(super) origin: String,
}

/// Reads a secret from the variable that the setting `{setting}_env` names, or from the file in `NAME_FILE`.
pub(super) fn from_env(setting: &str, name: &str) -> Result<Outside> {
    let is_name = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    // The name is not quoted, because it may be the secret itself, written here by mistake.
    if name.is_empty() || !name.bytes().all(is_name) {
        return Err(invalid(format!(
            "`{setting}_env` is not the name of an environment variable; write its name in capitals, not its value"
        )));
    }
    let origin = format!("env:{name}");
    if let Some(value) = env::var_os(name) {
        let text = value.into_string().map_err(|_| unreadable(&origin))?;
        return checked(&text, origin);
    }
    match env::var_os(format!("{name}_FILE")) {
        Some(path) => from_path(Path::new(&path), origin),
        None => Err(invalid(format!(
            "neither {name} nor {name}_FILE is set in the environment; set one of them, or write {setting}_file"
        ))),
    }
}

/// Reads a secret from the file that the setting `{setting}_file` names.
pub(super) fn from_file(setting: &str, path: &str) -> Result<Outside> {
    if path.starts_with("whsec_") || path.contains("://") {
        return Err(invalid(format!(
            "`{setting}_file` is not a path; write the path of a file that contains the secret, not the secret itself"
        )));
    }
    from_path(Path::new(path), format!("file:{path}"))
}

fn from_path(path: &Path, origin: String) -> Result<Outside> {
    let mut bytes = Vec::new();
    let read = fs::File::open(path).and_then(|file| {
        // One byte over the limit is enough to detect a secret that is too long.
        let most = SECRET_BYTES_MAX as u64 + 1;
        file.take(most).read_to_end(&mut bytes)
    });
    read.map_err(|error| {
        invalid(format!(
            "cannot read {origin}: {error}; check the path and its permissions"
        ))
    })?;
    let text = String::from_utf8(bytes).map_err(|_| unreadable(&origin))?;
    checked(&text, origin)
}

fn checked(text: &str, origin: String) -> Result<Outside> {
    let text = text.trim();
    if text.is_empty() || text.len() > SECRET_BYTES_MAX {
        return Err(invalid(format!(
            "{origin} is empty, or longer than {SECRET_BYTES_MAX} bytes; it must contain the secret and nothing else"
        )));
    }
    let text = text.into();
    Ok(Outside { text, origin })
}

fn unreadable(origin: &str) -> Error {
    invalid(format!("{origin} is not UTF-8; copy the secret again"))
}
