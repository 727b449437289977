//! Keys that sign tokens as an issuer does, and tokens that attackers make.

use base64::{Engine as _, prelude::BASE64_STANDARD, prelude::BASE64_URL_SAFE_NO_PAD};
use ring::{
    hmac,
    rand::SystemRandom,
    rsa::PublicKeyComponents,
    signature::{
        ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _,
        RSA_PKCS1_SHA256, RSA_PKCS1_SHA384, RSA_PKCS1_SHA512, RSA_PSS_SHA256, RSA_PSS_SHA384,
        RSA_PSS_SHA512, RsaEncoding, RsaKeyPair,
    },
};
use serde_json::{Value, json};

/// Secret of the tests' HS256 tokens.
pub(crate) const SECRET: &str = "canary-secret-0123456789-0123456789";

/// A key of an issuer.
pub(crate) struct IssuerKey {
    pub(crate) id: String,
    pair: Pair,
}

enum Pair {
    Rsa(Box<RsaKeyPair>, &'static str),
    Ec(EcdsaKeyPair),
    Ed(Ed25519KeyPair),
    Secret(Vec<u8>),
}

impl IssuerKey {
    pub(crate) fn rs256(id: &str) -> Self {
        Self::rsa(id, "RS256")
    }

    pub(crate) fn rsa(id: &str, algorithm: &'static str) -> Self {
        let pem = include_str!("rsa-key-of-tests.pem");
        let body: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
        let der = BASE64_STANDARD.decode(body).unwrap();
        let pair = RsaKeyPair::from_pkcs8(&der).unwrap();
        Self::new(id, Pair::Rsa(Box::new(pair), algorithm))
    }

    pub(crate) fn es256(id: &str) -> Self {
        let random = SystemRandom::new();
        let kind = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let der = EcdsaKeyPair::generate_pkcs8(kind, &random).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(kind, der.as_ref(), &random).unwrap();
        Self::new(id, Pair::Ec(pair))
    }

    pub(crate) fn eddsa(id: &str) -> Self {
        let der = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Self::new(
            id,
            Pair::Ed(Ed25519KeyPair::from_pkcs8(der.as_ref()).unwrap()),
        )
    }

    pub(crate) fn hs256(secret: &[u8]) -> Self {
        Self::new("", Pair::Secret(secret.to_vec()))
    }

    fn new(id: &str, pair: Pair) -> Self {
        let id = id.into();
        Self { id, pair }
    }

    pub(crate) fn algorithm(&self) -> &'static str {
        match self.pair {
            Pair::Rsa(_, algorithm) => algorithm,
            Pair::Ec(_) => "ES256",
            Pair::Ed(_) => "EdDSA",
            Pair::Secret(_) => "HS256",
        }
    }

    /// The public key as a member of a key set.
    pub(crate) fn jwk(&self) -> Value {
        let text = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
        match &self.pair {
            Pair::Rsa(pair, algorithm) => {
                let public = PublicKeyComponents::<Vec<u8>>::from(pair.public_key());
                let (n, e) = (text(&public.n), text(&public.e));
                json!({ "kty": "RSA", "kid": self.id, "use": "sig", "alg": algorithm, "n": n, "e": e })
            }
            Pair::Ec(pair) => {
                let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
                json!({ "kty": "EC", "crv": "P-256", "kid": self.id, "x": text(x), "y": text(y) })
            }
            Pair::Ed(pair) => {
                let x = text(pair.public_key().as_ref());
                json!({ "kty": "OKP", "crv": "Ed25519", "kid": self.id, "x": x })
            }
            Pair::Secret(secret) => json!({ "kty": "oct", "kid": self.id, "k": text(secret) }),
        }
    }

    /// The public key in PEM.
    pub(crate) fn pem(&self) -> String {
        let (prefix, key) = match &self.pair {
            Pair::Rsa(pair, _) => (
                "30820122300d06092a864886f70d01010105000382010f00",
                pair.public().as_ref().to_vec(),
            ),
            Pair::Ec(pair) => (
                "3059301306072a8648ce3d020106082a8648ce3d030107034200",
                pair.public_key().as_ref().to_vec(),
            ),
            Pair::Ed(pair) => (
                "302a300506032b6570032100",
                pair.public_key().as_ref().to_vec(),
            ),
            Pair::Secret(_) => panic!("a secret has no public key"),
        };
        let hex = |at: usize| u8::from_str_radix(&prefix[at..at + 2], 16).unwrap();
        let mut der: Vec<u8> = (0..prefix.len()).step_by(2).map(hex).collect();
        der.extend(key);
        let text = BASE64_STANDARD.encode(der);
        format!("-----BEGIN PUBLIC KEY-----\n{text}\n-----END PUBLIC KEY-----\n")
    }

    /// The bytes of the public key, as an attacker may take them for a secret.
    pub(crate) fn public_bytes(&self) -> Vec<u8> {
        match &self.pair {
            Pair::Rsa(pair, _) => PublicKeyComponents::<Vec<u8>>::from(pair.public_key()).n,
            Pair::Ec(pair) => pair.public_key().as_ref().to_vec(),
            Pair::Ed(pair) => pair.public_key().as_ref().to_vec(),
            Pair::Secret(secret) => secret.clone(),
        }
    }

    /// A token with these claims.
    pub(crate) fn token(&self, claims: &Value) -> String {
        let mut header = json!({ "alg": self.algorithm(), "typ": "JWT" });
        if !self.id.is_empty() {
            header["kid"] = self.id.as_str().into();
        }
        self.token_as(&header.to_string(), &claims.to_string())
    }

    /// A token with this header and these claims, as written.
    pub(crate) fn token_as(&self, header: &str, claims: &str) -> String {
        let part = |text: &str| BASE64_URL_SAFE_NO_PAD.encode(text);
        let message = format!("{}.{}", part(header), part(claims));
        let signature = BASE64_URL_SAFE_NO_PAD.encode(self.sign(message.as_bytes()));
        format!("{message}.{signature}")
    }

    fn sign(&self, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match &self.pair {
            Pair::Rsa(pair, algorithm) => {
                let encoding: &dyn RsaEncoding = match *algorithm {
                    "RS384" => &RSA_PKCS1_SHA384,
                    "RS512" => &RSA_PKCS1_SHA512,
                    "PS256" => &RSA_PSS_SHA256,
                    "PS384" => &RSA_PSS_SHA384,
                    "PS512" => &RSA_PSS_SHA512,
                    _ => &RSA_PKCS1_SHA256,
                };
                let mut signature = vec![0; pair.public().modulus_len()];
                let signed = pair.sign(encoding, &random, message, &mut signature);
                signed.unwrap();
                signature
            }
            Pair::Ec(pair) => pair.sign(&random, message).unwrap().as_ref().to_vec(),
            Pair::Ed(pair) => pair.sign(message).as_ref().to_vec(),
            Pair::Secret(secret) => {
                let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
                hmac::sign(&key, message).as_ref().to_vec()
            }
        }
    }
}

/// The key set of an issuer.
pub(crate) fn key_set(keys: &[&IssuerKey]) -> String {
    let keys: Vec<_> = keys.iter().map(|key| key.jwk()).collect();
    json!({ "keys": keys }).to_string()
}
