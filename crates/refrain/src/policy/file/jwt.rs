//! Resolves `[jwt]`: which tokens are valid. Secrets and key files are read here, before anything starts.

use std::{ops::Range, time::Duration};

use toml::de::DeTable;

use super::{
    draft::Apply,
    problem::Report,
    table::{self, ConfigTable},
    typed::{Jwt, List},
};
use crate::{
    Result,
    jwt::{JwtKeys, JwtSettings, KeySet},
    policy::{
        invalid,
        outside::{self, Outside},
        units::{self, Span},
    },
};

/// Maximum number of secrets or key files.
const KEYS_MAX: usize = 8;
/// Help text with an example.
pub(super) const HELP: &str = "write jwks_url = \"https://login.example/.well-known/jwks.json\", or one of jwks_file, public_key_file, secret_env and secret_file";

/// Resolves the table.
pub(super) fn resolve(
    mut table: DeTable<'_>,
    at: Range<usize>,
    report: &mut Report<'_>,
) -> Option<JwtSettings> {
    table::refuse_unknown(&mut table, ConfigTable::Jwt, report);
    let part = table::read::<Jwt>(table, report);
    let values = &part.values;
    let mut apply = Apply {
        places: &part.places,
        report,
    };
    let mut settings = JwtSettings::new(apply.jwt_keys(values, at.clone())?);
    apply.jwt_lists(values, &mut settings);
    let times = [
        (
            "leeway",
            &values.leeway,
            Duration::ZERO,
            &mut settings.leeway,
        ),
        (
            "jwks_refresh",
            &values.jwks_refresh,
            Duration::from_secs(1),
            &mut settings.jwks_refresh,
        ),
        (
            "jwks_stale",
            &values.jwks_stale,
            Duration::from_secs(1),
            &mut settings.jwks_stale,
        ),
        (
            "jwks_retry",
            &values.jwks_retry,
            Duration::from_millis(100),
            &mut settings.jwks_retry,
        ),
    ];
    for (name, text, least, field) in times {
        apply.scalar(name, text, |text| time(text, least), field);
    }
    if let Some(name) = &values.header {
        match crate::key::header_name(name) {
            Ok(name) => settings.header = name,
            Err(error) => apply.report.push_error(apply.place("header"), &error),
        }
    }
    for (setting, message, help) in settings.faults() {
        match part.places.get(setting) {
            // What is reported already is not reported as a fault that follows from it.
            Some(place) if report.has(place) => {}
            place => report.push(place.cloned().unwrap_or(at.clone()), message, help),
        }
    }
    Some(settings)
}

fn time(text: &str, least: Duration) -> Result<Duration> {
    let time = units::duration(text)?;
    let most = Duration::from_hours(24 * 30);
    match (least..=most).contains(&time) {
        true => Ok(time),
        false => Err(invalid(format!(
            "`{text}` is out of range; write a time from {} to {}",
            Span(least),
            Span(most)
        ))),
    }
}

impl Apply<'_, '_, '_> {
    fn jwt_lists(&mut self, values: &Jwt, settings: &mut JwtSettings) {
        self.list(
            "algorithms",
            &values.algorithms,
            &[],
            &mut settings.algorithms,
        );
        if let Some(List(issuers)) = &values.issuer {
            settings.issuers = issuers.iter().map(|(text, _)| text.clone()).collect();
        }
        if let Some(List(audiences)) = &values.audience {
            let names: Vec<_> = audiences.iter().map(|(text, _)| text.clone()).collect();
            settings.audiences = (names != ["*"]).then_some(names);
        }
    }

    /// Where the keys come from; `None` without a single valid source, which is reported, or if secrets are not read.
    fn jwt_keys(&mut self, values: &Jwt, at: Range<usize>) -> Option<JwtKeys> {
        let Jwt {
            jwks_url,
            jwks_file,
            secret_env,
            secret_file,
            public_key_file,
            ..
        } = values;
        let reads = self.report.reads_secrets;
        match (
            jwks_url,
            jwks_file,
            secret_env,
            secret_file,
            public_key_file,
        ) {
            (Some(url), None, None, None, None) => self.jwks_url(url),
            (None, Some(_), None, None, None) if !reads => None,
            (None, Some(path), None, None, None) => self.jwks_file(path),
            (None, None, Some(_), None, None)
            | (None, None, None, Some(_), None)
            | (None, None, None, None, Some(_))
                if !reads =>
            {
                None
            }
            (None, None, Some(names), None, None) => self.fixed("secret_env", names, |name| {
                secret(outside::from_env("secret", name)?)
            }),
            (None, None, None, Some(paths), None) => self.fixed("secret_file", paths, |path| {
                secret(outside::from_file("secret", path)?)
            }),
            (None, None, None, None, Some(paths)) => {
                self.fixed("public_key_file", paths, public_key)
            }
            (None, None, None, None, None) => {
                self.report
                    .push(at, "[jwt] does not say where the keys come from", HELP);
                None
            }
            _ => {
                let message = "[jwt] takes its keys from several sources: a token could be verified with a key of another kind";
                self.report.push(at, message, "keep one of them");
                None
            }
        }
    }

    fn jwks_url(&mut self, url: &str) -> Option<JwtKeys> {
        let rest = url
            .strip_prefix("https://")
            .or_else(|| url.strip_prefix("http://"));
        let host = rest.and_then(|rest| rest.split(['/', '?']).next());
        let is_visible = url
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b'#');
        if host.is_some_and(|host| !host.is_empty() && !host.contains('@')) && is_visible {
            return Some(JwtKeys::Url(url.into()));
        }
        let help = "write it like https://login.example/.well-known/jwks.json";
        self.report
            .push(self.place("jwks_url"), "invalid URL in `jwks_url`", help);
        None
    }

    /// Reads the file once, so that a mistake is found at the start.
    fn jwks_file(&mut self, path: &str) -> Option<JwtKeys> {
        match KeySet::read_jwks(path.as_ref()) {
            Ok(_) => Some(JwtKeys::File(path.into())),
            Err(error) => {
                self.report.push_error(self.place("jwks_file"), &error);
                None
            }
        }
    }

    fn fixed(
        &mut self,
        name: &str,
        List(members): &List,
        read: impl Fn(&str) -> Result<(KeySet, String)>,
    ) -> Option<JwtKeys> {
        if !(1..=KEYS_MAX).contains(&members.len()) {
            let message = format!("`{name}` has {} members", members.len());
            self.report
                .push(self.place(name), message, format!("write 1 to {KEYS_MAX}"));
            return None;
        }
        let (mut keys, mut origins) = (KeySet::default(), Vec::new());
        for (text, place) in members {
            match read(text) {
                Ok((key, origin)) => {
                    keys = keys.and(key);
                    origins.push(origin);
                }
                Err(error) => {
                    let place = place.clone().unwrap_or_else(|| self.place(name));
                    self.report.push_error(place, &error);
                }
            }
        }
        (origins.len() == members.len()).then_some(JwtKeys::Fixed(keys, origins))
    }
}

fn secret(outside: Outside) -> Result<(KeySet, String)> {
    let Outside { text, origin } = outside;
    let keys = KeySet::from_secret(&text).map_err(|error| invalid(format!("{origin}: {error}")))?;
    Ok((keys, origin))
}

fn public_key(path: &str) -> Result<(KeySet, String)> {
    let Outside { text, origin } = outside::from_file("public_key", path)?;
    let keys =
        KeySet::from_public_key(&text).map_err(|error| invalid(format!("{origin}: {error}")))?;
    Ok((keys, origin))
}
