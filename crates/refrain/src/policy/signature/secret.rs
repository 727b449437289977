//! One secret that deliveries are signed with.

use std::{env, ffi::OsString, fmt, fs, io::Read as _, path::Path};

use base64::{
    Engine as _, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use super::Presented;
use crate::{Error, ErrorKind, Result, key::Sender};

/// The longest secret that is taken, in bytes.
const SECRET_BYTES_MAX: usize = 4_096;

/// One secret that deliveries are signed with. Prints where it came from, never what it is.
#[derive(Clone, PartialEq, Eq)]
pub struct SigningSecret {
    key: Box<[u8]>,
    /// Such as `env:STRIPE_WEBHOOK_SECRET`.
    origin: String,
}

impl SigningSecret {
    /// Takes a secret as the sender shows it.
    ///
    /// # Errors
    /// When it cannot be one of this sender's.
    pub fn new(sender: Sender, text: &str) -> Result<Self> {
        Self::from_text(sender, text, "given".into())
    }

    /// The secret in this variable of the environment, or in the file that `NAME_FILE` names.
    ///
    /// # Errors
    /// When there is none, or it cannot be one of this sender's.
    pub fn from_env(sender: Sender, name: &str) -> Result<Self> {
        let is_name = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
        // Whoever wrote the secret itself here must not find it in a log.
        if name.is_empty() || !name.bytes().all(is_name) {
            return Err(invalid(
                "`secret_env` is no name of a variable; write its name, in capitals, and keep what it holds out of this file",
            ));
        }
        let origin = format!("env:{name}");
        if let Some(value) = env::var_os(name) {
            return Self::from_os(sender, value, origin);
        }
        match env::var_os(format!("{name}_FILE")) {
            Some(path) => Self::from_path(sender, Path::new(&path), origin),
            None => Err(invalid(format!(
                "neither {name} nor {name}_FILE is in the environment; set one of them, or write secret_file"
            ))),
        }
    }

    /// The secret in this file; white space around it does not count.
    ///
    /// # Errors
    /// When it cannot be read, or cannot be one of this sender's.
    pub fn from_file(sender: Sender, path: &str) -> Result<Self> {
        if path.starts_with("whsec_") {
            return Err(invalid(
                "`secret_file` is no path; write the path of a file that holds the secret, and keep that out of this file",
            ));
        }
        Self::from_path(sender, Path::new(path), format!("file:{path}"))
    }

    fn from_path(sender: Sender, path: &Path, origin: String) -> Result<Self> {
        let mut bytes = Vec::new();
        let read = fs::File::open(path).and_then(|file| {
            // One byte over the limit is enough to know that it is too long.
            let most = SECRET_BYTES_MAX as u64 + 1;
            file.take(most).read_to_end(&mut bytes)
        });
        read.map_err(|error| {
            invalid(format!(
                "{origin} cannot be read: {error}; check the path and its permissions"
            ))
        })?;
        let text = String::from_utf8(bytes).map_err(|_| unreadable(&origin))?;
        Self::from_text(sender, &text, origin)
    }

    fn from_os(sender: Sender, value: OsString, origin: String) -> Result<Self> {
        let text = value.into_string().map_err(|_| unreadable(&origin))?;
        Self::from_text(sender, &text, origin)
    }

    fn from_text(sender: Sender, text: &str, origin: String) -> Result<Self> {
        let text = text.trim();
        if text.is_empty() || text.len() > SECRET_BYTES_MAX {
            return Err(invalid(format!(
                "{origin} is empty, or longer than {SECRET_BYTES_MAX} bytes; copy the secret from {sender}"
            )));
        }
        let key = match sender {
            Sender::Svix | Sender::StandardWebhooks => encoded(text, &origin)?,
            // The prefix of Stripe's secrets is a part of them.
            Sender::Stripe | Sender::Github | Sender::Shopify => text.into(),
        };
        let key = key.into();
        Ok(Self { key, origin })
    }

    /// Whether one of the signatures is this secret's, of this body. Takes as long whichever byte differs.
    pub(super) fn signs(&self, presented: &Presented, body: &[u8]) -> bool {
        // Keys of any length are taken.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.key) else {
            return false;
        };
        mac.update(&presented.front);
        mac.update(body);
        let mut tags = presented.tags.iter();
        tags.any(|tag| mac.clone().verify_slice(tag).is_ok())
    }
}

/// `whsec_BASE64`, with or without the prefix and the padding.
fn encoded(text: &str, origin: &str) -> Result<Vec<u8>> {
    const LENIENT: GeneralPurposeConfig =
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    const BASE64: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, LENIENT);
    if text.starts_with("whpk_") || text.starts_with("whsk_") {
        return Err(invalid(format!(
            "{origin} is one of a pair of keys, which are not verified; ask the sender for a secret that starts with whsec_"
        )));
    }
    let digits = text.strip_prefix("whsec_").unwrap_or(text);
    match BASE64.decode(digits) {
        Ok(key) if !key.is_empty() => Ok(key),
        _ => Err(invalid(format!(
            "{origin} is no secret of Standard Webhooks; copy it whole: whsec_ and base64"
        ))),
    }
}

fn unreadable(origin: &str) -> Error {
    invalid(format!("{origin} is not UTF-8; copy the secret again"))
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

impl fmt::Display for SigningSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.origin)
    }
}

impl fmt::Debug for SigningSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningSecret({self})")
    }
}
