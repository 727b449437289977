//! One token: its parts, its signature and its claims.

use std::fmt;

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use serde_json::{Map, Value};

use super::{Algorithm, JwtSettings, KeySet, signature};
use crate::{Scope, clock::Timestamp, fingerprint::Json};

/// Maximum size of a token, in bytes.
const TOKEN_BYTES_MAX: usize = 16 << 10;

/// Why a token is invalid. It names claims, never their values.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidToken {
    /// The request has no token.
    Missing,
    /// The header with the token is sent twice.
    Repeated,
    /// It is no signed token, or too large.
    Malformed,
    /// It is signed with an algorithm that is not allowed, or with none.
    Algorithm,
    /// It names a key that is not known.
    UnknownKey,
    /// Its signature is wrong.
    Forged,
    /// It has expired, or does not say when it expires.
    Expired,
    /// It is not valid yet.
    Early,
    /// It is from another issuer.
    Issuer,
    /// It is for another audience.
    Audience,
    /// It lacks this claim, or the claim is neither a string nor a whole number.
    Claim(String),
}

impl fmt::Display for InvalidToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "the token is missing",
            Self::Repeated => "the header with the token is sent twice",
            Self::Malformed => "the token is malformed",
            Self::Algorithm => "the token is signed with an algorithm that is not allowed",
            Self::UnknownKey => "the token names an unknown key",
            Self::Forged => "the signature of the token is wrong",
            Self::Expired => "the token has expired",
            Self::Early => "the token is not valid yet",
            Self::Issuer => "the token is from another issuer",
            Self::Audience => "the token is for another audience",
            Self::Claim(name) => {
                return write!(
                    f,
                    "the claim `{name}` is missing, empty, or neither a string nor a whole number"
                );
            }
        })
    }
}

impl std::error::Error for InvalidToken {}

/// A signed token that was taken apart, and not verified.
#[derive(Clone, Copy)]
pub(super) struct Token<'t> {
    header: &'t str,
    claims: &'t str,
    /// Header and claims with the dot between them.
    message: &'t str,
    signature: &'t str,
}

/// What the header of a token says about its signature.
pub(super) struct TokenHeader {
    pub(super) algorithm: Algorithm,
    pub(super) key: Option<String>,
}

impl<'t> Token<'t> {
    pub(super) fn split(text: &'t str) -> Result<Self, InvalidToken> {
        let split = || {
            let (message, signature) = text.rsplit_once('.')?;
            let (header, claims) = message.split_once('.')?;
            (text.len() <= TOKEN_BYTES_MAX && !claims.contains('.')).then_some(Self {
                header,
                claims,
                message,
                signature,
            })
        };
        split().ok_or(InvalidToken::Malformed)
    }

    pub(super) fn header(&self) -> Result<TokenHeader, InvalidToken> {
        let header = members(self.header)?;
        // An extension that must be understood, and is not.
        if header.contains_key("crit") {
            return Err(InvalidToken::Malformed);
        }
        let algorithm = header.get("alg").and_then(Value::as_str);
        let algorithm = algorithm.and_then(|name| name.parse().ok());
        let key = match header.get("kid") {
            Some(Value::String(key)) => Some(key.clone()),
            Some(_) => return Err(InvalidToken::Malformed),
            None => None,
        };
        Ok(TokenHeader {
            algorithm: algorithm.ok_or(InvalidToken::Algorithm)?,
            key,
        })
    }

    /// Whether one of the keys signed it.
    pub(super) fn check_signature(
        &self,
        header: &TokenHeader,
        keys: &KeySet,
    ) -> Result<(), InvalidToken> {
        let signature = BASE64_URL_SAFE_NO_PAD.decode(self.signature);
        let signature = signature.map_err(|_| InvalidToken::Malformed)?;
        let message = self.message.as_bytes();
        let mut candidates = keys.candidates(header.key.as_deref(), header.algorithm);
        let is_signed = candidates
            .any(|key| signature::is_valid(&key.material, header.algorithm, message, &signature));
        match is_signed {
            true => Ok(()),
            false => Err(InvalidToken::Forged),
        }
    }

    /// The claims, which are not checked.
    pub(super) fn claims(&self) -> Result<VerifiedClaims, InvalidToken> {
        members(self.claims).map(VerifiedClaims)
    }
}

/// The members of an encoded JSON object. An object with a repeated name is rejected, because parsers do not agree which one counts.
fn members(encoded: &str) -> Result<Map<String, Value>, InvalidToken> {
    let parse = || {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(encoded).ok()?;
        let json = Json::parse(&bytes).ok()?;
        serde_json::from_str(json.as_str()).ok()
    };
    parse().ok_or(InvalidToken::Malformed)
}

/// The claims of a valid token. Debug prints their names, never their values.
#[derive(Clone, PartialEq)]
pub struct VerifiedClaims(Map<String, Value>);

impl VerifiedClaims {
    /// Checks time, issuer and audience; `now` is the wall-clock time.
    pub(super) fn check(&self, settings: &JwtSettings, now: Timestamp) -> Result<(), InvalidToken> {
        self.check_time(settings, now)?;
        let issuer = self.issuer()?;
        let is_ours = |it: &&str| settings.issuers.iter().any(|ours| ours == it);
        if !settings.issuers.is_empty() && issuer.filter(is_ours).is_none() {
            return Err(InvalidToken::Issuer);
        }
        match &settings.audiences {
            Some(ours) if !self.is_for(ours) => Err(InvalidToken::Audience),
            _ => Ok(()),
        }
    }

    /// A token is valid up to and without `exp` plus leeway, and from `nbf` minus leeway on.
    fn check_time(&self, settings: &JwtSettings, now: Timestamp) -> Result<(), InvalidToken> {
        let leeway = settings.leeway;
        let expires = self.time("exp")?.ok_or(InvalidToken::Expired)?;
        if now >= expires + leeway {
            return Err(InvalidToken::Expired);
        }
        match self.time("nbf")? {
            Some(begins) if now + leeway < begins => Err(InvalidToken::Early),
            _ => Ok(()),
        }
    }

    /// The time in a claim: seconds since 1970, which may have a fraction.
    fn time(&self, claim: &str) -> Result<Option<Timestamp>, InvalidToken> {
        let Some(value) = self.0.get(claim) else {
            return Ok(None);
        };
        let seconds = value.as_f64().filter(|it| (0.0..1e15).contains(it));
        let seconds = seconds.ok_or(InvalidToken::Malformed)?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the range was checked"
        )]
        let millis = (seconds * 1_000.0) as u64;
        Ok(Some(Timestamp(millis)))
    }

    fn issuer(&self) -> Result<Option<&str>, InvalidToken> {
        match self.0.get("iss") {
            None => Ok(None),
            Some(Value::String(issuer)) => Ok(Some(issuer)),
            Some(_) => Err(InvalidToken::Malformed),
        }
    }

    fn is_for(&self, ours: &[String]) -> bool {
        let is_ours = |it: &Value| {
            it.as_str()
                .is_some_and(|it| ours.iter().any(|our| our == it))
        };
        match self.0.get("aud") {
            Some(Value::Array(all)) => all.iter().any(is_ours),
            Some(one) => is_ours(one),
            None => false,
        }
    }

    /// Checks that a claim can be part of a scope.
    pub(crate) fn check_usable(&self, claim: &str) -> Result<(), InvalidToken> {
        self.add_to(Scope::none(), claim).map(drop)
    }

    /// Adds a claim to a scope, with its issuer: the same value from another issuer is another scope, and so is a number
    /// from the string with its digits.
    ///
    /// # Errors
    /// If the claim is missing, empty, or neither a string nor a whole number.
    pub(crate) fn add_to(&self, scope: Scope, claim: &str) -> Result<Scope, InvalidToken> {
        let value = match self.0.get(claim) {
            Some(Value::String(text)) if !text.is_empty() => format!("s{text}"),
            Some(Value::Number(number)) if !number.is_f64() => format!("n{number}"),
            _ => return Err(InvalidToken::Claim(claim.into())),
        };
        let scope = match self.issuer()? {
            Some(issuer) => scope.with("jwt-issuer", issuer),
            None => scope.with("jwt-no-issuer", ""),
        };
        Ok(scope.with(&format!("jwt:{claim}"), value))
    }
}

impl fmt::Debug for VerifiedClaims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(all(test, feature = "jwt"))]
mod tests {
    //! A token that is accepted wrongly gives its bearer the outcomes of another caller. The vectors are those of the
    //! standards, so they do not depend on how this crate signs.

    use std::time::Duration;

    use serde_json::json;

    use super::*;

    /// RFC 7515, appendices A.1 and A.3, and RFC 8037, appendix A.4: a key and a token.
    const VECTORS: [(&str, &str); 3] = [
        (
            r#"{"kty":"oct","k":"AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow"}"#,
            "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk",
        ),
        (
            r#"{"kty":"EC","crv":"P-256","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}"#,
            "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q",
        ),
        (
            r#"{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}"#,
            "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc.hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg",
        ),
    ];

    fn key_of(jwk: &str) -> KeySet {
        match jwk.contains("oct") {
            false => KeySet::from_jwks(format!("{{\"keys\":[{jwk}]}}").as_bytes()).unwrap(),
            true => {
                let jwk: Value = serde_json::from_str(jwk).unwrap();
                let secret = BASE64_URL_SAFE_NO_PAD.decode(jwk["k"].as_str().unwrap());
                KeySet::from_secret_bytes(secret.unwrap())
            }
        }
    }

    #[test]
    fn signatures_of_the_standards_are_valid_under_their_own_key_only() {
        for (at, (_, text)) in VECTORS.iter().enumerate() {
            let token = Token::split(text).unwrap();
            let header = token.header().unwrap();
            for (key_at, (jwk, _)) in VECTORS.iter().enumerate() {
                let checked = token.check_signature(&header, &key_of(jwk));
                assert_eq!(checked.is_ok(), at == key_at, "token {at}, key {key_at}");
            }
        }
    }

    #[test]
    fn a_change_of_any_byte_makes_a_token_invalid() {
        for (jwk, text) in VECTORS {
            let keys = key_of(jwk);
            for at in 0..text.len() {
                let mut changed = text.as_bytes().to_vec();
                changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
                let changed = String::from_utf8(changed).unwrap();
                let checked = Token::split(&changed).and_then(|token| {
                    let header = token.header()?;
                    token.check_signature(&header, &keys)
                });
                assert!(checked.is_err(), "byte {at} of {text}");
            }
        }
    }

    fn check(claims: Value, seconds: f64) -> Result<(), InvalidToken> {
        let settings = JwtSettings::with_secret("0123456789abcdef0123456789abcdef").unwrap();
        let settings = settings.for_audience("pay").from_issuer("us");
        let Value::Object(claims) = claims else {
            panic!("no object");
        };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "small"
        )]
        let now = Timestamp((seconds * 1_000.0) as u64);
        VerifiedClaims(claims).check(&settings, now)
    }

    #[test]
    fn a_token_is_valid_up_to_its_leeway_and_not_a_millisecond_longer() {
        let claims =
            |exp: Value, nbf: Value| json!({ "exp": exp, "nbf": nbf, "iss": "us", "aud": "pay" });
        let leeway = Duration::from_mins(1).as_secs_f64();
        for (now, expected) in [
            (1_000.0 - leeway - 0.001, Err(InvalidToken::Early)),
            (1_000.0 - leeway, Ok(())),
            (2_000.0 + leeway - 0.001, Ok(())),
            (2_000.0 + leeway, Err(InvalidToken::Expired)),
            (1e12, Err(InvalidToken::Expired)),
        ] {
            assert_eq!(
                check(claims(json!(2_000), json!(1_000)), now),
                expected,
                "{now}"
            );
            assert_eq!(
                check(claims(json!(2e3), json!(1_000.0)), now),
                expected,
                "{now}"
            );
        }
        for exp in [
            json!("2000"),
            json!(-1),
            json!(1e300),
            json!(null),
            json!([2_000]),
        ] {
            let checked = check(claims(exp.clone(), json!(0)), 1.0);
            assert_eq!(checked, Err(InvalidToken::Malformed), "{exp}");
        }
        let no_end = json!({ "iss": "us", "aud": "pay" });
        assert_eq!(check(no_end, 1.0), Err(InvalidToken::Expired));
    }

    #[test]
    fn issuer_and_audience_must_be_ours() {
        let exp = 2_000;
        for (claims, expected) in [
            (json!({ "exp": exp, "iss": "us", "aud": "pay" }), Ok(())),
            (
                json!({ "exp": exp, "iss": "us", "aud": ["x", "pay"] }),
                Ok(()),
            ),
            (
                json!({ "exp": exp, "iss": "US", "aud": "pay" }),
                Err(InvalidToken::Issuer),
            ),
            (
                json!({ "exp": exp, "aud": "pay" }),
                Err(InvalidToken::Issuer),
            ),
            (
                json!({ "exp": exp, "iss": ["us"], "aud": "pay" }),
                Err(InvalidToken::Malformed),
            ),
            (
                json!({ "exp": exp, "iss": "us", "aud": "paying" }),
                Err(InvalidToken::Audience),
            ),
            (
                json!({ "exp": exp, "iss": "us", "aud": [] }),
                Err(InvalidToken::Audience),
            ),
            (
                json!({ "exp": exp, "iss": "us", "aud": { "pay": 1 } }),
                Err(InvalidToken::Audience),
            ),
            (
                json!({ "exp": exp, "iss": "us" }),
                Err(InvalidToken::Audience),
            ),
        ] {
            assert_eq!(check(claims.clone(), 1.0), expected, "{claims}");
        }
    }

    #[test]
    fn different_claims_make_different_scopes() {
        let claims = [
            json!({ "iss": "x", "sub": "a" }),
            json!({ "iss": "y", "sub": "a" }),
            json!({ "sub": "a" }),
            json!({ "iss": "x", "sub": "7" }),
            json!({ "iss": "x", "sub": 7 }),
            json!({ "iss": "x", "sub": -7 }),
            json!({ "iss": "x", "sub": "s7" }),
            json!({ "iss": "x", "sub": "n7" }),
            json!({ "iss": "xs", "sub": "a" }),
            json!({ "iss": "", "sub": "a" }),
        ];
        let scopes = claims.map(|claims| {
            let Value::Object(claims) = claims else {
                panic!("no object");
            };
            VerifiedClaims(claims).add_to(Scope::none(), "sub").unwrap()
        });
        for (at, scope) in scopes.iter().enumerate() {
            assert!(
                !scopes[..at].contains(scope),
                "scope {at} equals one before it"
            );
        }
    }

    #[test]
    fn a_claim_that_names_nobody_is_unusable() {
        let claims = json!({
            "empty": "", "float": 7.0, "large": 1e30, "null": null, "list": ["a"], "object": {}, "true": true,
        });
        let Value::Object(claims) = claims else {
            panic!("no object");
        };
        let claims = VerifiedClaims(claims);
        for name in claims.0.keys().map(String::as_str).chain(["missing"]) {
            let expected = Err(InvalidToken::Claim(name.into()));
            assert_eq!(claims.check_usable(name), expected);
        }
    }
}
