//! JSON Web Tokens (RFC 7519): verifies the token of a request, so that scopes can be made of its claims.
//!
//! An operation with `scope = "jwt:CLAIM"` executes and replays only for requests with a valid token: signed by a known key
//! with an allowed algorithm, from an allowed issuer, for this audience, and not expired. The keys are fixed, or a JSON Web
//! Key Set (RFC 7517) from a file or a URL, which is fetched again when it is old or a token names an unknown key.
//!
//! The type of a key decides the algorithms that it is used for, never the token: a public key verifies no HMAC.
//!
//! ```
//! use refrain::jwt::JwtSettings;
//! let settings = JwtSettings::with_secret("a secret of at least 32 characters")?
//!     .for_audience("payments")
//!     .from_issuer("https://login.example");
//! settings.check()?;
//! # Ok::<(), refrain::Error>(())
//! ```

mod algorithm;
pub use algorithm::Algorithm;

mod keys;
pub use keys::{JWKS_BYTES_MAX, KeySet};

mod pem;

mod settings;
pub use settings::{JwtKeys, JwtSettings};

#[cfg(feature = "http")]
mod token;
#[cfg(feature = "http")]
pub use token::{InvalidToken, VerifiedClaims};

#[cfg(feature = "http")]
mod verifier;
#[cfg(feature = "http")]
pub(crate) use verifier::Unverified;
#[cfg(feature = "http")]
pub use verifier::{FetchedJwks, JwksFetcher, JwtVerifier};

#[cfg(feature = "http")]
#[cfg_attr(not(feature = "jwt"), path = "jwt/signature_off.rs")]
mod signature;
