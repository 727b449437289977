//! Settings for all operations: asked for, unless an existing policy has them.

use refrain::policy::{
    Address, File,
    schemes::{self, AddressForm, Backend, ClaimDurability},
};
use toml_edit::value;

use super::{Given, Ground, Tell};
use crate::{
    init::{
        KEY_HEADER,
        ask::{Interview, Kind, NoAnswer, Question},
    },
    output::counted,
    plan::{Described, POLICY},
};

impl Given {
    /// Validates the flags before the first question.
    ///
    /// # Errors
    /// When a flag's value is invalid.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        if let Some(store) = &self.store {
            if has_password(store) {
                anyhow::bail!("--store: {NO_PASSWORD}");
            }
            takes("store", store)?;
        }
        match &self.upstream {
            Some(upstream) => takes("upstream", upstream),
            None => Ok(()),
        }
    }
}

/// Checks that a policy accepts this value for a top-level setting.
fn takes(setting: &str, set: &str) -> anyhow::Result<()> {
    let text = format!("{setting} = {}\n", value(set));
    let Err(error) = File::parse(&text, POLICY) else {
        return Ok(());
    };
    let problems = error.problems().iter();
    let told: Vec<_> = problems
        .map(|it| format!("{}; {}", it.message, it.help))
        .collect();
    anyhow::bail!("--{setting}: {}", told.join("; "))
}

impl Ground<'_> {
    /// The value in the existing policy.
    fn existing_setting(
        &self,
        table: Option<&str>,
        name: &str,
        tell: &dyn Tell,
    ) -> Option<Vec<String>> {
        let said = self.existing.setting(table, name)?;
        tell.say(&format!(
            "{POLICY} has {name} = {}; it stays unchanged.",
            said.join(", ")
        ));
        Some(said)
    }

    /// The value from the existing policy or the flag; an error if the two differ.
    fn existing_or_flag(
        &self,
        name: &str,
        told: Option<&String>,
        tell: &dyn Tell,
    ) -> Result<Option<Vec<String>>, NoAnswer> {
        let said = self.existing_setting(None, name, tell);
        match (said, told) {
            (Some(said), Some(told)) if said.as_slice() != std::slice::from_ref(told) => {
                let said = said.join(", ");
                let why = anyhow::anyhow!(
                    "--{name}: {POLICY} has {name} = {said}; change it there, or omit --{name}"
                );
                Err(why.into())
            }
            (said, told) => Ok(said.or_else(|| told.map(|it| vec![it.clone()]))),
        }
    }
}

pub(super) fn keys(
    ground: &Ground<'_>,
    requests: Option<&Described>,
    interview: &mut Interview,
    tell: &dyn Tell,
) -> Result<(String, bool), NoAnswer> {
    let operations = requests.map_or(&[][..], |it| &it.plan.operations);
    let described = operations.iter().find_map(|it| it.keys.header.clone());
    let said = ground.existing_setting(Some("policy"), "key", tell);
    let said = said.map(|said| {
        let mut headers = said.iter().filter_map(|it| it.strip_prefix("header:"));
        headers.next().unwrap_or(KEY_HEADER).to_owned()
    });
    let header = match said.or(described) {
        // The policy or the API's description names the header.
        Some(header) => header,
        // An existing policy that names no header uses the standard one.
        None if ground.existing.has_operations() => KEY_HEADER.into(),
        None => interview.ask(&Question {
            name: "key header".into(),
            text: "In which header do clients send their key?".into(),
            why: "Clients and libraries know Idempotency-Key; use another name only if clients already send it.",
            default: KEY_HEADER.into(),
            kind: Kind::Text(&|typed| match http::HeaderName::try_from(typed) {
                Ok(_) => Ok(()),
                Err(_) => Err("invalid header name; use letters, digits and hyphens".into()),
            }),
        })?,
    };
    let proposals = operations
        .iter()
        .filter(|it| !it.keys.natural.is_empty())
        .count();
    // The operations of an existing policy keep their keys.
    if proposals == 0 || ground.existing.has_operations() {
        return Ok((header, false));
    }
    let answer = interview.ask(&Question {
        name: "natural keys".into(),
        text: format!("{} could take a natural key, built from business identifiers in the request. Use it if a client sends no key?", counted(proposals, "operation")),
        why: "It stops duplicates from clients without keys, but two intended requests with the same identifiers count as one.",
        default: "no".into(),
        kind: Kind::Choice(vec![
            ("no".into(), "no: a request without a key is not guarded, or is refused if a key is required".into()),
            ("yes".into(), "yes: refrain.toml lists the members, and which requests may collide".into()),
        ]),
    })?;
    Ok((header, answer == "yes"))
}

pub(super) fn store(
    ground: &Ground<'_>,
    interview: &mut Interview,
    tell: &dyn Tell,
) -> Result<Vec<String>, NoAnswer> {
    let Ground { given, found, .. } = ground;
    if let Some(store) = ground.existing_or_flag("store", given.store.as_ref(), tell)? {
        return Ok(store);
    }
    for (server, place) in &found.servers {
        tell.say(&format!("{} names {}.", place.display(), server.title));
    }
    let durable = schemes::stores().filter(|(_, it)| it.durability != ClaimDurability::UntilExit);
    let mut choices: Vec<(String, String)> = durable
        .map(|(it, store)| {
            (
                store.schemes[0].into(),
                format!("{}: {}", it.title, store.summary),
            )
        })
        .collect();
    let tiered = "Redis in front of PostgreSQL: replays from Redis, records in PostgreSQL";
    choices.push((TIERED.into(), tiered.into()));
    let kind = interview.ask(&Question {
        name: "store".into(),
        text: "Where are keys and outcomes kept?".into(),
        why: "One process needs only a folder; several processes need a shared database, which must be available to guard requests.",
        default: "file".into(),
        kind: Kind::Choice(choices),
    })?;
    let chosen = match &*kind {
        TIERED => vec!["redis", "postgres"],
        scheme => vec![scheme],
    };
    let addresses = chosen.into_iter().map(|scheme| address(scheme, interview));
    addresses.collect()
}

/// The choice of a front and a store behind it.
const TIERED: &str = "tiered";

/// Passwords do not belong in the policy, which many people can read.
const NO_PASSWORD: &str = "leave the password out, because many people read the file; set the complete address in REFRAIN_STORE";

fn has_password(address: &str) -> bool {
    // An address has a password if its printed form is redacted.
    Address::new(address).to_string() != address
}

fn address(scheme: &str, interview: &mut Interview) -> Result<String, NoAnswer> {
    let store = Backend::named(scheme).and_then(|it| it.store);
    let Some(store) = store.filter(|it| it.form == AddressForm::Url) else {
        return Ok(store.map_or(scheme, |it| it.example).into());
    };
    let default = store.example;
    let check = |typed: &str| {
        if !store.accepts(typed) {
            return Err(format!("expected an address such as {default}"));
        }
        match has_password(typed) {
            true => Err(NO_PASSWORD.into()),
            false => Ok(()),
        }
    };
    interview.ask(&Question {
        name: format!("{scheme} address"),
        text: format!("The address of {scheme}?"),
        why: "Without a password; set the complete address in REFRAIN_STORE for the process.",
        default: default.into(),
        kind: Kind::Text(&check),
    })
}

pub(super) fn retention(
    ground: &Ground<'_>,
    interview: &mut Interview,
    tell: &dyn Tell,
) -> Result<String, NoAnswer> {
    if let Some(said) = ground.existing_setting(Some("policy"), "retention", tell) {
        return Ok(said.join(", "));
    }
    interview.ask(&Question {
        name: "retention".into(),
        text: "How long after a request may a retry still get the first response?".into(),
        why: "Longer is safer and needs more space; it must cover the last retry of the slowest client. Monetary operations always keep 30 days.",
        default: "24h".into(),
        kind: Kind::Choice(
            [
                ("24h", "a day: the default that most clients expect"),
                ("72h", "three days: over a weekend"),
                ("7d", "a week"),
                ("30d", "a month"),
            ]
            .map(|(time, label)| (time.into(), label.into()))
            .into(),
        ),
    })
}

pub(super) fn scope(
    ground: &Ground<'_>,
    interview: &mut Interview,
    tell: &dyn Tell,
) -> Result<String, NoAnswer> {
    if let Some(said) = ground.existing_setting(Some("policy"), "scope", tell) {
        return Ok(said.join(", "));
    }
    let scope = interview.ask(&Question {
        name: "scope".into(),
        text: "In which scope is a key unique?".into(),
        why: "Two tenants may choose the same key; with the wrong scope one would get the other's response.",
        default: "credential".into(),
        kind: Kind::Choice(
            [
                ("credential", "the credential of the request (Authorization)"),
                ("header", "the tenant, named by a header that only your gateway can set"),
                ("none", "none: all callers share keys; for an internal service with one client"),
            ]
            .map(|(scope, label)| (scope.into(), label.into()))
            .into(),
        ),
    })?;
    if scope != "header" {
        return Ok(scope);
    }
    let header = interview.ask(&Question {
        name: "tenant header".into(),
        text: "Which header names the tenant?".into(),
        why: "A client that can set this header can read another tenant's responses.",
        default: "X-Tenant-Id".into(),
        kind: Kind::Text(&|typed| match http::HeaderName::try_from(typed) {
            Ok(_) => Ok(()),
            Err(_) => Err("invalid header name; use letters, digits and hyphens".into()),
        }),
    })?;
    Ok(format!("header:{header}"))
}

pub(super) fn upstream(
    ground: &Ground<'_>,
    interview: &mut Interview,
    tell: &dyn Tell,
) -> Result<String, NoAnswer> {
    if let Some(upstream) =
        ground.existing_or_flag("upstream", ground.given.upstream.as_ref(), tell)?
    {
        return Ok(upstream.concat());
    }
    interview.ask(&Question {
        name: "upstream".into(),
        text: "What is the address of the service behind the proxy?".into(),
        why: "Only scheme, host and port; clients then connect to the proxy instead.",
        default: "http://127.0.0.1:3000".into(),
        kind: Kind::Text(&|typed| match typed.parse::<http::Uri>() {
            Ok(uri) if uri.host().is_some() && uri.scheme().is_some() && uri.path() == "/" => {
                Ok(())
            }
            _ => Err("expected an address such as http://127.0.0.1:3000".into()),
        }),
    })
}

pub(super) fn wait(
    ground: &Ground<'_>,
    interview: &mut Interview,
    tell: &dyn Tell,
) -> Result<String, NoAnswer> {
    if let Some(said) = ground.existing_setting(Some("policy"), "wait", tell) {
        return Ok(said.join(", "));
    }
    interview.ask(&Question {
        name: "wait".into(),
        text: "What does a duplicate get while the first request still runs?".into(),
        why: "Waiting returns the first response, but holds a connection; refusing is fast, and leaves the retry to the client.",
        default: "10s".into(),
        kind: Kind::Choice(vec![
            ("10s".into(), "the first response, if it arrives within 10 s".into()),
            ("0s".into(), "409 at once, with Retry-After".into()),
        ]),
    })
}
