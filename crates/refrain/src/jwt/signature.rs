//! Signatures, with the cryptography that TLS uses too: `ring`.

use ::ring::{hmac, signature as ring};

use super::{Algorithm, keys::KeyMaterial};

/// Whether this build can verify signatures.
pub(super) const IS_SUPPORTED: bool = true;

/// Whether the holder of the key signed the message. An algorithm that does not fit the key never did.
pub(super) fn is_valid(
    key: &KeyMaterial,
    algorithm: Algorithm,
    message: &[u8],
    signature: &[u8],
) -> bool {
    match key {
        KeyMaterial::Rsa { n, e } => {
            let Some(parameters) = rsa(algorithm) else {
                return false;
            };
            let key = ring::RsaPublicKeyComponents { n, e };
            key.verify(parameters, message, signature).is_ok()
        }
        KeyMaterial::Secret(secret) => {
            let Some(algorithm) = hmac(algorithm) else {
                return false;
            };
            // Compares in constant time.
            hmac::verify(&hmac::Key::new(algorithm, secret), message, signature).is_ok()
        }
        KeyMaterial::P256(key) | KeyMaterial::P384(key) | KeyMaterial::Ed25519(key) => {
            let Some(algorithm) = curve(algorithm) else {
                return false;
            };
            let key = ring::UnparsedPublicKey::new(algorithm, key);
            key.verify(message, signature).is_ok()
        }
    }
}

fn rsa(algorithm: Algorithm) -> Option<&'static ring::RsaParameters> {
    Some(match algorithm {
        Algorithm::Rs256 => &ring::RSA_PKCS1_2048_8192_SHA256,
        Algorithm::Rs384 => &ring::RSA_PKCS1_2048_8192_SHA384,
        Algorithm::Rs512 => &ring::RSA_PKCS1_2048_8192_SHA512,
        Algorithm::Ps256 => &ring::RSA_PSS_2048_8192_SHA256,
        Algorithm::Ps384 => &ring::RSA_PSS_2048_8192_SHA384,
        Algorithm::Ps512 => &ring::RSA_PSS_2048_8192_SHA512,
        _ => return None,
    })
}

fn curve(algorithm: Algorithm) -> Option<&'static dyn ring::VerificationAlgorithm> {
    Some(match algorithm {
        Algorithm::Es256 => &ring::ECDSA_P256_SHA256_FIXED,
        Algorithm::Es384 => &ring::ECDSA_P384_SHA384_FIXED,
        Algorithm::EdDsa => &ring::ED25519,
        _ => return None,
    })
}

fn hmac(algorithm: Algorithm) -> Option<hmac::Algorithm> {
    Some(match algorithm {
        Algorithm::Hs256 => hmac::HMAC_SHA256,
        Algorithm::Hs384 => hmac::HMAC_SHA384,
        Algorithm::Hs512 => hmac::HMAC_SHA512,
        _ => return None,
    })
}
