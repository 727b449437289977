//! The six stages: what each finds out by itself, and what it asks.

use std::path::{Path, PathBuf};

use refrain::policy::Class;
use refrain_openapi::Document;
use refrain_plan::{Options, Plan, render::class_name};
use serde::Serialize;

use super::{
    ask::{Interview, Kind, NoAnswer, Question},
    find::Found,
};

/// No description of the API.
const NONE: &str = "none";

/// What the stages came to.
#[derive(Debug, Serialize)]
pub(crate) struct Choices {
    /// The description that the policy is made from, and what was decided about it.
    #[serde(skip)]
    pub(crate) planned: Option<(PathBuf, Document, Plan)>,
    pub(crate) upstream: String,
    pub(crate) key_header: String,
    /// Whether requests without a key get one made of what they are about.
    pub(crate) natural_keys: bool,
    pub(crate) store: Vec<String>,
    pub(crate) retention: String,
    pub(crate) scope: String,
    pub(crate) wait: String,
}

/// Tells what a stage is about; the reader of `--json` is spared.
pub(crate) trait Tell {
    fn stage(&self, number: usize, title: &str);
    fn say(&self, line: &str);
}

/// Goes through the stages.
///
/// # Errors
/// When the person stops, or a description cannot be read.
pub(crate) fn walk(
    folder: &Path,
    found: &Found,
    given: &Given,
    interview: &mut Interview,
    tell: &dyn Tell,
) -> Result<Choices, NoAnswer> {
    tell.stage(1, "Side effects: which operations change something");
    let description = description(folder, found, given, interview)?;
    let planned = match description {
        None => {
            tell.say("Without a description every POST and PATCH is guarded alike.");
            None
        }
        Some(file) => {
            let (document, plan) = classified(&file, interview, tell)?;
            Some((file, document, plan))
        }
    };
    let plan = planned.as_ref().map(|(_, _, plan)| plan);
    tell.stage(2, "Keys: how a retry is told from a new request");
    let (key_header, natural_keys) = keys(plan, interview)?;
    tell.stage(
        3,
        "Storage and scope: where outcomes are kept, for how long, and for whom",
    );
    let store = store(found, given, interview, tell)?;
    let retention = retention(interview)?;
    let scope = scope(interview)?;
    tell.stage(4, "API: what a duplicate gets");
    let upstream = upstream(given, interview)?;
    let wait = wait(interview)?;
    tell.stage(5, "Consumers: messages that are delivered more than once");
    consumers(plan, tell);
    tell.stage(6, "Testing: proof from outside");
    tell.say("verify.toml tells `refrain verify` what to send; `refrain check --report` reads its result.");
    Ok(Choices {
        planned,
        upstream,
        key_header,
        natural_keys,
        store,
        retention,
        scope,
        wait,
    })
}

/// What was told on the command line.
#[derive(Debug, Default)]
pub(crate) struct Given {
    pub(crate) openapi: Option<PathBuf>,
    pub(crate) upstream: Option<String>,
    pub(crate) store: Option<String>,
}

fn description(
    folder: &Path,
    found: &Found,
    given: &Given,
    interview: &mut Interview,
) -> Result<Option<PathBuf>, NoAnswer> {
    if let Some(file) = &given.openapi {
        return Ok(Some(file.clone()));
    }
    let label = |file: &PathBuf| {
        let file = file.strip_prefix(folder).unwrap_or(file);
        file.display().to_string()
    };
    match found.descriptions.as_slice() {
        [] => Ok(None),
        [only] => Ok(Some(only.clone())),
        several => {
            let mut options: Vec<_> = several.iter().map(|it| (label(it), label(it))).collect();
            options.push((NONE.into(), "none of these".into()));
            let answer = interview.ask(&Question {
                name: "description".into(),
                text: "Which of these describes the API to be guarded?".into(),
                why: "The policy is made from one description; run init again elsewhere for another service.",
                default: options[0].0.clone(),
                kind: Kind::Choice(options),
            })?;
            Ok(several.iter().find(|it| label(it) == answer).cloned())
        }
    }
}

/// Classifies the operations, and asks about those that could be two things.
fn classified(
    file: &Path,
    interview: &mut Interview,
    tell: &dyn Tell,
) -> Result<(Document, Plan), NoAnswer> {
    let document = Document::read(file).map_err(anyhow::Error::from)?;
    let mut plan = refrain_plan::plan(&document, &Options::default());
    tell.say(&format!("{}: {}", file.display(), counted(&plan)));
    for planned in &mut plan.operations {
        if !planned.is_in_policy() || planned.verdict.is_sure() {
            continue;
        }
        let reasons: Vec<_> = planned
            .verdict
            .evidence
            .iter()
            .take(3)
            .map(|it| it.text.as_str())
            .collect();
        let guessed = planned.verdict.class;
        let answer = interview.ask(&Question {
            name: format!("class {}", planned.name()),
            text: format!("What does {} do?", planned.name()),
            why: &format!("The description says: {}.", reasons.join("; ")),
            default: class_name(guessed).into(),
            kind: Kind::Choice(
                CLASSES
                    .iter()
                    .map(|(class, does)| {
                        (
                            class_name(*class).into(),
                            format!("{}: {does}", class_name(*class)),
                        )
                    })
                    .collect(),
            ),
        })?;
        let chosen = CLASSES
            .iter()
            .find(|(class, _)| class_name(*class) == answer);
        if let Some((class, _)) = chosen {
            planned.verdict.class = *class;
            if !interview.takes_defaults {
                planned.verdict.confidence = 1.0;
            }
        }
    }
    Ok((document, plan))
}

const CLASSES: [(Class, &str); 7] = [
    (Class::Read, "changes nothing; not guarded"),
    (Class::Create, "makes something new each time"),
    (
        Class::Monetary,
        "moves money: a key is required, kept for 30 days, never run again by itself",
    ),
    (Class::Transition, "moves something to its next state"),
    (Class::Replace, "sets something to what is sent"),
    (Class::Delete, "removes something"),
    (
        Class::Event,
        "tells of what happened elsewhere: a duplicate is answered with success",
    ),
];

fn counted(plan: &Plan) -> String {
    let counts = CLASSES.iter().filter_map(|(class, _)| {
        let count = plan
            .operations
            .iter()
            .filter(|it| it.verdict.class == *class)
            .count();
        (count > 0).then(|| format!("{count} {}", class_name(*class)))
    });
    let counts: Vec<_> = counts.collect();
    match counts.is_empty() {
        true => "no operations".into(),
        false => counts.join(", "),
    }
}

fn keys(plan: Option<&Plan>, interview: &mut Interview) -> Result<(String, bool), NoAnswer> {
    let operations = plan.map_or(&[][..], |plan| &plan.operations);
    let described = operations.iter().find_map(|it| it.keys.header.clone());
    let header = match described {
        // The API has decided already.
        Some(header) => header,
        None => interview.ask(&Question {
            name: "key header".into(),
            text: "Which header do clients send their key in?".into(),
            why: "Clients and libraries know Idempotency-Key; another name helps only where they already send it.",
            default: "Idempotency-Key".into(),
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
    if proposals == 0 {
        return Ok((header, false));
    }
    let answer = interview.ask(&Question {
        name: "natural keys".into(),
        text: format!("{proposals} operations could take a key made of what the request is about. Use it where a client sends none?"),
        why: "It stops duplicates of clients that know nothing of keys, and takes two wanted requests for one if they are about the same.",
        default: "no".into(),
        kind: Kind::Choice(vec![
            ("no".into(), "no: a request without a key is not guarded, or refused where a key is required".into()),
            ("yes".into(), "yes: refrain.toml names the members, and what may collide".into()),
        ]),
    })?;
    Ok((header, answer == "yes"))
}

fn store(
    found: &Found,
    given: &Given,
    interview: &mut Interview,
    tell: &dyn Tell,
) -> Result<Vec<String>, NoAnswer> {
    if let Some(store) = &given.store {
        if has_password(store) {
            return Err(anyhow::anyhow!("--store: {NO_PASSWORD}").into());
        }
        return Ok(vec![store.clone()]);
    }
    for (engine, place) in [("PostgreSQL", &found.postgres), ("Redis", &found.redis)] {
        if let Some(place) = place {
            tell.say(&format!("{} names {engine}.", place.display()));
        }
    }
    let kind = interview.ask(&Question {
        name: "store".into(),
        text: "Where are keys and outcomes kept?".into(),
        why: "One process needs nothing but a folder; several share an engine, which then has to be up for anything to be guarded.",
        default: "file".into(),
        kind: Kind::Choice(
            [
                ("file", "in a folder: one process, durable, nothing to set up"),
                ("postgres", "PostgreSQL: many processes, durable, allows exactly-once"),
                ("redis", "Redis: many processes, quick; it must not evict, and may lose the last moments"),
                ("tiered", "Redis in front of PostgreSQL: replays from memory, truth in SQL"),
            ]
            .map(|(kind, label)| (kind.into(), label.into()))
            .into(),
        ),
    })?;
    let mut store = Vec::new();
    if kind == "file" {
        return Ok(vec!["file:refrain-data".into()]);
    }
    if kind != "postgres" {
        store.push(address("redis", "redis://127.0.0.1:6379", interview)?);
    }
    if kind != "redis" {
        store.push(address(
            "postgres",
            "postgres://refrain@127.0.0.1/refrain",
            interview,
        )?);
    }
    Ok(store)
}

/// The file is read by many.
const NO_PASSWORD: &str =
    "leave the password out: the file is read by many; give the whole address in REFRAIN_STORE";

fn has_password(address: &str) -> bool {
    let behind = address.split_once("://").map_or("", |(_, behind)| behind);
    let authority = behind.split('/').next().unwrap_or_default();
    let user = authority.rsplit_once('@').map(|(user, _)| user);
    user.is_some_and(|user| user.contains(':')) || behind.contains("password=")
}

fn address(scheme: &str, default: &str, interview: &mut Interview) -> Result<String, NoAnswer> {
    let check = |typed: &str| {
        if !typed.starts_with(&format!("{scheme}://"))
            && !typed.starts_with(&format!("{scheme}s://"))
        {
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

fn retention(interview: &mut Interview) -> Result<String, NoAnswer> {
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

fn scope(interview: &mut Interview) -> Result<String, NoAnswer> {
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

fn upstream(given: &Given, interview: &mut Interview) -> Result<String, NoAnswer> {
    if let Some(upstream) = &given.upstream {
        return Ok(upstream.clone());
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

fn wait(interview: &mut Interview) -> Result<String, NoAnswer> {
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

fn consumers(plan: Option<&Plan>, tell: &dyn Tell) {
    let consumers = plan.map_or(&[][..], |plan| &plan.consumers);
    match consumers.len() {
        0 => tell.say("No AsyncAPI description is planned here; `refrain plan asyncapi.yaml` adds workers to the policy."),
        count => tell.say(&format!("{count} channels are consumed; each gets a [[worker]], and its broker's address is for you to fill in.")),
    }
}
