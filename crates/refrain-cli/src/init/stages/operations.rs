//! Operations and consumers of the project's descriptions: requests in the first stage, messages in the fifth.

use std::path::{Path, PathBuf};

use refrain::policy::Class;
use refrain_openapi::Document;
use refrain_plan::{Options, Plan, Planned, render::class_name};

use super::{Decision, Ground, Tell};
use crate::{
    init::{
        ask::{Interview, Kind, NoAnswer, Question},
        existing::Existing,
    },
    output::counted,
    plan::Described,
};

/// The answer for no description.
const NONE: &str = "none";
/// The most reasons given with a question.
const REASONS_MAX: usize = 3;

/// The description of requests, and the user's decisions about its operations.
pub(super) fn requests(
    ground: &Ground<'_>,
    interview: &mut Interview,
    tell: &dyn Tell,
) -> Result<(Option<Described>, Vec<Decision>), NoAnswer> {
    let file = match &ground.given.openapi {
        Some(file) => Some(file.clone()),
        None => chosen(
            ground.folder,
            &ground.found.descriptions,
            "description",
            "Which of these describes the API to guard?",
            "The policy is generated from one description; run refrain init in another folder for another service.",
            interview,
            tell,
        )?,
    };
    let described = file.map(read).transpose()?;
    let is_empty = |it: &Described| it.plan.operations.is_empty() && it.plan.consumers.is_empty();
    if let Some(empty) = described.as_ref().filter(|it| is_empty(it)) {
        tell.say(&format!(
            "{} describes no operations.",
            empty.file.display()
        ));
    }
    let Some(mut described) = described.filter(|it| !is_empty(it)) else {
        tell.say(match ground.existing.has_operations() {
            true => "Without a description the operations of refrain.toml stay unchanged.",
            false => "Without a description every POST and PATCH has the same settings.",
        });
        return Ok((None, Vec::new()));
    };
    tell.say(&format!(
        "{}: {}",
        described.file.display(),
        classes(&described.plan)
    ));
    let decisions = decided(&mut described.plan, &ground.existing, interview)?;
    Ok((Some(described), decisions))
}

/// The description of messages.
pub(super) fn messages(
    ground: &Ground<'_>,
    interview: &mut Interview,
    tell: &dyn Tell,
) -> Result<Option<Described>, NoAnswer> {
    let file = chosen(
        ground.folder,
        &ground.found.messages,
        "messages",
        "Which of these describes the messages that the project consumes?",
        "Workers are generated from one description; `refrain plan` adds those of another.",
        interview,
        tell,
    )?;
    let described = file.map(read).transpose()?;
    let described = described.filter(|it| !it.plan.consumers.is_empty());
    tell.say(&match &described {
        None => "No AsyncAPI description of received messages found; `refrain plan asyncapi.yaml` adds workers to the policy.".into(),
        Some(it) => format!(
            "{}: {} consumed; every channel gets a [[worker]]; check its `source` and `deliver`.",
            it.file.display(),
            match it.plan.consumers.len() {
                1 => "1 channel is".into(),
                count => format!("{count} channels are"),
            }
        ),
    });
    Ok(described)
}

fn read(file: PathBuf) -> Result<Described, NoAnswer> {
    let document = Document::read(&file).map_err(anyhow::Error::from)?;
    let plan = refrain_plan::plan(&document, &Options::default());
    Ok(Described {
        file,
        document,
        plan,
    })
}

/// The only file, or the one that the user chooses of several.
fn chosen(
    folder: &Path,
    files: &[PathBuf],
    name: &str,
    text: &str,
    why: &str,
    interview: &mut Interview,
    tell: &dyn Tell,
) -> Result<Option<PathBuf>, NoAnswer> {
    let label = |file: &PathBuf| {
        let file = file.strip_prefix(folder).unwrap_or(file);
        file.display().to_string()
    };
    match files {
        [] => Ok(None),
        [only] => Ok(Some(only.clone())),
        several => {
            let mut options: Vec<_> = several.iter().map(|it| (label(it), label(it))).collect();
            options.push((NONE.into(), "none of these".into()));
            let answer = interview.ask(&Question {
                name: name.into(),
                text: text.into(),
                why,
                default: options[0].0.clone(),
                kind: Kind::Choice(options),
            })?;
            if interview.takes_defaults {
                let others = several.len() - 1;
                tell.say(&format!(
                    "Using {answer}; found {}.",
                    match others {
                        1 => "1 other description".into(),
                        others => format!("{others} other descriptions"),
                    }
                ));
            }
            Ok(several.iter().find(|it| label(it) == answer).cloned())
        }
    }
}

/// Operations whose class the plan is unsure of and nobody has decided.
fn open<'p>(plan: &'p Plan, existing: &Existing) -> Vec<&'p Planned> {
    let is_open = |it: &&Planned| {
        let pattern = it.pattern.as_deref().unwrap_or_default();
        it.is_in_policy() && !it.verdict.is_sure() && !existing.has_decided(pattern)
    };
    plan.operations.iter().filter(is_open).collect()
}

pub(super) fn unsure(described: Option<&Described>, existing: &Existing) -> Vec<String> {
    let plan = described.map(|it| &it.plan);
    let open = plan.map(|plan| open(plan, existing)).unwrap_or_default();
    open.iter().map(|it| it.name()).collect()
}

/// Asks for the class of each operation that the plan is unsure of.
fn decided(
    plan: &mut Plan,
    existing: &Existing,
    interview: &mut Interview,
) -> Result<Vec<Decision>, NoAnswer> {
    let asked: Vec<_> = open(plan, existing)
        .iter()
        .map(|it| it.pattern.clone())
        .collect();
    let mut decisions = Vec::new();
    let count = asked.len();
    let open = plan
        .operations
        .iter_mut()
        .filter(|it| asked.contains(&it.pattern));
    for (at, planned) in open.enumerate() {
        let read = planned.verdict.class;
        let Some(chosen) = ask_class(planned, at + 1, count, interview)? else {
            continue;
        };
        planned.verdict.class = chosen;
        planned.verdict.confidence = 1.0;
        decisions.push(Decision {
            pattern: planned.pattern.clone().unwrap_or_default(),
            read,
            chosen,
        });
    }
    Ok(decisions)
}

/// The class that the user chooses for an operation; `None` with `--yes`, because a default is not a decision.
fn ask_class(
    planned: &Planned,
    at: usize,
    count: usize,
    interview: &mut Interview,
) -> Result<Option<Class>, NoAnswer> {
    let name = format!("class {}", planned.name());
    if interview.takes_defaults && interview.answers.get(&name).is_none() {
        return Ok(None);
    }
    let reasons = planned.verdict.evidence.iter().take(REASONS_MAX);
    let reasons: Vec<_> = reasons.map(|it| it.text.as_str()).collect();
    let options = CLASSES.iter().map(|(class, does)| {
        let class = class_name(*class);
        (class.into(), format!("{class}: {does}"))
    });
    let answer = interview.ask(&Question {
        name,
        text: format!("({at} of {count}) What does {} do?", planned.name()),
        why: &format!("Evidence: {}.", reasons.join("; ")),
        default: class_name(planned.verdict.class).into(),
        kind: Kind::Choice(options.collect()),
    })?;
    let chosen = CLASSES.iter().find(|(it, _)| class_name(*it) == answer);
    Ok(chosen.map(|(class, _)| *class))
}

const CLASSES: [(Class, &str); 7] = [
    (Class::Read, "changes nothing; not guarded"),
    (Class::Create, "creates something new each time"),
    (
        Class::Monetary,
        "moves money: requires a key, kept for 30 days, never executed again automatically",
    ),
    (Class::Transition, "moves something to its next state"),
    (Class::Replace, "replaces something with the request body"),
    (Class::Delete, "removes something"),
    (
        Class::Event,
        "reports an event from elsewhere: a duplicate gets a success response",
    ),
];

fn classes(plan: &Plan) -> String {
    let operations = &plan.operations;
    let counts = CLASSES.iter().filter_map(|(class, _)| {
        let of_class = operations.iter().filter(|it| it.verdict.class == *class);
        let count = of_class.count();
        (count > 0).then(|| format!("{count} {}", class_name(*class)))
    });
    let counts: Vec<_> = counts.collect();
    format!(
        "{}: {}",
        counted(operations.len(), "operation"),
        counts.join(", ")
    )
}
