//! Resolves `authorization = { … }`, the credential that a worker sends to its target, and `probe_authorization`.
//! The secret is read here, before anything starts.

use std::ops::Range;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toml::de::DeTable;

use super::{
    draft::Apply,
    given::Given,
    problem::Report,
    table::{self, ConfigTable},
    typed,
};
use crate::policy::{
    Authorization,
    outside::{self, Outside},
};

/// Help text with an example.
pub(super) const HELP: &str =
    "write authorization = { scheme = \"bearer\", secret_env = \"BILLING_TOKEN\" }";

/// Help text with an example for probes.
pub(super) const PROBE_HELP: &str =
    "write probe_authorization = { scheme = \"bearer\", secret_env = \"PROBE_TOKEN\" }";

/// The scheme of an `Authorization` header.
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

/// Resolves the table into an `Authorization` header; `help` is a right example.
pub(super) fn resolve(
    mut table: DeTable<'_>,
    at: Range<usize>,
    help: &str,
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
            report.push(at, message, help);
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
    let made = match (scheme, user.as_deref()) {
        (AuthorizationScheme::Bearer, None) => Authorization::bearer(&text),
        (AuthorizationScheme::Basic, Some(user)) => Authorization::basic(user, &text),
        (AuthorizationScheme::Bearer, Some(_)) => {
            let help = "remove it, or write scheme = \"basic\"";
            report.push(at, "`user` has no effect with a bearer token", help);
            return None;
        }
        (AuthorizationScheme::Basic, None) => {
            let message = "basic authorization needs a `user` without a colon";
            report.push(at, message, "add user = \"billing\"");
            return None;
        }
    };
    match made {
        Ok(made) => Some(made.with_origin(origin)),
        Err(error) => {
            let error = error.to_string();
            let (message, help) = error.split_once("; ").unwrap_or((&error, ""));
            report.push(at, format!("{origin}: {message}"), help);
            None
        }
    }
}
