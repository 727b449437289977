//! Secret for webhook signatures.

use std::fmt;

use base64::{
    Engine as _, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use super::Presented;
use crate::{
    Result,
    key::Sender,
    policy::{
        invalid,
        outside::{self, Outside, SECRET_BYTES_MAX},
    },
};

/// Secret for webhook signatures. Display and Debug print its origin, never the secret.
#[derive(Clone, PartialEq, Eq)]
pub struct SigningSecret {
    key: Box<[u8]>,
    /// Origin, such as `env:STRIPE_WEBHOOK_SECRET`.
    origin: String,
}

impl SigningSecret {
    /// Parses a secret as displayed by the sender.
    ///
    /// # Errors
    /// If it is not a valid secret of this sender.
    pub fn new(sender: Sender, text: &str) -> Result<Self> {
        Self::from_text(sender, text, "given".into())
    }

    /// Reads the secret from this environment variable, or from the file in `NAME_FILE`.
    ///
    /// # Errors
    /// If there is none, or it is not a valid secret of this sender.
    pub fn from_env(sender: Sender, name: &str) -> Result<Self> {
        let Outside { text, origin } = outside::from_env("secret", name)?;
        Self::from_text(sender, &text, origin)
    }

    /// Reads the secret from this file, without surrounding white space.
    ///
    /// # Errors
    /// If it cannot be read, or is not a valid secret of this sender.
    pub fn from_file(sender: Sender, path: &str) -> Result<Self> {
        let Outside { text, origin } = outside::from_file("secret", path)?;
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
            // The prefix of a Stripe secret is part of the key.
            Sender::Stripe | Sender::Github | Sender::Shopify => text.into(),
        };
        let key = key.into();
        Ok(Self { key, origin })
    }

    /// Whether this secret made one of the signatures of this body. Compares in constant time.
    pub(super) fn signs(&self, presented: &Presented, body: &[u8]) -> bool {
        // HMAC accepts keys of any length.
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
            "{origin} is an asymmetric key, which is not supported; ask the sender for a secret that starts with whsec_"
        )));
    }
    let digits = text.strip_prefix("whsec_").unwrap_or(text);
    match BASE64.decode(digits) {
        Ok(key) if !key.is_empty() => Ok(key),
        _ => Err(invalid(format!(
            "{origin} is not a Standard Webhooks secret; copy all of it: whsec_ and base64"
        ))),
    }
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
