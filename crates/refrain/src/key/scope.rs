//! The parts of scopes and of credentials, as a policy writes them.

use std::{fmt, str::FromStr};

use crate::{Error, ErrorKind, Result};

/// One part of a scope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScopePart {
    /// `credential`: the caller, as named by the credential.
    Credential,
    /// `header:NAME`: the value of a header. The name is in lower case.
    Header(String),
    /// `jwt:CLAIM`: a verified claim of a bearer token.
    Jwt(String),
    /// `path:NAME`: a named segment of the matched path.
    Path(String),
    /// `route`: the operation itself.
    Route,
    /// `none`: all callers share one namespace.
    None,
}

/// One part of the credential, which tells callers apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CredentialPart {
    /// `header:NAME`: the value of a header. The name is in lower case.
    Header(String),
    /// `cookie:NAME`: the value of one cookie.
    Cookie(String),
}

impl FromStr for ScopePart {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.split_once(':') {
            None if text == "credential" => Ok(Self::Credential),
            None if text == "route" => Ok(Self::Route),
            None if text == "none" => Ok(Self::None),
            Some(("header", name)) => super::header_name(name).map(Self::Header),
            Some(("jwt", claim)) if !claim.is_empty() => Ok(Self::Jwt(claim.into())),
            Some(("path", name)) if !name.is_empty() => Ok(Self::Path(name.into())),
            _ => Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "invalid scope `{text}`; write credential, header:NAME, jwt:CLAIM, path:NAME, route or none"
                ),
            )),
        }
    }
}

impl fmt::Display for ScopePart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Credential => f.write_str("credential"),
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Jwt(claim) => write!(f, "jwt:{claim}"),
            Self::Path(name) => write!(f, "path:{name}"),
            Self::Route => f.write_str("route"),
            Self::None => f.write_str("none"),
        }
    }
}

impl FromStr for CredentialPart {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.split_once(':') {
            Some(("header", name)) => super::header_name(name).map(Self::Header),
            Some(("cookie", name)) if !name.is_empty() => Ok(Self::Cookie(name.into())),
            _ => Err(Error::new(
                ErrorKind::Invalid,
                format!("invalid credential part `{text}`; write header:NAME or cookie:NAME"),
            )),
        }
    }
}

impl fmt::Display for CredentialPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Cookie(name) => write!(f, "cookie:{name}"),
        }
    }
}
