//! Webhook signatures: proof that the holder of the secret sent these bytes recently.
//!
//! Every scheme is HMAC-SHA256 over the bytes as received, compared in constant time.
//! One signature must match under one secret: senders sign with several secrets during rotation.

use std::{fmt, time::Duration};

use serde::{Serialize, Serializer, ser::SerializeStruct as _};

use super::units::Span;
use crate::{Result, clock::Timestamp, fingerprint::Fields, key::Sender};

mod presented;
use presented::Presented;

mod secret;
pub use secret::SigningSecret;

/// Maximum number of secrets of one operation.
pub(super) const SECRETS_MAX: usize = 8;
/// Default maximum age and clock skew of a signed timestamp.
const TOLERANCE: Duration = Duration::from_secs(300);

/// Signature scheme and secrets of webhook deliveries. Debug and Serialize do not print secrets.
///
/// ```
/// use refrain::{clock::Timestamp, key::Sender, policy::Signature};
///
/// let signature = Signature::new(Sender::Github).with_secret("It's a Secret to Everybody")?;
/// let value = b"sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
/// let headers = [("x-hub-signature-256", &value[..])];
/// assert!(signature.verify(&headers, b"Hello, World!", Timestamp(0)).is_ok());
/// assert!(signature.verify(&headers, b"Hello, Moon!", Timestamp(0)).is_err());
/// # Ok::<(), refrain::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    sender: Sender,
    secrets: Vec<SigningSecret>,
    tolerance: Duration,
}

impl Signature {
    /// Creates the scheme of this sender. Without a secret, it rejects every delivery.
    #[must_use]
    pub fn new(sender: Sender) -> Self {
        Self {
            sender,
            secrets: Vec::new(),
            tolerance: TOLERANCE,
        }
    }

    /// Adds a secret, as displayed by the sender.
    ///
    /// # Errors
    /// If it is not a valid secret of this sender.
    pub fn with_secret(mut self, text: &str) -> Result<Self> {
        let secret = SigningSecret::new(self.sender, text)?;
        self.secrets.push(secret);
        Ok(self)
    }

    /// Adds a secret that is already parsed.
    pub(super) fn push(&mut self, secret: SigningSecret) {
        self.secrets.push(secret);
    }

    /// Sets the maximum age and clock skew of a signed timestamp, if the sender signs one.
    #[must_use]
    pub fn with_tolerance(self, tolerance: Duration) -> Self {
        Self { tolerance, ..self }
    }

    /// Returns the sender, which determines the scheme.
    #[must_use]
    pub fn sender(&self) -> Sender {
        self.sender
    }

    /// Returns the secrets.
    #[must_use]
    pub fn secrets(&self) -> &[SigningSecret] {
        &self.secrets
    }

    /// Returns the maximum age and clock skew of a signed timestamp.
    #[must_use]
    pub fn tolerance(&self) -> Duration {
        self.tolerance
    }

    /// Verifies that one of the secrets signed this body; `now` is the wall-clock time.
    ///
    /// # Errors
    /// The reason for the rejection. Age is checked last, so only the holder of the secret learns about it.
    pub fn verify(
        &self,
        headers: &dyn Fields,
        body: &[u8],
        now: Timestamp,
    ) -> Result<(), Unverified> {
        let presented = Presented::read(self.sender, headers)?;
        let signs = |secret: &SigningSecret| secret.signs(&presented, body);
        if !self.secrets.iter().any(signs) {
            return Err(Unverified::NoMatch);
        }
        let tolerance = self.tolerance.as_secs();
        let now = now.0 / 1_000;
        match presented.time {
            Some(time) if now.saturating_sub(time) > tolerance => Err(Unverified::TooOld),
            Some(time) if time.saturating_sub(now) > tolerance => Err(Unverified::TooNew),
            _ => Ok(()),
        }
    }
}

/// Whether this sender signs a timestamp with the body.
pub(super) fn is_timed(sender: Sender) -> bool {
    !matches!(sender, Sender::Github | Sender::Shopify)
}

/// Reason why a delivery is rejected. It names headers, never their values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unverified {
    /// This header is missing.
    Missing(&'static str),
    /// This header is present twice.
    Repeated(&'static str),
    /// This header is malformed or too long.
    Malformed(&'static str),
    /// No signature matches the body under any secret.
    NoMatch,
    /// It was signed too long ago.
    TooOld,
    /// It was signed in the future.
    TooNew,
}

impl fmt::Display for Unverified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(header) => write!(f, "the header {header} is missing"),
            Self::Repeated(header) => write!(f, "the header {header} is sent twice"),
            Self::Malformed(header) => write!(f, "the header {header} is malformed"),
            Self::NoMatch => f.write_str("no signature matches the body"),
            Self::TooOld => f.write_str("it was signed too long ago"),
            Self::TooNew => f.write_str("it was signed in the future; synchronize the clocks"),
        }
    }
}

impl std::error::Error for Unverified {}

impl Serialize for Signature {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut shown = serializer.serialize_struct("Signature", 3)?;
        shown.serialize_field("scheme", &self.sender)?;
        let secrets: Vec<_> = self.secrets.iter().map(ToString::to_string).collect();
        shown.serialize_field("secrets", &secrets)?;
        match is_timed(self.sender) {
            true => shown.serialize_field("tolerance", &Span(self.tolerance).to_string())?,
            false => shown.skip_field("tolerance")?,
        }
        shown.end()
    }
}
