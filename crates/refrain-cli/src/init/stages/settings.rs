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
    fn said(&self, table: Option<&str>, name: &str, tell: &dyn Tell) -> Option<Vec<String>> {
        let said = self.existing.setting(table, name)?;
        tell.say(&format!(
            "{POLICY} has {name} = {}, and keeps it.",
            said.join(", ")
        ));
        Some(said)
    }

    /// The value from the existing policy or the flag; an error if the two differ.
    fn told(
        &self,
        name: &str,
        told: Option<&String>,
        tell: &dyn Tell,
    ) -> Result<Option<Vec<String>>, NoAnswer> {
        let said = self.said(None, name, tell);
        match (said, told) {
            (Some(said), Some(told)) if said.as_slice() != std::slice::from_ref(told) => {
                let said = said.join(", ");
                let why = anyhow::anyhow!(
                    "--{name}: {POLICY} has {name} = {said}; change it there, or leave --{name} out"
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
    let said = ground.said(Some("policy"), "key", tell);
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
            text: "Which header do clients send their key in?".into(),
            why: "Clients and libraries know Idempotency-Key; another name helps only where they already send it.",
            default: KEY_HEADER.into(),
            kind: Kind::Text(&|typed| match http::HeaderName::try_from(typed) {
                Ok(_) => Ok(()),
                Err(_) => Err("a header's name has letters, digits and hyphens".into()),
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
        text: format!("{} could take a key made of what the request is about. Use it where a client sends none?", counted(proposals, "operation")),
        why: "It stops duplicates of clients that know nothing of keys, and takes two wanted requests for one if they are about the same.",
        default: "no".into(),
        kind: Kind::Choice(vec![
            ("no".into(), "no: a request without a key is not guarded, or refused where a key is required".into()),
            ("yes".into(), "yes: refrain.toml names the members, and what may collide".into()),
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
    if let Some(store) = ground.told("store", given.store.as_ref(), tell)? {
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
    let tiered = "Redis in front of PostgreSQL: replays from memory, truth in SQL";
    choices.push((TIERED.into(), tiered.into()));
    let kind = interview.ask(&Question {
        name: "store".into(),
        text: "Where are keys and outcomes kept?".into(),
        why: "One process needs nothing but a folder; several share an engine, which then has to be up for anything to be guarded.",
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
const NO_PASSWORD: &str =
    "leave the password out: the file is read by many; give the whole address in REFRAIN_STORE";

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
            return Err(format!("an address such as {default}"));
        }
        match has_password(typed) {
            true => Err(NO_PASSWORD.into()),
            false => Ok(()),
        }
    };
    interview.ask(&Question {
        name: format!("{scheme} address"),
        text: format!("The address of {scheme}?"),
        why: "Without a password; the whole address can be given to the process in REFRAIN_STORE.",
        default: default.into(),
        kind: Kind::Text(&check),
    })
}

pub(super) fn retention(
    ground: &Ground<'_>,
    interview: &mut Interview,
    tell: &dyn Tell,
) -> Result<String, NoAnswer> {
    if let Some(said) = ground.said(Some("policy"), "retention", tell) {
        return Ok(said.join(", "));
    }
    interview.ask(&Question {
        name: "retention".into(),
        text: "For how long may a retry come and still get the first answer?".into(),
        why: "Longer is safer and takes more room; it has to outlast the slowest client's last retry. Money keeps 30 days anyhow.",
        default: "24h".into(),
        kind: Kind::Choice(
            [
                ("24h", "a day: what most clients expect"),
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
    if let Some(said) = ground.said(Some("policy"), "scope", tell) {
        return Ok(said.join(", "));
    }
    let scope = interview.ask(&Question {
        name: "scope".into(),
        text: "Whose is a key?".into(),
        why: "Two tenants may choose the same key; within the wrong scope one would get the other's answer.",
        default: "credential".into(),
        kind: Kind::Choice(
            [
                ("credential", "the credential's that a request carries (Authorization)"),
                ("header", "a tenant's, named by a header that only your gateway can set"),
                ("none", "everybody's: a service behind the network's wall with one client"),
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
        why: "A client that can set it itself can read another tenant's answers.",
        default: "X-Tenant-Id".into(),
        kind: Kind::Text(&|typed| match http::HeaderName::try_from(typed) {
            Ok(_) => Ok(()),
            Err(_) => Err("a header's name has letters, digits and hyphens".into()),
        }),
    })?;
    Ok(format!("header:{header}"))
}

pub(super) fn upstream(
    ground: &Ground<'_>,
    interview: &mut Interview,
    tell: &dyn Tell,
) -> Result<String, NoAnswer> {
    if let Some(upstream) = ground.told("upstream", ground.given.upstream.as_ref(), tell)? {
        return Ok(upstream.concat());
    }
    interview.ask(&Question {
        name: "upstream".into(),
        text: "Where does the service listen that the proxy stands in front of?".into(),
        why: "Scheme, host and port alone; the proxy takes its place for the clients.",
        default: "http://127.0.0.1:3000".into(),
        kind: Kind::Text(&|typed| match typed.parse::<http::Uri>() {
            Ok(uri) if uri.host().is_some() && uri.scheme().is_some() && uri.path() == "/" => {
                Ok(())
            }
            _ => Err("an address such as http://127.0.0.1:3000".into()),
        }),
    })
}

pub(super) fn wait(
    ground: &Ground<'_>,
    interview: &mut Interview,
    tell: &dyn Tell,
) -> Result<String, NoAnswer> {
    if let Some(said) = ground.said(Some("policy"), "wait", tell) {
        return Ok(said.join(", "));
    }
    interview.ask(&Question {
        name: "wait".into(),
        text: "What does a duplicate get while the first request still runs?".into(),
        why: "Waiting gives it the first one's answer and holds a connection meanwhile; refusing is quick and leaves the retry to the client.",
        default: "10s".into(),
        kind: Kind::Choice(vec![
            ("10s".into(), "the first one's answer, if that comes within 10 s".into()),
            ("0s".into(), "409 at once, with Retry-After".into()),
        ]),
    })
}
