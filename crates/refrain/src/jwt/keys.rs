//! Keys that verify tokens: a JSON Web Key Set (RFC 7517), PEM files, or secrets.

use std::{fmt, fs, io::Read as _, path::Path};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use serde_json::{Map, Value};

use super::{Algorithm, pem};
use crate::{Error, ErrorKind, Result, fingerprint::Json};

/// Maximum size of a JSON Web Key Set, in bytes.
pub const JWKS_BYTES_MAX: usize = 256 << 10;
/// Maximum number of keys in a set.
const KEYS_MAX: usize = 100;
/// Maximum number of keys that are tried for one token: verifying is expensive.
const TRIED_MAX: usize = 4;
/// Sizes of an RSA modulus, in bits.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2_048..=8_192;

/// Keys that verify tokens. Debug prints their number and their names, never a secret.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct KeySet(Vec<VerifyingKey>);

/// One key, with the tokens that it may verify.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct VerifyingKey {
    /// The name that a token may call it by; a key without a name verifies any token.
    id: Option<String>,
    /// The only algorithm that it may be used with, if the set names one.
    algorithm: Option<Algorithm>,
    pub(super) material: KeyMaterial,
}

/// A public key or a secret. Its type decides the algorithms.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum KeyMaterial {
    /// Modulus and exponent, in big-endian bytes without leading zeros.
    Rsa { n: Vec<u8>, e: Vec<u8> },
    /// A point of P-256, uncompressed.
    P256(Vec<u8>),
    /// A point of P-384, uncompressed.
    P384(Vec<u8>),
    /// A public key of Ed25519.
    Ed25519(Vec<u8>),
    /// A secret for HMAC.
    Secret(Vec<u8>),
}

impl KeyMaterial {
    fn fits(&self, algorithm: Algorithm) -> bool {
        use Algorithm as A;
        match self {
            Self::Rsa { .. } => matches!(
                algorithm,
                A::Rs256 | A::Rs384 | A::Rs512 | A::Ps256 | A::Ps384 | A::Ps512
            ),
            Self::P256(_) => algorithm == A::Es256,
            Self::P384(_) => algorithm == A::Es384,
            Self::Ed25519(_) => algorithm == A::EdDsa,
            Self::Secret(_) => algorithm.is_symmetric(),
        }
    }

    /// An RSA public key; `None` if its size is out of range.
    pub(super) fn rsa(n: &[u8], e: &[u8]) -> Option<Self> {
        let [n, e] = [n, e].map(|it| {
            let zeros = it.iter().take_while(|byte| **byte == 0).count();
            it[zeros..].to_vec()
        });
        let bits = n.len() * 8 - n.first()?.leading_zeros() as usize;
        (RSA_BITS.contains(&bits) && !e.is_empty() && e.len() <= 8).then_some(Self::Rsa { n, e })
    }

    /// A public key on a curve, from the bytes of its point or key; `None` for another curve or length.
    pub(super) fn on_curve(curve: &str, bytes: Vec<u8>) -> Option<Self> {
        match (curve, bytes.len(), bytes.first()) {
            ("P-256", 65, Some(4)) => Some(Self::P256(bytes)),
            ("P-384", 97, Some(4)) => Some(Self::P384(bytes)),
            ("Ed25519", 32, _) => Some(Self::Ed25519(bytes)),
            _ => None,
        }
    }
}

impl From<KeyMaterial> for VerifyingKey {
    fn from(material: KeyMaterial) -> Self {
        Self {
            id: None,
            algorithm: None,
            material,
        }
    }
}

impl KeySet {
    /// Parses a JSON Web Key Set. Ignores keys for other uses, of unknown types, and symmetric ones.
    ///
    /// # Errors
    /// If it is too large, is no JSON Web Key Set, or has no key that can verify a token.
    pub fn from_jwks(bytes: &[u8]) -> Result<Self> {
        if bytes.len() > JWKS_BYTES_MAX {
            return Err(invalid(format!(
                "the key set has more than {JWKS_BYTES_MAX} bytes"
            )));
        }
        let no_set = || {
            invalid(
                "it is not a JSON Web Key Set; it must look like {\"keys\":[{\"kty\":\"RSA\",…}]}",
            )
        };
        // This parser rejects repeated names.
        let json = Json::parse(bytes).map_err(|_| no_set())?;
        let set: Map<String, Value> = serde_json::from_str(json.as_str()).map_err(|_| no_set())?;
        let keys = set.get("keys").and_then(Value::as_array);
        let keys = keys.ok_or_else(no_set)?;
        if keys.len() > KEYS_MAX {
            return Err(invalid(format!(
                "the key set has more than {KEYS_MAX} keys"
            )));
        }
        let keys: Vec<_> = keys.iter().filter_map(jwk).collect();
        match keys.is_empty() {
            true => Err(invalid(
                "the key set has no public key of RSA (2048 to 8192 bits), P-256, P-384 or Ed25519 that verifies signatures",
            )),
            false => Ok(Self(keys)),
        }
    }

    /// Reads a JSON Web Key Set from a file.
    ///
    /// # Errors
    /// If the file cannot be read, or as for [`from_jwks`](Self::from_jwks).
    pub fn read_jwks(path: &Path) -> Result<Self> {
        let mut bytes = Vec::new();
        let read = fs::File::open(path).and_then(|file| {
            // One byte over the limit is enough to detect a set that is too large.
            file.take(JWKS_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)
        });
        let path = path.display();
        read.map_err(|error| {
            let message =
                format!("cannot read {path}: {error}; check the path and its permissions");
            Error::new(ErrorKind::Unavailable, message)
        })?;
        Self::from_jwks(&bytes)
    }

    /// Parses a public key in a PEM file (`BEGIN PUBLIC KEY`).
    ///
    /// # Errors
    /// If it is not such a key, or its type is not supported.
    pub fn from_public_key(text: &str) -> Result<Self> {
        let material = pem::public_key(text)?;
        Ok(Self(vec![material.into()]))
    }

    /// Takes a secret for HMAC: the bytes of the text.
    ///
    /// # Errors
    /// If it is shorter than 32 bytes.
    pub fn from_secret(text: &str) -> Result<Self> {
        let (have, need) = (text.len(), 32);
        if have < need {
            return Err(invalid(format!(
                "the secret has {have} bytes and can be guessed; use at least {need}, such as the output of `openssl rand -hex 32`"
            )));
        }
        let secret = KeyMaterial::Secret(text.as_bytes().to_vec());
        Ok(Self(vec![secret.into()]))
    }

    #[cfg(test)]
    pub(super) fn from_secret_bytes(secret: Vec<u8>) -> Self {
        Self(vec![KeyMaterial::Secret(secret).into()])
    }

    /// Adds the keys of another set.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    /// The number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The shortest secret, in bytes.
    pub(super) fn secret_bytes(&self) -> Option<usize> {
        let secrets = self.0.iter().filter_map(|key| match &key.material {
            KeyMaterial::Secret(secret) => Some(secret.len()),
            _ => None,
        });
        secrets.min()
    }

    /// Whether a key may be used with this algorithm.
    pub(super) fn has(&self, algorithm: Algorithm) -> bool {
        self.0.iter().any(|key| key.verifies(None, algorithm))
    }

    /// The keys that may have signed a token with this key id and algorithm.
    pub(super) fn candidates(
        &self,
        id: Option<&str>,
        algorithm: Algorithm,
    ) -> impl Iterator<Item = &VerifyingKey> {
        let keys = self.0.iter();
        keys.filter(move |key| key.verifies(id, algorithm))
            .take(TRIED_MAX)
    }
}

impl VerifyingKey {
    fn verifies(&self, id: Option<&str>, algorithm: Algorithm) -> bool {
        let is_named = match (&self.id, id) {
            (Some(own), Some(id)) => own == id,
            _ => true,
        };
        is_named && self.algorithm.is_none_or(|it| it == algorithm) && self.material.fits(algorithm)
    }
}

impl fmt::Debug for KeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.0.iter().map(|key| key.id.as_deref().unwrap_or("-"));
        f.debug_list().entries(names).finish()
    }
}

/// One key of a set; `None` if it is for another use, or not supported.
fn jwk(value: &Value) -> Option<VerifyingKey> {
    let text = |name: &str| value.get(name).and_then(Value::as_str);
    let bytes = |name: &str| BASE64_URL_SAFE_NO_PAD.decode(text(name)?).ok();
    if text("use").is_some_and(|it| it != "sig") {
        return None;
    }
    let operations = value.get("key_ops").and_then(Value::as_array);
    if operations.is_some_and(|all| all.iter().all(|it| it != "verify")) {
        return None;
    }
    let algorithm = match value.get("alg") {
        Some(name) => Some(name.as_str()?.parse().ok()?),
        None => None,
    };
    let material = match text("kty")? {
        "RSA" => KeyMaterial::rsa(&bytes("n")?, &bytes("e")?)?,
        "EC" => {
            let point = [vec![4], bytes("x")?, bytes("y")?].concat();
            KeyMaterial::on_curve(text("crv")?, point)?
        }
        "OKP" => KeyMaterial::on_curve(text("crv")?, bytes("x")?)?,
        _ => return None,
    };
    Some(VerifyingKey {
        id: text("kid").map(ToOwned::to_owned),
        algorithm,
        material,
    })
}

pub(super) fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, message)
}
