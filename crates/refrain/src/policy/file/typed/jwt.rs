//! The table `[jwt]` as it is written.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{List, Scalar, schema};

/// Tokens (JSON Web Tokens) whose claims a scope is made of.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::policy::file) struct Jwt {
    /// URL of the JSON Web Key Set with the issuer's public keys. One source of keys is required. Default: none.
    #[schemars(with = "Option<schema::JwksUrl>")]
    pub(in crate::policy::file) jwks_url: Option<String>,
    /// File with a JSON Web Key Set, which is read again like a URL.
    #[schemars(with = "Option<schema::PathText>")]
    pub(in crate::policy::file) jwks_file: Option<String>,
    /// PEM files (`BEGIN PUBLIC KEY`) with one public key each.
    #[schemars(with = "Option<schema::OneOrMore<schema::PathText>>")]
    pub(in crate::policy::file) public_key_file: Option<List>,
    /// Environment variables that hold a secret for HMAC, of at least 32 bytes; each may be given as `NAME_FILE` with the
    /// path of a file.
    #[schemars(with = "Option<schema::OneOrMore<schema::VariableName>>")]
    pub(in crate::policy::file) secret_env: Option<List>,
    /// Files that hold one such secret each.
    #[schemars(with = "Option<schema::OneOrMore<schema::PathText>>")]
    pub(in crate::policy::file) secret_file: Option<List>,
    /// Algorithms that a token may be signed with. Default: those that fit public keys; with a secret, HS256.
    #[schemars(with = "Option<schema::OneOrMore<schema::JwtAlgorithm>>")]
    pub(in crate::policy::file) algorithms: Option<List>,
    /// Issuers whose tokens are valid, as in the claim `iss`. Default: any.
    #[schemars(with = "Option<schema::OneOrMore<schema::PathText>>")]
    pub(in crate::policy::file) issuer: Option<List>,
    /// Audiences, one of which a token must name in the claim `aud`; `*` accepts every token of the issuer. Required.
    #[schemars(with = "Option<schema::OneOrMore<schema::PathText>>")]
    pub(in crate::policy::file) audience: Option<List>,
    /// Maximum difference between the clocks of issuer and proxy: up to 10m. Default: 1m.
    #[schemars(with = "Option<schema::Duration>")]
    pub(in crate::policy::file) leeway: Option<Scalar>,
    /// Header with the token, after `Bearer ` or alone; in `Authorization`, only after `Bearer `. Default: Authorization.
    #[schemars(with = "Option<schema::HeaderName>")]
    pub(in crate::policy::file) header: Option<String>,
    /// Age at which the key set is fetched again: 1s to 30d. Default: 10m.
    #[schemars(with = "Option<schema::Duration>")]
    pub(in crate::policy::file) jwks_refresh: Option<Scalar>,
    /// Age up to which the key set is used while it cannot be fetched: up to 30d. Default: 1d.
    #[schemars(with = "Option<schema::Duration>")]
    pub(in crate::policy::file) jwks_stale: Option<Scalar>,
    /// Least time between two fetches, such as for tokens that name an unknown key: from 100ms. Default: 10s.
    #[schemars(with = "Option<schema::Duration>")]
    pub(in crate::policy::file) jwks_retry: Option<Scalar>,
}
