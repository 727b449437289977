//! Resolves `authorization = { … }`, the credentials that a worker sends to its target.
//! The secret is read here, before anything starts.

use std::{fmt, ops::Range};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};
use toml::de::DeTable;

use super::{
    draft::Apply,
    given::Given,
    problem::Report,
    table::{self, ConfigTable},
    typed,
};
use crate::policy::outside::{self, Outside};

/// Help text with an example.
pub(super) const HELP: &str =
    "write authorization = { scheme = \"bearer\", secret_env = \"BILLING_TOKEN\" }";

/// How a worker authenticates to its target.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum AuthorizationScheme {
    /// `Authorization: Bearer SECRET`.
    #[default]
    Bearer,
    /// `Authorization: Basic …`, with `user` and the secret as the password.
    Basic,
}

/// `Authorization` header of a worker's deliveries. Display and Debug print the origin of the secret, never the secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Authorization {
    scheme: AuthorizationScheme,
    header: String,
    /// Origin of the secret, such as `env:BILLING_TOKEN`.
    origin: String,
}

impl Authorization {
    /// Returns the header value, including the secret. Do not print it.
    #[must_use]
    pub fn header(&self) -> &str {
        &self.header
    }
}

impl fmt::Display for Authorization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.scheme {
            AuthorizationScheme::Bearer => "bearer",
            AuthorizationScheme::Basic => "basic",
        };
        write!(f, "{scheme} from {}", self.origin)
    }
}

impl fmt::Debug for Authorization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Authorization({self})")
    }
}

impl Serialize for Authorization {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Resolves the table into an `Authorization` header.
pub(super) fn resolve(
    mut table: DeTable<'_>,
    at: Range<usize>,
    report: &mut Report<'_>,
) -> Option<Authorization> {
    table::refuse_unknown(&mut table, ConfigTable::Authorization, report);
    let part = table::read::<typed::Authorization>(table, report);
    let typed::Authorization {
        scheme: scheme_text,
        user,
        secret_env,
        secret_file,
    } = &part.values;
    let mut scheme = AuthorizationScheme::default();
    let mut apply = Apply {
        places: &part.places,
        report,
    };
    apply.choice("scheme", scheme_text, &mut scheme);
    let place = Given {
        name: "secret",
        text: &None,
        env: secret_env,
        file: secret_file,
    }
    .place(&part.places);
    let outside = match (secret_env, secret_file) {
        (Some(_), None) | (None, Some(_)) if !report.reads_secrets => return None,
        (Some(name), None) => outside::from_env("secret", name),
        (None, Some(path)) => outside::from_file("secret", path),
        _ => {
            let message = "`authorization` needs exactly one secret";
            report.push(at, message, HELP);
            return None;
        }
    };
    let Outside { text, origin } = match outside {
        Ok(outside) => outside,
        Err(error) => {
            report.push_error(place.unwrap_or(at), &error);
            return None;
        }
    };
    let is_header = |text: &str| text.bytes().all(|byte| (0x20..0x7F).contains(&byte));
    let header = match (scheme, user.as_deref()) {
        (AuthorizationScheme::Bearer, None) if is_header(&text) => format!("Bearer {text}"),
        (AuthorizationScheme::Basic, Some(user)) if !user.contains(':') => {
            format!("Basic {}", BASE64_STANDARD.encode(format!("{user}:{text}")))
        }
        (AuthorizationScheme::Bearer, None) => {
            let message = format!("{origin} contains characters that are not allowed in a header");
            report.push(at, message, "copy the token again, on one line");
            return None;
        }
        (AuthorizationScheme::Bearer, Some(_)) => {
            let help = "remove it, or write scheme = \"basic\"";
            report.push(at, "`user` has no effect with a bearer token", help);
            return None;
        }
        (AuthorizationScheme::Basic, _) => {
            let message = "basic authorization needs a `user` without a colon";
            report.push(at, message, "add user = \"billing\"");
            return None;
        }
    };
    Some(Authorization {
        scheme,
        header,
        origin,
    })
}
