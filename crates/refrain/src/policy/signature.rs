//! Signatures of webhooks: who knows the secret has sent these bytes, and not long ago.
//!
//! Every scheme is HMAC-SHA256 over the bytes as they came, compared in constant time.
//! A delivery has to match one signature under one secret: senders sign with several while a secret is rotated.

use std::{fmt, time::Duration};

use serde::{Serialize, Serializer, ser::SerializeStruct as _};

use super::units::Span;
use crate::{Result, clock::Timestamp, fingerprint::Fields, key::Sender};

mod presented;
use presented::Presented;

mod secret;
pub use secret::SigningSecret;

/// How many secrets one operation may have.
pub(super) const SECRETS_MAX: usize = 8;
/// How old or how far ahead a signature may be where nothing else is said.
const TOLERANCE: Duration = Duration::from_secs(300);

/// How deliveries are signed, and the secrets that they may be signed with. Shows no secret to anybody.
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
    /// As this sender signs. Without a secret it verifies nothing.
    #[must_use]
    pub fn new(sender: Sender) -> Self {
        Self {
            sender,
            secrets: Vec::new(),
            tolerance: TOLERANCE,
        }
    }

    /// One more secret that deliveries may be signed with, as the sender shows it.
    ///
    /// # Errors
    /// When it cannot be one of this sender's.
    pub fn with_secret(mut self, text: &str) -> Result<Self> {
        let secret = SigningSecret::new(self.sender, text)?;
        self.secrets.push(secret);
        Ok(self)
    }

    /// One more secret, which was read somewhere.
    pub(super) fn push(&mut self, secret: SigningSecret) {
        self.secrets.push(secret);
    }

    /// How old or how far ahead a signature may be, where the sender signs the time.
    #[must_use]
    pub fn with_tolerance(self, tolerance: Duration) -> Self {
        Self { tolerance, ..self }
    }

    /// Whose way of signing it is.
    #[must_use]
    pub fn sender(&self) -> Sender {
        self.sender
    }

    /// The secrets that deliveries may be signed with.
    #[must_use]
    pub fn secrets(&self) -> &[SigningSecret] {
        &self.secrets
    }

    /// How old or how far ahead a signature may be.
    #[must_use]
    pub fn tolerance(&self) -> Duration {
        self.tolerance
    }

    /// Whether one of the secrets has signed this body; `now` is the time on the wall.
    ///
    /// # Errors
    /// What is wrong with the delivery. Its age is told only to who knows the secret.
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

/// Whether this sender signs the time with the body.
pub(super) fn is_timed(sender: Sender) -> bool {
    !matches!(sender, Sender::Github | Sender::Shopify)
}

/// Why a delivery is not believed. It names headers, and nothing of what they hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unverified {
    /// This header is missing.
    Missing(&'static str),
    /// This header stands twice.
    Repeated(&'static str),
    /// This header is not written as the sender writes it, or holds too much.
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
            Self::Repeated(header) => write!(f, "the header {header} stands twice"),
            Self::Malformed(header) => write!(f, "the header {header} is malformed"),
            Self::NoMatch => f.write_str("no signature matches the body"),
            Self::TooOld => f.write_str("it was signed too long ago"),
            Self::TooNew => f.write_str("it was signed in the future; compare the clocks"),
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
